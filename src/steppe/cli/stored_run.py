"""A run that has ended, as far as commands need it: its model, its store, its held-out data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from steppe.averaging import CheckpointStore, StoreEntry, write_checkpoint
from steppe.data import Split, find, has_column, known, load, read, read_inputs
from steppe.errors import DataError
from steppe.models import trained_part
from steppe.records import as_records
from steppe.training import (
    Loaded,
    RunFolder,
    features,
    for_classes,
    load_data,
    loss_of,
    make_model,
    of_numbers,
    own_records,
    read_toml,
    reading,
)
from steppe.utils import validation

Pairs = tuple[Tensor, Tensor]


class StoredRun:
    """What a run left behind, read again.

    Args:
        path: its folder; the run must have begun from a configuration.

    Attributes:
        folder: the files.
        tables: the configuration with every choice made.
        plan_digest: fingerprint of the plan.
    """

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder(path)
        config = self.folder.read_config()
        self.plan_digest = str(config["settings"]["plan"]["digest"])
        if not self.folder.toml.exists():
            raise validation.fail(
                "run",
                path,
                "was not made from a configuration, so that its model and data are not known",
                "load its weights in Python",
            )
        self.tables: dict[str, Any] = read_toml(self.folder.toml)
        self._inputs = config["settings"].get("inputs")
        *_, (self._target_type, self._target_shape) = config["settings"]["data"]["record"]
        self._require_same_scale()

    def _require_same_scale(self) -> None:
        """Refuse the run of an earlier version, whose inputs were scaled in another way."""
        if reading(self.tables["data"]) != self._inputs:
            raise DataError.about(
                "run",
                self.folder.path,
                "was not trained on inputs as run.toml and this version scale them",
                "restore that file, or train again",
            )

    @cached_property
    def loaded(self) -> Loaded:
        """The data of the run."""
        found = load_data(self.tables["data"], loss=self.loss)
        self._require_same_scale()  # bounds that were left open are settled now
        return found

    @property
    def loss(self) -> Callable[..., Tensor]:
        """The loss that the run was trained with."""
        return loss_of(self.tables.get("train", {}))

    @property
    def has_classes(self) -> bool:
        """Whether the model answers with one logit a class, by the loss and the targets' form."""
        whole = not self._target_shape and not self._target_type.startswith("float")
        return whole and for_classes(self.loss)

    @cached_property
    def whole(self) -> nn.Module:
        """A fresh model, from records to outputs; the run's data are not needed for it."""
        return make_model(self.tables["model"], None, None, {})

    @property
    def classes(self) -> int | list[str] | None:
        """How many labels there are, or their names, as declared."""
        table = self.tables["data"]
        declared: int | list[str] | None = table.get("classes")
        return find(table["name"]).classes if "name" in table else declared

    @property
    def trained(self) -> nn.Module:
        """The part of it that the steps trained."""
        return trained_part(self.whole)

    def pairs(self, data: Any, most: int | None = None) -> Pairs:
        """Inputs as the trained part takes them, and targets.

        Args:
            data: records of the run's own form.
            most: the first so many only; None for all.
        """
        rows = as_records(data)
        count = len(rows) if most is None else min(len(rows), most)
        inputs, targets = features(self.whole, tuple(rows.batch(torch.arange(count))), False)
        return inputs, targets

    def held_out(self, most: int | None = None) -> Pairs:
        """Held-out inputs and targets, as `pairs` gives them."""
        if self.loaded.evaluate is None:
            raise DataError.about(
                "data",
                self.loaded.name,
                "have no held-out part to measure on",
                "put x_test and y_test beside x_train and y_train, or name a test file",
            )
        return self.pairs(self.loaded.evaluate, most)

    def is_own(self, place: str) -> bool:
        """Whether a place is the one that the private records of the run came from."""
        own = self.tables["data"].get("place")
        return own is not None and (place == own or _is_same(Path(own), Path(place).expanduser()))

    def _own_test_part(self, place: str) -> Pairs:
        """The test part beside the private records, where there is one; nothing else of theirs."""
        one_array = Path(place).suffix.lower() in (".csv", ".npy")
        if one_array or self.loaded.evaluate is None:
            rule = "are the private records of the run, and what they say would be shown"
            arrays = "" if one_array else ", or put a test part beside them"
            raise validation.fail("data", place, rule, f"use other records{arrays}")
        return self.held_out()

    @validation.called({"place": "data"})
    def other(self, place: str) -> Pairs | tuple[Tensor, None]:
        """Other records, read as the run's own were; with labels where there are any.

        Args:
            place: the name of a public data set, whose test part is meant; a file or folder in the
                form of the run's own data; inputs alone in an .npy file, or in a CSV file without
                the column of labels; or `module:factory`. Where it is the run's own, its test part
                is meant.

        Guarantees:
            Gives no record from where the run found its private ones.
        """
        if self.is_own(place):
            return self._own_test_part(place)
        table = self.tables["data"]
        public = known(place) is not None
        made = ":" in place and not Path(place).exists()
        if (public or made) and "bounds" in table:
            rule = "would be taken as they are, and the run's own inputs were scaled by bounds"
            raise validation.fail("data", place, rule, "give a file")
        if public:
            return self.pairs(load(place).test.tensors())
        suffix = Path(place).suffix.lower()
        if (suffix == ".csv") != ("target" in table):
            kind = "a table with columns" if "target" in table else "arrays"
            remedy = "give a CSV file with these columns" if "target" in table else "give arrays"
            raise validation.fail("data", place, f"the run was trained on {kind}", remedy)
        options = [] if made else ["bounds", "missing"]
        if suffix == ".csv":
            options += ["columns", "categories"]
        given = {key: table[key] for key in options if key in table}
        if suffix == ".npy" or (suffix == ".csv" and not has_column(place, table["target"])):
            inputs = read_inputs(place, **given)
            unlabelled = Split(inputs, np.zeros(len(inputs), np.int64)).tensors()
            self._require_scale_of_pictures(place, unlabelled[0])
            return self.pairs(unlabelled)[0], None
        if suffix == ".csv":
            given["target"] = table["target"]
        given["numbers"] = of_numbers(table, self.loss)
        found = read(place, classes=self.classes, **given).records()[0]
        labelled = own_records(place, found)
        if isinstance(labelled, TensorDataset):
            self._require_scale_of_pictures(place, labelled.tensors[0])
        return self.pairs(labelled)

    def _require_scale_of_pictures(self, place: str, inputs: Tensor) -> None:
        """Refuse pictures on another scale than those of the run, which were bytes if unbounded."""
        if "bounds" in self.tables["data"] or inputs.ndim < 3 or not len(inputs):
            return
        low, high = inputs.min().item(), inputs.max().item()
        if low < 0 or high > 1:
            rule = (
                f"holds values from {low:g} to {high:g}, and the run's pictures were bytes, scaled "
                "to [0, 1]"
            )
            raise validation.fail(
                "data", place, rule, "store uint8, or divide by the largest value"
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

    def entries(self, burn_in: int) -> list[StoreEntry]:
        """The stored checkpoints after a step, oldest first; at least one, and of this model."""
        found = [entry for entry in self.store.entries() if entry.step > burn_in]
        if not found:
            rule = f"leaves none of the {len(self.store.entries())} stored checkpoints"
            raise validation.fail("--burn-in", burn_in, rule, "leave out fewer steps")
        with torch.no_grad():
            write_checkpoint(self.trained, self.store.load(found[-1]))
        return found

    def published(self) -> tuple[str, dict[str, Tensor]] | None:
        """The model to use by its name, and its weights; None where the folder has none.

        The trained part has the weights afterwards, and they its types.
        """
        if not self.folder.published.exists():
            return None
        name, weights = _weights(self.folder.published)
        with torch.no_grad():
            write_checkpoint(self.trained, weights)
        return name, {key: tensor.clone() for key, tensor in self.trained.state_dict().items()}

    def each_model(self) -> Iterator[str]:
        """The names of all weights, which the trained part then has: the last, the averages."""
        for path in [self.folder.model, *sorted(self.folder.averages.glob("*.safetensors"))]:
            if not path.exists():
                rule = "has published no weights yet"
                raise validation.fail("run", self.folder.path, rule, "name a run that has ended")
            name, weights = _weights(path)
            with torch.no_grad():
                write_checkpoint(self.trained, weights)
            yield name


def _weights(path: Path) -> tuple[str, dict[str, Tensor]]:
    """The name of a model, and its weights."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return (file.metadata() or {}).get("model", path.stem), weights


def _is_same(own: Path, given: Path) -> bool:
    """Whether a path leads to the run's own file or folder, or to private arrays in that folder."""
    private = [own, *(own / f"{name}.npy" for name in ("x_train", "y_train", "x", "y"))]
    return given.exists() and any(path.exists() and path.samefile(given) for path in private)
