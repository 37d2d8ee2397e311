"""Models and losses that change during a run."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from private_cases import N, parts, private
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook

import steppe
from steppe.errors import IsolationError, MisuseError, SteppeError, UnsupportedModelError


def test_late_freezing_and_unfreezing() -> None:
    loop = private()
    batches = iter(loop)
    loop.step(next(batches))
    loop.model[0].requires_grad_(False)
    before = loop.model[0].weight.detach().clone()
    loop.step(next(batches))
    assert loop.model[0].weight.grad is None
    assert torch.equal(loop.model[0].weight, before)
    loop.model[0].requires_grad_(True)
    loop.step(next(batches))
    assert not torch.equal(loop.model[0].weight, before)


class _Squares(nn.Module):
    """Code of a user's own, so that the proof is renewed now and then."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


def test_a_weight_that_was_frozen_is_no_trouble_when_the_proof_is_renewed() -> None:
    torch.manual_seed(0)
    _, _, data, _ = parts()
    plan = steppe.Plan(epsilon=3.0, delta=1e-3, population=N, batch_size=20, steps=6)
    model = nn.Sequential(nn.Linear(6, 8), _Squares(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        if loop.steps_done == 2:
            model[0].weight.requires_grad_(False)
            before = model[0].weight.detach().clone()
        loop.step(batch)
    assert loop.steps_done == 6
    assert torch.equal(model[0].weight, before)


def test_switching_batch_norm_to_training_is_caught_at_the_next_step() -> None:
    torch.manual_seed(0)
    _, _, data, plan = parts()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    batches = iter(loop)
    loop.step(next(batches))
    model.train()
    batch = next(batches)
    with pytest.raises((IsolationError, UnsupportedModelError), match="BatchNorm1d"):
        loop.step(batch)
    assert loop.steps_done == 1
    model.eval()
    loop.step(batch)


def test_a_model_changed_during_the_run_is_probed_again() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Identity(), nn.Linear(8, 2))
    x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
    plan = steppe.Plan(delta=1e-3, noise_multiplier=1.0, population=60, batch_size=20, steps=9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = steppe.make_private(model, optimizer, (x, y), plan, loss=F.cross_entropy)
    run.step(next(iter(run)))
    batch = next(iter(run))
    model[1] = nn.BatchNorm1d(8, affine=False, track_running_stats=False)
    with pytest.raises(SteppeError, match="BatchNorm1d"):
        run.step(batch)
    model[1] = nn.Identity()
    hook = model[0].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    with pytest.raises(SteppeError, match="must treat every record alone"):
        run.step(batch)
    hook.remove()
    model[2] = nn.Linear(8, 2)
    with pytest.raises(SteppeError, match="must stay in the model"):
        run.step(batch)
    assert run.steps_done == 1


def mixes(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output - output.mean(0)


def leaks(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return tuple(None if g is None else g - g.mean(0) for g in inputs)


def forgets_statistics(model: Any) -> Any:
    model[1].running_mean = model[1].running_var = None
    return lambda: None


CHANGES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "forward": lambda m: setattr(m[0], "forward", lambda x: x - x.mean(0)) or (lambda: None),
    "hook of all modules": lambda m: register_module_forward_hook(mixes).remove,
    "hook of a backward pass": lambda m: m[0].register_full_backward_hook(leaks).remove,
    "buffers": forgets_statistics,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_a_model_is_probed(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6).eval(), nn.Linear(6, 3))
    data = (torch.randn(N, 6), torch.randint(3, (N,)))
    plan = steppe.Plan(delta=1e-4, noise_multiplier=1.0, population=N, batch_size=20, steps=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    run.step(next(iter(run)))
    batch = next(iter(run))
    undo = CHANGES[name](model)
    try:
        with pytest.raises(SteppeError):
            run.step(batch)
    finally:
        undo()
    assert run.steps_done == 1


def test_records_that_meet_later_in_a_run_are_noticed() -> None:
    """A term over the batch that is left out in the first steps."""
    model, optimizer, data, plan = parts(steps=40)
    late = False

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        z = model(x)
        apart = (z - z.mean(0).detach()).square().sum(1) if late else 0.0
        return F.cross_entropy(z, y, reduction="none") + apart

    run = steppe.make_private(model, optimizer, data, plan, objective=losses)
    for batch in run.batches(4):
        run.step(batch)
    late = True
    batch = next(iter(run))
    with pytest.raises(IsolationError, match="loss=mixes records") as caught:
        run.step(batch)
    assert run.steps_done == 4
    assert "Do not publish this model" in caught.value.__notes__[0]


def test_weights_that_are_no_longer_finite_do_not_stop_a_run() -> None:
    model, optimizer, data, plan = parts(steps=6)
    run = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in run:
        run.step(batch)
        with torch.no_grad():
            model[0].weight.fill_(math.inf)
    assert run.steps_done == 6


def test_a_model_in_another_precision_is_refused_before_the_charge() -> None:
    run = private()
    batch = next(iter(run))
    run.model.double()
    with pytest.raises(SteppeError, match="dtype"):
        run.step(batch)
    assert run.steps_done == 0


def test_freezing_every_weight_is_refused_before_the_charge() -> None:
    run = private()
    batch = next(iter(run))
    run.model.requires_grad_(False)
    with pytest.raises(MisuseError, match="`model` has no trainable weights"):
        run.step(batch)
    assert run.steps_done == 0
