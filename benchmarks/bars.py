"""What the project promises about speed and memory, and whether measured rows keep it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypedDict

from benchmarks.cases import Case

OVER_OPACUS = 1.5
OVER_VMAP = 1.0
MEMORY = 1.3
MEMORY_IN_MICRO_BATCHES = 0.85
_MEMORY_BARS = {
    "steppe": MEMORY,
    "steppe-whole": MEMORY,
    "steppe-micro": MEMORY_IN_MICRO_BATCHES,
}
LEAST_MB = 0.1  # below this a peak is a few pages, and no measure for another


class Row(TypedDict):
    """One measurement: speed relative to plain training, and peak memory where it was measured."""

    model: str
    batch: int
    engine: str
    ratio: float
    peak_mb: float | None


@dataclass(frozen=True)
class Bar:
    """One promise about one case. `at_least` says on which side of the target it holds."""

    model: str
    batch: int
    promise: str
    value: float
    target: float
    at_least: bool = True

    @property
    def holds(self) -> bool:
        """Whether the measured value keeps the promise."""
        return self.value >= self.target if self.at_least else self.value <= self.target


def evaluate(cases: Iterable[Case], rows: Sequence[Row]) -> list[Bar]:
    """Every bar that the rows can decide.

    An engine that was measured nowhere in a case decides nothing there; the caller makes sure that
    a failure of our own engine does not pass for silence.

    Examples:
        >>> from benchmarks.cases import CASES
        >>> rows: list[Row] = [
        ...     {"model": "a", "batch": 256, "engine": "steppe", "ratio": 0.9, "peak_mb": None},
        ...     {"model": "a", "batch": 256, "engine": "vmap", "ratio": 0.95, "peak_mb": None},
        ... ]
        >>> [(bar.promise, bar.holds) for bar in evaluate(CASES, rows)]
        [('speed of plain', True), ('speed of vmap', False)]
    """
    return [bar for case in cases for bar in _of_case(case, rows)]


def _of_case(case: Case, rows: Sequence[Row]) -> list[Bar]:
    own = [row for row in rows if (row["model"], row["batch"]) == (case.model, case.batch)]
    ratio = {row["engine"]: row["ratio"] for row in own}
    peak = {row["engine"]: row["peak_mb"] for row in own}
    bars: list[Bar] = []

    def add(promise: str, value: float, target: float, at_least: bool = True) -> None:
        bars.append(Bar(case.model, case.batch, promise, value, target, at_least))

    if "steppe" in ratio:
        speed = ratio["steppe"]
        add("speed of plain", speed, case.target)
        opacus = [value for engine, value in ratio.items() if engine.startswith("opacus")]
        if opacus:
            add("speed of best opacus", speed / max(opacus), OVER_OPACUS)
        if "vmap" in ratio:
            add("speed of vmap", speed / ratio["vmap"], OVER_VMAP)

    plain = peak.get("plain")
    for engine, target in _MEMORY_BARS.items():
        used = peak.get(engine)
        if plain is not None and used is not None:
            share = used / max(plain, LEAST_MB)
            add(f"memory of plain ({engine})", share, target, at_least=False)
    return bars
