"""From the records that a user has to the inputs that a model takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from steppe.data import from_array, from_columns, read_array, read_inputs
from steppe.errors import DataError, SteppeError
from steppe.utils import validation

_TABLE = ("columns", "bounds", "categories", "missing")
_ARRAY = ("bounds", "missing")


class Inputs:
    """Prepares new records in the same way as the records of the run.

    Args:
        table: the `[data]` table of the run, with bounds and columns settled; None for a run made
            in Python, whose inputs are used unchanged.
        kind: the type of an input, such as `float32`.
        shape: of one record, as the model takes it.

    Examples:
        >>> inputs = Inputs({"place": "/x.npz", "bounds": [[0.0, 10.0]]}, "float32", (1,))
        >>> inputs([[5.0], [10.0]]).tolist()
        [[0.0], [1.0]]
    """

    def __init__(self, table: Mapping[str, Any] | None, kind: str, shape: tuple[int, ...]) -> None:
        self._table = {} if table is None else table
        self.kind, self.shape = kind, shape
        self.columns: list[str] | None = self._table.get("columns") if self.of_table else None

    @property
    def of_table(self) -> bool:
        """Whether the run was trained on a table with named columns."""
        return "target" in self._table

    @property
    def settings(self) -> dict[str, Any]:
        """What turns the values of a record into inputs: columns, bounds, categories, missing."""
        names = _TABLE if self.of_table else _ARRAY
        return {name: self._table[name] for name in names if name in self._table}

    @property
    def of_bytes(self) -> bool:
        """Whether the run's inputs were pictures of bytes, divided by 255."""
        return self._scales and "bounds" not in self._table and len(self.shape) > 1

    @property
    def _scales(self) -> bool:
        """Whether the library read the run's records, from a file or a public data set."""
        place = self._table.get("place")
        return "name" in self._table or (place is not None and Path(place).is_absolute())

    def __call__(self, records: Any) -> Tensor:
        """Inputs of the model.

        Args:
            records: a path to a CSV or `.npy` file; for tables also columns by name (a dict, a data
                frame) or a list of rows; for everything else a tensor, an array or nested lists.
        """
        with _about_records():
            if isinstance(records, str | PathLike):
                found = self.of_file(_existing(Path(records).expanduser()))
            elif self.of_table:
                table = from_columns(records, self.columns or [], **self._without_columns)
                found = torch.from_numpy(table)
            else:
                found = self._of_array(records, type(records).__name__)
            return self._of_shape(found)

    @property
    def _without_columns(self) -> dict[str, Any]:
        return {name: value for name, value in self.settings.items() if name != "columns"}

    def of_file(self, path: Path) -> Tensor:
        """Inputs from a CSV or `.npy` file."""
        suffix, wanted = path.suffix.lower(), ".csv" if self.of_table else ".npy"
        if suffix != wanted:
            kind = "a table with columns" if self.of_table else "arrays"
            remedy = "give a CSV file with these columns" if self.of_table else "give an .npy file"
            rule = f"the run was trained on {kind}"
            raise DataError.about("place", path, rule, remedy)
        if self._scales:
            found = read_inputs(path, **self.settings)
            return self.require_scale(from_array(found, source=str(path)), str(path))
        return self._as_it_is(read_array(_existing(path)), str(path))

    def _of_array(self, records: Any, source: str) -> Tensor:
        array = _as_array(records, source)
        if self._scales:
            return self.require_scale(from_array(array, **self.settings, source=source), source)
        return self._as_it_is(array, source)

    def require_scale(self, inputs: Tensor, source: str) -> Tensor:
        """Refuse pictures on another scale than those of the run."""
        if self.of_bytes and inputs.numel():
            low, high = inputs.min().item(), inputs.max().item()
            if low < 0 or high > 1:
                rule = (
                    f"holds values from {low:g} to {high:g}, and the run's pictures were bytes, "
                    "scaled to [0, 1]"
                )
                remedy = "store uint8, or divide by the largest value"
                raise validation.fail("place", source, rule, remedy)
        return inputs

    def _as_it_is(self, array: NDArray[Any], source: str) -> Tensor:
        """Values that the user's own code prepared, in the type that the run was trained on."""
        wanted = getattr(torch, self.kind)
        found = torch.from_numpy(np.ascontiguousarray(array))
        floats = wanted.is_floating_point
        if found.dtype == torch.uint8 and floats and found.dim() > 2:
            rule = "are bytes, and the run's own code made the inputs, on a scale that is not known"
            raise DataError.about("place", source, rule, f"scale them as it did, to {self.kind}")
        if found.is_floating_point() and not floats:
            rule = f"must be whole numbers of type {self.kind}"
            raise DataError.about("place", source, rule, "convert them")
        found = found.to(wanted)
        bad = ~torch.isfinite(found.flatten(1)).all(1) if floats and found.dim() > 1 else None
        if bad is not None and bad.any():
            rule = f"record {int(bad.nonzero()[0, 0])} has a value that is not finite"
            raise DataError.about("place", source, rule, "fill in what is missing")
        return found

    def _of_shape(self, inputs: Tensor) -> Tensor:
        found = tuple(inputs.shape)
        if found[1:] == self.shape and len(inputs):
            return inputs
        sizes = ", ".join(map(str, self.shape))
        remedy = "give records of the shape that the run was trained on"
        if found == self.shape:
            remedy = "this is one record: give it an axis of records, as in records[None]"
        elif self.of_bytes:
            remedy = "or be pictures of uint8, (records, height, width[, colour])"
        rule = f"inputs must have the shape (records, {sizes}), with at least one record"
        raise DataError.about("records", found, rule, remedy)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise DataError.about("place", path, "there is no such file", "give a CSV or .npy file")
    return path


def _as_array(records: Any, source: str) -> NDArray[Any]:
    if isinstance(records, Tensor):
        plain = records.detach().cpu()
        return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
    if isinstance(records, Mapping) or hasattr(records, "columns"):
        rule = "has named columns, and the run was trained on arrays"
        raise DataError.about("place", source, rule, "give an array, a tensor or nested lists")
    try:
        found = np.asarray(records)
    except ValueError:  # rows of different lengths
        found = np.asarray(None)
    if found.dtype.kind not in "biuf":
        rule = "cannot be read as numbers, a row a record"
        raise DataError.about("place", source, rule, "give an array, a tensor or nested lists")
    return found


@contextmanager
def _about_records() -> Iterator[None]:
    """Inside the block, errors speak of `records`, and of no argument that there is not."""

    def change(error: SteppeError) -> None:
        error.rename({"place": "records", "path": "records"})
        # All options of `steppe.data.read` were fixed when the run began.
        if error.mentions or error.rule.startswith(("record ", "line ")):
            error.remedy = "give values like those that the run was trained on"

    with validation.reworded(change):
        yield
