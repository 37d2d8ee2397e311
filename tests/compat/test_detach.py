"""A run can be ended, and leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader

from compat_loop import start, vectors
from steppe.compat import BatchMemoryManager, PrivacyEngine
from steppe.errors import ConfigurationError, MisuseError


def traces(model: nn.Module, optimizer: optim.Optimizer) -> dict[str, Any]:
    """Every attribute of module, weights and optimizer by name, and every hook."""
    found: dict[str, Any] = {"optimizer": sorted(vars(optimizer))}
    found |= {name: dict(hooks) for name, hooks in vars(optimizer).items() if "_hooks" in name}
    for name, module in model.named_modules():
        found[f"module {name}"] = sorted(vars(module))
        hooks = {key: dict(value) for key, value in vars(module).items() if "_hooks" in key}
        found[f"hooks of {name}"] = hooks
    for name, weight in model.named_parameters():
        found[f"weight {name}"] = sorted(vars(weight))
        found[f"hooks of weight {name}"] = (
            weight._backward_hooks,
            weight._post_accumulate_grad_hooks,
        )
    return found


def plain_step(model: nn.Module, optimizer: optim.Optimizer) -> None:
    x, y = vectors(9).tensors
    before = [p.detach().clone() for p in model.parameters()]
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    for weight, old, gradient in zip(model.parameters(), before, gradients, strict=True):
        torch.testing.assert_close(weight.detach(), old - 0.1 * gradient)


def test_nothing_is_left_after_detach() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    before = traces(model, optimizer)
    loop = start(model, batch_size=4, optimizer=optimizer, sigma=1.0)
    assert traces(model, optimizer) != before
    loop.run(3)
    spent = loop.engine.get_epsilon(1e-3)
    loop.engine.detach()
    loop.engine.detach()  # twice is no mistake
    assert traces(model, optimizer) == before
    assert loop.engine.get_epsilon(1e-3) == spent > 0
    plain_step(model, optimizer)


def test_hooks_and_attributes_of_others_stay() -> None:
    model = nn.Linear(5, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    calls: list[str] = []
    model.register_forward_hook(lambda *_: calls.append("module"))
    model.weight.register_post_accumulate_grad_hook(lambda _: calls.append("weight"))
    optimizer.register_step_post_hook(lambda *_: calls.append("optimizer"))
    before = traces(model, optimizer)
    loop = start(model, optimizer=optimizer)
    loop.run()
    loop.engine.detach()
    assert traces(model, optimizer) == before
    calls.clear()
    plain_step(model, optimizer)
    assert calls == ["module", "weight", "optimizer"]


def test_a_batch_in_hand_is_forgotten() -> None:
    loop = start()
    x, y = loop.batch()
    loop.backward(x, y)
    assert loop.model.weight.grad is None
    loop.engine.detach()
    assert len(loop.engine.accountant) == 0
    plain_step(loop.model, loop.optimizer)


@pytest.mark.parametrize("pieces", [False, True])
def test_the_loader_of_a_detached_run_hands_out_nothing(pieces: bool) -> None:
    loop = start(batch_size=4)
    batches = iter(loop.loader)
    x, y = next(batches)
    loop.backward(x, y)
    loop.optimizer.step()
    loop.engine.detach()
    if pieces:
        manager = BatchMemoryManager(
            data_loader=loop.loader, max_physical_batch_size=2, optimizer=loop.optimizer
        )
        with manager as loader, pytest.raises(MisuseError, match="the run was detached"):
            next(iter(loader))
    with pytest.raises(MisuseError, match=r"step=2: the run was detached.*make the loop private"):
        next(batches)


def test_an_engine_is_a_block_of_private_steps() -> None:
    model = nn.Linear(5, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    before = traces(model, optimizer)
    with PrivacyEngine() as engine:
        engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=DataLoader(vectors(12), batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        assert traces(model, optimizer) != before
    assert traces(model, optimizer) == before


def test_a_second_run_of_the_engine_adds_to_the_first() -> None:
    loop = start(batch_size=4, sigma=1.0)
    loop.run(2)
    loop.engine.detach()
    arguments = {
        "module": loop.model,
        "optimizer": loop.optimizer,
        "data_loader": DataLoader(vectors(12), batch_size=4),
        "max_grad_norm": 0.5,
    }
    with pytest.raises(ConfigurationError, match="must be new"):
        loop.engine.make_private_with_epsilon(
            **arguments, target_epsilon=3.0, target_delta=1e-3, epochs=1
        )
    _, _, loop.loader = loop.engine.make_private(**arguments, noise_multiplier=1.0)
    loop.run(3)
    assert len(loop.engine.accountant) == 5
