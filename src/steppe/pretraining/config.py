"""Pre-training from a TOML file. Classes are written by their names; unknown keys are errors.

[data]
name = "cifar100"                 # or "procedural" with count, size, channels, seed; or place = "…"

[model]
name = "resnet-20"                # or: factory = "module:function"

[method]
name = "DPAdapter"
cap = 2.0

[pretrain]
epochs = 100
augment = "crop-flip"
run = "runs/pre"
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe import models
from steppe.errors import DataError
from steppe.pretraining import (
    amp,
    asam,
    dp_adapter,
    kept_perturbation,
    mean_perturbation,
    sam,
    standard,
)
from steppe.pretraining.data import PublicData, from_table
from steppe.pretraining.objectives import Contrastive, Labels
from steppe.pretraining.outcome import PretrainingFolder, PretrainingOutcome
from steppe.pretraining.public_run import pretrain
from steppe.runs import (
    build,
    check_keys,
    keys_of,
    name_and_options,
    optimizers,
    read_toml,
    schedulers,
    unknown,
    write_toml,
)
from steppe.utils import validation
from steppe.utils.user_code import made_by

METHODS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        standard.Standard,
        sam.SAM,
        asam.ASAM,
        amp.AMP,
        dp_adapter.DPAdapter,
        kept_perturbation.KeptPerturbation,
        mean_perturbation.MeanPerturbation,
    )
}
OBJECTIVES: dict[str, Any] = {"Labels": Labels, "Contrastive": Contrastive}
_TABLES = ("data", "model", "method", "objective", "optimizer", "scheduler", "pretrain")
_DATA_KEYS = (
    *("name", "place", "called", "count", "size", "channels", "seed"),
    *("classes", "target", "columns", "bounds", "categories", "missing", "test"),
)
_DRAWN_KEYS = ("count", "size", "channels", "seed")
_KEYS = (
    *("batch_size", "steps", "epochs", "seed", "augment", "run"),
    *("checkpoint_every", "evaluate_every", "progress"),
)
# Arguments of schedulers that mean the length of the run.
_LENGTHS = ("T_max", "total_iters", "total_steps")


@dataclass(frozen=True)
class PretrainingConfig:
    """The tables of a configuration file.

    Args:
        tables: the tables by name.

    Examples:
        >>> PretrainingConfig({"data": {"name": "mnist"}, "method": {"name": "DPAdaptor"}})
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: method.name='DPAdaptor': is not known here, only AMP, ...
    """

    tables: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_keys("", self.tables, _TABLES)
        for name, table in self.tables.items():
            if not isinstance(table, Mapping):
                raise validation.fail(name, table, "must be a table", f"write [{name}]")
        data = self.tables.get("data", {})
        check_keys("data", data, _DATA_KEYS)
        check_keys("pretrain", self.tables.get("pretrain", {}), _KEYS)
        if ("name" in data) == ("place" in data):
            raise validation.fail(
                "data.name",
                data.get("name"),
                "must be the name of a public data set, unless data.place is given",
                'write name = "cifar100", name = "procedural" or place = "pictures.npz"',
            )
        for key in data:
            drawn, own = key in _DRAWN_KEYS, key not in (*_DRAWN_KEYS, "name", "place")
            if (drawn and data.get("name") != "procedural") or (own and "name" in data):
                kind = "procedural pictures" if drawn else "your own data"
                raise validation.fail(f"data.{key}", data[key], f"is for {kind}", "leave it out")
        self._method()
        self._objective()

    def run(
        self,
        folder: str | Path | None = None,
        *,
        resume: bool = False,
        progress: bool | None = None,
    ) -> PretrainingOutcome:
        """Train.

        Args:
            folder: of the run; None for `pretrain.run`, or a new one under `runs/`.
            resume: continue from the folder's last checkpoint.
            progress: whether to show a bar; None for `pretrain.progress`.
        """
        options = dict(self.tables.get("pretrain", {}))
        where = options.pop("run", None) if folder is None else folder
        options.pop("run", None)
        shown = options.pop("progress", True) if progress is None else progress
        options.pop("progress", None)
        if where is not None and not resume:
            PretrainingFolder(where).require_free()  # before data are loaded
        with validation.called(keys_of("data", _DRAWN_KEYS)):
            data = from_table(self.tables["data"], shown)
        model = self._model(data, options.get("seed", 0))
        kept = {**self.tables, "pretrain": options}
        called = {
            **keys_of("pretrain", _KEYS),
            "perturbation_batch": "method.perturbation_batch",
        }
        with validation.called(called):
            return pretrain(
                model,
                data,
                self._method(),
                objective=self._objective(),
                optimizer=self._optimizer(),
                scheduler=self._scheduler(options, len(data.inputs)),
                run=where,
                resume=resume,
                progress=shown,
                toml=write_toml(kept),
                **options,
            )

    def _method(self) -> Any:
        name, options = name_and_options("method", self.tables.get("method", "Standard"))
        return build("method", METHODS, name, options)

    def _objective(self) -> Any:
        name, options = name_and_options("objective", self.tables.get("objective", "Labels"))
        if name in OBJECTIVES:  # functions cannot be written in a file
            allowed = {"Labels": (), "Contrastive": ("temperature", "width")}[name]
            check_keys("objective", options, allowed)
        return build("objective", OBJECTIVES, name, options)

    def _optimizer(self) -> Any:
        if "optimizer" not in self.tables:
            return None
        name, options = name_and_options("optimizer", self.tables["optimizer"])
        if name not in optimizers():
            raise unknown("optimizer.name", name, optimizers())
        return functools.partial(_made, "optimizer", optimizers(), name, options, "params")

    def _scheduler(self, constants: Mapping[str, Any], records: int) -> Any:
        if "scheduler" not in self.tables:
            return None
        name, options = name_and_options("scheduler", self.tables["scheduler"])
        if name not in schedulers():
            raise unknown("scheduler.name", name, schedulers())
        steps = constants.get("steps")
        if steps is None and isinstance(constants.get("epochs"), int | float):
            per_epoch = records // int(constants.get("batch_size", 50))
            steps = max(1, round(constants["epochs"] * per_epoch))
        for key in _LENGTHS:
            if key in inspect.signature(schedulers()[name]).parameters and steps is not None:
                options.setdefault(key, steps)
        return functools.partial(_made, "scheduler", schedulers(), name, options, "optimizer")

    def _model(self, data: PublicData, seed: int) -> nn.Module:
        table = self.tables.get("model", {})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if "factory" in table:
                check_keys("model", table, ("factory",))
                found = made_by(table["factory"], "model.factory")
                if not isinstance(found, nn.Module):
                    rule = "must return a torch.nn.Module"
                    raise validation.fail(
                        "model.factory", table["factory"], rule, "return the model"
                    )
                return found
            name, options = name_and_options("model", table)
            with validation.called({"name": "model.name"}):
                known = models.parameters(name)
            for key, value in models.sizes(data.inputs.shape[1:], data.classes).items():
                if key in known:
                    options.setdefault(key, value)
            with validation.called(keys_of("model", (*known, *options))):
                return models.create(name, **options)


def read_pretraining(path: str | Path) -> PretrainingConfig:
    """Read a configuration file; a key that is not known is an error that suggests the nearest."""
    return PretrainingConfig(read_toml(Path(path)))


def resume_pretraining(run: str | Path, *, progress: bool | None = None) -> PretrainingOutcome:
    """Resume a run that was started from a configuration file.

    Args:
        run: its folder.
        progress: whether to show a bar; None for `pretrain.progress`.
    """
    folder = PretrainingFolder(run)
    if not folder.toml.exists():
        rule = "contains no pre-training that was started from a configuration file"
        remedy = "give its folder, or call steppe.pretrain(…, resume=True) with the same arguments"
        raise DataError.about("run", str(run), rule, remedy)
    return read_pretraining(folder.toml).run(run, resume=True, progress=progress)


def _made(
    where: str, classes: Mapping[str, Any], name: str, options: Mapping[str, Any], key: str, to: Any
) -> Any:
    """An optimizer over weights, or a scheduler over an optimizer."""
    return build(where, classes, name, options, **{key: to})
