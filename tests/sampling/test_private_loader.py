"""The private run's loader: exactly the planned steps, each drawn once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from steppe.errors import ConfigurationError, MisuseError
from steppe.noise import SeededSource
from steppe.sampling import Poisson, PrivateLoader, records

N = 50
DATA = TensorDataset(torch.arange(N, dtype=torch.float32).unsqueeze(1), torch.arange(N))


class Fetched(TensorDataset):
    """As TensorDataset, but no longer that type exactly: it is read record by record."""


class Rows:
    """Counts how many index tensors have been drawn."""

    def __init__(self) -> None:
        self.drawn = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self

    def __next__(self) -> torch.Tensor:
        self.drawn += 1
        return torch.tensor([self.drawn - 1])


@pytest.mark.parametrize("workers", [0, 2])
def test_exactly_the_planned_steps(workers: int) -> None:
    rows = Rows()
    source = DataLoader(Fetched(*DATA.tensors), batch_size=4, num_workers=workers)
    loader = PrivateLoader(records(source), rows, steps=7)
    assert len(loader) == 7
    assert [batch[1].tolist() for batch in loader] == [[step] for step in range(7)]
    assert loader.step == 7
    assert rows.drawn == 7, "workers that read ahead must not draw beyond the plan"
    assert list(loader) == []


def test_an_interrupted_loop_goes_on() -> None:
    loader = PrivateLoader(records(DATA), Rows(), steps=5)
    for _, y in loader:
        if y.item() == 1:
            break
    assert loader.step == 2
    assert [y.item() for _, y in loader] == [2, 3, 4]


def test_empty_batches_are_handed_out() -> None:
    rows = Poisson().batches(N, 0.2, 200, SeededSource(1))
    sizes = [len(x) for x, _ in PrivateLoader(records(DATA), rows, steps=200)]
    assert len(sizes) == 200
    assert 130 < sizes.count(0) < 190


def test_batches_are_the_sampled_rows() -> None:
    wanted = [rows.tolist() for rows in Poisson().batches(N, 8, 30, SeededSource(2))]
    drawn = Poisson().batches(N, 8, 30, SeededSource(2))
    found = [y.tolist() for _, y in PrivateLoader(records(DATA), drawn, steps=30)]
    assert found == wanted


def test_too_few_index_tensors() -> None:
    loader = PrivateLoader(records(DATA), [torch.tensor([0])], steps=2)
    next(loader)
    with pytest.raises(MisuseError, match="indices=1 batches: must cover all 2 steps; draw them"):
        next(loader)


def test_steps_must_be_a_number() -> None:
    with pytest.raises(ConfigurationError, match="steps=0: must be a whole number of at least 1"):
        PrivateLoader(records(DATA), Rows(), steps=0)
