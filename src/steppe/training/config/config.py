"""A run from a TOML file: the names of the classes, and nothing that was not understood.

[data]                            # what is not said is chosen by rule (steppe.training.recipes)
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

from torch import nn

from steppe.plan import Plan
from steppe.training.config.build import BuiltConfig
from steppe.training.config.data import reading
from steppe.training.config.keys import CALLED, TABLES, check
from steppe.training.config.registry import check_keys
from steppe.training.config.toml import read_toml, write_toml
from steppe.training.folder import RunFolder
from steppe.training.groups import Origin, into_groups
from steppe.training.ledger_summary import along, way_from
from steppe.training.outcome import Outcome
from steppe.training.trainer import Trainer
from steppe.utils import validation

# Arguments of `Trainer` that a resumed run may do without.
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
        """Load the data, make the model and settle every constant.

        Returns:
            The parts of the run; `assembly.resolved` is this configuration with nothing left open,
            and `assembly.reasons` says why each constant that was chosen is what it is.
        """
        return BuiltConfig(copy.deepcopy(dict(self.tables)))

    def plan(self) -> Plan:
        """The plan alone."""
        return self.assemble().plan

    def model(self) -> nn.Module:
        """A fresh model; the run's weights have the names of its state dict."""
        return self.assemble().model

    def require_augment(self, augment: Any) -> None:
        """Refuse several views of a record where nothing makes them, and a function that makes them
        where one is enough, before data are loaded.

        Args:
            augment: the function that a file cannot hold, or None.
        """
        views = self.tables.get("plan", {}).get("views", 1)
        if augment is None and isinstance(views, int) and views > 1:
            rule = "needs a function that makes the views of a record, and a file cannot hold one"
            how = "steppe.training.read(file).trainer(augment=…)"
            remedy = f"leave it out, or train in Python: {how}"
            raise validation.fail("plan.views", views, rule, remedy)
        if augment is not None and views == 1:
            rule = "must be above 1 where augment= makes views of a record"
            remedy = "write views = 4 or another number under [plan], or leave out augment="
            raise validation.fail("plan.views", views, rule, remedy)

    def trainer(self, run: str | Path | None = None, **options: Any) -> Trainer:
        """The trainer of this configuration.

        Args:
            run: the run's folder; None for `train.run`, or a new one under `runs/`.
            options: arguments of `Trainer` that a file cannot hold, such as `callbacks`; those of a
                group, such as `augment`, by their own names.
        """
        self.require_augment(options.get("augment"))
        assembly = self.assemble()
        where = run if run is not None else self.tables.get("train", {}).get("run")
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
        """What the run in a folder keeps of this configuration."""
        # The folder is not named: it is the one that the file lies in, wherever that is moved to.
        train = {name: value for name, value in assembly.resolved["train"].items() if name != "run"}
        if "ledger" in train:
            train["ledger"] = way_from(folder, train["ledger"])
        refused = ("adjacency", "unit", "delta", "ledger")  # an epsilon would be the ledger's own
        return Origin(
            toml=write_toml({**assembly.resolved, "train": train}),
            keys={"data": "data.called"} | {name: keys.get(name, name) for name in refused},
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
        train["ledger"] = along(train["ledger"], folder.path)
    return Config(tables)


def resume(run: str | Path, **options: Any) -> Outcome:
    """Go on with a run that began from a configuration file.

    Args:
        run: its folder.
        options: arguments of `Trainer` that a file cannot hold, such as `progress`.

    Returns:
        As for `Trainer.fit`.
    """
    folder = RunFolder(run)
    folder.read_config()
    if not folder.toml.exists():
        raise validation.fail(
            "run",
            str(run),
            "was not made from a configuration file, so that its model and data are not known",
            f"make the same Trainer(…, run={str(run)!r}) and call its resume()",
        )
    if lacking := [name for name in folder.needs_python if name not in options]:
        listed = ", ".join(f"{name}=" for name in lacking)
        rule = f"was given {listed} in Python, which no file can hold"
        raise validation.fail("run", str(run), rule, f"resume it with `{folder.how_to_resume}`")
    return read(folder.toml).trainer(run, **options).resume()
