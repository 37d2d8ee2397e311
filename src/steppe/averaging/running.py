"""Averages with one accumulator, and how many of them move in one pass over the weights."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from steppe.averaging.average import Average
from steppe.averaging.layout import CurrentTensors, ModelTensors


class Accumulators:
    """The accumulators of several averages, one below the other.

    A tensor of the model is read once, and moves its part of every row in one call: that costs less
    than a pass over memory for each average.

    Args:
        layout: what is averaged.
        count: how many accumulators.
    """

    def __init__(self, layout: ModelTensors, count: int) -> None:
        self._count = count
        self._stacked = layout.zeros(count)

    def __len__(self) -> int:
        return self._count

    def row(self, index: int) -> list[Tensor]:
        """One accumulator, in the order of the layout: views."""
        return [stack[index] for stack in self._stacked]

    def move(self, current: Sequence[Tensor], weights: Sequence[float | None]) -> None:
        """row ← row + w (current − row), with a weight for each row and None for one that rests.

        A row of weight 1 is overwritten: what it held is not mixed in, whatever rounding says.
        """
        index = range(len(weights))
        for step, run in itertools.groupby(index, lambda row: _step(weights[row])):
            rows = list(run)
            stacks = self._stacked
            if len(rows) < self._count:
                stacks = [stack[rows[0] : rows[-1] + 1] for stack in stacks]
            if step == "copy":
                for stack, tensor in zip(stacks, current, strict=True):
                    stack.copy_(tensor)
            elif step == "move":
                _lerp(stacks, current, [weights[row] for row in rows])


def _step(weight: float | None) -> str:
    return "rest" if weight is None else "copy" if weight == 1 else "move"


def _lerp(
    stacks: Sequence[Tensor], current: Sequence[Tensor], weights: Sequence[float | None]
) -> None:
    fractions: dict[tuple[torch.dtype, torch.device, int], Tensor] = {}
    for stack, tensor in zip(stacks, current, strict=True):
        kind = (stack.dtype, stack.device, stack.dim())
        if kind not in fractions:
            made = torch.tensor(weights, dtype=stack.dtype, device=stack.device)
            fractions[kind] = made.view(-1, *(1 for _ in tensor.shape))
        stack.lerp_(tensor, fractions[kind])


class Running(Average):
    """An average with one accumulator: each update moves it a fraction of the way.

    average ← average + w (weights − average), where the average's class says w for each update.
    """

    def __init__(self, model: nn.Module, average_buffers: Sequence[str] = ()) -> None:
        super().__init__(model, average_buffers)
        self._rows = Accumulators(self.layout, 1)
        self._row = 0
        self._count = 0

    @property
    def covers(self) -> int:
        """How many updates the average contains."""
        return self._count

    @abstractmethod
    def _weight(self, update: int, count: int) -> float | None:
        """The fraction for this update, counted from 1, or None to pass it over.

        `count` is how many updates the average contains already; with 0 the fraction must be 1.
        """

    def _take(self, current: list[Tensor]) -> None:
        _take_together([self], current)

    def _averaged(self) -> list[Tensor]:
        self._require_started()
        return self._rows.row(self._row)

    def _tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.layout.averaged, self._rows.row(self._row), strict=True))

    def _saved(self) -> dict[str, Tensor]:
        # `torch.save` writes the whole memory behind a view: not the rows of other averages.
        shared = len(self._rows) > 1
        return {name: t.clone() if shared else t for name, t in self._tensors().items()}

    def _counters(self) -> dict[str, int]:
        return {"updates": self.updates, "count": self._count}

    def _set_counters(self, counters: Mapping[str, int]) -> None:
        self.updates, self._count = counters["updates"], counters["count"]


def share_rows(averages: Sequence[Running]) -> None:
    """Put the accumulators of averages of one model below each other, with what they hold."""
    rows = Accumulators(averages[0].layout, len(averages))
    for index, average in enumerate(averages):
        torch._foreach_copy_(rows.row(index), average._rows.row(average._row))
        average._rows, average._row = rows, index


@torch.no_grad()
def absorb_together(averages: Sequence[Running], now: CurrentTensors) -> None:
    """Let averages of one model take the same weights, in one pass where they share rows."""
    _take_together(averages, now.averaged)
    for average in averages:
        average._count_update(now)


def _take_together(averages: Sequence[Running], current: Sequence[Tensor]) -> None:
    moves: dict[Accumulators, list[float | None]] = {}
    for average in averages:
        weights = moves.setdefault(average._rows, [None] * len(average._rows))
        weights[average._row] = average._weight(average.updates + 1, average._count)
    for rows, weights in moves.items():
        rows.move(current, weights)
    for average in averages:
        average._count += moves[average._rows][average._row] is not None
