"""The file of an experiment's results: grows by one run at a time, never loses one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from steppe.errors import DataError
from steppe.papers.experiment import Constants, Experiment, ExperimentRun
from steppe.randomness import SeededSource
from steppe.utils.files import in_turn, write_atomically
from steppe.utils.formatting import finite


class Results:
    """The stored runs of one experiment.

    Args:
        experiment: whose runs.
        folder: where `<name>.json` is; made when the first run is stored.

    Guarantees:
        The file is whole at every moment. Several processes may add runs to it.
    """

    def __init__(self, experiment: Experiment, folder: Path) -> None:
        self.experiment, self.folder = experiment, folder
        self.path = folder / f"{experiment.name}.json"
        self.picture = folder / f"{experiment.name}.png"

    def read(self) -> list[ExperimentRun]:
        """Everything stored so far, in the experiment's order; what it no longer has comes last."""
        if not self.path.exists():
            return []
        try:
            rows = json.loads(self.path.read_text(encoding="utf-8"))["runs"]
            runs = [ExperimentRun(**row) for row in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError.about(
                "results",
                self.path,
                f"must be a file that the runner wrote ({error})",
                "restore it, or move it away to start again",
            ) from error
        place = {pair: i for i, pair in enumerate(self.experiment.pairs())}
        return sorted(runs, key=lambda run: place.get((run.setting, run.seed), len(place)))

    def current(self) -> list[ExperimentRun]:
        """The stored runs of settings the experiment has, which must have their constants."""
        settings = self.experiment.settings
        runs = [run for run in self.read() if run.setting in settings]
        for run in runs:
            asked = as_stored(settings[run.setting])
            if run.constants != asked:
                changed = sorted(
                    key
                    for key in {*asked, *run.constants}
                    if asked.get(key) != run.constants.get(key)
                )
                raise DataError.about(
                    "setting",
                    run.setting,
                    f"was run with other constants ({', '.join(changed)}) in {self.path.name}",
                    "give the changed setting a new name, or take the old rows out of the file",
                )
        return runs

    def add(self, run: ExperimentRun) -> None:
        """Store one more run; where another process was faster with the same one, its run stays."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with in_turn(self.folder):  # two processes may run different seeds of one experiment
            stored = self.read()
            if (run.setting, run.seed) not in {(old.setting, old.seed) for old in stored}:
                write_atomically(self.path, self._text([*stored, run]).encode())

    def _text(self, runs: Sequence[ExperimentRun]) -> str:
        """JSON with one run a line, so that a run more is a line more in the history."""
        experiment = self.experiment
        head = {
            "experiment": experiment.name,
            "paper": experiment.paper,
            "item": experiment.item,
            "expected": experiment.expected,
            # Seeded runs can be repeated, and therefore protect nobody.
            "stamp": f"NOT PRIVATE: {SeededSource.not_private_reason}",
        }
        lines = [f" {_json(key)}: {_json(value)}," for key, value in head.items()]
        rows = ",\n".join(f"  {_json(finite(asdict(run)))}" for run in runs)
        return "\n".join(["{", *lines, ' "runs": [', rows, " ]", "}", ""])


def as_stored(constants: Constants) -> Constants:
    """A setting's constants as they are read back: tuples as lists, for one."""
    read: Constants = json.loads(json.dumps(constants))
    return read


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
