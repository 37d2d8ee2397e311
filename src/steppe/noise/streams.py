"""Correlated noise, one step after the other, in memory that does not grow with the run.

A stream turns fresh independent noise into that of its next step. What it keeps between steps are
vectors of noise that later steps contain again: whoever knows them can subtract it. They are
SECRET, unlike all other state of a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from steppe.errors import MisuseError
from steppe.noise.workload import Vector
from steppe.utils.validation import fail

# Overwrites a vector with fresh independent noise of the run's size.
Fill: TypeAlias = Callable[[Tensor], Tensor]
# The weights of a step's own noise and of that of 1, 2, … steps before.
Weights: TypeAlias = Callable[[int], Vector]


class Stream(ABC):
    """The noise of one run; the vectors are made with the first step.

    Attributes:
        step: how many steps it has made.
        broken: whether a step was interrupted, after which no noise would be the accounted one.
    """

    step = 0
    broken = False

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def next_(self, out: Tensor, fill: Fill) -> Tensor:
        """Overwrite a vector with the noise of the next step.

        Args:
            out: flat; its content is lost.
            fill: makes fresh noise.
        """
        self._require_whole()
        self.broken = True  # until the end of this step
        if not self.kept:
            self.kept = self.empty(out)
        self.step += 1
        self.advance_(out, fill)
        self.broken = False
        return out

    @abstractmethod
    def empty(self, like: Tensor) -> dict[str, Tensor]:
        """The vectors before the first step, for noise of this length, type and device."""

    @abstractmethod
    def advance_(self, out: Tensor, fill: Fill) -> Tensor:
        """Overwrite a vector with the noise of step `self.step`, counted from 1."""

    def state(self) -> dict[str, Tensor]:
        """Copies of the vectors kept. SECRET: they are noise that later steps contain."""
        self._require_whole()
        return {name: tensor.clone() for name, tensor in self.kept.items()}

    def load(self, step: int, state: Mapping[str, Tensor], like: Tensor) -> None:
        """Continue after a step from the vectors kept then.

        Args:
            step: how many steps were made.
            state: what `state` returned.
            like: a vector of the run's noise, for length, type and device.
        """
        expected = self.empty(like) if step else {}
        if set(state) != set(expected):
            raise fail("state['noise']", sorted(state), f"must hold {sorted(expected)}")
        for name, tensor in expected.items():
            found = state[name]
            if not isinstance(found, Tensor) or found.shape != tensor.shape:
                shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
                rule = f"must have the shape {tuple(tensor.shape)}"
                raise fail(f"state['noise'][{name!r}]", shown, rule, "load it with the same model")
            if not bool(torch.isfinite(found).all()):
                raise fail(f"state['noise'][{name!r}]", "inf or NaN", "must be finite")
            tensor.copy_(found)
        self.step, self.kept = step, expected

    def _require_whole(self) -> None:
        if self.broken:
            raise MisuseError(
                f"noise=interrupted in step {self.step}: must be whole, because later noise takes "
                "it back; begin another run."
            )


class RingStream(Stream):
    """Noise that weights its own fresh noise and a number of earlier vectors.

    Args:
        depth: how many earlier vectors are kept.
        weights: for a step counted from 0 the weights of fresh noise and of earlier vectors, newest
            first, no more than there are.
        of_output: True: earlier vectors are what the stream gave out, for a banded C. False: they
            are the fresh noise of earlier steps, for a banded C⁻¹ and for dense matrices.
    """

    def __init__(self, depth: int, weights: Weights, of_output: bool) -> None:
        super().__init__()
        self._depth, self._weights, self._of_output = depth, weights, of_output

    def empty(self, like: Tensor) -> dict[str, Tensor]:
        """A row for each earlier vector."""
        return {"history": like.new_zeros((self._depth, like.numel()))}

    def advance_(self, out: Tensor, fill: Fill) -> Tensor:
        """Weight and sum."""
        step, history = self.step - 1, self.kept["history"]
        fill(out)
        own, *earlier = self._weights(step).tolist()
        fresh = out.clone() if self._depth and not self._of_output else None
        if earlier:
            of_row = np.zeros(self._depth)
            rows = (step - 1 - np.arange(len(earlier))) % self._depth
            of_row[rows] = earlier
            weights = torch.as_tensor(of_row, dtype=out.dtype, device=out.device)
            out.addmv_(history.T, weights, beta=own)
        elif own != 1.0:
            out.mul_(own)
        if self._depth:
            history[step % self._depth] = out if fresh is None else fresh
        return out


class BufferStream(Stream):
    """Noise minus a weighted sum of buffers, each of which decays at a rate of its own (BLT).

    Args:
        decays: θ, how much of a buffer is left after a step.
        weights: ω, how much of a buffer is subtracted.
    """

    def __init__(self, decays: Vector, weights: Vector) -> None:
        super().__init__()
        self._decays, self._weights = decays, weights

    def empty(self, like: Tensor) -> dict[str, Tensor]:
        """One row for each buffer."""
        return {"buffers": like.new_zeros((len(self._decays), like.numel()))}

    def advance_(self, out: Tensor, fill: Fill) -> Tensor:
        """x = z − Σ ωᵢ bᵢ, then bᵢ ← θᵢ bᵢ + x."""
        buffers = self.kept["buffers"]
        weights, decays = (
            torch.as_tensor(numbers, dtype=out.dtype, device=out.device)
            for numbers in (self._weights, self._decays)
        )
        fill(out).addmv_(buffers.T, weights, alpha=-1.0)
        buffers.mul_(decays[:, None]).add_(out)
        return out


class TreeStream(Stream):
    """What the nodes of a binary tree over the steps add to the prefix sum of the step before.

    Args:
        steps: of the run.
        honaker: whether a node's sum is estimated from its children too.
    """

    def __init__(self, steps: int, honaker: bool) -> None:
        super().__init__()
        self._levels, self._honaker = max(1, steps.bit_length()), honaker

    def empty(self, like: Tensor) -> dict[str, Tensor]:
        """The newest complete node of each height that prefix sums use."""
        return {"nodes": like.new_zeros((self._levels, like.numel()))}

    def advance_(self, out: Tensor, fill: Fill) -> Tensor:
        """The new node takes the place of those below it in the binary digits of the step."""
        nodes = self.kept["nodes"]
        height = (self.step & -self.step).bit_length() - 1
        below = nodes[:height]
        if self._honaker:
            node, fresh = fill(out), torch.empty_like(out) if height else out
            for level in range(height):
                own = node_weight(level + 1)
                node.add_(nodes[level]).mul_(1 - own).add_(fill(fresh), alpha=own)
        else:
            node = fill(out)
        nodes[height] = node
        return out.sub_(below.sum(0)) if height else out


def node_weight(height: int) -> float:
    """What a node's own noise counts for, beside the estimate from its children.

    Their variances are 1 and 2 v, with v that of a child, which gives 1 / (2 − 2^−height).

    Examples:
        >>> node_weight(0), node_weight(1)
        (1.0, 0.6666666666666666)
    """
    return 1.0 / (2.0 - 2.0**-height)
