"""Speed relative to plain training, by interleaved rounds.

A shared machine drifts: its clock, its caches and its neighbours change from minute to minute. Each
round therefore times every engine, in rotating order, and compares only within the round; the
median over rounds forgets the odd disturbed one.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

Step = Callable[[], None]

SLOT_SECONDS = 0.15  # an engine repeats its step within a round until a slot is about this long
SLOW = 2.0  # engines this many times slower than plain are far from any bar: few rounds will do


@dataclass(frozen=True)
class Timing:
    """Median over rounds: seconds of a step, and plain seconds over these seconds."""

    seconds: float
    ratio: float
    rounds: int


def seconds_per_step(step: Step, repeats: int) -> float:
    """Mean wall-clock seconds of a step over `repeats` steps in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def interleave(
    steps: Mapping[str, Step],
    rounds: int,
    slow_rounds: int = 2,
    slot: float = SLOT_SECONDS,
    beside: Collection[str] = (),
) -> dict[str, Timing]:
    """Time all steps against the one called "plain".

    Args:
        steps: what to time, by name; every step must have been called once before.
        rounds: how many rounds.
        slow_rounds: how many of them an engine far slower than plain takes part in.
        slot: seconds that a step is repeated for in a round; 0 calls it once, with cold caches.
        beside: names that take part in so few rounds as well, because nothing depends on them.

    Returns:
        A timing for each name.

    Examples:
        >>> timings = interleave({"plain": lambda: None, "other": lambda: None}, rounds=3)
        >>> timings["plain"].ratio, timings["other"].rounds
        (1.0, 3)
    """
    first = {name: seconds_per_step(step, 1) for name, step in steps.items()}
    repeats = {name: max(1, math.ceil(slot / first[name])) for name in steps}
    few = {name for name in steps if first[name] > max(SLOW * first["plain"], slot)}.union(beside)

    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(rounds):
        gc.collect()
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            if name not in few or round_number < slow_rounds:
                seconds[name].append(seconds_per_step(steps[name], repeats[name]))

    return {
        name: Timing(
            seconds=statistics.median(own),
            ratio=statistics.median(p / o for p, o in zip(seconds["plain"], own, strict=False)),
            rounds=len(own),
        )
        for name, own in seconds.items()
    }
