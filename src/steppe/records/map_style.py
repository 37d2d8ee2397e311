"""Records behind `dataset[i]`: fetched and collated by torch's own DataLoader."""

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

# What a user's DataLoader says about fetching. How it chooses records is not among them, nor its
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

# Records that a user's own collate function is tried on: enough that their lengths differ wherever
# lengths differ commonly, few enough to be read at once.
_TRIED = 16


class MappedRecords(Records):
    """A map-style data set.

    Read at once, before the first step: the first record, to learn the structure of a batch.
    Where there is a collate function other than torch's default, up to 16 records, evenly spread,
    which are followed through it (`steppe.isolation.pipelines`) and collated alone and together.
    Read later: the records that are drawn, when they are.
    No empty batch reaches the data set or its collate function, so neither needs to be ready for
    one.

    Args:
        dataset: Anything with `__len__` and `__getitem__`.
        options: Keyword arguments of `DataLoader` from `FETCH_OPTIONS`.

    Guarantees:
        A batch has one row for each record drawn and rows of the same type and shape as any other
        batch; the error for ragged records shows no length. A collate function is refused if
        records meet in it, as in one that pads to the longest, mixes or normalises over the batch.
        Where its operations do not prove that they cannot, one random record of every batch is
        collated alone too, and a batch in which it has another row is not handed out.

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
        waiting: deque[int] = deque()  # the size of each index tensor not yet answered

        def with_rows() -> Iterator[list[int]]:
            for rows in batches:
                waiting.append(len(rows))
                if len(rows) > 0:
                    yield rows.tolist()

        # A DataLoader that keeps its order, whatever the user's did: in_order is left at True.
        fetched = iter(DataLoader(self._dataset, batch_sampler=with_rows(), **self._options))
        try:
            while True:
                try:
                    batch = next(fetched)
                except StopIteration as stop:
                    if any(waiting):
                        raise _stopped() from stop
                    break
                # This batch answers the first index tensor with rows; empty ones came before it.
                while not (drawn := waiting.popleft()):
                    yield self._form.empty()
                yield self._form.checked(accepted(batch), drawn)
            for _ in waiting:
                yield self._form.empty()
        except BaseException as error:
            # The workers end with `fetched`. The frames of the error must not keep them, or those
            # of the next call would be forked beside them and each would wait for the other.
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
        """The form of a batch, if a few records make the same rows alone and together.

        From then on every batch is compared, unless that is proven to be needless.
        """
        from steppe.isolation import follow_collate

        tried, collate = min(_TRIED, self._length), self._collate
        rows = [place * (self._length - 1) // max(1, tried - 1) for place in range(tried)]
        found, proven = self._fetch(rows), None
        if isinstance(found, list) and len(found) == tried:
            if follow_collate(collate, found):
                proven = form_of(found[0])
            # The same reading twice, since reading may be random. Copies, since a collate function
            # may take apart what it is given.
            before = global_state()
            singles = [collate([copy.deepcopy(record)]) for record in found]
            together = collate(copy.deepcopy(found))
            drawn = global_state() != before
        else:  # a bulk way that gives no list of records: ask it for each alone
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
                "must not, because a record alone could not be compared with the same record among "
                "others",
                "draw them in the data set",
            )
        self.isolation = "compared" if proven is None else "proven"
        self._collate = Compared(collate, proven)
        return form


def _stacked(records: list[Any]) -> Any:
    """What torch makes of records by default; its own words for ragged ones show their lengths."""
    try:
        return default_collate(records)
    except Exception as error:
        if len(records) == 1:  # nothing to agree with: the record itself is of no use
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
    """Told apart from the end of the draws, which a StopIteration would look like."""
    return bad_data(
        "data",
        "StopIteration while reading",
        "must give every record that is asked for",
        "raise another error in the data set or collate_fn when one cannot be read",
    )
