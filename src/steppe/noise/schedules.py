"""Place 5: Gaussian noise whose size follows a schedule that is fixed in advance (AdpAlloc).

Early gradients are large and point the same way, late ones are small: noise that falls during the
run spends more of the budget where precision matters. A schedule fixes the shape; the plan finds
the first noise multiplier with which the whole of it meets the budget. Yu et al., Differentially
Private Model Publishing for Deep Learning, 2019.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from steppe.noise.gaussian import Gaussian
from steppe.utils.validation import fail, positive, positive_integer

# Less than this share of the first noise is none to speak of: the plan would have to start at a
# multiplier of a million to end at one.
_LEAST = 1e-6
# Each level is one entry of the plan's account, walked through in every step.
_MOST_LEVELS = 1000


@dataclass(frozen=True)
class NoiseSchedule(Gaussian, ABC):
    """Gaussian noise in levels of `every` steps each; a subclass says how large each level is.

    Args:
        every: steps per level; population // batch_size gives about one level per epoch.
        grid: as for `Gaussian`.

    Guarantees:
        The size of the noise depends on the number of the step and on nothing else. A schedule
        that runs down to no noise is refused when the plan is made, before any data is read.
    """

    grid: bool = field(default=False, kw_only=True)
    every: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "give the steps per level, population // batch_size for about one epoch"
        every = positive_integer(f"{type(self).__name__}.every", self.every, remedy)
        object.__setattr__(self, "every", every)

    @abstractmethod
    def factor(self, level: int, levels: int) -> float:
        """The noise of a level, counted from 0, over that of the first.

        Args:
            level: which one.
            levels: how many the run has.
        """

    def relative(self, steps: int) -> tuple[tuple[int, float], ...]:
        """The schedule as (number of steps, factor on the plan's noise multiplier)."""
        levels = -(-steps // self.every)  # whole numbers of any size
        if levels > _MOST_LEVELS:
            raise fail(
                "every",
                self.every,
                f"cuts {steps} steps into {levels} levels of noise, and {_MOST_LEVELS} are enough",
                f"use every={-(-steps // _MOST_LEVELS)} or more",
            )
        schedule: list[tuple[int, float]] = []
        for level in range(levels):
            factor = self.factor(level, levels)
            if not factor >= _LEAST:
                raise fail(
                    "noise",
                    self,
                    f"falls to {factor:.2g} of its start in step {level * self.every + 1} of "
                    f"{steps}, and without noise nothing is private",
                    "use a slower decay, or more steps per level",
                )
            count = min(self.every, steps - level * self.every)
            if schedule and schedule[-1][1] == factor:
                count += schedule.pop()[0]
            schedule.append((count, factor))
        return tuple(schedule)


@dataclass(frozen=True)
class ExponentialSchedule(NoiseSchedule):
    """σ₀ · exp(−decay · level).

    Args:
        decay: k, how fast the noise falls; 0.01 per epoch is common.
        every: steps per level.
        grid: as for `Gaussian`.

    Guarantees:
        As for `NoiseSchedule`.

    Examples:
        >>> [(n, round(f, 3)) for n, f in ExponentialSchedule(0.5, every=10).relative(25)]
        [(10, 1.0), (10, 0.607), (5, 0.368)]
    """

    decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        decay = positive("ExponentialSchedule.decay", self.decay, "0.01 per epoch is common")
        object.__setattr__(self, "decay", decay)

    def factor(self, level: int, levels: int) -> float:
        """The noise of a level over that of the first."""
        return math.exp(-self.decay * level)


@dataclass(frozen=True)
class TimeSchedule(NoiseSchedule):
    """σ₀ / (1 + decay · level).

    Args:
        decay: k, how fast the noise falls; 0.05 per epoch is common.
        every: steps per level.
        grid: as for `Gaussian`.

    Guarantees:
        As for `NoiseSchedule`.

    Examples:
        >>> [(n, round(f, 3)) for n, f in TimeSchedule(0.5, every=10).relative(25)]
        [(10, 1.0), (10, 0.667), (5, 0.5)]
    """

    decay: float

    def __post_init__(self) -> None:
        super().__post_init__()
        decay = positive("TimeSchedule.decay", self.decay, "0.05 per epoch is common")
        object.__setattr__(self, "decay", decay)

    def factor(self, level: int, levels: int) -> float:
        """The noise of a level over that of the first."""
        return 1.0 / (1.0 + self.decay * level)


@dataclass(frozen=True)
class StepSchedule(NoiseSchedule):
    """σ₀ · drop^level: the noise is multiplied by `drop` every so many steps.

    Args:
        drop: what the noise is multiplied by from one level to the next, below 1; 0.6 every ten
            epochs is common.
        every: steps per level.
        grid: as for `Gaussian`.

    Guarantees:
        As for `NoiseSchedule`.

    Examples:
        >>> [(n, round(f, 3)) for n, f in StepSchedule(0.6, every=10).relative(25)]
        [(10, 1.0), (10, 0.6), (5, 0.36)]
    """

    drop: float

    def __post_init__(self) -> None:
        super().__post_init__()
        drop = positive("StepSchedule.drop", self.drop, "0.6 every ten epochs is common")
        if drop >= 1:
            raise fail("StepSchedule.drop", drop, "must be below 1", "use Gaussian() for no drop")
        object.__setattr__(self, "drop", drop)

    def factor(self, level: int, levels: int) -> float:
        """The noise of a level over that of the first."""
        return self.drop**level


@dataclass(frozen=True)
class PolynomialSchedule(NoiseSchedule):
    """σ₀ · ((1 − end) · (1 − level/period)^power + end), and σ₀ · end from `period` on.

    Args:
        end: the last noise over the first, above 0 and below 1.
        period: levels until `end` is reached; None for as many as the run has.
        power: the exponent; 3 is common.
        every: steps per level.
        grid: as for `Gaussian`.

    Guarantees:
        As for `NoiseSchedule`.

    Examples:
        >>> schedule = PolynomialSchedule(0.5, period=2, power=1, every=10)
        >>> schedule.relative(40)
        ((10, 1.0), (10, 0.75), (20, 0.5))
    """

    end: float
    period: int | None = None
    power: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        remedy = "without noise nothing is private; 0.3 to 0.8 is a sensible start"
        end = positive("PolynomialSchedule.end", self.end, remedy)
        if end >= 1:
            raise fail("PolynomialSchedule.end", end, "must be below 1", "use Gaussian() for 1")
        object.__setattr__(self, "end", end)
        if self.period is not None:
            period = positive_integer("PolynomialSchedule.period", self.period)
            object.__setattr__(self, "period", period)
        object.__setattr__(self, "power", positive("PolynomialSchedule.power", self.power))

    def factor(self, level: int, levels: int) -> float:
        """The noise of a level over that of the first."""
        left = max(0.0, 1.0 - level / (self.period or levels))
        return (1.0 - self.end) * left**self.power + self.end
