"""Paddings and starts of the networks without normalisation."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from steppe import models


@pytest.mark.parametrize(
    ("name", "padding", "activation"),
    [
        ("cnn-tanh-26k", (2, 2), nn.Tanh),
        ("cnn-tanh-26k-ftrl", (3, 3), nn.Tanh),
        ("cnn-relu-26k", (3, 3), nn.ReLU),
    ],
)
def test_padding_and_activation(
    name: str, padding: tuple[int, int], activation: type[nn.Module]
) -> None:
    layers = list(models.create(name).modules())
    first = next(layer for layer in layers if isinstance(layer, nn.Conv2d))
    assert first.padding == padding
    assert sum(isinstance(layer, activation) for layer in layers) == 3


def test_opacus_network_averages() -> None:
    layers = list(models.cnn_opacus_cifar().modules())
    assert sum(isinstance(layer, nn.AvgPool2d) for layer in layers) == 3
    assert not any(isinstance(layer, nn.MaxPool2d) for layer in layers)


def test_start_of_dp_ftrl() -> None:
    torch.manual_seed(0)
    model = models.cnn_tanh_cifar_ftrl()
    for layer in model.modules():
        if not isinstance(layer, nn.Conv2d | nn.Linear):
            continue
        assert layer.bias is not None
        assert not layer.bias.any()
        fan_in, fan_out = layer.weight[0].numel(), layer.weight.shape[0]
        xavier = math.sqrt(2 / (fan_in + fan_out))
        expected = xavier if isinstance(layer, nn.Linear) else 1 / math.sqrt(fan_in)
        error = 4 / math.sqrt(2 * layer.weight.numel())  # four standard errors of a deviation
        assert layer.weight.std().item() == pytest.approx(expected, rel=error)


def test_linear_regression_cannot_broadcast() -> None:
    output = models.linear_regression(5)(torch.zeros(4, 5))
    assert nn.functional.mse_loss(output, torch.zeros(4), reduction="none").shape == (4,)


@pytest.mark.parametrize("name", ["cnn-relu-26k", "cnn-tanh-26k", "cnn-tanh-26k-ftrl"])
def test_pools_with_channels_last_are_torchs_own(name: str) -> None:
    torch.manual_seed(0)
    fast = models.create(name)
    plain = copy.deepcopy(fast)
    for i, layer in enumerate(plain):
        if isinstance(layer, nn.MaxPool2d):
            plain[i] = nn.MaxPool2d(2, stride=1)
    x = torch.randn(5, 1, 28, 28)
    torch.testing.assert_close(fast(x), plain(x))
    for network in (fast, plain):
        network(x).square().sum().backward()
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
