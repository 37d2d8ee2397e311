"""Signs of nonsense in the records: what is said, what is refused, and what is left alone."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from steppe.errors import DataError, DataWarning
from steppe.records import as_records, check_for_owner

COUNT = 400


def noise() -> Tensor:
    return torch.randn(COUNT, 3, generator=torch.Generator().manual_seed(0))


def labels() -> Tensor:
    return torch.arange(COUNT) % 2


def check(x: Tensor, y: Tensor, population: int | None = COUNT, **options: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = check_for_owner(as_records((x, y)), population, **options)
    assert found == "records"
    assert all(one.category is DataWarning for one in caught)
    return [str(one.message) for one in caught]


def with_column(values: Tensor) -> Tensor:
    return torch.cat([noise(), values.float()[:, None]], 1)


def test_ordinary_records_are_left_alone() -> None:
    assert check(noise(), labels()) == []
    assert check(noise(), torch.randn(COUNT), numbers=True) == []
    assert check((noise() > 0).float(), labels()) == []
    assert check(torch.zeros(COUNT, 1, 8, 8), labels()) == []  # borders of pictures are constant
    assert check(noise()[:9] * 0, labels()[:9], 9) == []  # few records may be alike by chance


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        (torch.arange(COUNT), ("a", "b", "c", "patient")),
        (torch.randperm(COUNT) / 50 - 4, ("a", "b", "c", "row")),  # scaled and in any order
        (torch.randn(COUNT) * 1e6, ("a", "b", "c", "patient_id")),
        (torch.randn(COUNT) * 1e6, ("a", "b", "c", "ID")),
    ],
)
def test_columns_like_identifiers(values: Tensor, columns: tuple[str, ...]) -> None:
    (found,) = check(with_column(values), labels(), columns=columns)
    assert found.startswith(f"column {columns[-1]!r} is different in every record, like an ident")


def test_measures_are_no_identifiers() -> None:
    for values in (torch.randn(COUNT), torch.rand(COUNT) ** 3, torch.arange(COUNT) % 60):
        assert check(with_column(values), labels(), columns=("a", "b", "c", "age")) == []


def test_constant_columns_are_named() -> None:
    x = torch.cat([noise(), torch.full((COUNT, 7), 3.0)], 1)
    (found,) = check(x, labels(), columns=tuple("abcdefghij"))
    assert found == (
        "columns 'd', 'e', 'f', 'g', 'h' and 2 more are the same in every record and cannot help "
        "to predict."
    )
    (found,) = check(with_column(torch.ones(COUNT)), labels())
    assert found.startswith("column number 3 is the same")


def test_inputs_that_are_not_finite() -> None:
    x = noise()
    x[:8, 1] = torch.nan
    (found,) = check(x, labels())
    assert found.startswith("2 % of the records have an input that is NaN or infinite: their grad")
    x[: COUNT // 2 + 1, 2] = torch.inf
    with pytest.raises(DataError, match="would contribute to no step; fill in what is missing"):
        check(x, labels())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.randn(COUNT) * 1e5, "targets='large': are far from unit scale"),
        (torch.randn(COUNT) + 1e5, "targets='large'"),
        (torch.randn(COUNT) * 1e-6, "targets='almost the same in all records'"),
        (torch.full((COUNT,), torch.nan), "targets='NaN or infinite': must be finite"),
    ],
)
def test_targets_of_a_regression(targets: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check(noise(), targets, numbers=True)
    check(noise(), targets)  # of another loss, nothing is known


@pytest.mark.parametrize(
    ("population", "message"),
    [(COUNT, None), (430, None), (600, "the data have fewer records"), (200, "have more records")],
)
def test_population_beside_the_number_of_records(population: int, message: str | None) -> None:
    found = check(noise(), labels(), population)
    assert len(found) == (message is not None)
    assert message is None or message in found[0]
    for far in (COUNT * 10, COUNT // 10):
        with pytest.raises(DataError, match=f"population={far}: is ten or more times off"):
            check(noise(), labels(), far)


def test_a_user_s_own_code_is_not_run() -> None:
    class Own(Dataset[Any]):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, at: int) -> Any:
            asked.append(at)
            return torch.full((3,), torch.nan), 0

    asked: list[int] = []
    rows = as_records(Own())
    rows.example()
    before = len(asked)
    assert check_for_owner(rows, None) is None
    assert check_for_owner(rows, 100) == "length"
    assert len(asked) <= before + 4  # for the form of a record
