"""The value of record: ε and δ by privacy loss distributions (PLD).

dp-accounting discretises the privacy loss on a grid and rounds it up, so every number here is an
upper bound whatever the grid; the grid only decides how far above the truth it lies. We choose it
from the run itself: a fixed grid is needlessly fine for a few loud steps and overstates ε
twofold for very many quiet ones. What can fall below the truth is the Fourier transform that adds
up the steps; a bound on its rounding is taken off δ first. Full batches need neither grid nor
transform.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from steppe.accounting import full_batch
from steppe.accounting.grid import grid_width
from steppe.accounting.segment import (
    Segment,
    Segments,
    check_cap,
    gathered,
    merged,
    relation,
    with_few_levels,
    with_few_rates,
    within_range,
)
from steppe.utils import validation

# Grid points of all single-step distributions together: about half a second of work.
GRID_POINTS = 2**16
# Above it the loss of a single step spans tens of thousands: nothing is protected any more.
_COARSEST_GRID = 0.5
# dp-accounting finds the range of a composition by a Chernoff bound whose orders suit this many
# times one step; for more, range and memory grow with the number of steps and not with its root.
_AT_ONCE = 2**16
# Each distinct noise multiplier costs some 50 ms. A schedule with more of them is rounded down to
# this many, which overstates ε by less than a hundredth if σ varies no more than twofold.
_MOST_LEVELS = 64
# Likewise for distinct rates, of which a schedule of the noise leaves room for fewer. Rates that
# fall to zero in even steps overstate ε by some 1 % at 64 and 7 % at 8.
_FEWEST_RATES = 8
# No run has tails below this that could be told from rounding.
SMALLEST_DELTA = 1e-12
# A transform is right to some 1e-16, and its n-th power, which is n steps, to n times that. The
# largest error seen is 5e-17 n in probability; each further distinct mechanism is one transform.
_ROUNDING_PER_STEP, _TRANSFORM = 2.0**-52, 32
# Beyond this many steps the rounding inside a single one adds up to more than the answer.
_MOST_STEPS = 10**8


def epsilon(segments: Iterable[Segment], delta: float, adjacency: str = "add-remove") -> float:
    """The ε a run costs at the given δ.

    Args:
        segments: the run.
        delta: the δ of (ε, δ)-differential privacy.
        adjacency: `add-remove`, `zero-out` or `replace-one`.

    Returns:
        ε ≥ 0; 0 for a run without steps; infinity without noise, and where ε is beyond about 700
        and records are sampled.

    Guarantees:
        An upper bound: the run is (ε, δ)-differentially private under the relation.

    Examples:
        >>> round(epsilon([Segment(0.01, 1.1, 2000)], delta=1e-5), 2)
        2.16
    """
    return epsilon_curve(segments, (delta,), adjacency)[0]


def epsilon_curve(
    segments: Iterable[Segment], deltas: Sequence[float], adjacency: str = "add-remove"
) -> tuple[float, ...]:
    """ε at each of several δ, from one composition.

    Args:
        segments: the run.
        deltas: one or more δ.
        adjacency: as for `epsilon`.

    Returns:
        One ε for each δ.

    Guarantees:
        Each is an upper bound, and all hold at once.

    Examples:
        >>> [round(e, 2) for e in epsilon_curve([Segment(0.01, 1.1, 2000)], (1e-5, 1e-6))]
        [2.16, 2.47]
    """
    run = checked(segments, adjacency)
    for value in deltas:
        check_delta(value, run)
    return tuple(epsilon_on_grid(run, value, adjacency, GRID_POINTS) for value in deltas)


def delta(segments: Iterable[Segment], epsilon: float, adjacency: str = "add-remove") -> float:
    """The δ a run costs at the given ε.

    Args:
        segments: the run.
        epsilon: the ε of (ε, δ)-differential privacy, 0 or more.
        adjacency: as for `epsilon`.

    Returns:
        δ between 0 and 1.

    Guarantees:
        An upper bound.

    Examples:
        >>> delta([Segment(0.01, 1.1, 2000)], epsilon=3.0) < 1e-6
        True
    """
    validation.non_negative("epsilon", epsilon)
    run = checked(segments, adjacency)
    if not run:
        return 0.0
    if full_batch.is_full_batch(run):
        return full_batch.delta(run, epsilon, adjacency)
    composed = _composed(run, adjacency, GRID_POINTS)
    if composed is None:
        return 1.0
    value = float(composed.get_delta_for_epsilon(epsilon)) + _rounding(run)
    return min(1.0, max(0.0, value))


def smallest_delta(run: Segments) -> float:
    """The smallest δ at which the ε of a run can be computed.

    Examples:
        >>> smallest_delta((Segment(0.01, 1.0, 1000),)), smallest_delta((Segment(1.0, 9.0, 10**9),))
        (1e-12, 1e-12)
        >>> smallest_delta((Segment(0.01, 1.0, 10**6),))
        4.5e-10
    """
    if full_batch.is_full_batch(run):
        return SMALLEST_DELTA
    # Twice the rounding, so that it costs at most half of δ; upwards, to two digits for printing.
    exact = 2 * _rounding(run)
    unit = 10.0 ** (math.floor(math.log10(exact)) - 1)
    return max(SMALLEST_DELTA, float(f"{math.ceil(exact / unit) * unit:.2g}"))


def check_delta(value: float, run: Segments = ()) -> None:
    """Refuse a δ outside (0, 1), or too small to be told from the rounding of this run."""
    validation.open_unit("delta", value, "use less than 1 over the population, such as 1e-5")
    limit = smallest_delta(run)
    if value < limit:
        long = limit > SMALLEST_DELTA
        of_run = f" of {sum(part.steps for part in run)} steps" if long else ""
        raise validation.fail(
            "delta",
            value,
            f"is below {limit:g}, where rounding hides the tail of the privacy loss{of_run}",
            f"use {limit:g} or more" + (", or fewer steps" if long else ""),
        )


def check_steps(run: Segments) -> None:
    """Refuse a run too long for its grid."""
    steps = sum(part.steps for part in run)
    if steps > _MOST_STEPS and not full_batch.is_full_batch(run):
        raise validation.fail(
            "steps",
            steps,
            f"must be at most {_MOST_STEPS:,} with subsampling, more cannot be accounted for",
            "take fewer and larger steps",
        )


def checked(segments: Iterable[Segment], adjacency: str) -> Segments:
    """The run as this accountant takes it, or why it cannot: merged, in range, few mechanisms."""
    relation(adjacency)
    run = merged(segments)
    check_cap(run, adjacency)
    check_steps(run)
    run = within_range(run)
    if full_batch.is_full_batch(run):
        return run
    run = gathered(run)
    run = with_few_levels(run, _MOST_LEVELS, min)
    levels = len({part.noise_multiplier for part in run})
    return with_few_rates(run, max(_FEWEST_RATES, _MOST_LEVELS // levels), max)


@lru_cache(maxsize=1024)
def epsilon_on_grid(run: Segments, delta: float, adjacency: str, points: int) -> float:
    """ε of a merged run with about that many grid points; fewer are faster and looser."""
    import numpy as np

    if not run:
        return 0.0
    if full_batch.is_full_batch(run):
        return full_batch.epsilon(run, delta, adjacency)
    composed = _composed(run, adjacency, points)
    if composed is None:
        return math.inf
    # Past ε = 700 a density ratio overflows to infinity, which is what we then report.
    with np.errstate(over="ignore"):
        return max(0.0, float(composed.get_epsilon_for_delta(delta - _rounding(run))))


def _rounding(run: Segments) -> float:
    """More than the probability that the transforms may lose."""
    return _ROUNDING_PER_STEP * (sum(part.steps for part in run) + _TRANSFORM * len(run))


@lru_cache(maxsize=4)
def _composed(run: Segments, adjacency: str, points: int) -> Any:
    """The privacy loss distribution of the whole run; None if nothing is protected."""
    if any(segment.noise_multiplier == 0 for segment in run):
        return None
    width = grid_width(run, adjacency, points)
    if width > _COARSEST_GRID:
        return None
    total = None
    for part in run:
        step = _single_step(
            part.rate, part.noise_multiplier, part.cap, part.population, width, adjacency
        )
        repeated = _repeated(step, part.steps)
        total = repeated if total is None else total.compose(repeated)
    return total


def _repeated(step: Any, count: int) -> Any:
    """A step's distribution composed with itself."""
    if count <= _AT_ONCE:
        return step.self_compose(count)
    inner = math.isqrt(count)
    outer, rest = divmod(count, inner)
    whole = step.self_compose(inner).self_compose(outer)
    return whole.compose(step.self_compose(rest)) if rest else whole


@lru_cache(maxsize=64)
def _single_step(
    rate: float,
    noise_multiplier: float,
    cap: int | None,
    population: int | None,
    width: float,
    adjacency: str,
) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld

    if cap is None:
        return pld.from_gaussian_mechanism(
            standard_deviation=noise_multiplier,
            sampling_prob=rate,
            value_discretization_interval=width,
            neighboring_relation=relation(adjacency),
        )
    return pld.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=population,
        sampling_probability=rate,
        truncated_batch_size=cap,
        noise_multiplier=noise_multiplier,
        value_discretization_interval=width,
        neighboring_relation=relation(adjacency),
    )
