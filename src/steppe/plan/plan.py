"""Every public constant of a private run, and what it costs.

The plan alone makes the sampler's rate, the size of the noise and the accountant's event, so the
three cannot disagree. Nothing in it depends on the data, with one exception that the statement
names: the population may be read from the length of the data set.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from steppe import accounting
from steppe.accounting import Participation, Segments, Statement
from steppe.clipping import Clip, Flat
from steppe.noise import Correlated, Factor, Gaussian, Noise, NoiseRun
from steppe.plan import checks
from steppe.plan.places import PLACES, described
from steppe.plan.segments import counted, schedule_of, segments_of
from steppe.plan.turns import hidden_turns, is_one_answer, whole_run
from steppe.points import Here, Point
from steppe.sampling import CappedPoisson, Poisson, Sampler
from steppe.utils import validation
from steppe.utils.name_prefixes import Pairs


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The public constants of one private run.

    Give either a budget (`epsilon`) or the noise (`noise_multiplier`), and either `steps` or
    `epochs`, which `FixedOrder` has itself. Without `population` the plan cannot be costed until
    `for_population` fills it in.

    Args:
        delta: δ, well below 1 over the population.
        batch_size: expected number of records in a step; also what the sum is divided by.
        epsilon: the budget; the noise is calibrated to spend it in full.
        noise_multiplier: σ, the noise on the sum in units of the sensitivity. With correlated noise
            in a fixed order, that of the one Gaussian answer that the whole run is.
        steps: number of steps.
        epochs: passes over the data on average: floor(epochs · population / batch_size) steps.
        population: number of records that sets the sampling rate, a declared constant.
        clip: how per-example gradients are bounded.
        noise: how it is added.
        sampling: which records take part.
        point: at which weights the gradient is taken.
        l2: λ of the term λθ that joins every record's gradient before the clip; a mapping from name
            prefixes to λ gives parts of the model their own, and 0 to the rest.
        views: augmented views of a record, averaged before the clip.
        adjacency: `add-remove`, `zero-out` or `replace-one`. A capped batch is refused unless
            `zero-out` is asked for by name, since that changes what is promised.
        unit: what is protected, in a word, for the statement.
        population_source: "declared", or "data" where `for_population` filled it in.

    Guarantees:
        A run that samples by `sampling`, bounds every record's part in each query's sum by
        `sensitivity`, adds Gaussian noise of `noise_std` (times the schedule's factor) to each
        query and takes at most `total_steps` steps costs at most `epsilon_spent()` at δ. Correlated
        noise is made from fresh noise of that size, which is larger by `noise_sensitivity`.

    Examples:
        >>> plan = Plan(delta=1e-5, batch_size=256, epsilon=2.0, steps=100, population=10_000)
        >>> round(plan.sigma, 2)
        0.96
        >>> 1.998 < plan.epsilon_spent() <= 2.0
        True
    """

    delta: float
    batch_size: float
    epsilon: float | None = None
    noise_multiplier: float | None = None
    steps: int | None = None
    epochs: float | None = None
    population: int | None = None
    clip: Clip = field(default_factory=Flat)
    noise: Noise = field(default_factory=Gaussian)
    sampling: Sampler = field(default_factory=Poisson)
    point: Point = field(default_factory=Here)
    l2: float | Mapping[str, float] | Pairs = 0.0
    views: int = 1
    adjacency: str = "add-remove"
    unit: str = "record"
    population_source: str = "declared"

    def __post_init__(self) -> None:
        checks.settle(self)

    def for_population(self, records: int) -> Plan:
        """This plan with its population read from a data set.

        Args:
            records: the length of the data set.

        Returns:
            A new plan, whose statement says where the number comes from.

        Guarantees:
            A declared population is never overwritten by the data.
        """
        if self.population is not None:
            raise validation.fail(
                "population", self.population, "is already fixed", "use the plan as it is"
            )
        return replace(self, population=records, population_source="data")

    @property
    def rate(self) -> float:
        """The largest probability with which a record takes part in a step, exactly as drawn."""
        rates = self.sampling.rates(self._known_population, self.batch_size, 0, self.total_steps)
        return max(max(of_groups) for _, of_groups in rates)

    @property
    def turns(self) -> Participation | None:
        """In which steps one record can take part; None where it can be in any of them."""
        return self.sampling.turns(self._known_population, self.batch_size, self.total_steps)

    @property
    def cap(self) -> int | None:
        """The largest number of records in a step, or None."""
        if isinstance(self.sampling, CappedPoisson):
            return int(self.sampling.resolved_cap(self._known_population, self.batch_size))
        return None

    @property
    def padded_to(self) -> int | None:
        """The number of rows that every batch is padded to if shapes are fixed, or None."""
        sampling = self.sampling
        fixed = isinstance(sampling, CappedPoisson) and sampling.fixed_shapes
        return self.cap if fixed else None

    @property
    def total_steps(self) -> int:
        """The number of steps of the plan."""
        if self.steps is not None:
            return self.steps
        if self.epochs is None:  # then the sampler decides
            return cast(int, self.sampling.length(self._known_population, self.batch_size))
        # The small factor keeps products that are whole numbers on paper from falling below them.
        rounds = self.epochs * self._known_population / self.batch_size * (1 + 1e-12)
        if rounds < 1:
            return 1
        return checks.count("steps", math.floor(min(rounds, 2.0**63)))

    @cached_property
    def sigma(self) -> float:
        """The noise multiplier in use: the given one, or the one the budget needs."""
        if self.noise_multiplier is not None:
            return self.noise_multiplier
        epsilon = cast(float, self.epsilon)  # the plan has one of the two
        sigma = accounting.calibrate_worst(self.segments_at, epsilon, self.delta, self.adjacency)
        checks.check_noise(self, sigma)
        return sigma

    @property
    def sensitivity(self) -> float:
        """The largest l2 change of one query's clipped sum when one record is added or removed."""
        return float(self.clip.sensitivity)

    @cached_property
    def noise_std(self) -> float:
        """Standard deviation of fresh noise on the sum, before the schedule's factor.

        Correlated noise is made from fresh noise, which is larger by the sensitivity of its C.
        """
        return self.sigma * self.sensitivity * self.noise_sensitivity

    @property
    def noise_sensitivity(self) -> float:
        """How far a record moves what correlated noise hides, for unit clips; 1 for `Gaussian`."""
        if not isinstance(self.noise, Correlated):
            return 1.0
        return self.noise.sensitivity(self.total_steps, hidden_turns(self))

    def begin_noise(self) -> NoiseRun:
        """The noise of one run of this plan."""
        return self.noise.begin(self.total_steps, hidden_turns(self), self.queries)

    def noise_std_at(self, step: int) -> float:
        """Standard deviation of the noise on the sum of each query in one step, counted from 0."""
        if isinstance(self.noise, Correlated) and 0 <= step < self.total_steps:
            return self.noise_std * self._noise_sizes[step]
        left = step
        for count, std in self.noise_levels:
            if 0 <= left < count:
                return std
            left -= count
        raise validation.fail(
            "step", step, f"lies outside the {self.total_steps} steps of the plan", "count from 0"
        )

    @property
    def noise_factor(self) -> Factor:
        """The matrices of correlated noise; an error for independent noise."""
        if not isinstance(self.noise, Correlated):
            raise validation.fail("noise", self.noise, "is independent", "use BLT(), for example")
        return self.noise.factor(self.total_steps, hidden_turns(self))

    @property
    def noise_memory(self) -> int:
        """How many vectors of the size of a released one the noise keeps between steps."""
        return self.queries * self.noise_factor.memory if isinstance(self.noise, Correlated) else 0

    @cached_property
    def noise_levels(self) -> tuple[tuple[int, float], ...]:
        """The noise on the sum over the run: (number of steps, standard deviation) in order."""
        if not isinstance(self.noise, Correlated):
            return tuple((count, self.noise_std * factor) for count, factor in self.schedule)
        levels = groupby(self._noise_sizes)
        return tuple((len(list(same)), self.noise_std * size) for size, same in levels)

    @cached_property
    def _noise_sizes(self) -> tuple[float, ...]:
        """The size of each step's correlated noise, for fresh noise of unit size."""
        noise = cast(Correlated, self.noise)
        return noise.sizes(self.total_steps, hidden_turns(self))

    def fresh_noise_std_at(self, step: int) -> float:
        """Standard deviation of the fresh noise that the noise of one step is made from."""
        return self.noise_std if isinstance(self.noise, Correlated) else self.noise_std_at(step)

    @property
    def divisor(self) -> float:
        """What the noised sum is divided by: the expected batch, never the actual one."""
        return self.batch_size

    def segments(self, steps_done: int | None = None) -> Segments:
        """The run, or its first `steps_done` steps, in the accountant's terms.

        Where groups of records have rates of their own, every step counts at the largest of them:
        a bound for all records, also in composition with other runs. `segments_by_group` is tight.
        """
        if steps_done is None and is_one_answer(self):
            return whole_run(self, self.sigma)
        return segments_of(self, self.sigma, counted(self, steps_done), max)

    def segments_by_group(self, steps_done: int | None = None) -> tuple[Segments, ...]:
        """The run for each group of records; most samplers have one group."""
        done = None if steps_done is None else counted(self, steps_done)
        return self.segments_at(self.sigma, done)

    def event(self) -> Any:
        """The run as a dp-accounting `DpEvent`, of `segments()`."""
        return accounting.event(self.segments())

    def epsilon_spent(self, steps_done: int | None = None) -> float:
        """The PLD value of ε at δ, of the whole run or of its first steps.

        Args:
            steps_done: how many steps were taken; None for all.

        Returns:
            ε ≥ 0.

        Guarantees:
            An upper bound for every record, whichever group it belongs to; for the whole run it is
            not above the budget that was asked for.
        """
        runs = self.segments_by_group(steps_done)
        return max(accounting.epsilon(run, self.delta, self.adjacency) for run in runs)

    def calibrate(self, epsilon: float | None = None) -> Plan:
        """The plan with its noise fixed, so that it no longer depends on a search.

        Args:
            epsilon: the budget; None for the one the plan was given.

        Returns:
            A new plan with `noise_multiplier` instead of `epsilon`.
        """
        target = self.epsilon if epsilon is None else epsilon
        if target is None:
            raise validation.missing("epsilon", rule="is required: the plan has none")
        asked = replace(self, epsilon=target, noise_multiplier=None)
        return replace(asked, epsilon=None, noise_multiplier=asked.sigma)

    def to_dict(self) -> dict[str, Any]:
        """All constants with their values in use, and under `asked` what was given instead."""
        return {
            "delta": self.delta,
            "batch_size": self.batch_size,
            "population": self._known_population,
            "population_source": self.population_source,
            "rate": self.rate,
            "cap": self.cap,
            "steps": self.total_steps,
            "noise_multiplier": self.sigma,
            "sensitivity": self.sensitivity,
            **{name: described(name, getattr(self, name)) for name, _, _ in PLACES},
            "l2": dict(self.l2) if isinstance(self.l2, tuple) else self.l2,
            "views": self.views,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "asked": {
                name: getattr(self, name)
                for name in ("epsilon", "noise_multiplier", "steps", "epochs")
            },
        }

    def digest(self) -> str:
        """SHA-256 of the constants in use; equal for plans that run the same mechanism."""
        constants = {key: value for key, value in self.to_dict().items() if key != "asked"}
        text = json.dumps(constants, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def statement(self, not_private_reason: str | None = None) -> Statement:
        """The privacy statement of this plan, in nine items.

        Args:
            not_private_reason: why the promise is void, for runs in a test mode.

        Returns:
            The statement: `str()` for reading, `to_json()` for machines.
        """
        return Statement.of(
            self.segments_by_group(),
            self.delta,
            self.adjacency,
            unit=self.unit,
            population=self._known_population,
            population_source=self.population_source,
            noise_multiplier=self.sigma,
            sensitivity=self.sensitivity,
            queries=self.queries,
            rounded_noise=bool(self.noise.grid),
            fixed_shapes=self.padded_to is not None,
            total_steps=self.total_steps,
            turns=self.turns,
            correlated=type(self.noise).__name__ if isinstance(self.noise, Correlated) else None,
            digest=self.digest(),
            not_private_reason=not_private_reason,
        )

    def segments_at(self, sigma: float, steps: int | None = None) -> tuple[Segments, ...]:
        """`segments_by_group` at another noise multiplier, of all steps or the first ones."""
        if steps is None and is_one_answer(self):
            return (whole_run(self, sigma),)
        steps = self.total_steps if steps is None else steps
        return tuple(
            segments_of(self, sigma, steps, itemgetter(group))
            for group in range(self.sampling.groups)
        )

    @cached_property
    def schedule(self) -> tuple[tuple[int, float], ...]:
        """The noise over the run: (number of steps, factor on the noise multiplier) in order."""
        return schedule_of(self)

    @property
    def queries(self) -> int:
        """How many queries of the same batch one step makes."""
        return int(self.point.queries)

    @property
    def _known_population(self) -> int:
        return checks.known_population(self.population)
