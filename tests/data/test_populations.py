"""Two populations of one data set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from steppe.data import by_attribute, by_parity
from steppe.errors import ConfigurationError


@pytest.mark.parametrize("kind", [np.array, torch.tensor, list])
def test_parity_splits_every_record_once(kind: type) -> None:
    even, odd = by_parity(kind([3, 4, 4, 1, 0]))
    assert (even.tolist(), odd.tolist()) == ([1, 2, 4], [0, 3])
    assert even.dtype == torch.int64


def test_an_attribute_by_members_or_by_a_function() -> None:
    ages = torch.tensor([10, 20, 30, 20])
    assert [rows.tolist() for rows in by_attribute(ages, {20})] == [[1, 3], [0, 2]]
    assert [rows.tolist() for rows in by_attribute(ages, lambda age: age > 15)] == [[1, 2, 3], [0]]


def test_what_is_no_label_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be whole numbers"):
        by_parity([0.5, 1.0])
    with pytest.raises(ConfigurationError, match="must be one value a record"):
        by_attribute([[1], [2]], {1})


def test_one_text_is_no_set_of_members() -> None:
    with pytest.raises(ConfigurationError, match=r"members='north': .*; write \{'north'\}"):
        by_attribute(["nor", "o"], "north")
