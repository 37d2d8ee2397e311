"""A run that has ended, as far as commands need it: its models and its held-out data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from steppe.averaging import StoreEntry, write_checkpoint
from steppe.data import has_column, known, load, read
from steppe.errors import DataError
from steppe.records import as_records
from steppe.trained import TrainedRun
from steppe.training import Loaded, load_data, loss_of, of_numbers, own_records
from steppe.utils import validation

Pairs = tuple[Tensor, Tensor]


class StoredRun(TrainedRun):
    """A run with the data that commands measure on.

    Args:
        path: its folder; the run must have begun from a configuration.
    """

    tables: dict[str, Any]

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        if not self.folder.toml.exists():
            raise validation.fail(
                "run",
                path,
                "was not started from a configuration file, so its model and data are not known",
                "load its weights in Python, with steppe.load(run, model=…)",
            )

    @cached_property
    def loaded(self) -> Loaded:
        """The data of the run."""
        found = load_data(self.tables["data"], loss=self.loss)
        self.require_same_scale()  # bounds that were left open are settled now
        return found

    @property
    def loss(self) -> Callable[..., Tensor]:
        """The loss that the run was trained with."""
        return loss_of(self.tables.get("train", {}))

    def pairs(self, data: Any, most: int | None = None, *, public: bool) -> Pairs:
        """Inputs of the trained part, and targets.

        Args:
            data: records in the form of the run's own.
            most: the largest number of records; None for all.
            public: whether they are records of a public data set.
        """
        rows = as_records(data)
        count = len(rows) if most is None else min(len(rows), most)
        inputs, targets = rows.batch(torch.arange(count))
        return self.features(inputs, public=public), targets

    def held_out(self, most: int | None = None, test: str | None = None) -> Pairs:
        """Held-out inputs and targets, as `pairs` gives them.

        Args:
            most: the largest number of records; None for all.
            test: other records with targets, as `other` takes them; None for the run's own held-out
                part.
        """
        if test is not None:
            with validation.called({"data": "--test", "place": "--test"}):
                inputs, targets = self.other(test)
                if targets is None:
                    rule, remedy = "have no targets to score with", "give records with targets"
                    raise validation.fail("data", test, rule, remedy)
            return inputs[:most], targets[:most]
        if self.loaded.evaluate is None:
            raise DataError.about(
                "data",
                self.loaded.name,
                "have no held-out part to measure on",
                "name records with --test, or train with --holdout 0.2",
            )
        return self.pairs(self.loaded.evaluate, most, public=self.is_public)

    def is_own(self, place: str) -> bool:
        """Whether a place is that of the run's private records."""
        own = self.tables["data"].get("place")
        return own is not None and (place == own or _is_same(Path(own), Path(place).expanduser()))

    def _own_test_part(self, place: str) -> Pairs:
        """The test part of the run's own data; the private records are an error."""
        one_array = (
            Path(place).suffix.lower() in (".csv", ".npy") and "holdout" not in self.tables["data"]
        )
        if one_array or self.loaded.evaluate is None:
            rule = "are the private records of the run, but the results would be shown"
            arrays = "" if one_array else ", or add a test part"
            raise validation.fail("data", place, rule, f"use other records{arrays}")
        return self.held_out()

    @validation.called({"place": "data"})
    def other(self, place: str) -> Pairs | tuple[Tensor, None]:
        """Other records, read like the run's own, with labels if there are any.

        Args:
            place: the name of a public data set, whose test part is used; a file or folder in the
                form of the run's own data; inputs alone in an .npy file, or in a CSV file without
                the label column; or `module:factory`. Of the run's own data, the test part is used.

        Guarantees:
            Does not return private records of the run.
        """
        if self.is_own(place):
            return self._own_test_part(place)
        table = self.tables["data"]
        public = known(place) is not None
        made = ":" in place and not Path(place).exists()
        if (public or made) and "bounds" in table:
            rule = "would not be scaled, but the run's own inputs were scaled by bounds"
            raise validation.fail("data", place, rule, "give a file")
        if public:
            return self.pairs(load(place).test.tensors(), public=True)
        suffix = Path(place).suffix.lower()
        if (suffix == ".csv") != ("target" in table):
            kind = "a table with columns" if "target" in table else "arrays"
            remedy = "give a CSV file with these columns" if "target" in table else "give arrays"
            raise validation.fail("data", place, f"the run was trained on {kind}", remedy)
        if suffix == ".npy" or (suffix == ".csv" and not has_column(place, table["target"])):
            return self.features(self.inputs.of_file(Path(place).expanduser())), None
        given = {} if made else self.inputs.settings
        if suffix == ".csv":
            given = {**given, "target": table["target"]}
        if "target_bounds" in table and not made:
            given = {**given, "target_bounds": table["target_bounds"]}
        given = {**given, "numbers": of_numbers(table, self.loss)}
        found = read(place, classes=self.classes, **given).records()[0]
        labelled = own_records(place, found)
        if isinstance(labelled, TensorDataset):
            self.inputs.require_scale(labelled.tensors[0], place)
        return self.pairs(labelled, public=False)

    def entries(self, burn_in: int) -> list[StoreEntry]:
        """The stored checkpoints after a step, oldest first; at least one, and of this model."""
        found = [entry for entry in self.store.entries() if entry.step > burn_in]
        if not found:
            rule = f"leaves none of the {len(self.store.entries())} stored checkpoints"
            raise validation.fail("--burn-in", burn_in, rule, "use a smaller number")
        with torch.no_grad():
            write_checkpoint(self.trained, self.store.load(found[-1]))
        return found

    def answering(self) -> tuple[str, dict[str, Tensor]] | None:
        """The published model by its name, and the weights of its trained part; None where the
        run has published none. The model has the weights afterwards."""
        weights = self.published()
        if weights is None:
            return None
        self.put_on(weights)
        return weights.model, {key: t.clone() for key, t in self.trained.state_dict().items()}

    def each_model(self) -> Iterator[str]:
        """The names of all weights, which the trained part then has: the last, the averages."""
        if not self.folder.model.exists():
            rule = "has published no weights yet"
            raise validation.fail("run", self.folder.path, rule, "name a run that has ended")
        for weights in self.weight_files():
            self.put_on(weights)
            yield weights.model


def _is_same(own: Path, given: Path) -> bool:
    """Whether a path is the run's own file or folder, or private arrays in that folder."""
    private = [own, *(own / f"{name}.npy" for name in ("x_train", "y_train", "x", "y"))]
    return given.exists() and any(path.exists() and path.samefile(given) for path in private)
