"""A run as the accountant sees it: queries of the data.

A run is a tuple of segments; inside one segment every step is the same mechanism.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from steppe.utils import validation

# The three ways two data sets can be neighbours, with what dp-accounting calls them.
_RELATIONS = {
    "add-remove": "ADD_OR_REMOVE_ONE",
    "zero-out": "REPLACE_SPECIAL",
    "replace-one": "REPLACE_ONE",
}
ADJACENCIES = tuple(_RELATIONS)
# Outside this range floating point ends before the mathematics does.
SMALLEST_NOISE, LARGEST_NOISE = 1e-6, 1e6


@dataclass(frozen=True)
class Segment:
    """Some steps of one and the same sub-sampled Gaussian mechanism.

    Args:
        rate: probability that a record takes part in a step; at 0 a step reveals nothing about it.
        noise_multiplier: standard deviation of the noise on the sum over what one record can
            change it by when it comes or goes (for `replace-one` too: the accountant doubles).
        steps: how many such steps.
        cap: the largest number of records that take part; None if there is no cap.
        population: number of records, which a cap makes part of the mechanism.

    Examples:
        >>> Segment(rate=0.01, noise_multiplier=1.1, steps=2000).steps
        2000
    """

    rate: float
    noise_multiplier: float
    steps: int
    cap: int | None = None
    population: int | None = None

    def __post_init__(self) -> None:
        if self._keep("rate", validation.non_negative, "use batch size over population") > 1:
            raise validation.fail("rate", self.rate, "must be at most 1", "use a smaller batch")
        self._keep("noise_multiplier", validation.non_negative, "")
        if self.steps != 0:
            self._keep("steps", validation.positive_integer, "give a whole number, 0 or more")
        if self.cap is not None:
            self._keep("cap", validation.positive_integer, "give a whole number, or None")
            self._keep("population", validation.positive_integer, "a cap needs the population")

    def _keep(self, name: str, check: Callable[[str, Any, str], float], remedy: str) -> float:
        """Store the plain number that a field stands for."""
        value = check(name, getattr(self, name), remedy)
        object.__setattr__(self, name, value)
        return value


Segments: TypeAlias = tuple[Segment, ...]


def merged(segments: Iterable[Segment]) -> Segments:
    """Equal mechanisms put together, in a fixed order, without those that reveal nothing.

    Composition does not depend on order, so equal segments may be counted as one wherever they
    stand; the accountant then works once per distinct mechanism, and runs that differ in order
    alone are one and the same to it.

    Examples:
        >>> merged([Segment(0.1, 1.0, 3), Segment(0.1, 2.0, 1), Segment(0.1, 1.0, 2)])[0].steps
        5
    """
    counts: dict[Segment, int] = {}
    for segment in segments:
        if segment.steps and segment.rate:
            mechanism = replace(segment, steps=1)
            counts[mechanism] = counts.get(mechanism, 0) + segment.steps
    found = (replace(mechanism, steps=count) for mechanism, count in counts.items())
    return tuple(sorted(found, key=lambda part: (part.rate, part.noise_multiplier, part.cap or 0)))


def gathered(run: Segments) -> Segments:
    """The run with Gaussian answers about all records put together into the one that they are.

    Answers at σᵢ reveal as much as one at σ with 1/σ² = Σ 1/σᵢ², which is rounded down by a hair.

    Examples:
        >>> [part.steps for part in gathered((Segment(1.0, 3.0, 4), Segment(1.0, 2.0, 1)))]
        [1]
    """
    whole = [part for part in run if part.rate == 1.0 and part.cap is None]
    if len(whole) < 2 or not all(part.noise_multiplier for part in whole):
        return run
    information = sum(part.steps / part.noise_multiplier**2 for part in whole)
    one = Segment(1.0, (1 - 1e-12) / math.sqrt(information), 1)
    return merged((one, *(part for part in run if part not in whole)))


def with_few_levels(
    run: Segments, count: int, level: Callable[[Sequence[float]], float]
) -> Segments:
    """The run with at most `count` distinct noise multipliers.

    Neighbouring values are gathered into groups, each replaced by what `level` makes of it. Less
    noise costs more, so with `min` the ε of the result bounds that of the run from above.

    Examples:
        >>> run = tuple(Segment(0.1, sigma, 1) for sigma in (4.0, 3.0, 2.0, 1.0))
        >>> [(part.noise_multiplier, part.steps) for part in with_few_levels(run, 2, min)]
        [(1.0, 2), (3.0, 2)]
    """
    shared = _shared({part.noise_multiplier for part in run}, count, level)
    return merged(replace(part, noise_multiplier=shared[part.noise_multiplier]) for part in run)


def with_few_rates(
    run: Segments, count: int, level: Callable[[Sequence[float]], float]
) -> Segments:
    """The run with at most `count` distinct rates.

    As `with_few_levels`. Taking part more often costs more, so with `max` the ε of the result
    bounds that of the run from above.

    Examples:
        >>> run = tuple(Segment(rate, 1.0, 1) for rate in (0.1, 0.2, 0.3, 0.4))
        >>> [(part.rate, part.steps) for part in with_few_rates(run, 2, max)]
        [(0.2, 2), (0.4, 2)]
    """
    shared = _shared({part.rate for part in run}, count, level)
    return merged(replace(part, rate=shared[part.rate]) for part in run)


def _shared(
    values: set[float], count: int, level: Callable[[Sequence[float]], float]
) -> dict[float, float]:
    """What each value is replaced by, so that at most `count` are left."""
    ordered = sorted(values)
    size = math.ceil(len(ordered) / count) or 1
    groups = [ordered[start : start + size] for start in range(0, len(ordered), size)]
    return {member: member if size == 1 else level(group) for group in groups for member in group}


def within_range(run: Segments) -> Segments:
    """The run with noise multipliers that the accountants can compute with.

    Noise below the range counts as none and noise above it as its upper end. Less noise costs
    more, so the ε of the result bounds that of the run from above.

    Examples:
        >>> run = (Segment(0.1, 1e-200, 1), Segment(0.1, 2.0, 1), Segment(0.1, 1e300, 1))
        >>> [part.noise_multiplier for part in within_range(run)]
        [0.0, 2.0, 1000000.0]
    """
    return merged(
        replace(
            part,
            noise_multiplier=0.0
            if part.noise_multiplier < SMALLEST_NOISE
            else min(part.noise_multiplier, LARGEST_NOISE),
        )
        for part in run
    )


def relation(adjacency: str) -> Any:
    """dp-accounting's neighbouring relation of that name."""
    import dp_accounting

    name = _RELATIONS[validation.one_of("adjacency", adjacency, ADJACENCIES)]
    return dp_accounting.NeighboringRelation[name]


def check_cap(segments: Segments, adjacency: str) -> None:
    """Refuse a capped batch under a relation that hides the number of records.

    Whether a batch overflows depends on how many records there are, so one record more changes
    who else takes part. Only `zero-out` keeps that number the same on both sides.
    """
    if adjacency != "zero-out" and any(segment.cap is not None for segment in segments):
        raise validation.fail(
            "adjacency",
            adjacency,
            "cannot be used with capped batches, which need a public population",
            "set adjacency='zero-out', or use Poisson sampling without a cap",
        )


def event(segments: Iterable[Segment]) -> Any:
    """The run as a dp-accounting `DpEvent`.

    Args:
        segments: the run.

    Returns:
        A `ComposedDpEvent` of one `SelfComposedDpEvent` per distinct mechanism, that alone if
        there is one, or a `NoOpDpEvent` for a run without steps.

    Examples:
        >>> event([Segment(0.5, 2.0, 3)]).count
        3
    """
    import dp_accounting as dpa

    parts = []
    for part in merged(segments):
        if part.cap is None and part.rate == 1.0:
            step = dpa.GaussianDpEvent(part.noise_multiplier)
        elif part.cap is None:
            step = dpa.PoissonSampledDpEvent(part.rate, dpa.GaussianDpEvent(part.noise_multiplier))
        else:
            step = dpa.TruncatedSubsampledGaussianDpEvent(
                dataset_size=part.population,
                sampling_probability=part.rate,
                truncated_batch_size=part.cap,
                noise_multiplier=part.noise_multiplier,
            )
        parts.append(dpa.SelfComposedDpEvent(step, part.steps))
    if not parts:
        return dpa.NoOpDpEvent()
    return parts[0] if len(parts) == 1 else dpa.ComposedDpEvent(parts)
