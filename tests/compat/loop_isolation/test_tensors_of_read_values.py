"""Tensors and arrays that a loop makes from values which it has read decide nothing."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compat_loop import Loop, start, vectors
from steppe.errors import IsolationError

Loss = Callable[[Loop, Tensor, Tensor], Tensor]


def each(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(loop.model(x), y, reduction="none")


def class_weights(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    counts = Counter(y.tolist())
    weights = torch.tensor([len(y) / max(1, counts[k]) for k in (0, 1)])
    return (each(loop, x, y) * weights[y]).mean()


def weight_of_positives(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    positive = int(y.sum())
    weight = torch.tensor([1.0, (len(y) - positive) / max(1, positive)])
    labels = F.one_hot(y, 2).float()
    return F.binary_cross_entropy_with_logits(loop.model(x), labels, pos_weight=weight)


def largest_by_column(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    return each(loop, x / torch.tensor(x.abs().amax(0).tolist()), y).mean()


def centred_in_numpy(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    return each(loop, x - torch.from_numpy(x.numpy().mean(0)), y).mean()


def centred_by_new_tensor(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    return each(loop, x - x.new_tensor(x.numpy().mean(0)), y).mean()


def divided_by_a_number_of_numpy(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    return (each(loop, x, y) / x.numpy().max()).mean()


def run(loop: Loop, loss: Loss, steps: int) -> None:
    for _ in range(steps):
        for x, y in loop.loader:
            loop.optimizer.zero_grad()
            loss(loop, x, y).backward()
            loop.optimizer.step()


@pytest.mark.parametrize(
    "loss",
    [
        class_weights,
        weight_of_positives,
        largest_by_column,
        centred_in_numpy,
        centred_by_new_tensor,
        divided_by_a_number_of_numpy,
    ],
)
def test_constants_made_from_read_values_are_refused_before_the_first_step(loss: Loss) -> None:
    """The first batch comes a second time with half of its records, which have other values."""
    loop = start(data=vectors(13))
    before = [weight.detach().clone() for weight in loop.model.parameters()]
    with pytest.raises(IsolationError, match="after it read values of the batch"):
        run(loop, loss, 1)
    assert len(loop.engine.accountant) == 0
    assert all(map(torch.equal, before, loop.model.parameters()))


def divided_by_what_is_large(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    return each(loop, x / max(10.0, float(x.numpy().max())), y).mean()


def test_constants_made_from_read_values_must_not_change() -> None:
    data = vectors(13)
    loop = start(data=data)
    run(loop, divided_by_what_is_large, 3)
    data.tensors[0][0] = 100.0
    with pytest.raises(IsolationError, match="after it read values of the batch"):
        run(loop, divided_by_what_is_large, 1)
    assert len(loop.engine.accountant) == 3


def constants(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    (x.mean().item(), y.tolist(), x.numpy().mean(0))
    x = (x - torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])) / np.float32(2)
    return (each(loop, x, y) * torch.tensor([1.0, 3.0])[y]).mean()


def noise(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    x.mean().item()
    return each(loop, x + 0.1 * torch.randn(x.shape), y).mean()


@pytest.mark.parametrize("loss", [constants, noise])
def test_constants_and_noise_may_come_after_a_read(loss: Loss) -> None:
    loop = start(data=vectors(60), batch_size=30, sigma=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(loop, loss, 5)
    assert len(loop.engine.accountant) == 10
