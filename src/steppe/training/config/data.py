"""The `[data]` table: the records of a run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Subset

from steppe.data import (
    FROM_RECORDS,
    Dataset,
    MappedDataset,
    by_parity,
    cache_folder,
    find,
    load,
    read_off,
)
from steppe.data import read as read_data
from steppe.records import as_records, labels
from steppe.training.config import registry
from steppe.training.config.user_records import own_code, own_records
from steppe.training.losses import for_classes
from steppe.utils import validation

_OF_READ = ("classes", "target", "columns", "bounds", "categories", "missing", "test")
_FOR_FILES = ("target_bounds", "holdout")
DATA_KEYS = (
    *("name", "place", "called", *_OF_READ, *_FOR_FILES),
    *("bounds_from", "groups", "public", "checks"),
)


@dataclass(frozen=True)
class Loaded:
    """The records of a run.

    Args:
        name: of the data, for the ledger.
        published: whether the number of records is public, as for a public data set.
        train: the private records.
        evaluate: records to evaluate on, or None.
        public: records that clips may use without noise, or None.
        groups: the rows of each group of records, if the sampler needs groups.
        classes: the declared number of classes, or None.
        also_read: what was read from the records beforehand, for the privacy statement.
        held_out: the share of the records that was kept out of training, or None.
        inputs: the names of the inputs of a record of a table.
        blocks: first input and number of inputs of each column of categories.
        checks: whether the owner's checks read the records; never for public data sets.
        mirror: whether mirror images show the same, as declared for a public data set; None where
            nothing is declared.
    """

    name: str
    published: bool
    train: Any
    evaluate: Any
    public: Any
    groups: Any
    classes: int | None
    also_read: tuple[str, ...] = ()
    held_out: float | None = None
    inputs: tuple[str, ...] = ()
    blocks: tuple[tuple[int, int], ...] = ()
    checks: bool = True
    mirror: bool | None = None

    @property
    def cache(self) -> Path | None:
        """A folder for features of a public data set. Those of private records are not kept."""
        return cache_folder() / "features" if self.published else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one record's input: its structure, not its content."""
        example = as_records(self.train).example()
        found = type(example).__name__
        if isinstance(example, tuple | list) and len(example) == 2:
            inputs = example[0]
            if isinstance(inputs, Tensor) and inputs.ndim > 1:
                return tuple(inputs.shape[1:])
            found = f"{'number' if isinstance(inputs, Tensor) else type(inputs).__name__} as input"
        raise validation.fail(
            "data",
            found,
            "must be pairs of a tensor and a label, for models chosen by name",
            "return (torch.tensor([...]), label) for a record, or name a model.factory",
        )

    @property
    def one_number(self) -> bool:
        """Whether the target of a record is one real number."""
        tensors = getattr(self.train, "tensors", None)
        return tensors is not None and tensors[-1].dim() == 1 and tensors[-1].is_floating_point()

    @property
    def columns(self) -> bool:
        """Whether a record is a vector, such as a row of a table."""
        tensors = getattr(self.train, "tensors", None)
        return tensors is not None and tensors[0].dim() == 2


@validation.called(registry.keys_of("data", DATA_KEYS))
def load_data(
    table: dict[str, Any],
    reasons: dict[str, str] | None = None,
    loss: Callable[..., Tensor] = F.cross_entropy,
) -> Loaded:
    """Load what `[data]` names.

    Args:
        table: the table. Relative paths in it become absolute, and bounds that a file needs and
            that were not declared are read from the records and stored here.
        reasons: receives the reason for that.
        loss: of the run. For a regression loss without declared classes, targets are numbers.
    """
    if "public" in table and "holdout" in table:
        rule = (
            "would take private records, which data.holdout keeps out, and use them without noise"
        )
        remedy = "give public records as the test part, and leave out data.holdout"
        raise validation.fail("data.public", table["public"], rule, remedy)
    if "name" in table:
        for key in (*_OF_READ, *_FOR_FILES, "bounds_from"):
            if key in table:
                rule = "is for your own data, but data.name is a public data set"
                raise validation.fail(f"data.{key}", table[key], rule, "leave it out")
        found: Any = load(table["name"])
    else:
        found = _read_own(table, {} if reasons is None else reasons, loss)
    own = isinstance(found, MappedDataset)
    with own_code(found.name) if own else contextlib.nullcontext():
        train, evaluate = found.records()
    public = None
    if "public" in table:
        public, evaluate = _split_off(table["public"], found.name, evaluate)
    if own:
        train = own_records(found.name, train)
        evaluate = None if evaluate is None else own_records(found.name, evaluate)
    groups = None
    if "groups" in table:
        validation.one_of("data.groups", table["groups"], ("parity",))
        groups = by_parity(torch.cat(list(labels(as_records(train)))))
    published = "name" in table
    name = table.get("called", found.name if published else Path(found.name).name)
    also_read = getattr(found, "also_read", ())
    if not also_read and "bounds_from" in table:  # read by the run that wrote this table
        also_read = read_off(table.get("bounds"))
    inputs, blocks = _inputs(table)
    return Loaded(
        name=name,
        published=published,
        train=train,
        evaluate=evaluate,
        public=public,
        groups=groups,
        classes=found.classes,
        also_read=also_read,
        held_out=getattr(found, "held_out", None),
        inputs=inputs,
        blocks=blocks,
        checks=table.get("checks", True) and not published,
        mirror=find(table["name"]).mirror if published else None,
    )


def _inputs(table: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """The names of the inputs of a table's record, and where its columns of categories lie."""
    names: list[str] = []
    blocks = []
    categories = table.get("categories", {})
    for column in table.get("columns", ()):
        if column in categories:
            blocks.append((len(names), len(categories[column])))
            names += [f"{column}={text}" for text in categories[column]]
        else:
            names.append(column)
    return tuple(names), tuple(blocks)


def _split_off(given: Any, place: str, test: Any) -> tuple[Any, Any]:
    """The first records of the test part, as a batch, and the others."""
    count = validation.positive_integer("data.public", given)
    if test is None or count >= len(test):
        rule = "must leave records of the test part for evaluation"
        raise validation.fail("data.public", count, rule, "give fewer, or more test records")
    public = as_records(own_records(place, test)).batch(torch.arange(count, device="cpu"))
    return as_columns(public), Subset(test, range(count, len(test)))


def as_columns(batch: Any) -> Any:
    """A batch as data: a list of columns, as torch makes it, could also be a list of records."""
    return tuple(batch) if isinstance(batch, list) else batch


def of_numbers(table: Mapping[str, Any], loss: Callable[..., Tensor]) -> bool:
    """Whether the targets of a user's own data are real numbers, as declared."""
    return "place" in table and "classes" not in table and not for_classes(loss)


def _read_own(table: dict[str, Any], reasons: dict[str, str], loss: Callable[..., Tensor]) -> Any:
    """The user's own data. Bounds that were not declared are stored in the table.

    `steppe predict` needs them to scale new records in the same way.
    """
    if "bounds_from" in table:
        validation.one_of("data.bounds_from", table["bounds_from"], (FROM_RECORDS,))
    options = {key: table[key] for key in (*_OF_READ, *_FOR_FILES) if key in table}
    options["numbers"] = of_numbers(table, loss)
    place = table["place"]
    if ":" in place and not Path(place).expanduser().exists():
        return read_data(place, **options)
    place = table["place"] = str(Path(place).expanduser().resolve())
    if "test" in table:
        options["test"] = table["test"] = str(Path(table["test"]).expanduser().resolve())
    options.setdefault("bounds", FROM_RECORDS)
    found = read_data(place, **options)
    if not isinstance(found, Dataset) or found.bounds is None:
        return found
    if found.also_read:
        table["bounds_from"] = FROM_RECORDS
        reasons["bounds"] = (
            "read from the records, outside the guarantee; declare data.bounds instead"
        )
    table["bounds"] = found.bounds
    if found.columns:
        table["columns"] = list(found.columns)
    return found


def reading(table: Mapping[str, Any]) -> dict[str, Any] | None:
    """How the user's files were converted to inputs and labels. A resumed run must do the same.

    Args:
        table: the `[data]` table, completed by `load_data`.

    Returns:
        The options of `steppe.data.read`; None if values were not scaled.
    """
    if "bounds" not in table:
        return None
    settings = (*_OF_READ, *_FOR_FILES)
    found = {key: table[key] for key in settings if key in table and key != "test"}
    plain: dict[str, Any] = json.loads(json.dumps(found))  # tuples become lists, as in files
    return plain
