"""A run from a TOML file. Classes are written by their names; unknown keys are errors.

[data]                            # what is left out is chosen by rule (steppe.training.recipes)
name = "mnist"                    # or: place = "visits.csv", or place = "module:factory"

[model]
name = "cnn-tanh-26k"             # or: factory = "module:function"

[plan]
epsilon = 2.0
point = { name = "SAT", radius = 0.03 }

[optimizer]
name = "SGD"
lr = 2.0

[averages]
EMA = [{ decay = 0.99 }, { decay = 0.999 }]
OPA = { k = 20 }
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.runs import read_toml, write_toml
from steppe.training.config.build import BuiltConfig
from steppe.training.config.data import reading
from steppe.training.config.front_end import restore_front_end
from steppe.training.config.keys import CALLED, TABLES, check
from steppe.training.config.registry import check_keys
from steppe.training.folder import RunFolder
from steppe.training.groups import Origin, into_groups
from steppe.training.ledger_summary import path_from_run, resolved_from_run
from steppe.training.outcome import Outcome
from steppe.training.trainer import Trainer
from steppe.utils import validation

# Arguments of `Trainer` that need not be given again when a run is resumed.
_EVERY = ("checkpoint_every", "evaluate_every", "block", "physical_batch")
_FREE = ("progress", "callbacks", "source", *_EVERY)


@dataclass(frozen=True)
class Config:
    """The tables of a configuration file.

    Args:
        tables: the tables by name.

    Examples:
        >>> Config({"data": {"name": "mnist"}, "plan": {"epsilon": 2.0, "cilp": "Flat"}})
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: plan.cilp='Flat': is not known here, only ...
    """

    tables: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_keys("", self.tables, TABLES)
        for name, table in self.tables.items():
            if not isinstance(table, Mapping):
                raise validation.fail(name, table, "must be a table", f"write [{name}]")
        check(self.tables)

    def assemble(self) -> BuiltConfig:
        """Load the data, make the model and choose every constant that was left out.

        Returns:
            The parts of the run. `resolved` is the complete configuration; `reasons` contains the
            reason for each choice.
        """
        return BuiltConfig(copy.deepcopy(dict(self.tables)))

    def require_augment(self, augment: Any) -> None:
        """Require `views` above 1 if and only if `augment` is given, before data are loaded.

        Args:
            augment: the function, which a file cannot contain, or None.
        """
        views = self.tables.get("plan", {}).get("views", 1)
        if augment is None and isinstance(views, int) and views > 1:
            rule = "needs a function that makes the views, and a file cannot contain one"
            how = "steppe.training.read(file).trainer(augment=…)"
            remedy = f"leave it out, or train in Python: {how}"
            raise validation.fail("plan.views", views, rule, remedy)
        if augment is not None and views == 1:
            rule = "must be above 1 if augment= is given"
            remedy = "write views = 4 or another number under [plan], or leave out augment="
            raise validation.fail("plan.views", views, rule, remedy)

    def trainer(self, run: str | Path | None = None, **options: Any) -> Trainer:
        """The trainer of this configuration.

        Args:
            run: the run's folder; None for `train.run`, or a new one under `runs/`.
            options: arguments of `Trainer` that a file cannot contain, such as `callbacks`. Fields
                of a group, such as `augment`, are given by their own names.
        """
        self.require_augment(options.get("augment"))
        assembly = self.assemble()
        where = run if run is not None else self.tables.get("train", {}).get("run")
        if where is not None:  # a run that is resumed has its constants
            restore_front_end(assembly.model, RunFolder(where).front_end)
        in_python = options if run is None else {**options, "run": run}
        keys = {name: key for name, key in CALLED.items() if name not in in_python}
        with validation.called(keys):
            folder = RunFolder(where).path
            origin = self._origin(assembly, folder, keys, options)
            of_file = {"data": assembly.data, "plan": assembly.plan, **assembly.options}
            given = {**of_file, **options, "run": folder, "origin": origin}
            return Trainer(assembly.trained, **into_groups(given))

    def _origin(
        self,
        assembly: BuiltConfig,
        folder: Path,
        keys: Mapping[str, str],
        options: Mapping[str, Any],
    ) -> Origin:
        """What a run keeps of this configuration."""
        # Without the folder, so that it can be moved.
        train = {name: value for name, value in assembly.resolved["train"].items() if name != "run"}
        if "ledger" in train:
            train["ledger"] = path_from_run(folder, train["ledger"])
        refused = ("adjacency", "unit", "delta", "ledger")
        return Origin(
            toml=write_toml({**assembly.resolved, "train": train}),
            keys={"data": "data.called", "epsilon": "train.ledger_epsilon"}
            | {name: keys.get(name, name) for name in refused},
            reasons=assembly.reasons,
            inputs=reading(assembly.resolved["data"]),
            python_only=tuple(
                name for name, value in options.items() if value is not None and name not in _FREE
            ),
            whole=assembly.model,
        )


def read(path: str | Path) -> Config:
    """Read a configuration file.

    Args:
        path: a TOML file.

    Returns:
        The configuration; a key that is not known is an error that suggests the nearest.
    """
    tables = read_toml(Path(path))
    folder = RunFolder(Path(path).parent)
    train = tables.get("train")
    if folder.config.exists() and isinstance(train, dict) and isinstance(train.get("ledger"), str):
        train["ledger"] = resolved_from_run(train["ledger"], folder.path)
    return Config(tables)


def resume(run: str | Path, **options: Any) -> Outcome:
    """Resume a run that was started from a configuration file.

    Args:
        run: its folder.
        options: arguments of `Trainer` that a file cannot contain, such as `progress`.

    Returns:
        As for `Trainer.fit`.
    """
    folder = RunFolder(run)
    folder.read_config()
    if not folder.toml.exists():
        raise validation.fail(
            "run",
            str(run),
            "was not started from a configuration file, so its model and data are not known",
            f"create the same Trainer(…, run={str(run)!r}) and call its resume()",
        )
    if lacking := [name for name in folder.needs_python if name not in options]:
        listed = ", ".join(f"{name}=" for name in lacking)
        rule = f"was given {listed} in Python, which a file cannot contain"
        raise validation.fail("run", str(run), rule, f"resume it with `{folder.how_to_resume}`")
    return read(folder.toml).trainer(run, **options).resume()
