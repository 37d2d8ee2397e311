"""The lines of a plain loop beside the private step."""

import copy
from typing import Any

import pytest
import torch
from private_cases import parts, private
from torch.nn import functional as F

import steppe
from steppe.errors import MisuseError


def test_gradients_that_others_left_never_move_a_weight() -> None:
    """Frozen while the loop was made private, so the engine does not know these weights."""
    model, optimizer, data, plan = parts()
    first = next(iter(model.parameters()))
    first.requires_grad_(False)
    run = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    before = first.detach().clone()
    first.grad = torch.ones_like(first)
    run.step(next(iter(run)))
    assert torch.equal(before, first)


def plain_lines(loop: steppe.Private, batch: Any, zero: str) -> None:
    """The step that every tutorial has, with `zero_grad` at either end."""
    if "before" in zero:
        loop.optimizer.zero_grad()
    F.cross_entropy(loop.model(batch[0]), batch[1]).backward()
    loop.optimizer.step()
    if "after" in zero:
        loop.optimizer.zero_grad()


@pytest.mark.parametrize("first", ["plain", "private"])
@pytest.mark.parametrize("zero", ["before", "after", "never"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_plain_step_beside_the_private_one_is_noticed(first: str, zero: str, name: str) -> None:
    model, _, data, plan = parts(batch_size=60)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)

    def both() -> None:
        for batch in loop:
            if first == "plain":
                plain_lines(loop, batch, zero)
            loop.step(batch)
            if first == "private":
                plain_lines(loop, batch, zero)

    with pytest.raises(MisuseError, match=r"private steps must be the only ones.*new weights"):
        both()
    assert loop.steps_done == (0 if first == "plain" and zero != "after" else 1)
    with pytest.raises(MisuseError):
        next(iter(loop))


def test_plain_steps_alone_are_noticed() -> None:
    loop = private()
    batches = iter(loop)
    plain_lines(loop, next(batches), "before")
    with pytest.raises(MisuseError, match="private steps must be the only ones"):
        next(batches)
    assert loop.steps_done == 0


def test_a_plain_step_after_the_last_private_one_is_noticed() -> None:
    loop = private(steps=1)
    batches = iter(loop)
    batch = next(batches)
    loop.step(batch)
    plain_lines(loop, batch, "before")
    with pytest.raises(MisuseError, match="private steps must be the only ones"):
        next(batches)


def _averaged_for_a_while(loop: steppe.Private) -> None:
    kept = copy.deepcopy(loop.model.state_dict())
    loop.model.load_state_dict({name: torch.zeros_like(t) for name, t in kept.items()})
    loop.model(torch.zeros(1, 6))
    loop.model.load_state_dict(kept)


def _bounded(loop: steppe.Private) -> None:
    with torch.no_grad():
        for weight in loop.model.parameters():
            weight.clamp_(-0.1, 0.1)


def _zeroed_and_bounded(loop: steppe.Private) -> None:
    loop.optimizer.zero_grad(set_to_none=False)
    _bounded(loop)


def _measured(loop: steppe.Private) -> None:
    assert float(torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1e9)) > 0


def _measured_on_public_records(loop: steppe.Private) -> None:
    loss = loop.model(torch.ones(2, 6)).square().sum()
    torch.autograd.grad(loss, list(loop.model.parameters()))


def _public_step(loop: steppe.Private) -> None:
    plain_lines(loop, (torch.ones(2, 6), torch.zeros(2, dtype=torch.long)), "before and after")


def _forgotten_momentum(loop: steppe.Private) -> None:
    for state in loop.optimizer.state.values():
        state["momentum_buffer"].mul_(0.5)
    _bounded(loop)


def _loaded_optimizer(loop: steppe.Private) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
    loop.optimizer.zero_grad()


@pytest.mark.parametrize(
    "between",
    [
        _averaged_for_a_while,
        _bounded,
        _zeroed_and_bounded,
        _measured,
        _measured_on_public_records,
        _public_step,
        _forgotten_momentum,
        _loaded_optimizer,
    ],
)
def test_what_may_be_done_between_private_steps(between: Any) -> None:
    loop = private()
    steppe.DecoupledDecay(loop.optimizer, 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, gamma=0.9)
    for batch in loop:
        loop.step(batch)
        scheduler.step()
        between(loop)
    assert loop.steps_done == 6


def test_gradients_of_a_training_before_are_no_mistake() -> None:
    model, optimizer, data, plan = parts()
    F.cross_entropy(model(data[0]), data[1]).backward()
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6
