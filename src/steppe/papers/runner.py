"""Runs what is missing of an experiment, stores each run as it ends, and says how long is left."""

from __future__ import annotations

import datetime
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version

import torch

from steppe.papers import catalogue
from steppe.papers.experiment import Experiment, ExperimentRun
from steppe.papers.results import Results, as_stored
from steppe.utils import validation


@dataclass(frozen=True)
class RunFilter:
    """Which part of an experiment to run.

    Args:
        seeds: None for the experiment's own.
        settings: None for all.
        minutes: do not begin a run that would end later than this; None for no limit.
    """

    seeds: Sequence[int] | None = None
    settings: Sequence[str] | None = None
    minutes: float | None = None

    def pairs(self, experiment: Experiment) -> list[tuple[str, int]]:
        """The chosen (setting, seed), each seed for all settings before the next."""
        settings = list(experiment.settings) if self.settings is None else list(self.settings)
        for setting in settings:
            validation.one_of("settings", setting, list(experiment.settings))
        seeds = experiment.seeds if self.seeds is None else self.seeds
        return [(setting, seed) for seed in seeds for setting in settings]


def missing(results: Results, choice: RunFilter) -> list[tuple[str, int]]:
    """The chosen (setting, seed) that are not stored yet."""
    stored = {(run.setting, run.seed) for run in results.current()}
    return [pair for pair in choice.pairs(results.experiment) if pair not in stored]


def expected_seconds(experiment: Experiment, runs: Sequence[ExperimentRun], setting: str) -> float:
    """How long one more run of a setting takes: as its own runs did, else as the others."""
    own = [run.seconds for run in runs if run.setting == setting]
    return statistics.median(own or [run.seconds for run in runs] or [60 * experiment.minutes])


def run(
    results: Results,
    choice: RunFilter,
    command: str,
    say: Callable[[str], None] = print,
) -> int:
    """Run what is chosen and missing.

    Args:
        results: where runs are stored.
        choice: which part.
        command: what was typed, stored with each run.
        say: told what is done and what is left.

    Returns:
        How many runs are still missing because the time was used up.
    """
    if choice.minutes is not None:
        validation.positive("minutes", choice.minutes)
    experiment, begin = results.experiment, time.monotonic()
    _take_over(results, choice, say)
    while left := missing(results, choice):
        runs = results.current()
        needed = [expected_seconds(experiment, runs, setting) for setting, _ in left]
        say(f"{experiment.name}: {len(left)} runs left, about {duration(sum(needed))}")
        used = time.monotonic() - begin
        if choice.minutes is not None and used + needed[0] > 60 * choice.minutes:
            say(f"stopped: the next run needs {duration(needed[0])}; start again to go on")
            return len(left)
        done = _run_one(experiment, *left[0], command)
        results.add(done)
        say(f"  {done.setting}, seed {done.seed}: {_brief(experiment, done)}")
    return 0


def _take_over(results: Results, choice: RunFilter, say: Callable[[str], None]) -> None:
    """Copy what another table has measured with the same function, constants and seed."""
    experiment = results.experiment
    others = [
        Results(other, results.folder)
        for other in catalogue.experiments()
        if other.measure is experiment.measure and other.name != experiment.name
    ]
    for setting, seed in missing(results, choice):
        asked = as_stored(experiment.settings[setting])
        for other in others:
            same = [run for run in other.read() if run.seed == seed and run.constants == asked]
            if same:
                results.add(replace(same[0], setting=setting))
                say(f"  {setting}, seed {seed}: taken over from {other.experiment.name}")
                break


def _run_one(experiment: Experiment, setting: str, seed: int, command: str) -> ExperimentRun:
    constants, begin = experiment.settings[setting], time.perf_counter()
    measured = experiment.measure(constants, seed)
    return ExperimentRun(
        setting=setting,
        seed=seed,
        constants=constants,
        measured=measured,
        seconds=round(time.perf_counter() - begin, 3),
        threads=torch.get_num_threads(),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=command,
        version=version("steppe"),
    )


def _brief(experiment: Experiment, done: ExperimentRun) -> str:
    numbers = [
        f"{column.title or column.name} {column.form.format(done.measured[column.name])}"
        for column in experiment.columns
        if isinstance(done.measured.get(column.name), int | float)
    ]
    return ", ".join([*numbers, f"in {duration(done.seconds)}"])


def duration(seconds: float) -> str:
    """Seconds in words.

    Examples:
        >>> duration(3.21), duration(600), duration(10_000)
        ('3.2 s', '10 min', '2.8 h')
    """
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
