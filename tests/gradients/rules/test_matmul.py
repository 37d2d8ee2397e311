"""Products that a model writes out take the path of linear layers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from rule_agreement import assert_agrees, assert_agrees_in_double, assert_same_output
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.gradients.slots.outer import Single


class Written(nn.Module):
    """A function of inputs, a weight and a bias."""

    def __init__(self, call: Callable[..., Tensor], rows: int = 6, columns: int = 4) -> None:
        super().__init__()
        self.call = call
        self.weight = nn.Parameter(torch.randn(rows, columns))
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, self.weight) + self.bias


WAYS: dict[str, Callable[..., Tensor]] = {
    "@": lambda x, w: x @ w,
    "matmul": torch.matmul,
    "mm": torch.mm,
    "Tensor.mm": lambda x, w: x.mm(w),
    "twice turned": lambda x, w: x @ w.t().T,
    "linear, t": lambda x, w: F.linear(x, w.t()),
    "linear, mT": lambda x, w: F.linear(x, w.mT),
    "linear, T": lambda x, w: F.linear(x, w.T),
    "linear, transpose": lambda x, w: F.linear(x, w.transpose(-1, -2)),
    "linear, permute": lambda x, w: F.linear(x, w.permute(1, 0)),
    "axes that stay": lambda x, w: x @ w.transpose(1, 1).permute(0, 1),
}


@pytest.mark.parametrize("way", WAYS)
def test_sum_is_the_references(way: str) -> None:
    torch.manual_seed(len(way))
    model, x = Written(WAYS[way]), torch.randn(5, 6)
    paths = {"linear", "sum"}  # the bias is added by itself
    assert_agrees_in_double(model, x, paths=paths)
    assert_agrees(model, x, paths=paths)
    assert_same_output(model, x, 1e-6)


@pytest.mark.parametrize("shape", [(3, 6), (2, 3, 6)])
def test_any_number_of_axes(shape: tuple[int, ...]) -> None:
    torch.manual_seed(len(shape))
    assert_agrees_in_double(Written(torch.matmul), torch.randn(4, *shape))


@pytest.mark.parametrize("addmm", [torch.addmm, Tensor.addmm])
@pytest.mark.parametrize("frozen", ["weight", "bias", None])
def test_product_and_bias_in_one_call(frozen: str | None, addmm: Callable[..., Tensor]) -> None:
    """As GPT-2 in its usual code has it, on rows of all records at once."""
    torch.manual_seed(3)
    model = Written(torch.matmul)
    if frozen:
        getattr(model, frozen).requires_grad_(False)
    rows = torch.randn(5, 3, 6)

    def call(model: nn.Module, x: Tensor) -> Tensor:
        return addmm(model.bias, x.view(-1, 6), model.weight).view(len(x), 3, 4)

    assert_agrees_in_double(model, rows, call=call, paths={"linear"})


DECLINED: dict[str, Callable[..., Tensor]] = {
    "weight first": lambda x, w: (w.t() @ x.unsqueeze(-1)).squeeze(-1),
    "by name": lambda x, w: torch.matmul(x, other=w),
    "factors of addmm": lambda x, w: torch.addmm(w.new_ones(4), x, w, alpha=0.5),
    "one number of addmm": lambda x, w: torch.addmm(w.new_ones(1), x, w),
}


@pytest.mark.parametrize("way", DECLINED)
def test_other_forms_take_the_general_path(way: str) -> None:
    torch.manual_seed(5)
    paths = {"torch.func", "sum"}
    assert_agrees_in_double(Written(DECLINED[way]), torch.randn(5, 6), paths=paths)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "axes that stay"])
def test_no_record_has_a_copy_of_the_weight(way: str) -> None:
    model = Written(WAYS[way])
    engine = ClippedSum(dict(model.named_parameters()), lambda x: model(x).sum(1), Flat())
    found = {id(leaf): slot for leaf, slot in engine.slots(torch.randn(5, 6))}
    assert type(found[id(model.weight)]) is Single
