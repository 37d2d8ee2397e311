"""Records made by a user's own code, whose errors are turned into errors about the data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils.data import TensorDataset

from steppe.errors import DataError, SteppeError
from steppe.records import Records, as_records


def own_records(place: str, data: Any) -> Any:
    """Data made by the user's own code, whose errors become errors about the data.

    Args:
        place: the `module:factory` that made them.
        data: in any form that `as_records` accepts. A `TensorDataset` is returned unchanged,
            because reading it runs no user code.

    Guarantees:
        The message shows the type of the error but not its text, which may contain a record.
    """
    if type(data) is TensorDataset:
        return data
    with own_code(place):
        return _OwnRecords(place, as_records(data))


@contextmanager
def own_code(place: str) -> Iterator[None]:
    """A block that reads records or lengths from the user's data sets."""
    try:
        yield
    except SteppeError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise DataError.about(
            "place",
            place,
            f"raised {type(error).__name__} when records were read",
            "read every record once in Python to see which, and why",
        ) from error


class _OwnRecords(Records):
    def __init__(self, place: str, rows: Records) -> None:
        self._place, self._rows = place, rows
        self.also_read, self.given = rows.also_read, rows.given
        self.isolation = rows.isolation

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: Tensor) -> Any:
        with own_code(self._place):
            return self._rows.batch(rows)

    def stream(self, batches: Iterable[Tensor]) -> Iterator[Any]:
        with own_code(self._place):
            yield from self._rows.stream(batches)
