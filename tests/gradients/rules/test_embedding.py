from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_agreement import assert_agrees, assert_agrees_in_double, assert_same_output, squares
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import ContactLayout
from steppe.gradients.layout import RecordLayout
from steppe.gradients.slots.embedding import BagMaximum, EmbeddingRows


@settings(max_examples=25, deadline=None)
@given(
    records=st.integers(1, 5),
    shape=st.lists(st.integers(1, 6), max_size=2),
    rows=st.integers(1, 9),
    padding=st.sampled_from([None, 0, -1]),
    seed=st.integers(0, 99),
)
def test_any_shape_with_repeated_indices(
    records: int, shape: list[int], rows: int, padding: int | None, seed: int
) -> None:
    torch.manual_seed(seed)
    table = nn.Embedding(rows, 4, padding_idx=padding)
    indices = torch.randint(rows, (records, *shape))
    if padding is not None and rows == 1:
        indices = torch.zeros_like(indices)
    with torch.no_grad():
        table.weight.normal_()
    assert_agrees_in_double(table, indices, paths={"embedding"})
    assert_agrees(table, indices)
    assert_same_output(table, indices)


def test_repeated_indices_add_before_the_norm() -> None:
    table = nn.Embedding(5, 2)
    engine = ClippedSum({"weight": table.weight}, lambda i: table(i).sum((1, 2)), Flat(1.0))
    out = torch.zeros(10)
    norms = engine.add_(out, torch.tensor([[3, 3, 3, 1]]))
    # Row 3 gets (3, 3) and row 1 gets (1, 1): the norm is √20, not √8.
    torch.testing.assert_close(norms, torch.tensor([20.0], dtype=norms.dtype).sqrt())
    torch.testing.assert_close(out.view(5, 2)[3], torch.full((2,), 3 / 20**0.5))


@pytest.mark.parametrize("layout", [RecordLayout(axis=1), RecordLayout(axis=0, interleaved=True)])
def test_records_may_lie_elsewhere(layout: RecordLayout) -> None:
    torch.manual_seed(0)
    table, indices = nn.Embedding(4, 3), torch.randint(4, (5, 6))

    def objective(indices: Tensor) -> Tensor:
        swapped = indices.t()
        if layout.axis == 1:
            return squares(table(swapped).transpose(0, 1))
        return squares(table(swapped.flatten()).unflatten(0, swapped.shape).transpose(0, 1))

    engine = ClippedSum(
        {"weight": table.weight},
        objective,
        Flat(0.05),
        layouts=[ContactLayout("embedding", (layout,), (layout,))],
    )
    out = torch.zeros(engine.numel)
    engine.add_(out, indices)
    expected = clipped_sum(objective, [table.weight], indices, Flat(0.05))
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)


class Positions(nn.Module):
    """Word and position embeddings; the positions do not depend on the record."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(7, 4), nn.Embedding(longest, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, indices: Tensor) -> Tensor:
        places = torch.arange(indices.shape[1])
        return self.out(torch.tanh(self.words(indices) + self.positions(places)))


@pytest.mark.parametrize(("records", "length", "longest"), [(6, 6, 6), (6, 6, 9), (6, 4, 4)])
def test_positions_are_every_records_own(records: int, length: int, longest: int) -> None:
    torch.manual_seed(1)
    indices = torch.randint(7, (records, length))
    assert_agrees_in_double(Positions(longest), indices)


class Tied(nn.Module):
    """The same table before and after, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)

    def forward(self, indices: Tensor) -> Tensor:
        return F.linear(self.table(indices), self.table.weight)


def test_tied_tables() -> None:
    torch.manual_seed(2)
    assert_agrees_in_double(Tied(), torch.randint(7, (5, 6)), paths={"embedding", "linear"})


def bag(mode: str, **options: Any) -> nn.EmbeddingBag:
    return nn.EmbeddingBag(6, 4, mode=mode, **options)


@settings(max_examples=25, deadline=None)
@given(
    mode=st.sampled_from(["sum", "mean", "max"]),
    records=st.integers(1, 5),
    length=st.integers(1, 8),
    padding=st.sampled_from([None, 2, -1]),
    seed=st.integers(0, 99),
)
def test_bags_in_rows(mode: str, records: int, length: int, padding: int | None, seed: int) -> None:
    torch.manual_seed(seed)
    layer = bag(mode, padding_idx=padding)
    with torch.no_grad():
        layer.weight.normal_()
    indices = torch.randint(6, (records, length))
    assert_agrees_in_double(layer, indices, paths={"embedding bag"})
    assert_agrees(layer, indices)
    assert_same_output(layer, indices)


def ragged(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Padded records and their lengths, handed to the layer as one list with offsets."""
    indices, lengths = batch
    flat = indices[torch.arange(indices.shape[1]) < lengths[:, None]]
    ends = lengths.cumsum(0)
    if model.include_last_offset:
        return model(flat, torch.cat([ends.new_zeros(1), ends]))
    return model(flat, ends - lengths)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
def test_bags_with_offsets(mode: str, last: bool) -> None:
    torch.manual_seed(3)
    layer = bag(mode, include_last_offset=last)
    batch = (torch.randint(6, (5, 7)), torch.tensor([7, 3, 0, 1, 5]))
    assert_agrees_in_double(layer, batch, call=ragged, paths={"embedding bag"})


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_record_may_own_several_bags(mode: str) -> None:
    def call(model: nn.Module, indices: Tensor) -> Tensor:
        return model(indices.flatten(0, 1)).unflatten(0, indices.shape[:2])

    torch.manual_seed(4)
    assert_agrees_in_double(bag(mode), torch.randint(6, (5, 3, 4)), call=call)


class Weighted(nn.Module):
    """Scales of its own for every index, computed from the record."""

    def __init__(self, padding: int | None) -> None:
        super().__init__()
        self.bag, self.gate = bag("sum", padding_idx=padding), nn.Linear(1, 1)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        indices, numbers = batch
        scales = self.gate(numbers[..., None]).squeeze(-1)
        return self.bag(indices, per_sample_weights=scales)


@pytest.mark.parametrize("padding", [None, 1])
def test_scales_made_from_records(padding: int | None) -> None:
    torch.manual_seed(5)
    batch = (torch.randint(6, (5, 7)), torch.randn(5, 7))
    assert_agrees_in_double(Weighted(padding), batch, paths={"linear", "embedding bag"})
    assert_same_output(Weighted(padding), batch)


class Learned(nn.Module):
    """One trainable scale for each place in the bag."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.scales = bag("sum"), nn.Parameter(torch.randn(7))

    def forward(self, indices: Tensor) -> Tensor:
        return self.bag(indices, per_sample_weights=self.scales.expand(indices.shape))


def test_trained_scales_are_refused() -> None:
    model = Learned()
    engine = ClippedSum(dict(model.named_parameters()), lambda i: squares(model(i)), Flat(1.0))
    with pytest.raises(UnsupportedModelError, match=r"per_sample_weights=trained: .*F\.embedding"):
        engine.slots(torch.randint(6, (5, 7)))


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"max_norm": 1.0}, "max_norm=1.0: must be None: it rewrites rows"),
        ({"scale_grad_by_freq": True}, "scale_grad_by_freq=True: must be False: .* the others"),
        ({"sparse": True}, "sparse=True: must be False: .* noise in every row"),
    ],
)
def test_options_that_break_the_bound(
    layer: type[nn.Module], option: dict[str, Any], reason: str
) -> None:
    table = layer(6, 4, **option)
    before = table.weight.detach().clone()
    engine = ClippedSum({"weight": table.weight}, lambda i: squares(table(i)), Flat(1.0))
    with pytest.raises(UnsupportedModelError, match=reason):
        engine.slots(torch.randint(6, (5, 7)))
    assert torch.equal(table.weight, before)


@pytest.mark.parametrize("layer", [nn.Embedding(6, 4), bag("mean"), bag("max")])
def test_a_bad_record_adds_nothing(layer: nn.Module) -> None:
    torch.manual_seed(6)
    indices, scale = torch.randint(6, (4, 7)), torch.tensor([1.0, 1.0, 1.0, torch.nan])
    engine = ClippedSum({"weight": layer.weight}, lambda b: squares(layer(b[0])) * b[1], Flat(0.05))
    good, mixed = torch.zeros(engine.numel), torch.zeros(engine.numel)
    engine.add_(good, (indices[:3], scale[:3]))
    engine.add_(mixed, (indices, scale))
    torch.testing.assert_close(mixed, good, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("layer", [nn.Embedding(6, 4), bag("sum"), bag("mean"), bag("max")])
def test_bfloat16_is_clipped_in_float32(layer: nn.Module) -> None:
    torch.manual_seed(7)
    layer, indices = layer.bfloat16(), torch.randint(6, (5, 7))
    engine = ClippedSum({"weight": layer.weight}, lambda i: squares(layer(i).float()), Flat(0.05))
    out = torch.zeros(engine.numel)
    engine.add_(out, indices)
    wide = layer.float()
    expected = clipped_sum(lambda i: squares(wide(i)), [wide.weight], indices, Flat(0.05))
    assert (out - expected).norm() <= 0.02 * expected.norm()


@pytest.mark.parametrize("huge", [1e12, 1e20])
def test_positions_that_cancel_do_not_wipe_out_what_the_table_holds(huge: float) -> None:
    """Two uses of one row with opposite huge gradients: their sum is zero, and that is added."""
    g = torch.tensor([[huge], [-huge], [3.0]])
    rows = EmbeddingRows(g, torch.tensor([1, 1, 1]), torch.tensor([0, 0, 1]), 2, (4, 1))
    held = torch.tensor([0.1, 0.2, 0.3, 0.4])
    out = held.clone()
    rows.add_(out, torch.ones(2), torch.zeros(0, dtype=torch.long))
    assert torch.allclose(out, held + torch.tensor([0.0, 3.0, 0.0, 0.0]))
    picks = BagMaximum(g[:2].view(1, 2, 1), torch.ones(1, 2, 1), (4, 1))
    out = held.clone()
    picks.add_(out, torch.ones(1), torch.zeros(0, dtype=torch.long))
    assert torch.equal(out, held)
    assert picks.squared_norms().item() < 1e-30
