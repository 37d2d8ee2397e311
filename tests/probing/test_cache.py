"""A model that was changed between two steps is probed again, before the next one is charged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe.errors import DataError, IsolationError, MisuseError

N = 60


class Switched(nn.Module):
    """Lets records meet if it is told to, in one of several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.softmax = nn.Linear(4, 2), nn.Softmax(dim=1)
        self.centres, self.way, self.activation = False, "apart", torch.tanh
        self.passes, self.last = 0, lambda: 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.last = lambda: len(x)
        if self.centres:
            x = x - x.mean(0)
        h = self.softmax(self.activation(self.layer(x)))
        return h + h.mean(0) if self.way == "together" else h


def run_of(model: nn.Module, steps: int = 6) -> steppe.Private:
    torch.manual_seed(0)
    data = (torch.randn(N, 4), torch.randint(2, (N,)))
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-4, population=N, batch_size=20, steps=steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


CHANGES: dict[str, Callable[[Any], None]] = {
    "a switch": lambda model: setattr(model, "centres", True),
    "a word": lambda model: setattr(model, "way", "together"),
    "a function": lambda model: setattr(model, "activation", lambda h: h - h.mean(0)),
    "an option of a layer of torch": lambda model: setattr(model.softmax, "dim", 0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_a_module_was_told_to_do_is_probed(change: Callable[[Any], None]) -> None:
    """Before, one record moved the sum of 20 by 4.9 where 2 is the most, until step 4 at least."""
    model = Switched()
    run = run_of(model)
    run.step(next(iter(run)))
    batch = next(iter(run))
    change(model)
    with pytest.raises(IsolationError, match="must treat every record alone"):
        run.step(batch)
    assert run.steps_done == 1


def test_a_module_that_keeps_something_of_its_passes_is_not_probed_in_each() -> None:
    """A number, and a function that is another object in every pass."""
    model = Switched()
    model(torch.zeros(1, 4))
    run = run_of(model, steps=3)
    before = model.passes
    for batch in run:
        run.step(batch)
    assert model.passes == before + 3


@pytest.mark.parametrize("width", [7, 9])
def test_weights_of_another_size_are_refused_before_the_charge(width: int) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    run = run_of(model)
    run.step(next(iter(run)))
    batch = next(iter(run))
    model[0].weight.data = torch.randn(width, 4)
    model[0].bias.data = torch.randn(width)
    model[2].weight.data = torch.randn(2, width)
    text = rf"^weight '0.weight'={4 * width} numbers: must keep the 32 that it had when the loop "
    with pytest.raises(MisuseError, match=text):
        run.step(batch)
    assert run.steps_done == 1


@pytest.mark.parametrize("name", ["0.weight", "0.bias", "1.weight", "2.weight"])
def test_a_weight_that_is_frozen_in_mid_run_stands_still_and_the_rest_goes_on(name: str) -> None:
    """Before, torch said that two sizes did not match, or that a truth value was ambiguous."""

    class Deep(nn.Sequential):  # no code of torch's own, which is not proven again
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).tanh()

    model = Deep(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    run = run_of(model)
    run.step(next(iter(run)))
    weight = model.get_parameter(name)
    for trains in (False, True, False):
        weight.requires_grad_(trains)
        before = {each: value.detach().clone() for each, value in model.named_parameters()}
        run.step(next(iter(run)))
        still = {each for each, p in model.named_parameters() if torch.equal(p, before[each])}
        assert still == (set() if trains else {name})
    assert run.steps_done == 4
    run.step(next(iter(run)))  # before which all that is known is proven again


def test_another_objective_takes_another_run() -> None:
    """One that was put in its place was asked for without a probe."""
    run = run_of(nn.Linear(4, 2))
    with pytest.raises(AttributeError, match="objective"):
        run.engine.objective = lambda batch: batch[0].mean(0)  # type: ignore[misc]
    for batch in run:
        run.step(batch)


@pytest.mark.parametrize("number", [lambda x: float(x.abs().max()), lambda x: [7] * len(x)])
def test_a_batch_holds_tensors_alone(number: Callable[[Tensor], Any]) -> None:
    """The scale of a batch, taken in the loop: one record moved the sum by 4.2 where 2 is most."""

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, y, *scale = batch
        return F.cross_entropy(model(x), y, reduction="none") / (scale[0] if scale else 1.0)

    torch.manual_seed(0)
    model, data = nn.Linear(4, 2), (torch.randn(N, 4), torch.randint(2, (N,)))
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-4, population=N, batch_size=20, steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = steppe.make_private(model, optimizer, data, plan, objective=losses)
    x, y = next(iter(run))
    with pytest.raises(
        DataError, match=r"^The batch contains (float|int); it must contain only tensors "
    ):
        run.step((x, y, number(x)))
    assert run.steps_done == 0
    run.step((x, y, torch.full((len(x),), 7.0), None))
    assert run.steps_done == 1
