"""Batches drawn by Poisson sampling, pass after pass."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from steppe.compat.hooked_run import DrawnPart, HookedRun
from steppe.errors import DataError
from steppe.records import Records, as_records
from steppe.sampling import Poisson
from steppe.utils import validation

_END = object()


class Draws:
    """The data of a user's loader and the sampling rate that follows from its batch size.

    Args:
        data_loader: its data set, batch size, collate function and workers are kept.

    Attributes:
        batch_size: the expected number of records in a step.
        sample_rate: batch size over number of records; the exact probability of a draw.
        pass_length: the number of batches in one pass, as in the user's loader.
    """

    def __init__(self, data_loader: DataLoader[Any]) -> None:
        if not isinstance(data_loader, DataLoader):
            raise validation.fail(
                "data_loader",
                type(data_loader).__name__,
                "must be a torch DataLoader",
                "pass the loader of the plain loop",
            )
        self.dataset = data_loader.dataset
        self.rows: Records = _padding_named(data_loader)
        self.batch_size = validation.positive_integer("batch_size", data_loader.batch_size)
        self.sample_rate = Poisson().realised_rate(len(self.rows), self.batch_size)
        self.pass_length = math.ceil(len(self.rows) / self.batch_size)


def _padding_named(data_loader: DataLoader[Any]) -> Records:
    """The records. If their lengths differ, the error names `pad_to=`."""
    try:
        return as_records(data_loader)
    except DataError as error:
        if "pad to a fixed length" not in str(error):
            raise
        said = str(error).removesuffix(".")
        raise DataError(f"{said}, or give pad_to= and pad_value= to make_private.") from error


class PoissonLoader:
    """The loader that `make_private` returns.

    Each pass draws new batches. Every record is drawn independently, so the sizes vary around
    `batch_size` and may be 0. A pass that was left early is not resumed. If a batch was drawn and
    not stepped, the next pass begins with it, so that a batch cannot be exchanged for another.

    Args:
        draws: the data and the rate.
        run: receives every batch before the user does.

    Attributes:
        dataset: the user's data set.
        sample_rate: the probability that a record takes part in a step.
    """

    def __init__(self, draws: Draws, run: HookedRun) -> None:
        self.dataset = draws.dataset
        self.sample_rate = draws.sample_rate
        self.run = run
        self._draws = draws

    def __len__(self) -> int:
        """The number of batches in one pass."""
        return self._draws.pass_length

    def __iter__(self) -> Iterator[Any]:
        return self.physical_batches(len(self._draws.rows))

    def physical_batches(self, largest: int) -> Iterator[Any]:
        """One pass in physical batches of at most `largest` records."""
        draws, run = self._draws, self.run
        threshold = Poisson().threshold(len(draws.rows), draws.batch_size)
        # Worker processes read ahead of the batches that are yielded.
        waiting: deque[tuple[DrawnPart, Tensor]] = deque()

        def indices() -> Iterator[Tensor]:
            left = run.unstepped
            for _ in range(draws.pass_length):
                if left is None:
                    rows = Poisson().draw(len(draws.rows), threshold, run.source)
                else:
                    rows, left = left, None
                parts = rows.split(largest)
                draw, last = object(), len(parts) - 1
                for place, some in enumerate(parts):
                    part = DrawnPart(len(some), place == 0, place == last, rows, draw)
                    waiting.append((part, some))
                    yield some

        def fetched(batches: Iterator[Any]) -> Any:
            # What a data set draws from the global generators is secret.
            with run.generators.hidden(draws.rows.run_users_code):
                return next(batches, _END)

        run.abandon()
        batches = draws.rows.stream(indices())
        while (batch := fetched(batches)) is not _END:
            part, some = waiting.popleft()
            while True:
                rows = run.watched.share_of(some)
                if run.again or rows is not some:  # the loop may have changed what it was given
                    batch = fetched(draws.rows.stream(iter((rows,))))
                run.offer(replace(part, records=len(rows)))
                yield run.watched.begin(batch, len(rows))
                if not run.again:
                    break
        run.require_stepped()
