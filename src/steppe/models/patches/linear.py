"""The patch front-end with a linear head."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from steppe.models.patches.front import Patches
from steppe.utils import validation


class PatchesLinear(nn.Module):
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
        super().__init__()
        validation.positive_integer("classes", classes)
        self.front = Patches(
            side, colours, mirror=mirror, scattering=scattering, dictionary=dictionary, seed=seed
        )
        # No bias, for the reason of `ScatteringLinear`.
        self.head = nn.Linear(self.front.features, classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.front(pictures))

    def features(
        self,
        pictures: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        cache: Path | None = None,
        progress: bool = False,
    ) -> Tensor:
        """What the head sees, computed once for each record: see `Patches.transform`.

        Args:
            pictures: (records, colours, side, side), floats in [0, 1].
            dtype: float32 or float16.
            cache: a folder where features are kept, or None.
            progress: show a bar where a person is watching.
        """
        return self.front.transform(pictures, dtype=dtype, cache=cache, progress=progress)


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
