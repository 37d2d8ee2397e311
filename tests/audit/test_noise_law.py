"""What the audit of the noise calls a repetition, and what it leaves out."""

from __future__ import annotations

import pytest
import torch

from steppe.audit.noise_law import _REPEATS, _repeats
from steppe.noise import SeededSource


def draws(count: int) -> torch.Tensor:
    return SeededSource(1).fill_normal_(torch.empty(count), 1.0)


@pytest.mark.parametrize("count", [1, 2, 1000, 4_000_000])
def test_good_noise_repeats_nothing(count: int) -> None:
    """Of four million float32 values more than 2 % come twice by chance."""
    assert _repeats(draws(count).double()) < _REPEATS / 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("count", [5_000, 4_000_000])
def test_half_precision_is_a_repetition(count: int, dtype: torch.dtype) -> None:
    assert _repeats(draws(count).to(dtype).double()) > _REPEATS


def test_a_stream_that_starts_again_is_a_repetition() -> None:
    values = draws(4_000_000)
    values[3_800_001:] = values[: 4_000_000 - 3_800_001].clone()
    assert _repeats(values.double()) > 2 * _REPEATS
    assert _repeats(torch.zeros(4)) > _REPEATS
