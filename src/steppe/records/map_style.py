"""Records of map-style data sets, read and collated by torch's DataLoader."""

from __future__ import annotations

import copy
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from steppe.errors import DataError
from steppe.randomness import SecretWorker, global_state
from steppe.records.batch_form import Form, require_separate
from steppe.records.collate_check import Compared, ReadTwice, accepted
from steppe.records.records import Records, bad_data, no_records
from steppe.utils.record_form import form_of

# The options of a user's DataLoader that are kept. Its sampler is not, and neither is its
# generator, which would give the workers seeds that others may know.
FETCH_OPTIONS = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)

# The number of records that a user's collate function is tried on: enough that usually some lengths
# differ, and few enough to be read quickly.
_TRIED = 16


class MappedRecords(Records):
    """A map-style data set.

    Before the first step the first record is read, for the structure of a batch. With a collate
    function other than torch's default, up to 16 evenly spaced records are read; they are followed
    through it (`steppe.isolation.pipelines`) and collated alone and together. All other records are
    read when they are drawn. Data set and collate function never get an empty batch.

    Args:
        dataset: Anything with `__len__` and `__getitem__`.
        options: Keyword arguments of `DataLoader` from `FETCH_OPTIONS`.

    Guarantees:
        A batch has one row for each drawn record, and rows have the same type and shape in all
        batches; the error for ragged records shows no length. A collate function that mixes records
        is rejected, for example one that pads to the longest or normalises over the batch. If its
        operations do not prove that it does not, one random record of every batch is also collated
        alone, and a batch with another row for it is an error.

    Examples:
        >>> data = MappedRecords([(torch.ones(3), 0), (torch.zeros(3), 1)])
        >>> data.batch(torch.tensor([1]))
        [tensor([[0., 0., 0.]]), tensor([1])]
    """

    def __init__(self, dataset: Any, options: Mapping[str, Any] | None = None) -> None:
        self._dataset = dataset
        self._length = len(dataset)
        if self._length == 0:
            raise no_records()
        self._options = {"collate_fn": default_collate, **(options or {})}
        self._options["worker_init_fn"] = SecretWorker(self._options.get("worker_init_fn"))
        self._collate = self._options["collate_fn"]
        if self._collate is default_collate:
            self._collate = self._options["collate_fn"] = _stacked
            self._form = Form(self._collate(self._fetch([0])))
        else:
            self._form = self._try_collate()
            self._options["collate_fn"] = self._collate

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: torch.Tensor) -> Any:
        if len(rows) == 0:
            return self._form.empty()
        batch = accepted(self._collate(self._fetch(rows.tolist())))
        return self._form.checked(batch, len(rows))

    def stream(self, batches: Iterable[torch.Tensor]) -> Iterator[Any]:
        """As `Records.stream`; worker processes, if any, read ahead."""
        waiting: deque[int] = deque()  # the sizes of the batches not yet returned

        def with_rows() -> Iterator[list[int]]:
            for rows in batches:
                waiting.append(len(rows))
                if len(rows) > 0:
                    yield rows.tolist()

        # This DataLoader keeps the order, whatever the user's did: in_order is True.
        fetched = iter(DataLoader(self._dataset, batch_sampler=with_rows(), **self._options))
        try:
            while True:
                try:
                    batch = next(fetched)
                except StopIteration as stop:
                    if any(waiting):
                        raise _stopped() from stop
                    break
                # This batch belongs to the first index tensor with rows; empty ones come before it.
                while not (drawn := waiting.popleft()):
                    yield self._form.empty()
                yield self._form.checked(accepted(batch), drawn)
            for _ in waiting:
                yield self._form.empty()
        except BaseException as error:
            # The workers end when `fetched` is freed. The frames of the error must not keep it,
            # because the next workers would be forked beside these and both would wait.
            if self._options.get("num_workers"):
                _forget_frames(error)
            raise
        finally:
            del fetched

    def _fetch(self, rows: list[int]) -> Any:
        fetch_many = getattr(self._dataset, "__getitems__", None)
        try:
            return fetch_many(rows) if fetch_many else [self._dataset[row] for row in rows]
        except StopIteration as stop:
            raise _stopped() from stop

    def _try_collate(self) -> Form:
        """Try the collate function on a few records, and learn the form of a batch.

        Every batch is compared from then on, unless a proof makes this unnecessary.
        """
        from steppe.isolation import follow_collate

        tried, collate = min(_TRIED, self._length), self._collate
        rows = [place * (self._length - 1) // max(1, tried - 1) for place in range(tried)]
        found, proven = self._fetch(rows), None
        if isinstance(found, list) and len(found) == tried:
            if follow_collate(collate, found):
                proven = form_of(found[0])
            # The same records twice, since reading may be random. Copies, since a collate function
            # may modify its argument.
            before = global_state()
            singles = [collate([copy.deepcopy(record)]) for record in found]
            together = collate(copy.deepcopy(found))
            drawn = global_state() != before
        else:  # `__getitems__` returns no list of records: call it for each record
            singles = [collate(self._fetch([row])) for row in rows]
            together, drawn = collate(found), False
            self._dataset = ReadTwice(self._dataset)
        form = Form(singles[0])
        alone = [form.checked(single, 1) for single in singles]
        require_separate(form.checked(together, tried), alone)
        if drawn:
            raise bad_data(
                "collate_fn",
                "draws random numbers",
                "must not, because a record collated alone could not be compared with its row",
                "draw them in the data set",
            )
        self.isolation = "compared" if proven is None else "proven"
        self._collate = Compared(collate, proven)
        return form


def _stacked(records: list[Any]) -> Any:
    """torch's default collate, with an error for ragged records that shows no lengths."""
    try:
        return default_collate(records)
    except Exception as error:
        if len(records) == 1:  # the record itself cannot be collated
            raise
        raise _ragged(type(error).__name__) from None


def _ragged(kind: str) -> DataError:
    return bad_data(
        "data",
        f"records of several forms ({kind})",
        "must all have the same structure, shapes and types to be stacked",
        "pad to a fixed length in the data set, or give a DataLoader with a collate_fn that does",
    )


def _forget_frames(error: BaseException | None) -> None:
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__


def _stopped() -> DataError:
    """The error for a StopIteration in user code, which would look like the end of the draws."""
    return bad_data(
        "data",
        "StopIteration while reading",
        "must return every record that is requested",
        "raise another error in the data set or collate_fn if a record cannot be read",
    )
