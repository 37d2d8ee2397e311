"""`steppe.inspect` takes any model, or says why not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.errors import ConfigurationError, DataError, UnsupportedModelError


class Both(nn.Module):
    """Time-major inside; returns predictions and the state behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.GRU(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, last = self.recurrent(x.transpose(0, 1))
        return self.head(states[-1]), last


class Demanding(nn.Module):
    """Takes nothing below zero, and says one number about each record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert_async((x >= 0).all(), "below zero")
        return self.layer(x).flatten()


@pytest.mark.parametrize(
    ("model", "example", "operations"),
    [
        (nn.LSTM(3, 4, batch_first=True), torch.zeros(2, 5, 3), ["lstm"]),
        (nn.GRU(3, 4, batch_first=True), torch.zeros(2, 3, 3), ["gru"]),
        (Both(), torch.zeros(2, 5, 3), ["gru", "linear"]),
        (Demanding(), torch.zeros(2, 3), ["linear"]),
        (nn.ReLU(), torch.zeros(2, 5), []),
        (nn.Linear(5, 2).requires_grad_(False), torch.zeros(2, 5), []),
    ],
    ids=["lstm", "gru", "two outputs", "demanding", "no weights", "frozen"],
)
def test_models_of_many_forms_have_a_table(
    model: nn.Module, example: Tensor, operations: list[str]
) -> None:
    report = steppe.inspect(model, example)
    assert [row.operation for row in report.rows] == operations
    assert str(report).startswith("weights")


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ((), ConfigurationError, r"inputs=\(\): must be a batch .* pass torch.zeros"),
        ((np.zeros((2, 5)),), ConfigurationError, r"inputs=\('ndarray',\): .* torch.as_tensor"),
        ((torch.zeros(()),), DataError, "a tensor without axes; all tensors must have"),
    ],
)
def test_what_is_no_batch_is_refused(
    inputs: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        steppe.inspect(nn.Linear(5, 2), *inputs)


class OneNumber(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


def test_an_output_without_records_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="output=no records"):
        steppe.inspect(OneNumber(5, 2), torch.zeros(1, 5))
