"""The private loop as users write it."""

import copy
import math
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from private_cases import N, parts, private
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from silent import Silent
from steppe.clipping import Flat
from steppe.errors import BudgetExhausted, MisuseError


def test_a_whole_run_spends_the_budget_and_no_more() -> None:
    loop = private(epsilon=3.0)
    assert len(loop) == 6
    assert loop.epsilon() == 0.0
    for batch in loop:
        loop.step(batch)
    assert len(loop) == 0
    assert 2.99 < loop.epsilon() <= 3.0
    with pytest.warns(UserWarning, match="no batch is left"):
        assert list(loop) == []
    assert re.search(r"guarantee: \(ε, δ\) = \((2\.99\d*|3\.0), 0\.0001\)", str(loop.statement()))


def test_no_noise_and_no_clip_is_plain_sgd() -> None:
    """Full batches, an endless clip and noise below rounding: the plain optimizer's path."""
    model, optimizer, data, plan = parts(
        batch_size=N, noise=Silent(), clip=steppe.Flat(100.0), steps=3
    )
    plain = copy.deepcopy(model)
    descent = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
        descent.zero_grad()
        F.cross_entropy(plain(data[0]), data[1]).backward()
        descent.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_plan_cannot_be_exchanged() -> None:
    loop = private()
    for owner in (loop, loop._step):
        with pytest.raises(AttributeError):
            owner.plan = replace(loop.plan, epsilon=None, noise_multiplier=50.0)


@pytest.mark.parametrize("hooked", [True, False])
def test_batches_made_in_inference_mode(hooked: bool) -> None:
    """Under a tracer, which a hook asks for, and as a row of layers."""

    def trained(mode: Callable[[], AbstractContextManager[Any]]) -> list[Tensor]:
        model, optimizer, data, plan = parts(batch_size=N, noise=Silent(), steps=3)
        if hooked:
            model.register_forward_hook(lambda *_: None)
        loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
        for batch in loop:
            with mode():
                made = tuple(part.clone() for part in batch)
            loop.step(made)
        return list(model.parameters())

    torch.testing.assert_close(trained(torch.inference_mode), trained(nullcontext))


def test_model_optimizer_and_schedulers_stay_the_users() -> None:
    model, optimizer, data, plan = parts()
    names = list(model.state_dict())
    loop = steppe.make_private(model, optimizer, data, plan, loss=nn.CrossEntropyLoss())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for batch in loop:
        loop.step(batch)
        scheduler.step()
    assert loop.model is model
    assert list(model.state_dict()) == names
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**6)
    fresh = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=1.0, momentum=0.9)
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_any_optimizer(make: Any) -> None:
    model, _, data, plan = parts()
    optimizer = make(model.parameters(), lr=1e-3)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6


def test_views_are_averaged_and_do_not_raise_the_sensitivity() -> None:
    model, optimizer, data, plan = parts(views=4, clip=steppe.Flat(0.01), noise=Silent())
    loop = steppe.make_private(
        model,
        optimizer,
        data,
        plan,
        loss=F.cross_entropy,
        augment=lambda x: x + 0.1 * torch.randn_like(x),
    )
    out = torch.zeros(loop.engine.numel)
    loop.engine.add_(out, (data[0][:1], data[1][:1]))
    assert float(out.norm()) <= 0.01 * (1 + 1e-5)
    for batch in loop:
        loop.step(batch)


def test_own_objective() -> None:
    model, optimizer, data, plan = parts()
    columns = {"features": data[0], "label": data[1]}

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["features"]), batch["label"], reduction="none")

    loop = steppe.make_private(model, optimizer, columns, plan, objective=losses)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6


def test_the_plans_last_step_is_the_last() -> None:
    loop = private(steps=1)
    batch = next(iter(loop))
    loop.step(batch)
    with pytest.raises(BudgetExhausted, match="the plan has 1 steps"):
        loop.step(batch)
    with pytest.raises(BudgetExhausted, match="the plan has 1 steps"):
        loop.step()
    assert loop.steps_done == 1


def test_seeded_noise_promises_no_epsilon() -> None:
    model, optimizer, data, plan = parts()
    source = steppe.SeededSource(0)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, source=source)
    assert loop.epsilon() == 0.0, "nothing was asked yet"
    loop.step(next(iter(loop)))
    assert loop.epsilon() == math.inf


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (lambda plan: plan, "clip", Flat(1e-3)),
        (lambda plan: plan, "batch_size", 2.0),
        (lambda plan: plan, "steps", 1000),
        (lambda plan: plan.clip, "bound", 50.0),
        (lambda plan: plan, "sigma", 0.1),
    ],
)
def test_a_plan_that_was_written_to_promises_nothing(where: Any, name: str, value: Any) -> None:
    """Another clip in the plan was noise for that one, and the records went on as before."""
    loop = private()
    loop.step(next(iter(loop)))
    before = getattr(where(loop.plan), name)
    object.__setattr__(where(loop.plan), name, value)
    for question in (loop.epsilon, loop.statement, loop.state_dict):
        with pytest.raises(MisuseError, match=r"^plan=changed since the loop was made private: mu"):
            question()
    object.__setattr__(where(loop.plan), name, before)
    assert loop.epsilon() > 0
