"""Where each sharpness-aware point stands when it asks, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from steppe.errors import ConfigurationError
from steppe.points import SAM, SAT, MovableWeights, Point, SATMomentum

POINTS: list[Callable[[float], Point]] = [SAM, SAT, SATMomentum]


class Walker:
    """One weight vector that notes where it is asked and gives prepared answers."""

    def __init__(self, point: Point, start: Sequence[float]) -> None:
        self.weight = nn.Parameter(torch.tensor(start))
        self.asked_at: list[list[float]] = []
        self._weights, self._queries = MovableWeights([self.weight]), point.queries
        self._run = point.begin(self._weights)

    def step(self, *answers: Sequence[float]) -> Tensor:
        left, found = iter(answers), list[Tensor]()
        for _ in range(self._queries):
            with self._weights.moved(self._run.offset(found)):
                self.asked_at.append(self.weight.detach().tolist())
                answer = next(left, None)
                if answer is None:
                    raise RuntimeError("half way")
                found.append(torch.tensor(answer))
        return self._run.gradient(found)

    def place(self, *values: float) -> None:
        self.weight.data = torch.tensor(values)


def test_sam_asks_here_and_uphill_and_returns_the_second_answer() -> None:
    walker = Walker(SAM(0.5), [1.0, 1.0])
    gradient = walker.step([3.0, 4.0], [7.0, 8.0])
    assert walker.asked_at == [[1.0, 1.0], pytest.approx([1.3, 1.4])]
    assert gradient.tolist() == [7.0, 8.0]
    assert walker.weight.tolist() == [1.0, 1.0]


def test_sat_climbs_along_the_last_answer_and_not_in_the_first_step() -> None:
    walker = Walker(SAT(0.5), [1.0, 1.0])
    walker.step([3.0, 4.0])
    walker.place(2.0, 0.0)
    walker.step([0.0, -1.0])
    walker.step([1.0, 0.0])
    assert walker.asked_at == [[1.0, 1.0], pytest.approx([2.3, 0.4]), pytest.approx([2.0, -0.5])]


def test_sat_remembers_the_answer_and_not_what_became_of_it() -> None:
    walker = Walker(SAT(1.0), [0.0, 0.0])
    walker.step([0.0, 2.0]).zero_()  # as zero_grad(set_to_none=False) does
    walker.step([1.0, 0.0])
    assert walker.asked_at[1] == pytest.approx([0.0, 1.0])


def test_sat_momentum_climbs_back_to_where_it_came_from() -> None:
    walker = Walker(SATMomentum(0.5), [3.0, 4.0])
    walker.step([9.0, 9.0])
    walker.place(0.0, 0.0)
    walker.step([9.0, 9.0])
    walker.place(0.0, 2.0)
    walker.step([9.0, 9.0])
    assert walker.asked_at == [[3.0, 4.0], pytest.approx([0.3, 0.4]), pytest.approx([0.0, 1.5])]


@pytest.mark.parametrize("point", POINTS)
def test_without_a_direction_nothing_moves(point: Callable[[float], Point]) -> None:
    walker = Walker(point(0.5), [1.0, 1.0])
    for _ in range(3):
        walker.step([0.0, 0.0], [0.0, 0.0])
    assert all(place == [1.0, 1.0] for place in walker.asked_at)


@pytest.mark.parametrize("point", [SAT, SATMomentum])
def test_a_step_that_fails_leaves_the_walk_as_it_was(point: Callable[[float], Point]) -> None:
    walker = Walker(point(0.5), [2.0, 0.0])
    walker.step([1.0, 0.0])
    walker.place(0.0, 0.0)
    with pytest.raises(RuntimeError, match="half way"):
        walker.step()
    assert walker.weight.tolist() == [0.0, 0.0]
    walker.step([1.0, 0.0])
    assert walker.asked_at[1] == walker.asked_at[2] == [0.5, 0.0]


@pytest.mark.parametrize("point", POINTS)
def test_runs_do_not_share_their_memory(point: Callable[[float], Point]) -> None:
    shared = point(0.5)
    first, second = Walker(shared, [1.0, 1.0]), Walker(shared, [1.0, 1.0])
    first.step([1.0, 0.0], [1.0, 0.0])
    first.place(0.0, 0.0)
    second.step([1.0, 0.0], [1.0, 0.0])
    assert second.asked_at[0] == [1.0, 1.0]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("radius", [0.0, -0.1, 1e39, math.nan, math.inf, "0.1", True, None])
def test_a_radius_is_a_length(point: Callable[[Any], Point], radius: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"radius=.*: must .*; a common range is .*Here"):
        point(radius)


def test_radii_become_plain_floats() -> None:
    import numpy as np

    assert type(SAT(np.float32(0.5)).radius) is float  # type: ignore[arg-type]
