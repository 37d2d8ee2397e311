"""Weights that are added to records, or stand beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rule_agreement import assert_agrees, assert_agrees_in_double, assert_same_output, squares
from torch import Tensor, nn

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.gradients.contact import ContactLayout
from steppe.gradients.layout import RecordLayout


class Bare(nn.Module):
    """A function of inputs and one weight, between two others that must get their gradients too."""

    def __init__(self, call: Callable[..., Tensor], *shape: int) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 3)
        self.call, self.weight = call, nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        after: Tensor = self.after(self.call(self.before(x), self.weight))
        return after


def token(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([weight.expand(x.shape[0], 1, -1), x], dim=1)


SUMS: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "positions": (lambda x, w: x + w, (3, 4)),
    "positions first": (lambda x, w: w + x, (3, 4)),
    "torch.add": (torch.add, (3, 4)),
    "one for all positions": (lambda x, w: x + w, (4,)),
    "one for all features": (lambda x, w: x + w, (3, 1)),
    "one number": (lambda x, w: x + w, ()),
    "with an axis for records": (lambda x, w: x + w, (1, 3, 4)),
    "with an axis and repeated": (lambda x, w: x + w, (1, 1, 4)),
    "twice": (lambda x, w: x + w + (x + w).square(), (3, 4)),
    "made from a weight": (lambda x, w: x + w.tanh(), (3, 4)),
}


@pytest.mark.parametrize("way", SUMS)
def test_a_weight_is_added(way: str) -> None:
    torch.manual_seed(len(way))
    call, shape = SUMS[way]
    model, x = Bare(call, *shape), torch.randn(5, 3, 4)
    assert_agrees_in_double(model, x, paths={"linear", "sum"})
    assert_agrees(model, x, paths={"linear", "sum"})
    assert_same_output(model, x)


JOINS: dict[str, Callable[..., Tensor]] = {
    "token": token,
    "token at the end": lambda x, w: torch.cat([x, w.expand(x.shape[0], 1, -1)], 1),
    "from the end": lambda x, w: torch.cat([w.expand(x.shape[0], 1, -1), x], -2),
    "by name": lambda x, w: torch.cat(dim=1, tensors=[w.expand(x.shape[0], 2, -1), x]),
    "twice": lambda x, w: torch.cat([t := w.expand(x.shape[0], 1, -1), x, t, x.square()], 1),
    "beside a constant": lambda x, w: torch.cat(
        [w.expand(x.shape[0], 1, -1), x, torch.ones(x.shape[0], 2, 4, dtype=x.dtype)], 1
    ),
    "made from a weight": lambda x, w: torch.cat([w.tanh().expand(x.shape[0], 1, -1), x], 1),
}


@pytest.mark.parametrize("way", JOINS)
def test_a_weight_stands_beside_records(way: str) -> None:
    torch.manual_seed(len(way))
    model, x = Bare(JOINS[way], 1, 4), torch.randn(5, 3, 4)
    assert_agrees_in_double(model, x, paths={"linear", "join"})
    assert_agrees(model, x, paths={"linear", "join"})
    assert_same_output(model, x)


DECLINED: dict[str, tuple[Callable[..., Tensor], tuple[int, ...]]] = {
    "a row for each record": (lambda x, w: x + w.expand(x.shape[0], 3, -1), (1, 4)),
    "a factor": (lambda x, w: torch.add(x, w, alpha=0.5), (3, 4)),
    "records are repeated": (lambda x, w: x[:, :1] + w, (3, 4)),
    "another precision": (lambda x, w: x + w.half(), (3, 4)),
    "in place": (lambda x, w: x.clone().add_(w), (3, 4)),
}


@pytest.mark.parametrize("way", DECLINED)
def test_other_forms_take_the_general_path(way: str) -> None:
    torch.manual_seed(len(way))
    call, shape = DECLINED[way]
    model, x = Bare(call, *shape), torch.randn(5, 3, 4)
    assert_agrees(
        model, x, paths={"linear", "torch.func"}, tolerance=1e-4 if "prec" in way else 3e-6
    )


@pytest.mark.parametrize("frozen", ["weight", "before.weight", "after.weight"])
def test_any_of_them_may_be_frozen(frozen: str) -> None:
    torch.manual_seed(1)
    for call, shape in (SUMS["positions"], (token, (1, 4))):
        model = Bare(call, *shape)
        model.get_parameter(frozen).requires_grad_(False)
        assert_agrees_in_double(model, torch.randn(5, 3, 4))


def test_nothing_before_them_needs_a_gradient() -> None:
    torch.manual_seed(2)
    for call, shape in (SUMS["positions"], (token, (1, 4))):
        model = Bare(call, *shape)
        model.before.requires_grad_(False)
        assert_agrees_in_double(model, torch.randn(5, 3, 4))


@pytest.mark.parametrize("shape", [(4,), (3, 1, 4)])
def test_records_may_lie_on_another_axis(shape: tuple[int, ...]) -> None:
    torch.manual_seed(3)
    weight, x = nn.Parameter(torch.randn(shape)), torch.randn(3, 5, 4)

    def losses(x: Tensor) -> Tensor:
        return squares((x + weight).transpose(0, 1))

    layout = RecordLayout.of((3, 5, 4), 5, axis=1)
    engine = ClippedSum(
        {"w": weight}, losses, Flat(0.5), layouts=[ContactLayout("add", (layout,), (layout,))]
    )
    out = torch.zeros(engine.numel)
    engine.add_slots_(out, engine.slots(x, records=5), 5)
    want = clipped_sum(
        lambda x: losses(x.transpose(0, 1)), {"w": weight}, x.transpose(0, 1), Flat(0.5)
    )
    assert torch.allclose(out, want, rtol=1e-5, atol=1e-6)


def test_a_record_may_own_several_rows() -> None:
    torch.manual_seed(4)
    model = Bare(lambda x, w: (x.view(-1, 4) + w).view_as(x), 4)
    assert_agrees_in_double(model, torch.randn(5, 3, 4), paths={"linear", "sum"})


def test_bfloat16_is_summed_in_float32() -> None:
    torch.manual_seed(5)
    weight, x = nn.Parameter(torch.randn(4, dtype=torch.bfloat16)), torch.randn(5, 300, 4)
    x = x.bfloat16()
    engine = ClippedSum({"w": weight}, lambda x: (x + weight).float().square().sum((1, 2)), Flat())
    ((_, slot),) = engine.slots(x)
    assert slot.written_out().dtype == torch.float32
    each = 2 * (x + weight.detach()).float()
    assert torch.allclose(slot.written_out(), each.bfloat16().float().sum(1), rtol=1e-5)
