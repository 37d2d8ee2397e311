"""Every rule against what its operation does: only elements of a record move with that record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from rule_rows import ROWS
from rule_truth import Given, Wrong, numbers, require_truth, whole

from steppe.isolation.owners import FREE, on_axis
from steppe.isolation.rules import RULES, rule_of
from steppe.isolation.watch import Watch

# Operations that this machine cannot run, or whose random numbers depend on what was drawn before.
NOT_RUN = {
    "on other devices": (
        "_masked_scale _thnn_fused_lstm_cell _thnn_fused_gru_cell cudnn_convolution "
        "cudnn_batch_norm cudnn_batch_norm_backward mkldnn_linear _fused_rms_norm_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention_backward"
    ),
    "others by chance, and the same in law": "poisson _standard_gamma binomial",
    "nothing comes out": "_assert_async _assert_tensor_metadata _assert_scalar",
    "torch makes others of it first": "_embedding_bag_backward embedding_backward",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ROWS)
def test_only_what_a_rule_gives_to_a_record_moves_with_it(name: str) -> None:
    assert sum(require_truth(make, 24) for make in ROWS[name]) > 0


def test_every_rule_has_a_row() -> None:
    known = {name for names in NOT_RUN.values() for name in names.split()}
    named = {packet.__name__ for packet in RULES}
    assert named - set(ROWS) - known == set()
    assert known & set(ROWS) == set()


def test_a_wrong_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    aten = torch.ops.aten
    for packet, other in ((aten.flip, aten.relu), (aten.mm, aten.add), (aten.cumsum, aten.relu)):
        monkeypatch.setitem(RULES, packet, rule_of(getattr(other, other.overloads()[0])))
        with pytest.raises((Wrong, RuntimeError)):
            sum(map(require_truth, ROWS[packet.__name__]))


# Several operations on one memory ---------------------------------------------------------------


def written_through_a_view(x: Any, y: Any) -> Any:
    z = x.clone()
    z.view(-1)[3:7].mul_(y)
    return z


def written_through_another_view(x: Any, y: Any) -> Any:
    z = x.clone()
    first, second = z[0], z.t()
    second[1].copy_(y)
    return first + 1, z


def written_beside_a_view(x: Any, y: Any) -> Any:
    z = torch.zeros(3, 4)
    part = z[:, 1]
    z[1] = y
    z[:, 2] = x[:, 0]
    return part * 2, z


def overlapping(x: Any, y: Any) -> Any:
    z = x.flatten().clone()
    windows = z.as_strided((4, 3), (2, 1))
    z[2:6].add_(y)
    return windows.sum(1)


def turned_in_place(x: Any, y: Any) -> Any:
    z = x.clone()
    alias = z.view(12)
    z.t_().unsqueeze_(0).transpose_(0, 2).squeeze_()
    z[:, 0].add_(y[:3])
    return z, alias


def broadcast_and_written(x: Any, y: Any) -> Any:
    wide = y.expand(3, 4)
    return wide.t().reshape(4, 3) + x.t(), wide.contiguous().view(6, 2).sum(1)


def of_complex(x: Any, y: Any) -> Any:
    c = torch.complex(x, x.flip(1))
    return (
        torch.view_as_real(c * y).flatten(1),
        torch.view_as_real(c.conj().resolve_conj()),
        c.real,
        c.imag + y,
    )


def counted_from_behind(x: Any, y: Any) -> Any:
    return x[-1], x[..., -2:], x[:, None, ::2], x[[True, False, True]], x[[-1, 0]], x[:, [-1, 1]]


@pytest.mark.parametrize(
    "function",
    [
        written_through_a_view,
        written_through_another_view,
        written_beside_a_view,
        overlapping,
        turned_in_place,
        broadcast_and_written,
        of_complex,
        counted_from_behind,
    ],
)
def test_operations_on_one_memory(function: Callable[..., Any]) -> None:
    size = {written_through_another_view: 3}.get(function, 4)
    assert require_truth(lambda: (function, (numbers(3, 4), numbers(size))), 60) > 30


def strides(kind: str) -> Given:
    def draw() -> torch.Tensor:
        if kind == "transposed":
            return torch.randn(4, 3).t()
        if kind == "with gaps":
            return torch.randn(6, 8)[::2, ::2]
        return torch.randn(3, 1).expand(3, 4).contiguous()

    return Given(draw(), draw)


@pytest.mark.parametrize("kind", ["transposed", "with gaps", "dense"])
def test_inputs_of_any_strides(kind: str) -> None:
    def function(x: Any, i: Any) -> Any:
        return x.reshape(-1), x.view(3, 2, 2) if x.is_contiguous() else x, x.t()[i], x.flatten(0)[i]

    assert require_truth(lambda: (function, (strides(kind), whole(0, 3, 5))), 40) > 20


def test_memory_that_nobody_looks_at_any_more_is_of_somebody() -> None:
    """What is left of a batch reaches all of it through its memory."""
    watch = Watch(3, rule_of, None, lambda: None)
    x = torch.randn(3, 4)
    watch.adopt(x, on_axis(2, 0, 3))
    with watch:
        part = (x * 1.0).detach()[:1]
        again = part.as_strided((3, 4), (4, 1), 0)
    owners = watch.owners(again).expand(3, 4)
    assert owners[0].tolist() == [0, 0, 0, 0]
    assert not bool((owners[1:] == FREE).any())


def test_other_numbers_by_data_are_noticed() -> None:
    watch = Watch(3, rule_of, None, lambda: None)
    x = torch.randn(3, 4)
    watch.adopt(x, on_axis(2, 0, 3))
    with watch:
        y = x * 1.0
        y.data = x.flip(0)
        watch.owned(y)
    assert [finding.kind for finding in watch.findings] == ["no rule"]


def test_an_operation_of_another_library_has_no_rule_by_its_name() -> None:
    library = torch.library.Library("steppe_test_rules", "DEF")
    library.define("relu(Tensor x) -> Tensor")
    assert rule_of(torch.ops.steppe_test_rules.relu.default) is None
