"""The patch front-end with a linear head."""

from __future__ import annotations

from torch import nn

from steppe.models.front_end import FixedFrontEnd
from steppe.models.patches.front import Patches
from steppe.utils import validation


class PatchesLinear(FixedFrontEnd):
    """Patch features and a linear head without a bias, which starts at 0.

    Args:
        side: height and width of a picture.
        classes: number of labels.
        colours: number of colours.
        mirror: add the maps of the mirror image, see `Patches`.
        scattering: scattering features beside those of patches, see `Patches`.
        dictionary: patches of the dictionary, see `Patches`.
        seed: of the constants.

    Guarantees:
        Only `head` learns. `features` may be computed once for all records, see `Patches`.

    Examples:
        >>> import torch
        >>> model = PatchesLinear(side=16, classes=3, colours=1, dictionary=8)
        >>> _ = model.front.fit(pictures=300)
        >>> pictures = torch.rand(5, 1, 16, 16)
        >>> torch.allclose(model(pictures), model.head(model.features(pictures)))
        True
    """

    def __init__(
        self,
        side: int = 32,
        classes: int = 10,
        colours: int = 3,
        mirror: bool | None = None,
        scattering: bool = False,
        dictionary: int | None = None,
        seed: int = 0,
    ) -> None:
        validation.positive_integer("classes", classes)
        front = Patches(
            side, colours, mirror=mirror, scattering=scattering, dictionary=dictionary, seed=seed
        )
        # No bias, for the reason of `ScatteringLinear`.
        head = nn.Linear(front.features, classes, bias=False)
        nn.init.zeros_(head.weight)
        super().__init__(front, head)


def patches_linear(
    side: int = 32,
    classes: int = 10,
    colours: int = 3,
    mirror: bool | None = None,
    scattering: bool = False,
    dictionary: int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Patches with a linear head; `front.fit()` or a state dict brings the constants."""
    return PatchesLinear(side, classes, colours, mirror, scattering, dictionary, seed)
