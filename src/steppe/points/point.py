"""Place 2: the protocol of a point, and the weights it may move.

A point decides at which weights the batch is asked. It gets `ask`, which queries the batch at the
weights as they are now and answers with the noised mean gradient, and it may call it as often as it
says in `queries`; the account is made from that number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

Ask = Callable[[], Tensor]
Walk = Callable[[Ask], Tensor]


class Weights:
    """The trained weights as one thing that can be moved and put back.

    Args:
        parameters: the trained weights, in the order of the flat gradient.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)

    @contextmanager
    def moved(self, direction: Tensor) -> Iterator[None]:
        """Stand at weights + direction inside the block; come back exactly, whatever happens.

        Args:
            direction: a flat vector as long as all weights together.
        """
        kept = [parameter.detach().clone() for parameter in self._parameters]
        start = 0
        try:
            with torch.no_grad():
                for parameter in self._parameters:
                    part = direction[start : start + parameter.numel()]
                    parameter.add_(part.view_as(parameter).to(parameter.dtype))
                    start += parameter.numel()
            yield
        finally:
            with torch.no_grad():
                for parameter, old in zip(self._parameters, kept, strict=True):
                    parameter.copy_(old)


@runtime_checkable
class Point(Protocol):
    """Where the gradient is taken.

    Guarantees:
        A run's walk calls `ask` at most `queries` times per step, and reads nothing private.
    """

    @property
    def queries(self) -> int:
        """How often one step asks the same batch."""

    def begin(self, weights: Weights) -> Walk:
        """Start a run: a function that makes one step's private gradient from `ask`."""
