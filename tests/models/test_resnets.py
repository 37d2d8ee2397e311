"""Blocks of the residual networks against their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import steppe
from steppe import models
from steppe.models.resnet import BasicBlock, Bottleneck
from steppe.models.resnet20 import ThinBlock
from steppe.models.wide_resnet import StandardisedConv2d, WideBlock


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_blocks_keep_the_engine_happy(block: type[BasicBlock] | type[Bottleneck]) -> None:
    torch.manual_seed(0)
    layers = block(32, 32, 2)
    assert layers(torch.zeros(2, 32, 8, 8)).shape == (2, 32 * block.expansion, 4, 4)
    assert steppe.inspect(layers, torch.zeros(2, 32, 4, 4)).unused == ()


def test_fixer_leaves_nothing_to_fix() -> None:
    for name in models.names():
        kinds = {type(layer) for layer in models.create(name).modules()}
        assert not kinds & {nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout2d}


def test_thin_shortcut_has_no_weights_and_appends_zeros() -> None:
    torch.manual_seed(0)
    block = ThinBlock(8, 16)
    for parameter in block.parameters():
        nn.init.zeros_(parameter)
    x = torch.randn(2, 8, 4, 4)
    out = block(x)
    torch.testing.assert_close(out[:, :8], torch.relu(F.group_norm(x[..., ::2, ::2], 4)))
    assert not out[:, 8:].any()


def test_standardised_kernels() -> None:
    torch.manual_seed(0)
    layer = StandardisedConv2d(4, 6, 3)
    with torch.no_grad():
        layer.weight.add_(3.0)
        layer.gain.copy_(torch.arange(1.0, 7.0))
    kernels = layer.standardised().flatten(1)
    torch.testing.assert_close(kernels.mean(1), torch.zeros(6), rtol=0, atol=1e-6)
    torch.testing.assert_close(kernels.norm(dim=1), torch.arange(1.0, 7.0), rtol=1e-4, atol=0)


def test_a_constant_kernel_is_zero_and_not_infinite() -> None:
    layer = StandardisedConv2d(4, 6, 3)
    nn.init.constant_(layer.weight, 2.0)
    assert not layer.standardised().any()


@pytest.mark.parametrize(
    ("size", "stride", "sides"),
    [(8, 1, (1, 1, 1, 1)), (8, 2, (0, 1, 0, 1)), (7, 2, (1, 1, 1, 1))],
)
def test_same_padding(size: int, stride: int, sides: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    layer, x = StandardisedConv2d(2, 3, 3, stride), torch.randn(2, 2, size, size)
    expected = F.conv2d(F.pad(x, sides), layer.standardised(), layer.bias, stride)
    torch.testing.assert_close(layer(x), expected)
    assert layer(x).shape[-1] == math.ceil(size / stride)


def test_wide_block_order() -> None:
    torch.manual_seed(0)
    block = WideBlock(16, 32, 2, first=True)
    x = torch.randn(2, 16, 8, 8)
    kinds = [type(layer) for layer in block.residual]  # type: ignore[attr-defined]
    assert kinds == [nn.ReLU, nn.GroupNorm, StandardisedConv2d] * 2
    skipped = F.group_norm(torch.relu(x), 16)
    assert isinstance(block.skip, nn.Sequential)
    torch.testing.assert_close(block(x) - block.residual(x), block.skip[2](skipped))


@pytest.mark.parametrize(
    ("name", "depth", "widening"), [("wrn-16-4", 16, 4), ("wrn-28-10", 28, 10)]
)
def test_wide_count_by_formula(name: str, depth: int, widening: int) -> None:
    def step(inputs: int, outputs: int, kernel: int) -> int:
        return 2 * inputs + inputs * outputs * kernel**2 + 2 * outputs  # norm, kernels, gain, bias

    total, inputs = 3 * 16 * 9 + 2 * 16, 16
    for outputs in (16 * widening, 32 * widening, 64 * widening):
        total += step(inputs, outputs, 1) + step(inputs, outputs, 3) + step(outputs, outputs, 3)
        total += ((depth - 4) // 6 - 1) * 2 * step(outputs, outputs, 3)
        inputs = outputs
    total += 2 * inputs + inputs * 10 + 10
    assert sum(p.numel() for p in models.create(name).parameters()) == total


def test_wide_head_start() -> None:
    torch.manual_seed(0)
    head = models.wrn_16_4()[-1]  # type: ignore[index]
    assert head.weight.std().item() == pytest.approx(1 / 16, rel=0.06)
    assert head.weight.abs().max() <= 2 / 16 / 0.8796
    assert not head.bias.any()
