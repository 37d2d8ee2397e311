"""One bound for each weight, as Opacus takes them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from compat_loop import QUIET, assert_gradients, start, vectors
from steppe.compat import PrivacyEngine
from steppe.errors import ConfigurationError


def clipped_apart(model: nn.Linear, bounds: dict[str, float]) -> list[Tensor]:
    """Every weight's part of every record's gradient cut to its own bound, one record at a time."""
    x, y = vectors(12).tensors
    total = {name: torch.zeros_like(p).double() for name, p in model.named_parameters()}
    for i in range(len(x)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for (name, bound), gradient in zip(bounds.items(), gradients, strict=True):
            total[name] += gradient.double() * min(1.0, bound / float(gradient.norm()))
    return [value / len(x) for value in total.values()]


def test_every_weight_is_clipped_to_its_own_bound() -> None:
    """In the order of the optimizer, which is not that of the model."""
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD([model.bias, model.weight], lr=0.1)
    truth = clipped_apart(model, {"weight": 0.4, "bias": 0.03})
    loop = start(model, optimizer=optimizer, clip=[0.03, 0.4], clipping="per_layer")
    assert loop.optimizer.max_grad_norm == math.hypot(0.03, 0.4)
    loop.run(1)
    assert_gradients(model, truth)


def test_the_noise_covers_all_bounds_together() -> None:
    model = nn.Linear(300, 100)
    data = vectors(10, width=300)
    loop = start(model, data, sigma=2.0, clip=[0.3, 0.4], clipping="per_layer")
    x, y = loop.batch()
    (1e-9 * F.cross_entropy(model(x), y)).backward()
    loop.optimizer.step()
    spread = float(model.weight.grad.std()) * 10  # noise alone, times the expected batch
    assert spread == pytest.approx(2.0 * 0.5, rel=0.025)  # six standard errors


def test_a_budget_with_a_bound_for_each_weight() -> None:
    model = nn.Linear(5, 2)
    engine = PrivacyEngine()
    _, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(vectors(40), batch_size=10),
        target_epsilon=3.0,
        target_delta=1e-3,
        epochs=1,
        max_grad_norm=[3.0, 4.0],
        clipping="per_layer",
    )
    assert optimizer.max_grad_norm == 5.0
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert engine.get_epsilon(1e-3) <= 3.0


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (0.5, r"max_grad_norm=0.5: must be a list of bounds with .*; give one for each trained"),
        ([], r"max_grad_norm=\[\]: must hold some bounds; give one for each trained weight"),
        ([1.0, 0.0], "max_grad_norm=0.0: must be finite and above 0; a common start"),
        (
            [1.0],
            "max_grad_norm='1 bounds': must be 2, one for each trained weight in the optimizer's "
            "order; give one",
        ),
    ],
)
def test_bounds_that_fit_no_weights_are_refused(bounds: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start(sigma=QUIET, clip=bounds, clipping="per_layer")
