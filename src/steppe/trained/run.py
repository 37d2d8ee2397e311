"""A run that has left models behind, read again; the data it was trained on are not needed."""

from __future__ import annotations

import copy
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steppe.averaging import CheckpointStore
from steppe.data import cache_folder, find
from steppe.errors import DataError
from steppe.models import FixedFrontEnd, trained_part
from steppe.probing import fix
from steppe.trained.inputs import Inputs
from steppe.trained.weight_files import WeightFile, write_weights
from steppe.training import (
    LAST,
    RunFolder,
    for_classes,
    loss_of,
    make_model,
    read_toml,
    reading,
    restore_front_end,
)
from steppe.utils import validation


class TrainedRun:
    """The models of a run: network, weights and privacy statement.

    Args:
        path: the folder of the run.
        model: the network, if the run does not know it; a copy of it is used.

    Attributes:
        folder: the files.
        config: the content of `config.json`.
        tables: the complete configuration; None for a run made in Python.
        plan_digest: fingerprint of the plan.
    """

    def __init__(self, path: str | Path, model: nn.Module | None = None) -> None:
        self.folder = RunFolder(path)
        self.config = self.folder.read_config()
        self._settings: dict[str, Any] = self.config["settings"]
        self.plan_digest = str(self._settings["plan"]["digest"])
        toml = self.folder.toml
        self.tables: dict[str, Any] | None = read_toml(toml) if toml.exists() else None
        self._given = model
        self.require_same_scale()

    def require_same_scale(self) -> None:
        """Reject a run of an earlier version, whose inputs were scaled in another way."""
        if self.tables is not None and reading(self.tables["data"]) != self._settings.get("inputs"):
            raise DataError.about(
                "run",
                self.folder.path,
                "was trained on inputs that were scaled differently from run.toml",
                "restore that file, or train again",
            )

    @cached_property
    def privacy(self) -> dict[str, Any]:
        """The privacy statement, as `statement.json` has it."""
        path = self.folder.statement
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict) or not {"private", "epsilon", "delta"} <= found.keys():
            rule = "cannot be read as a privacy statement"
            raise DataError.about("file", path, rule, "restore it from a copy")
        return found

    @property
    def data_name(self) -> str:
        """The name of the run's data."""
        return str(self._settings["data"]["name"])

    @property
    def is_public(self) -> bool:
        """Whether it was trained on a public data set."""
        return self.tables is not None and "name" in self.tables["data"]

    @property
    def network_name(self) -> dict[str, Any]:
        """The network as the configuration names it, or its class."""
        if self.tables is not None:
            return dict(self.tables["model"])
        return {"class": self._settings["model"]["class"]}

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`; empty if the run has not ended."""
        try:
            found = json.loads(self.folder.result.read_bytes())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def _record(self) -> list[tuple[str, list[int]]]:
        """Type and shape of each tensor of a record: its inputs, and then its target."""
        found: list[tuple[str, list[int]]] = self._settings["data"]["record"]
        return found

    @property
    def has_classes(self) -> bool:
        """Whether the model answers with one logit a class, by the loss and the target's form."""
        kind, shape = self._record[-1]
        loss = str(self._settings["loss"])
        name = loss.removeprefix("torch.nn.functional.")
        known = {"loss": name} if name != loss else {}
        whole = not shape and not kind.startswith("float")
        asked = self._settings["objective"] is None and len(self._record) > 1
        return asked and whole and for_classes(loss_of(known))

    @property
    def classes(self) -> int | list[str] | None:
        """How many labels there are, or their names, as declared; None where nothing was."""
        table = {} if self.tables is None else self.tables["data"]
        declared: int | list[str] | None = table.get("classes")
        return find(table["name"]).classes if "name" in table else declared

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """The numbers that outputs of −1 and 1 stand for; None if outputs stand for themselves."""
        bounds = ({} if self.tables is None else self.tables["data"]).get("target_bounds")
        return None if bounds is None else (float(bounds[0]), float(bounds[1]))

    def in_units(self, outputs: Tensor) -> Tensor:
        """Outputs of a regression in the units of its targets."""
        if self.target_bounds is None:
            return outputs
        low, _ = self.target_bounds
        return low + self.widths(outputs + 1.0)

    def widths(self, outputs: Tensor) -> Tensor:
        """Differences of outputs in the units of the targets."""
        if self.target_bounds is None:
            return outputs
        low, high = self.target_bounds
        return outputs * ((high - low) / 2.0)

    @cached_property
    def whole(self) -> nn.Module:
        """A model of the run's network, from prepared inputs to outputs, to be given weights."""
        with torch.random.fork_rng(devices=[]):  # its first weights are drawn and then overwritten
            model = self._network()
        restore_front_end(model, self.folder.front_end)
        return model.eval()

    def _network(self) -> nn.Module:
        if self._given is not None:
            own = copy.deepcopy(self._given)
            factory = self.tables is not None and "factory" in self.tables["model"]
            return fix(own) if factory else own
        if self.tables is None:
            raise validation.missing(
                "model",
                "pass the network that was trained, as model=",
                f"is required, since the run in {str(self.folder.path)!r} was made in Python",
            )
        return make_model(self.tables["model"], None, None, {})

    @property
    def trained(self) -> nn.Module:
        """The part of it that the steps trained."""
        return trained_part(self.whole)

    @cached_property
    def inputs(self) -> Inputs:
        """What makes inputs of the model from a user's records."""
        if len(self._record) > 2:
            rule = f"takes {len(self._record) - 1} inputs for each record"
            remedy = "prepare them yourself and call .module"
            raise validation.fail("model", self.data_name, rule, remedy)
        kind, shape = self._record[0]
        if isinstance(self.whole, FixedFrontEnd):
            kind, shape = "float32", list(self.whole.front.shape)
        table = None if self.tables is None else self.tables["data"]
        return Inputs(table, kind, tuple(shape))

    @torch.no_grad()
    def features(self, inputs: Tensor, *, public: bool = False) -> Tensor:
        """Inputs of the trained part from inputs of the whole model.

        Args:
            inputs: of the whole model.
            public: whether these records are those of a public data set. Only then are their
                features kept in the cache folder, where training keeps them.
        """
        whole = self.whole
        if not isinstance(whole, FixedFrontEnd):
            return inputs
        return whole.features(inputs, cache=cache_folder() / "features" if public else None)

    def weight_files(self) -> list[WeightFile]:
        """The last weights and every average of weights, by its file."""
        paths = [self.folder.model, *sorted(self.folder.averages.glob("*.safetensors"))]
        return [WeightFile.of(path, self.plan_digest) for path in paths if path.exists()]

    def published(self) -> WeightFile | None:
        """The model to use; None where the run has published none."""
        path = self.folder.published
        return WeightFile.of(path, self.plan_digest) if path.exists() else None

    def put_on(self, weights: WeightFile) -> None:
        """Give the model these weights."""
        write_weights(self.whole, weights.tensors(), self._last)

    @property
    def _last(self) -> WeightFile:
        return WeightFile(self.folder.model, LAST, None)

    def not_ended(self) -> DataError:
        """The error about a run without a published model."""
        return DataError.about(
            "run",
            self.folder.path,
            "has not ended and has published no model",
            f"resume it with `{self.folder.how_to_resume}`",
        )

    @cached_property
    def store(self) -> CheckpointStore:
        """The stored checkpoints."""
        if not self.folder.store.is_dir():
            raise DataError.about(
                "run",
                self.folder.path,
                "has stored no checkpoints",
                "train with train.store_every set",
            )
        return CheckpointStore(self.folder.store, self.plan_digest)
