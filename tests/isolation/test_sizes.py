"""Numbers of records that code names are found, with and without a profiler."""

import cProfile
import sys

import torch
from torch import Tensor, nn

from steppe.isolation.sizes import code_seen, likely_sizes


class Large(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if len(x) > 37 else 2 * x


def doubled(x: Tensor) -> Tensor:
    return x if len(x) in (41, 43) else 2 * x


def test_constants_of_functions_that_ran_are_found() -> None:
    with code_seen() as codes:
        doubled(torch.ones(2))
    assert {41, 42, 43, 44} < set(likely_sizes(codes, nn.Identity(), [], 64))
    assert sys.getprofile() is None


def test_constants_of_methods_are_found_where_a_profiler_runs() -> None:
    model, profiler = Large(), cProfile.Profile()
    with profiler, code_seen() as codes:
        model(torch.ones(2, 3))
    assert not codes
    assert {37, 38} < set(likely_sizes(codes, model, [], 64))


def test_lengths_of_axes_come_first_and_none_is_larger_than_the_most() -> None:
    assert likely_sizes([], nn.Identity(), [9, 200], 64) == [1, 9]
