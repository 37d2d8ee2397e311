"""Batches that the loop transformed before it passed them on."""

import pytest
import torch
from private_cases import N, private
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe.errors import MisuseError, SteppeError


def test_a_batch_in_another_precision_is_probed_before_the_charge() -> None:
    run = private()
    x, y = next(iter(run))
    with pytest.raises(SteppeError, match="must have the same dtype"):
        run.step((x.double(), y))
    assert run.steps_done == 0
    run.step((x, y))  # the batch is still there to be stepped
    assert run.steps_done == 1


class _Summed(nn.Module):
    """Works on rows: as many a record as it has positions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(0, 1)).view(len(x), -1, 3).mean(1)


def sequences() -> steppe.Private:
    torch.manual_seed(0)
    model = _Summed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.randn(N, 40, 2), torch.randint(3, (N,)))
    plan = steppe.Plan(
        delta=1e-4, population=N, batch_size=20, steps=40, noise_multiplier=1.0, clip=steppe.Flat(9)
    )
    return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


def test_a_cropped_batch_is_probed_in_its_own_shape() -> None:
    loop = sequences()
    for x, y in loop.batches(3):
        loop.step((x[:, :5], y))
    for x, y in loop.batches(1):
        loop.step((x, y))
    assert loop.steps_done == 4
    assert len(loop._probes._reports) == 2, "once for each shape"


def test_a_batch_that_does_not_fit_is_refused_before_the_charge() -> None:
    loop = private()
    x, y = next(iter(loop))
    for wrong in ((x[:, :4], y), (x[:, None, None], y), {"x": x, "y": y}, (y, x)):
        with pytest.raises(SteppeError):
            loop.step(wrong)
    assert loop.steps_done == 0
    loop.step((x, y))
    assert loop.steps_done == 1


def test_shapes_without_end_are_refused_before_the_charge() -> None:
    loop = sequences()
    for length, (x, y) in zip(range(25, 40), loop.batches(15), strict=True):
        loop.step((x[:, :length], y))
    x, y = next(iter(loop))
    with pytest.raises(MisuseError, match="at most 16 shapes and types in a run"):
        loop.step((x[:, :3], y))
    assert loop.steps_done == 15
    loop.step((x[:, :30], y))  # known shapes go on
    assert loop.steps_done == 16


def test_parts_must_go_through_the_model_alike() -> None:
    loop = sequences()
    x, y = next(iter(loop))
    loop.accumulate((x[:5], y[:5]))
    with pytest.raises(MisuseError, match="parts=of several shapes"):
        loop.step((x[5:, :10], y[5:]))
    assert loop.steps_done == 0
