from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rule_agreement import (
    assert_agrees,
    assert_agrees_in_double,
    assert_same_output,
    squares,
)
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import ContactLayout
from steppe.gradients.layout import RecordLayout
from steppe.gradients.rules import layer_normalisation


def fixed_batch_norm(make: type[nn.Module], channels: int, **options: bool) -> nn.Module:
    layer = make(channels, **options).eval()
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2.0)
    return layer


def scrambled(layer: nn.Module) -> nn.Module:
    """γ and β start as ones and zeros, which would hide a forgotten factor."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(0.5, 1.0)
    return layer


CASES = {
    "group": (lambda: nn.GroupNorm(3, 6), (5, 6, 4, 3), "group norm"),
    "group 1d": (lambda: nn.GroupNorm(2, 6), (5, 6, 7), "group norm"),
    "group without positions": (lambda: nn.GroupNorm(2, 6), (5, 6), "group norm"),
    "group 3d": (lambda: nn.GroupNorm(1, 4), (5, 4, 2, 3, 2), "group norm"),
    "layer": (lambda: nn.LayerNorm(6), (5, 4, 6), "layer norm"),
    "layer without positions": (lambda: nn.LayerNorm(6), (5, 6), "layer norm"),
    "layer over two axes": (lambda: nn.LayerNorm((3, 6)), (5, 4, 3, 6), "layer norm"),
    "layer without bias": (lambda: nn.LayerNorm(6, bias=False), (5, 4, 6), "layer norm"),
    "layer of large records": (lambda: nn.LayerNorm(300), (3, 220, 300), "layer norm"),
    "rms": (lambda: nn.RMSNorm(6), (5, 4, 6), "layer norm"),
    "rms over two axes": (lambda: nn.RMSNorm((3, 6), eps=0.01), (5, 3, 6), "layer norm"),
    "instance 1d": (lambda: nn.InstanceNorm1d(4, affine=True), (5, 4, 7), "channel norm"),
    "instance 2d": (lambda: nn.InstanceNorm2d(4, affine=True), (5, 4, 3, 5), "channel norm"),
    "instance fixed": (
        lambda: fixed_batch_norm(nn.InstanceNorm2d, 4, affine=True, track_running_stats=True),
        (5, 4, 3, 5),
        "channel norm",
    ),
    "batch fixed": (lambda: fixed_batch_norm(nn.BatchNorm1d, 6), (5, 6), "channel norm"),
    "batch 2d fixed": (lambda: fixed_batch_norm(nn.BatchNorm2d, 6), (5, 6, 3, 3), "channel norm"),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_one_record_at_a_time(name: str) -> None:
    torch.manual_seed(1)
    make, shape, path = CASES[name]
    layer, x = scrambled(make()), torch.randn(shape) * 2 + 1
    assert_agrees(layer, x, paths={path}, tolerance=5e-6)
    assert_agrees(layer, x[:1])
    assert_agrees_in_double(layer, x)
    assert_same_output(layer, x)


@pytest.mark.parametrize("name", CASES)
def test_input_gradient_reaches_earlier_layers(name: str) -> None:
    torch.manual_seed(2)
    make, shape, path = CASES[name]
    model = nn.Sequential(nn.Linear(shape[-1], shape[-1]), scrambled(make()), nn.Tanh())
    if shape[-1] < 100:
        assert_agrees_in_double(model, torch.randn(shape), paths={"linear", path})
    assert_agrees(model, torch.randn(shape), tolerance=1e-5)


@pytest.mark.parametrize("name", [n for n in CASES if "rms" not in n and "without bias" not in n])
@pytest.mark.parametrize("frozen", ["weight", "bias"])
def test_one_of_the_two_may_be_frozen(name: str, frozen: str) -> None:
    torch.manual_seed(3)
    make, shape, path = CASES[name]
    layer = scrambled(make())
    getattr(layer, frozen).requires_grad_(False)
    assert_agrees(layer, torch.randn(shape), paths={path}, tolerance=5e-6)


@settings(max_examples=30, deadline=None)
@given(
    records=st.integers(1, 5),
    groups=st.integers(1, 3),
    each=st.integers(1, 3),
    positions=st.lists(st.integers(1, 4), max_size=3),
    seed=st.integers(0, 99),
)
def test_group_norm_of_any_shape(
    records: int, groups: int, each: int, positions: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    layer = scrambled(nn.GroupNorm(groups, groups * each))
    x = torch.randn(records, groups * each, *positions)
    assume(x[0].numel() > groups)  # torch refuses groups of a single number
    assert_agrees_in_double(layer, x, tolerance=1e-9)
    assert_same_output(layer, x)


def test_group_norm_of_channels_last() -> None:
    """Against a contiguous copy: torch 2.13 itself crashes where such an input is a first layer."""
    torch.manual_seed(11)
    layer = scrambled(nn.GroupNorm(2, 6))
    x = torch.randn(5, 6, 4, 3)
    parameters = dict(layer.named_parameters())

    def objective(x: Tensor) -> Tensor:
        return squares(layer(x))

    engine = ClippedSum(parameters, objective, Flat(0.05))
    out = torch.zeros(engine.numel)
    engine.add_(out, x.to(memory_format=torch.channels_last))
    expected = clipped_sum(objective, list(parameters.values()), x, Flat(0.05))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    assert_same_output(layer, x.to(memory_format=torch.channels_last))
    after = nn.Sequential(nn.Linear(3, 3), layer)
    assert_agrees_in_double(after, x.to(memory_format=torch.channels_last))


class Folded(nn.Module):
    """Gives every record several rows, as video models do with frames."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(0, 1)).unflatten(0, x.shape[:2])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.GroupNorm(2, 4), (5, 3, 4, 2, 2)),
        (nn.LayerNorm(4), (5, 3, 2, 4)),
        (nn.InstanceNorm1d(4, affine=True), (5, 3, 4, 6)),
    ],
)
def test_a_record_may_own_several_rows(layer: nn.Module, shape: tuple[int, ...]) -> None:
    torch.manual_seed(4)
    assert_agrees_in_double(Folded(scrambled(layer)), torch.randn(shape))


@pytest.mark.parametrize(
    ("layer", "layout"),
    [
        (nn.LayerNorm(4), RecordLayout(axis=1)),
        (nn.RMSNorm(4), RecordLayout(axis=1)),
        (nn.LayerNorm(4), RecordLayout(axis=0, interleaved=True)),
        (nn.GroupNorm(2, 4), RecordLayout(axis=0, interleaved=True)),
    ],
)
def test_records_may_lie_elsewhere(layer: nn.Module, layout: RecordLayout) -> None:
    torch.manual_seed(5)
    layer = scrambled(layer)
    x = torch.randn(5, 3, 4)

    def objective(x: Tensor) -> Tensor:
        swapped = x.transpose(0, 1)
        if layout.axis == 1:
            return squares(layer(swapped).transpose(0, 1))
        return squares(layer(swapped.flatten(0, 1)).unflatten(0, swapped.shape[:2]).transpose(0, 1))

    parameters = dict(layer.named_parameters())
    name = (
        "rms_norm"
        if isinstance(layer, nn.RMSNorm)
        else ("layer_norm" if isinstance(layer, nn.LayerNorm) else "group_norm")
    )
    engine = ClippedSum(
        parameters, objective, Flat(0.05), layouts=[ContactLayout(name, (layout,), (layout,))]
    )
    out = torch.zeros(engine.numel)
    engine.add_(out, x)
    expected = clipped_sum(objective, list(parameters.values()), x, Flat(0.05))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


def test_layer_norm_of_large_means_does_not_cancel() -> None:
    torch.manual_seed(6)
    layer = scrambled(nn.LayerNorm(16))
    x = torch.randn(4, 8, 16) + 500.0
    assert_agrees(layer, x, tolerance=1e-4)


def test_large_records_take_either_way_to_the_same_end(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(7)
    layer, x = scrambled(nn.LayerNorm((3, 5))), torch.randn(4, 6, 3, 5)
    monkeypatch.setattr(layer_normalisation, "_LARGE_RECORD", 1)
    assert_agrees_in_double(layer, x)


@pytest.mark.parametrize("name", [n for n in CASES if "large" not in n])
def test_bfloat16_is_clipped_in_float32(name: str) -> None:
    torch.manual_seed(8)
    make, shape, _ = CASES[name]
    layer, x = scrambled(make()).bfloat16(), torch.randn(shape).bfloat16()
    parameters = dict(layer.named_parameters())

    def objective(x: Tensor) -> Tensor:
        return squares(layer(x).float())

    engine = ClippedSum(parameters, objective, Flat(0.05))
    out = torch.zeros(engine.numel)
    norms = engine.add_(out, x)
    wide = layer.float()
    expected = clipped_sum(
        lambda x: squares(wide(x)), list(wide.parameters()), x.float(), Flat(0.05)
    )
    assert (out - expected).norm() <= 0.03 * expected.norm()
    assert torch.isfinite(norms).all()


def test_a_bad_record_adds_nothing() -> None:
    torch.manual_seed(9)
    layer = scrambled(nn.GroupNorm(2, 4))
    x = torch.randn(4, 4, 3)
    parameters = dict(layer.named_parameters())
    engine = ClippedSum(parameters, lambda x: squares(layer(x)), Flat(0.05))
    good, mixed = torch.zeros(engine.numel), torch.zeros(engine.numel)
    engine.add_(good, x[:3])
    engine.add_(mixed, torch.cat([x[:3], torch.full_like(x[3:], torch.nan)]))
    torch.testing.assert_close(mixed, good, rtol=1e-6, atol=1e-8)


def test_batch_statistics_are_refused() -> None:
    layer = nn.BatchNorm1d(4)
    engine = ClippedSum(dict(layer.named_parameters()), lambda x: squares(layer(x)), Flat(1.0))
    with pytest.raises(UnsupportedModelError, match=r"batch_norm training=True: .*steppe.fix"):
        engine.slots(torch.randn(5, 4))


def test_eval_is_no_remedy_for_a_batch_norm_without_statistics() -> None:
    layer = nn.BatchNorm1d(4, track_running_stats=False).eval()
    engine = ClippedSum(dict(layer.named_parameters()), lambda x: squares(layer(x)), Flat(1.0))
    with pytest.raises(UnsupportedModelError, match="track_running_stats=False") as refused:
        engine.slots(torch.randn(5, 4))
    assert "eval()" not in str(refused.value)


def test_instance_norm_must_not_store_statistics() -> None:
    layer = nn.InstanceNorm1d(4, affine=True, track_running_stats=True)
    engine = ClippedSum(dict(layer.named_parameters()), lambda x: squares(layer(x)), Flat(1.0))
    with pytest.raises(UnsupportedModelError, match=r"track_running_stats=True: .*without noise"):
        engine.slots(torch.randn(5, 4, 6))
    assert torch.equal(layer.running_mean, torch.zeros(4))


def test_derived_scales_reach_the_weight_they_come_from() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor) -> Tensor:
            return F.group_norm(x, 2, 1 + self.weight, self.weight)

    torch.manual_seed(10)
    assert_agrees_in_double(Shifted(), torch.randn(5, 4, 3))


@pytest.mark.parametrize("records", [1, 2, 5])
@pytest.mark.parametrize("layer", [nn.GroupNorm(2, 6), nn.InstanceNorm2d(6, affine=True)])
@pytest.mark.parametrize(
    "laid_out",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: x[..., :1].expand(-1, -1, -1, 3),
        lambda x: x,
    ],
    ids=["channels last", "transposed", "expanded", "contiguous"],
)
@pytest.mark.parametrize(
    "loss",
    [
        lambda y: y.flatten(1).sum(1),
        lambda y: y.sum((2, 3)).square().sum(1),
        lambda y: (y.movedim(1, -1).flatten(1) * torch.arange(72.0)).sum(1),
    ],
    ids=["sum", "sum of positions", "channels last"],
)
def test_memory_may_be_laid_out_in_any_way(layer, records: int, laid_out, loss) -> None:
    """The backward pass of group norm read gradients that a sum had spread out as if they were as
    long as they look, past their end; and single records channel by channel that were not."""
    layer = scrambled(layer)
    x = laid_out(torch.randn(records, 6, 4, 3))
    parameters = dict(layer.named_parameters())

    def objective(batch: tuple[Tensor, ...]) -> Tensor:
        return loss(layer(batch[0]))

    engine = ClippedSum(parameters, objective, Flat(0.5))
    found = torch.zeros(engine.width)
    engine.add_(found, (x,))
    # Among others: torch's own instance norm is wrong for gradients of a single record that lie
    # in another order.
    losses, wanted = objective((torch.cat([x, x]).contiguous(),)), torch.zeros(engine.width)
    for loss_of_one in losses[:records]:
        parts = torch.autograd.grad(loss_of_one, list(parameters.values()), retain_graph=True)
        gradient = torch.cat([part.flatten() for part in parts])
        wanted += gradient * min(1.0, 0.5 / float(gradient.norm()))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
