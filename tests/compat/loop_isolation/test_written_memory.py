"""The records that a gradient is made from are those that the loader handed out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from compat_loop import assert_gradients, classification_truth, start, vectors
from steppe.errors import IsolationError


def by_asarray(x: Tensor) -> None:
    values = np.asarray(x)
    values -= values.mean(0)


def by_numpy(x: Tensor) -> None:
    values = x.detach().numpy()
    values /= np.abs(values).max()


def by_dlpack(x: Tensor) -> None:
    values = torch.from_dlpack(x)
    values -= values.mean(0)


@pytest.mark.parametrize("write", [by_asarray, by_numpy, by_dlpack])
@pytest.mark.parametrize("later", [0, 3])
def test_memory_that_is_written_behind_the_watch_is_refused(
    write: Callable[[Tensor], None], later: int
) -> None:
    loop = start()
    loop.run(later)
    x, _ = loop.batch()
    write(x)
    with pytest.raises(IsolationError, match="written without an operation of torch"):
        loop.model(x)


def test_outputs_that_are_written_behind_the_watch_are_refused() -> None:
    loop = start()
    x, y = loop.batch()
    out = loop.model(x)
    values = out.detach().numpy()
    loss = F.cross_entropy(out, y)
    values -= values.max()
    with pytest.raises(IsolationError, match="written without an operation of torch"):
        loss.backward()


def test_values_that_numpy_reads_alone_stay_as_they_are() -> None:
    loop = start()
    for _ in range(6):  # the first batch comes as two halves, and again as it is
        x, y = loop.batch()
        assert np.isfinite(x.numpy()).all()
        x.add_(1.0)  # seen by torch
        loop.backward(x, y)
        loop.optimizer.step()
    assert len(loop.engine.accountant) == 3


@pytest.mark.parametrize("by", [lambda x: x.sub_(x.mean(0)), by_numpy], ids=["torch", "numpy"])
def test_what_is_written_after_backward_has_no_part_in_the_gradient(
    by: Callable[[Tensor], object],
) -> None:
    loop = start()
    truth = classification_truth(loop.model, vectors(12), 0.5)
    for x, y in loop.loader:
        loop.backward(x, y)
        by(x)
        loop.optimizer.step()
    assert_gradients(loop.model, truth)
