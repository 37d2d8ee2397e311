"""The patch front-end: fixed features of pictures, computed from procedural pictures alone."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe import procedural
from steppe.errors import MisuseError
from steppe.models.front_end import FrontEnd
from steppe.models.patches.blocks import in_blocks
from steppe.models.patches.input_checks import require_memory, require_pictures, require_shape
from steppe.models.patches.layer import PatchLayer
from steppe.models.patches.precision import bfloat16_is_fast
from steppe.models.patches.sizes import sizes_for
from steppe.models.patches.stored_features import features_key, stored_features
from steppe.models.patches.whitening import FeatureWhitening
from steppe.models.scattering import Scattering
from steppe.utils import validation

_PICTURES = 14_000
_LAYER = 3 / 7  # share of the procedural pictures that the layer is made of; features: the others
_SCATTERING = 0.25  # share of the squared norm


class Patches(FrontEnd):
    """Pooled responses of whitened patches, whitened as features once more.

    1. Patches of 5 × 5 pixels are whitened, brought to norm 1 and compared with a dictionary of
       procedural patches; responses beyond ±0.25 are averaged around 3 × 3 places (4 × 4 for one
       colour).
    2. Maps of the mirror image are added; square root; mean 0 and variance 1 within the record.
    3. The mean of procedural features is taken off, and features are shrunk along the strongest
       principal directions of procedural features; norm 1, rounded to half precision.

    `fit` makes all constants of procedural pictures, or a state dict brings them: they are in it.

    Args:
        side: height and width of a picture, 16 to 96. From 64 on, pictures are averaged to 32 to
            47 pixels first.
        colours: number of colours, 1 to 4.
        mirror: add the maps of the mirror image. None for "where there is colour": the mirror image
            of a photograph is another photograph, that of a digit or a letter is none.
        scattering: add scattering features at a quarter of the squared norm, whitened together.
            Three times the time, and a side that is a multiple of 4 once averaged.
        dictionary: patches of the dictionary; None for 512 (256 for one colour).
        seed: of the procedural pictures and the dictionary.

    Guarantees:
        A record's features depend on that record and on public constants alone: training on them
        has the sensitivity of training on the pictures, and computing them once before training
        costs no privacy.

    Examples:
        >>> front = Patches(side=16, colours=1, dictionary=8).fit(pictures=300)
        >>> front(torch.rand(2, 1, 16, 16)).norm(dim=1).round(decimals=2)
        tensor([1., 1.])
    """

    def __init__(
        self,
        side: int = 32,
        colours: int = 3,
        *,
        mirror: bool | None = None,
        scattering: bool = False,
        dictionary: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        mirrored = colours > 1 if mirror is None else mirror
        plain = sizes_for(side, colours, dictionary, 0)
        self.scattering = Scattering(plain.read, colours, mirror=mirrored) if scattering else None
        beside = self.scattering.features if self.scattering else 0
        self.sizes = sizes_for(side, colours, dictionary, beside)
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise validation.fail("seed", seed, "must be a whole number of at least 0")
        self.seed = seed
        self.layer = PatchLayer(self.sizes, mirrored, bfloat16_is_fast())
        self._features = self.sizes.patch_features + beside
        self.whitening = FeatureWhitening(
            self._features, self.sizes.directions, self.sizes.reference
        )
        self._fitted = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one picture: (colours, side, side)."""
        return self.sizes.colours, self.sizes.side, self.sizes.side

    @property
    def features(self) -> int:
        """The number of features of one picture."""
        return self._features

    @property
    def precision(self) -> torch.dtype:
        """float16, because features are rounded to half precision."""
        return torch.float16

    @property
    def mirror(self) -> bool:
        """Whether features of the mirror image are added."""
        return self.layer.mirror

    @property
    def fitted(self) -> bool:
        """Whether the constants are computed."""
        return self._fitted

    def fit(self, *, progress: bool = False, pictures: int = _PICTURES) -> Self:
        """Compute the constants from procedural pictures; no data set is read.

        Args:
            progress: whether to show progress bars in a terminal.
            pictures: how many are drawn.

        Returns:
            Itself.
        """
        for_layer = round(validation.positive_integer("pictures", pictures) * _LAYER)
        rest = pictures - for_layer
        if rest <= self.sizes.directions:
            raise validation.fail(
                "pictures", pictures, f"are too few for {self.sizes.directions} directions"
            )
        require_memory(rest, self.features, torch.float32, self.sizes)
        self.layer.fit_(for_layer, 2 * self.seed, progress)
        others = procedural.pictures(
            rest, self.sizes.read, self.sizes.colours, 2 * self.seed + 1, progress=progress
        )
        raw = torch.empty(rest, self.features)
        in_blocks(self._raw, others, raw, "procedural features", progress)
        self.whitening.fit_(raw, self.seed)
        self._fitted = True
        return self

    def forward(self, pictures: Tensor) -> Tensor:
        """Features (records, features) of pictures (records, colours, side, side) in [0, 1]."""
        self._require_fitted()
        require_shape(pictures, self.sizes)
        found = F.normalize(self.whitening(self._raw(pictures)))
        # Rounded here, so that features that were stored in half precision are the same.
        return found.half().float()

    @torch.no_grad()
    def transform(
        self,
        pictures: Tensor,
        *,
        dtype: torch.dtype = torch.float32,
        cache: Path | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Features of many pictures, each computed in a block of the same size.

        Args:
            pictures: (records, colours, side, side), floats in [0, 1].
            dtype: float32, or float16, which holds the same numbers in half the memory.
            cache: a folder where features are kept, by what they are computed from; None to keep
                none. What is kept says as much about the records as their pictures.
            progress: whether to show a progress bar in a terminal.

        Returns:
            (records, features).

        Guarantees:
            A record has the same features, to the last bit, whatever records are with it.
        """
        self._require_fitted()
        validation.one_of("dtype", str(dtype), ("torch.float32", "torch.float16"))
        require_pictures(pictures, self.sizes)
        require_memory(len(pictures), self.features, dtype, self.sizes)

        def compute() -> Tensor:
            found = torch.empty(len(pictures), self.features, dtype=torch.float16)
            return in_blocks(self, pictures, found, "features", progress)

        if cache is None:
            found = compute()
        else:
            key = features_key(pictures, self.digest(), self.layer.in_bfloat16)
            found = stored_features(cache, key, (len(pictures), self.features), compute)
        return found.to(dtype)

    def digest(self) -> str:
        """SHA-256 of all constants."""
        self._require_fitted()
        found = hashlib.sha256(f"{self.sizes} {self.mirror} {self.scattering is not None}".encode())
        for name, constant in self.state_dict().items():
            found.update(name.encode())
            found.update(constant.contiguous().numpy().tobytes())
        return found.hexdigest()

    def _raw(self, pictures: Tensor) -> Tensor:
        """Features of norm 1, before whitening."""
        rooted = self.layer(pictures).sqrt()
        found = F.normalize(F.layer_norm(rooted, rooted.shape[1:]))
        if self.scattering is None:
            return found
        if self.sizes.read != self.sizes.side:
            pictures = F.adaptive_avg_pool2d(pictures, self.sizes.read)
        beside = self.scattering(pictures)
        share = _SCATTERING
        return torch.cat([(1 - share) ** 0.5 * found, share**0.5 * beside], dim=1)

    def _load_from_state_dict(self, *given: Any) -> None:
        """Check the constants first, because torch loads children later."""
        super()._load_from_state_dict(*given)
        state, prefix = given[:2]
        dictionary = state.get(f"{prefix}layer.dictionary")
        self._fitted = self._fitted if dictionary is None else bool(dictionary.any())

    def _require_fitted(self) -> None:
        if not self._fitted:
            raise MisuseError.about(
                "Patches", "not fitted", "has no constants yet", "call `fit()` or load a state dict"
            )
