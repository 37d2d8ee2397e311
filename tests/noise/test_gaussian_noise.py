"""The Gaussian mechanism: what is released has the planned noise, with and without the grid."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from steppe.errors import ConfigurationError
from steppe.noise import Gaussian, SeededSource, Source
from steppe.noise.gaussian import grid_step

BOTH = pytest.mark.parametrize("grid", [False, True])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def release(
    noise: Gaussian,
    clipped_sum: torch.Tensor,
    std: float,
    source: Source,
    sensitivity: float = 1.0,
) -> torch.Tensor:
    buffer = torch.full_like(clipped_sum, math.nan)  # what was there before must not matter
    noise.start_(buffer, std, source).add_(clipped_sum)
    return noise.finish_(buffer, std, sensitivity, source)


@BOTH
@DTYPES
def test_law_of_what_is_released(grid: bool, dtype: torch.dtype) -> None:
    count, std = 1_500_000, 2.5
    clipped_sum = torch.linspace(-3, 3, count, dtype=dtype)
    released = release(Gaussian(grid), clipped_sum, std, SeededSource(1))
    noise = (released - clipped_sum).double() / std
    assert released.dtype == dtype
    assert abs(noise.std().item() - 1) < 0.003
    assert abs(noise.mean().item()) < 4 / math.sqrt(count)
    assert stats.kstest(noise[:300_000].numpy(), "norm").pvalue > 1e-3
    assert torch.corrcoef(torch.stack((noise, clipped_sum.double())))[0, 1].abs() < 0.004


@BOTH
def test_steps_are_independent(grid: bool) -> None:
    source = SeededSource(2)
    steps = torch.stack(
        [release(Gaussian(grid), torch.zeros(200_001), 1.0, source) for _ in range(4)]
    )
    assert (torch.corrcoef(steps) - torch.eye(4)).abs().max() < 5 / math.sqrt(200_000)


def test_accumulator_starts_as_the_noise() -> None:
    buffer = torch.empty(1000)
    assert Gaussian().start_(buffer, 1.0, SeededSource(3)) is buffer
    noise = buffer.clone()
    assert torch.equal(noise, SeededSource(3).fill_normal_(torch.empty(1000), 1.0))
    assert Gaussian().finish_(buffer, 1.0, 1.0, SeededSource(3)) is buffer
    assert torch.equal(buffer, noise)


@pytest.mark.parametrize("std", [1e-6, 1.0, 5.0, 3e7])
def test_released_values_lie_on_the_grid(std: float) -> None:
    step = grid_step(std)
    assert math.log2(step).is_integer()
    assert 2**-33 < step / std <= 2**-32
    clipped_sum = torch.randn(300_000, dtype=torch.float64) * std * math.pi
    released = release(Gaussian(grid=True), clipped_sum, std, SeededSource(4), sensitivity=std)
    steps = released / step
    assert torch.equal(steps, steps.round())
    assert steps.abs().max() < 2**53


def test_grid_adds_without_error() -> None:
    """The noise of one key is the same whatever the sum: the difference is the rounded sum."""
    clipped_sum = torch.randn(200_000, dtype=torch.float64) * 100
    with_sum = release(Gaussian(grid=True), clipped_sum, 1.0, SeededSource(5))
    without = release(Gaussian(grid=True), torch.zeros_like(clipped_sum), 1.0, SeededSource(5))
    step = grid_step(1.0)
    assert torch.equal(with_sum - without, (clipped_sum / step).round() * step)


class Recorder(SeededSource):
    """Remembers the standard deviations that were asked for."""

    def __init__(self) -> None:
        super().__init__(6)
        self.asked: list[float] = []
        self.given: list[torch.Tensor] = []

    def fill_normal_(self, tensor: torch.Tensor, std: float) -> torch.Tensor:
        self.asked.append(std)
        self.given.append(super().fill_normal_(tensor, std).clone())
        return tensor


@pytest.mark.parametrize("std", [3e-200, 0.7, 1.0, 5e200])
def test_float64_release_is_exact(std: float) -> None:
    """Both roundings and the addition, checked in rational arithmetic."""
    torch.manual_seed(1)
    clipped_sum = (
        torch.randn(400, dtype=torch.float64) * std * 10.0 ** torch.arange(-3, 5).repeat(50)
    )
    source = Recorder()
    released = release(Gaussian(grid=True), clipped_sum, std, source, sensitivity=std)
    step = Fraction(grid_step(std))
    noise = torch.cat(source.given)
    for total, error, found in zip(
        clipped_sum.tolist(), noise.tolist(), released.tolist(), strict=True
    ):
        wanted = (round(Fraction(total) / step) + round(Fraction(error) / step)) * step
        assert Fraction(found) == wanted


@pytest.mark.parametrize("sensitivity", [1e-4, 1.0, 30.0])
def test_rounding_is_covered_by_more_noise(sensitivity: float) -> None:
    multiplier, count = 0.7, 1_000_000
    std, source = multiplier * sensitivity, Recorder()
    release(Gaussian(grid=True), torch.zeros(count), std, source, sensitivity)
    # Two neighbouring sums, each coordinate rounded apart by the most that can happen.
    apart = sensitivity + grid_step(std) * math.sqrt(count)
    assert min(source.asked) / apart >= multiplier * (1 - 1e-15)
    assert max(source.asked) / std - 1 < 1e-6, "the price must stay invisible"


def test_rounded_neighbours_stay_within_the_covered_sensitivity() -> None:
    torch.manual_seed(0)
    count, std = 10_000, 1.0
    step = grid_step(std)
    base = torch.randn(count, dtype=torch.float64)
    direction = torch.full((count,), 1 / math.sqrt(count), dtype=torch.float64)
    results = [
        release(Gaussian(grid=True), total, std, SeededSource(7))
        for total in (base, base + direction)
    ]
    assert (results[1] - results[0]).norm() <= 1 + step * math.sqrt(count)


def test_sums_beyond_the_exact_range_are_cut() -> None:
    step = grid_step(1.0)
    clipped_sum = torch.tensor([1e9, -1e9, math.inf], dtype=torch.float64)
    released = release(Gaussian(grid=True), clipped_sum, 1.0, SeededSource(8))
    limit = 2.0**52 * step
    assert ((released.abs() - limit).abs() < 10).all()


@BOTH
@pytest.mark.parametrize("std", [0.0, -1.0, math.nan])
def test_bad_std_never_starts(grid: bool, std: float) -> None:
    with pytest.raises(ConfigurationError, match=r"^std=.*: must"):
        Gaussian(grid).start_(torch.empty(3), std, SeededSource(0))


@BOTH
def test_half_precision_never_starts(grid: bool) -> None:
    with pytest.raises(ConfigurationError, match="half precision has only a few thousand"):
        Gaussian(grid).start_(torch.empty(3, dtype=torch.bfloat16), 1.0, SeededSource(0))


def test_grid_wants_sensitivity_and_a_flat_buffer() -> None:
    noise, source = Gaussian(grid=True), SeededSource(0)
    with pytest.raises(ConfigurationError, match=r"sensitivity=0: must be finite and above 0"):
        noise.finish_(torch.zeros(3), 1.0, 0, source)
    with pytest.raises(ConfigurationError, match=r"buffer=\(2, 3\): must be contiguous; use a"):
        noise.finish_(torch.zeros(3, 2).T, 1.0, 1.0, source)


def test_grid_is_a_bool() -> None:
    assert Gaussian(grid=np.bool_(True)).grid is True  # type: ignore[arg-type]
    assert Gaussian(grid=np.bool_(False)) == Gaussian()  # type: ignore[arg-type]
    for value in ("no", 1, None, np.int64(1)):
        with pytest.raises(ConfigurationError) as caught:
            Gaussian(grid=value)  # type: ignore[arg-type]
        assert str(caught.value) == (f"grid={value!r}: must be True or False.")


def test_schedule_is_flat() -> None:
    assert Gaussian().relative(40) == ((40, 1.0),)
