"""Weights a little beside those that training starts from.

What starts as zero hides all that lies behind it: the second matrix of a low-rank pair, the scale
of a residual branch, a fresh head. There no made-up record moves anything, and records that meet
behind it are not seen until the first step has moved the weights. So the probe looks from a few
places around the start too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from steppe.clipping.probing.sight import Subject


@dataclass(frozen=True)
class Shift:
    """A place near the start.

    Args:
        seed: of its random numbers.
        sign: −1 for the place opposite: what is cut off at zero on one side is seen on the other.
        keep_signs: every weight keeps its sign, for models that need positive ones.
        keep_zeros: what is zero stays, for models that leave out what is.
    """

    seed: int
    sign: float = 1.0
    keep_signs: bool = False
    keep_zeros: bool = False

    def and_closer(self) -> Iterator[Shift]:
        """This place, and others to go to where a model does not run here."""
        yield self
        yield replace(self, keep_signs=True)
        yield replace(self, keep_signs=True, keep_zeros=True)


START: Shift | None = None
SHIFTS = (Shift(1), Shift(1, -1.0), Shift(2))
_SIZE = 0.2


@contextmanager
def shifted(subject: Subject, shift: Shift | None) -> Iterator[None]:
    """The trained weights at another place for the length of the block.

    Frozen ones stay, because training leaves them too, and so do rows of embeddings for padding.

    Guarantees:
        The weights' own memory is not written: it is put aside and back, whatever happens.
    """
    if shift is None:
        yield
        return
    padding = padding_by_table(subject.model)
    generator = torch.Generator().manual_seed(shift.seed)
    moved = {
        id(parameter): (parameter, _moved(parameter, shift, generator, padding.get(id(parameter))))
        for parameter in subject.parameters.values()
        if parameter.is_floating_point() and parameter.numel()
    }
    kept = [(parameter, parameter.data) for parameter, _ in moved.values()]
    try:
        for parameter, values in moved.values():
            parameter.data = values
        yield
    finally:
        for parameter, values in kept:
            parameter.data = values


def _moved(weight: Tensor, shift: Shift, generator: torch.Generator, padding: int | None) -> Tensor:
    """The weight with a random number added everywhere, in its own strides."""
    values = weight.detach().clone()
    drawn = torch.empty(weight.shape, device="cpu").uniform_(-_SIZE, _SIZE, generator=generator)
    noise = drawn.to(weight.device) * shift.sign
    size = max(_root_mean_square(values), _usual(weight))
    if shift.keep_signs:
        noise *= torch.where(values == 0, 0.0 if shift.keep_zeros else size, values.abs())
    else:
        noise *= size
    if padding is not None:
        noise[padding] = 0.0
    return values.add_(noise)


def _root_mean_square(values: Tensor) -> float:
    size = float(torch.linalg.vector_norm(values, dtype=torch.float64)) / values.numel() ** 0.5
    return min(size, torch.finfo(values.dtype).max / 2)


def _usual(weight: Tensor) -> float:
    """How large the numbers of such a weight usually are: what starts as zero grows to that."""
    return 1.0 if weight.ndim < 2 else (weight.shape[0] / weight.numel()) ** 0.5


def padding_by_table(model: nn.Module) -> dict[int, int]:
    """The row that stands for padding, by `id` of the embedding table."""
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None
    }
