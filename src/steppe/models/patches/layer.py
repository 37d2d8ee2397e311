"""Whitened patches beside a dictionary: the layer of Coates and Ng, with a threshold of two sides.

Each 5 × 5 patch of a picture is whitened and brought to norm 1; its inner products with a
dictionary of such patches pass a threshold, positive and negative parts apart, and are averaged
around a few places ("The importance of encoding versus training with sparse coding and vector
quantization", Coates and Ng, 2011). Whitening and dictionary come from procedural pictures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.models.patches.sizes import PATCH, Sizes
from steppe.procedural import pictures

_REGULAR = 1e-3  # added to the eigenvalues of the patches' covariance, for pixels in 0–1
_SOFT = 0.1  # share of the median norm that is added to each patch's norm
_THRESHOLD = 0.25
_FAINT = 0.25  # share of patches, those of lowest contrast, that the dictionary leaves out
_PER_PICTURE = 64  # patches


class PatchLayer(nn.Module):
    """Pooled responses of a dictionary of patches.

    Args:
        sizes: of the parts.
        mirror: add the maps of the mirror image.
        in_bfloat16: compute the products with the dictionary in bfloat16.
    """

    whitening: Tensor
    offset: Tensor
    softness: Tensor
    dictionary: Tensor
    pooling: Tensor

    def __init__(self, sizes: Sizes, mirror: bool, in_bfloat16: bool) -> None:
        super().__init__()
        self.sizes = sizes
        self.mirror = mirror
        self.in_bfloat16 = in_bfloat16
        pixels = sizes.pixels
        self.register_buffer("whitening", torch.zeros(pixels, pixels))
        self.register_buffer("offset", torch.zeros(pixels))
        self.register_buffer("softness", torch.zeros(()))
        self.register_buffer("dictionary", torch.zeros(sizes.dictionary, pixels))
        tents = _tents(sizes.positions, sizes.grid)
        self.register_buffer("pooling", torch.kron(tents, tents), persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Maps (records, 2 · dictionary · places), none below 0."""
        if self.sizes.read != self.sizes.side:
            pictures = F.adaptive_avg_pool2d(pictures, self.sizes.read)
        found = self._pooled(pictures)
        return found + self._pooled(pictures.flip(-1)) if self.mirror else found

    def whitened(self, patches: Tensor) -> Tensor:
        """Patches (..., pixels) without their mean and with the covariance 1, about."""
        return patches @ self.whitening.T + self.offset

    def _pooled(self, pictures: Tensor) -> Tensor:
        precision = torch.bfloat16 if self.in_bfloat16 else torch.float32
        whitened = self.whitened(F.unfold(pictures, PATCH).transpose(1, 2))
        norms = whitened.square().sum(-1, keepdim=True).sqrt() + self.softness
        patches = (whitened / norms).to(precision)
        dictionary = self.dictionary.to(precision)
        # One product with the threshold in it, then both sides: r − t and −r − t.
        over = F.linear(patches, dictionary, dictionary.new_full((len(dictionary),), -_THRESHOLD))
        pooling = self.pooling.to(precision)
        above = pooling @ over.relu()
        below = pooling @ over.add_(2 * _THRESHOLD).neg_().relu_()
        return torch.cat([above, below], dim=-1).float().flatten(1)

    @torch.no_grad()
    def fit_(self, count: int, seed: int, progress: bool) -> None:
        """Make the constants of procedural pictures.

        Args:
            count: how many.
            seed: of pictures and dictionary.
            progress: whether to show a progress bar in a terminal.
        """
        generator = torch.Generator().manual_seed(seed)
        drawn = pictures(count, self.sizes.read, self.sizes.colours, seed, progress=progress)
        patches = _some_patches(drawn, generator)
        mean = patches.double().mean(0)
        centred = patches - mean.float()
        covariance = (centred.T @ centred).double() / len(patches)
        variances, axes = torch.linalg.eigh(covariance)
        whitening = axes * (variances.clamp_min(0) + _REGULAR).rsqrt() @ axes.T
        self.whitening.copy_(whitening)
        self.offset.copy_(-(whitening @ mean))
        norms = self.whitened(patches).norm(dim=1)
        self.softness.copy_(_SOFT * norms.median())
        contrast = patches.var(1)
        (clear,) = (contrast > contrast.quantile(_FAINT)).nonzero(as_tuple=True)
        chosen = clear[torch.randperm(len(clear), generator=generator)[: self.sizes.dictionary]]
        self.dictionary.copy_(F.normalize(self.whitened(patches[chosen])))


def _some_patches(pictures: Tensor, generator: torch.Generator) -> Tensor:
    """Patches (count · 64, pixels) at random positions, in the order of `F.unfold`."""
    count, _, side, _ = pictures.shape
    windows = pictures.unfold(2, PATCH, 1).unfold(3, PATCH, 1)
    shape = (count, _PER_PICTURE)
    rows = torch.randint(side - PATCH + 1, shape, generator=generator)
    columns = torch.randint(side - PATCH + 1, shape, generator=generator)
    which = torch.arange(count)[:, None].expand(shape)
    return windows[which, :, rows, columns].flatten(2).flatten(0, 1)


def _tents(positions: int, grid: int) -> Tensor:
    """Averages with overlapping tents: (grid, positions), each row of sum 1."""
    width = positions / grid
    centres = (torch.arange(grid, dtype=torch.float64) + 0.5) * width - 0.5
    apart = (torch.arange(positions, dtype=torch.float64) - centres[:, None]).abs()
    weights = (1 - apart / width).clamp_min(0)
    return (weights / weights.sum(1, keepdim=True)).float()
