"""Batches that are filled up: one shape for every draw, and a sum as if nothing had been added."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from clip_cases import DECAYS, Case, every_clip
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import GEP, Clip, ClippedSum, Flat, Quantile
from steppe.clipping.physical_batches import physical_batches, with_zeros
from steppe.errors import UnsupportedModelError
from steppe.gradients import Kernels, objective_of
from steppe.gradients.flat_weights import FlatWeights
from steppe.gradients.record_gradients import RecordGradients
from steppe.gradients.slots.outer import Single
from steppe.gradients.slots.slot import Materialised
from steppe.probing.probe import probe
from steppe.probing.zero_records import require_zeros_taken

ROWS = 20  # of a padded batch, of which a `Case` has 12 records
DRAWS = (0, 1, 5, 6, 7, 12)
PHYSICAL = (None, 1, 3, 6, 20, 50)


def added(engine: ClippedSum, batch: Any, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    out = torch.zeros(engine.width, dtype=dtype)
    return out, engine.add_(out, batch)


def some(batch: tuple[Tensor, Tensor], records: int) -> tuple[Tensor, Tensor]:
    return batch[0][:records], batch[1][:records]


class Pair(NamedTuple):
    inputs: Tensor
    target: Tensor


def test_every_piece_of_every_batch_is_of_one_size() -> None:
    for most in PHYSICAL:
        found = set()
        for records in range(ROWS + 1):
            batch = torch.arange(1.0, records + 1)
            cut = list(physical_batches(batch, most, padded_to=ROWS))
            found.add(tuple(piece.size for piece in cut))
            assert all(len(piece.batch) == piece.size <= (most or ROWS) for piece in cut)
            own = [piece.batch[: piece.size - piece.padding] for piece in cut]
            assert torch.cat(own).equal(batch)
            made_up = [piece.batch[piece.size - piece.padding :] for piece in cut]
            assert not torch.cat(made_up).any()
            assert sum(piece.size for piece in cut) - records == sum(p.padding for p in cut)
        (sizes,) = found
        assert len(set(sizes)) == 1
        assert len(sizes) == math.ceil(ROWS / (most or ROWS))


def test_without_padding_pieces_are_the_batch_and_nothing_else() -> None:
    assert list(physical_batches(torch.zeros(0, 3), 4)) == []
    for most in (None, 7, 9):
        batch = torch.randn(7, 3)
        (whole,) = physical_batches(batch, most)
        assert whole.batch is batch
    for most in (1, 2, 3, 4, 5, 6):
        cut = list(physical_batches(torch.arange(7), most))
        assert torch.cat([piece.batch for piece in cut]).equal(torch.arange(7))
        assert max(piece.size for piece in cut) - min(piece.size for piece in cut) <= 1
        assert max(piece.size for piece in cut) <= most
        assert not any(piece.padding for piece in cut)


def test_a_batch_of_more_records_keeps_all_of_them() -> None:
    cut = list(physical_batches(torch.arange(1, 12), 4, padded_to=5))
    assert [(piece.size, piece.padding) for piece in cut] == [(4, 0), (4, 0), (4, 1)]


def test_padding_has_the_form_of_the_data() -> None:
    batch = {
        "pair": Pair(torch.randn(2, 3, 1, dtype=torch.float64), torch.ones(2, dtype=torch.int32)),
        "rest": [torch.ones(2, 4, dtype=torch.bool), "a word"],
    }
    found = with_zeros(batch, 3)
    assert type(found["pair"]) is Pair
    assert found["rest"][1] == "a word"
    for new, old in (
        (found["pair"].inputs, batch["pair"].inputs),  # type: ignore[attr-defined]
        (found["pair"].target, batch["pair"].target),  # type: ignore[attr-defined]
        (found["rest"][0], batch["rest"][0]),
    ):
        assert new.dtype == old.dtype
        assert new.shape == (5, *old.shape[1:])
        assert new[:2].equal(old)
        assert not new[2:].any()
    assert with_zeros(batch, 0) is batch


@every_clip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("l2", DECAYS, ids=str)
def test_a_padded_sum_is_the_sum(clip: Clip, dtype: torch.dtype, l2: Any) -> None:
    case = Case(dtype)
    close = 1e-6 if dtype == torch.float32 else 1e-12
    for records in DRAWS:
        batch = some(case.batch, records)
        # GEP's directions turn with the rounding of public records in pieces of other sizes.
        for physical in (None,) if isinstance(clip, GEP) else (None, 1, 6):
            plain = case.engine(clip, l2=l2, physical_batch=physical)
            padded = case.engine(clip, l2=l2, physical_batch=physical, padded_to=ROWS)
            expected, norms = added(plain, batch, dtype)
            found, own_norms = added(padded, batch, dtype)
            torch.testing.assert_close(found, expected, rtol=close, atol=close)
            torch.testing.assert_close(own_norms, norms, rtol=close, atol=close, check_dtype=False)
            assert own_norms.shape == (records,)
            assert records or found.equal(torch.zeros_like(found))


@every_clip
def test_padding_that_is_not_finite_adds_nothing(clip: Clip) -> None:
    """A norm has no gradient at zero, and behind the root it reaches every weight."""

    class Hostile(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            hidden = self[1](self[0](x))
            return self[2](hidden / hidden.square().sum(1, keepdim=True).sqrt())  # type: ignore[no-any-return]

    case = Case()
    model = Hostile(nn.Linear(5, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)).double()
    case.parameters = dict(model.named_parameters())
    case.objective = objective_of(model, F.cross_entropy)  # type: ignore[method-assign]
    zeros = some((torch.zeros(3, 5).double(), torch.zeros(3).long()), 3)
    _, norms = added(case.engine(clip), zeros, torch.float64)
    assert not torch.isfinite(norms).any()  # what padding would say, were it records
    for records in DRAWS:
        batch = some(case.batch, records)
        for l2 in (0.0, 0.2):
            expected, _ = added(case.engine(clip, l2=l2), batch, torch.float64)
            engine = case.engine(clip, l2=l2, padded_to=ROWS)
            found, own_norms = added(engine, batch, torch.float64)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            assert torch.isfinite(own_norms).all()


def test_records_that_are_not_finite_are_left_out_beside_padding() -> None:
    case = Case()
    x, y = case.batch[0].clone(), case.batch[1]
    x[3] = math.nan
    expected, _ = added(case.engine(Flat(0.4)), (x, y), torch.float64)
    found, norms = added(case.engine(Flat(0.4), padded_to=ROWS), (x, y), torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert torch.isfinite(norms).logical_not().nonzero().flatten().tolist() == [3]


def test_the_mean_over_views_is_of_the_records_own() -> None:
    """All first views lie before all second ones, each with padding at its end."""
    case = Case()

    def turned(x: Tensor) -> Tensor:
        return x.roll(1, dims=1) + 1.0

    objective = objective_of(case.model, F.cross_entropy, views=3, augment=turned)
    layouts = probe(case.model, case.parameters, objective, case.batch).layouts
    options: dict[str, Any] = {"physical_batch": 4, "layouts": layouts}
    clip = Quantile(start=0.4)
    plain = ClippedSum(case.parameters, objective, clip, **options)
    padded = ClippedSum(case.parameters, objective, clip, padded_to=ROWS, **options)
    for records in DRAWS:
        batch = some(case.batch, records)
        expected, found = (added(e, batch, torch.float64)[0] for e in (plain, padded))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class Recorder:
    """Notes the shape of every tensor that a model's layers see and give, forward and backward."""

    def __init__(self, model: nn.Module) -> None:
        self.seen: list[Any] = []
        for module in model.modules():
            module.register_forward_hook(self._forward)

    def _forward(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.seen.append((type(module), [tuple(x.shape) for x in inputs], tuple(output.shape)))
        if output.requires_grad:
            output.register_hook(lambda gradient: self.seen.append(tuple(gradient.shape)))


@pytest.mark.parametrize("physical", [None, 6])
def test_the_model_sees_the_same_shapes_whoever_was_drawn(physical: int | None) -> None:
    case = Case()
    objective = objective_of(case.model, F.cross_entropy)

    def shapes(padded_to: int | None) -> set[str]:
        engine = ClippedSum(
            case.parameters,
            objective,
            Flat(0.4),
            physical_batch=physical,
            kernels=Kernels(measure=False),
            padded_to=padded_to,
        )
        found = set()
        for records in DRAWS:
            recorder.seen.clear()
            added(engine, some(case.batch, records), torch.float64)
            found.add(str(recorder.seen))
        return found

    recorder = Recorder(case.model)
    (only,) = shapes(ROWS)
    passes, size = (1, ROWS) if physical is None else (4, 5)
    whole = str((nn.Sequential, [(size, 5)], (size, 3)))
    assert only.count(whole) == passes
    assert only.count(f", ({size}, 3)") >= passes  # on the way back
    assert len(shapes(None)) == len(DRAWS)  # the recorder would have seen a difference


def test_finite_padding_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor of 0 is enough there; copies without bad rows would be of whole activations."""
    left_out: list[int] = []
    plain = Single.add_

    def noted(slot: Single, out: Tensor, factors: Tensor, bad: Tensor) -> None:
        left_out.append(len(bad))
        plain(slot, out, factors, bad)

    monkeypatch.setattr(Single, "add_", noted)
    case = Case()
    added(case.engine(Flat(0.4), padded_to=ROWS), case.batch, torch.float64)
    assert left_out == [0, 0]
    case.model[0].bias.data += math.nan
    added(case.engine(Flat(0.4), padded_to=ROWS), case.batch, torch.float64)
    assert left_out == [0, 0, ROWS, ROWS]


def test_padding_is_left_out_whatever_factor_it_is_given() -> None:
    """Also of a clip that asks for no norms, so that nothing is known about the padding."""
    weight = torch.zeros(2)
    gradients = torch.tensor([[1.0, 2.0], [3.0, 4.0], [math.nan, math.inf], [5.0, 6.0]])
    for value in (1.0, math.nan):
        found = RecordGradients(
            [(weight, Materialised(gradients))], 4, 1.0, FlatWeights({"w": weight}, 0.5), None, 2
        )
        out = torch.zeros(2)
        found.add_(out, torch.tensor([1.0, 0.5, value, value]))
        assert out.tolist() == [2.5, 4.0]
    found = RecordGradients(
        [(weight, Materialised(gradients))], 4, 1.0, FlatWeights({"w": weight}, 0.5), None, 2
    )
    assert found.squared_norms()[2:].tolist() == [math.inf, math.inf]
    assert found.written_out(torch.float32)[2:].eq(math.inf).all()
    assert found.written_out(torch.float32)[:2].equal(gradients[:2])


def test_norms_that_a_slot_keeps_stay_as_they_are() -> None:
    weight = torch.zeros(2)

    class Known(Materialised):
        norms = torch.tensor([5.0, 25.0, 7.0], dtype=torch.float64)

        def squared_norms(self) -> Tensor:
            return self.norms

    found = RecordGradients(
        [(weight, Known(torch.ones(3, 2)))], 3, 1.0, FlatWeights({"w": weight}, 0.0), None, 1
    )
    assert found.squared_norms().tolist() == [5.0, 25.0, math.inf]
    assert Known.norms.tolist() == [5.0, 25.0, 7.0]


def test_what_stops_at_zeros_is_refused() -> None:
    class Lengths(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, True, enforce_sorted=False)
            return nn.utils.rnn.pad_packed_sequence(packed, True)[0].sum((1, 2))

    example = (torch.zeros(0, 4, 2), torch.zeros(0, dtype=torch.long), torch.zeros(0))
    objective = objective_of(Lengths(), F.mse_loss)
    with pytest.raises(
        UnsupportedModelError,
        match=r"^fixed_shapes=True: model and loss must accept records of zeros, because batches "
        r"are padded with them; accept them with any result, or leave out fixed_shapes\.\n"
        r"RuntimeError: Length of all samples .*0.*",
    ):
        require_zeros_taken(objective, example)
    before = torch.get_rng_state()
    require_zeros_taken(lambda batch: F.dropout(batch).log().sum(1), torch.zeros(0, 3))
    assert torch.get_rng_state().equal(before)
