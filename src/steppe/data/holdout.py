"""Which records are kept out of training, decided for each record by itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steppe.data.arrays import NAMES
from steppe.errors import DataError
from steppe.utils import validation

# Public, and the same for every run: whoever knows it learns which records are held out, but the
# guarantee of a held-out record is that of one that was not in the data at all.
_SEED = b"steppe holdout 0"


def share_of(holdout: Any) -> float | None:
    """The share of the records to keep out, checked; None for none."""
    if holdout is None:
        return None
    return validation.open_unit("holdout", holdout, "write 0.2 to keep a fifth")


def is_held_out(record: bytes, share: float) -> bool:
    """Whether a record is kept out of training.

    Args:
        record: its cells or values, as bytes.
        share: of the records, in (0, 1).

    Guarantees:
        A hash of the record and of a public constant decides, so that a record's part depends on
        that record alone: adding or removing one leaves all others where they are. Equal records
        are on the same side, and every run on the same records keeps the same ones out.

    Examples:
        >>> sum(is_held_out(b"%d" % number, 0.2) for number in range(1000))
        185
    """
    found = hashlib.blake2b(record, digest_size=8, key=_SEED).digest()
    return int.from_bytes(found, "big") < share * 2.0**64


def of_arrays(x: NDArray[Any], y: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Which records of arrays are kept out: a record is a row of both, as it is stored."""
    rows = zip(np.ascontiguousarray(x), np.ascontiguousarray(y), strict=False)
    found: Iterable[bool] = (is_held_out(a.tobytes() + b"|" + b.tobytes(), share) for a, b in rows)
    return np.fromiter(found, np.bool_, min(len(x), len(y)))


def require_both_parts(place: str, held: NDArray[np.bool_], share: float) -> None:
    """Require records to train on and records to evaluate on."""
    if held.all() or not held.any():
        rule = f"leaves no record to {'train' if held.all() else 'evaluate'} on in {place!r}"
        raise DataError.about("holdout", share, rule, "give another share, or more records")


def split_arrays(place: str, arrays: dict[str, NDArray[Any]], share: float) -> dict[str, Any]:
    """Arrays of both parts from those to train on.

    Args:
        place: of the data, for messages.
        arrays: inputs and targets, in this order.
        share: of the records to keep out.
    """
    if len(arrays) > 2:
        remedy = "leave it out, or leave out x_test and y_test"
        raise validation.fail("holdout", share, "the arrays have a test part already", remedy)
    x, y = arrays.values()
    if not (x.ndim and y.ndim and len(x) == len(y)):
        return arrays  # refused where their shapes are checked
    held = of_arrays(x, y, share)
    require_both_parts(place, held, share)
    return dict(zip(NAMES, (x[~held], y[~held], x[held], y[held]), strict=True))
