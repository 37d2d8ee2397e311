"""Recurrent layers against torch's own outputs and against one record at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum, record_gradients
from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import ContactLayout
from steppe.gradients.kernel_choice import Kernels
from steppe.gradients.layout import RecordLayout
from steppe.gradients.marks import mark
from steppe.gradients.rules import RULES
from steppe.gradients.tracing import Tracer

# Torch says so once for each process when an LSTM projects its output; it is about its own speed.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}


class Reader(nn.Module):
    """A sequence model whose loss sees the outputs and all last states."""

    def __init__(self, kind: str, before: bool = True, **options: Any) -> None:
        super().__init__()
        self.before = nn.Linear(5, 4) if before else None
        self.layer = KINDS[kind](4 if before else 5, 6, **options)
        self.mix = torch.linspace(0.5, 1.5, 7)

    def start(self, x: Tensor) -> Any:
        return None

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.before is None else self.before(x)
        time_major = not self.layer.batch_first
        start = self.start(x)
        y, states = self.layer(x.transpose(0, 1) if time_major else x, start)
        y = y.transpose(0, 1) if time_major else y
        score = (y * self.mix.to(y.dtype)[: y.shape[1], None]).sin().sum((1, 2))
        for state in states if isinstance(states, tuple) else (states,):
            score = score + state.square().sum((0, 2)) + state[0, :, 0]
        return score


def losses(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda batch: model(batch[0]) * batch[1]


def batch(records: int, length: int = 7, dtype: torch.dtype = torch.float32) -> Any:
    # The last record stays below the bound, so that clipped and unclipped ones both occur.
    weight = torch.linspace(1.0, 0.001, records, dtype=dtype)
    return torch.randn(records, length, 5, dtype=dtype), weight


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def assert_right(model: nn.Module, data: Any, tolerance: float = 2e-6, **options: Any) -> None:
    parameters = trained(model)
    engine = ClippedSum(parameters, losses(model), Flat(0.7), **options)
    dtype = torch.float64 if next(iter(parameters.values())).dtype == torch.float64 else None
    out = torch.zeros(engine.numel, dtype=dtype)
    norms = engine.add_(out, data)
    l2 = options.get("l2", 0.0)
    leaves = list(parameters.values())
    truth = clipped_sum(losses(model), leaves, data, Flat(0.7), l2)
    assert (out - truth).norm() <= tolerance * truth.norm()
    weights = torch.cat([p.detach().flatten() for p in leaves])
    rows = record_gradients(losses(model), leaves, data) + l2 * weights
    exact = rows.double().norm(dim=1)
    torch.testing.assert_close(norms.double(), exact, rtol=1e-5, atol=1e-7)
    assert (norms.double() >= exact * (1 - 1e-6)).all()


@pytest.mark.parametrize("kind", KINDS)
@given(
    layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    projected=st.booleans(),
    before=st.booleans(),
    records=st.integers(1, 5),
    length=st.integers(1, 7),
    physical=st.sampled_from([None, 1, 2]),
    l2=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**20),
)
@settings(max_examples=20, deadline=None)
def test_every_option_gives_the_clipped_sum(
    kind, layers, bidirectional, bias, batch_first, projected, before, records, length, physical,
    l2, seed,
):  # fmt: skip
    torch.manual_seed(seed)
    options = {"proj_size": 3} if projected and kind == "lstm" else {}
    model = Reader(
        kind, before, num_layers=layers, bidirectional=bidirectional, bias=bias,
        batch_first=batch_first, **options,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="LSTM with projections")
        # Norms of a few tiny gradients may cancel; the sum is then compared with its own size.
        assert_right(model, batch(records, length), 1e-5, l2=l2, physical_batch=physical)


@pytest.mark.parametrize("records", [15, 16, 17, 32])
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_records_gives_the_clipped_sum(kind, records):
    """Some numbers take their products in another order."""
    torch.manual_seed(records)
    assert_right(Reader(kind), batch(records), 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_equal_torch(kind):
    torch.manual_seed(1)
    model = KINDS[kind](4, 33, num_layers=2, bidirectional=True, batch_first=True)
    x = torch.randn(5, 9, 4)
    seen: list[Any] = []

    def objective(inputs: Tensor) -> Tensor:
        seen.append(model(inputs))
        return seen[-1][0].sum((1, 2))

    engine = ClippedSum(dict(model.named_parameters()), objective, Flat(1.0))
    engine.add_(torch.zeros(engine.numel), x)
    (output, states), (expected, last) = seen[0], model(x)
    torch.testing.assert_close(output, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(states, last, rtol=1e-6, atol=1e-6)
    assert output.shape == expected.shape


@pytest.mark.parametrize("kind", KINDS)
def test_double_precision(kind):
    torch.manual_seed(2)
    model = Reader(kind, num_layers=2, bidirectional=True).double()
    data = batch(4, dtype=torch.float64)
    assert_right(model, data, 1e-12)
    # With λθ the engine guards the norms by a few float32 roundings, on the safe side.
    assert_right(model, data, 5e-7, l2=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_stays_close_to_the_rounded_model(kind):
    torch.manual_seed(3)
    model = Reader(kind, batch_first=True).bfloat16()
    wide = Reader(kind, batch_first=True)
    wide.load_state_dict(model.state_dict())
    data = batch(4)
    low = (data[0].bfloat16(), data[1].bfloat16())
    engine = ClippedSum(trained(model), losses(model), Flat(0.7))
    out = torch.zeros(engine.numel)
    engine.add_(out, low)
    truth = clipped_sum(
        losses(wide), list(wide.parameters()), (low[0].float(), low[1].float()), Flat(0.7)
    )
    assert (out - truth).norm() <= 0.03 * truth.norm()


class GivenStart(Reader):
    """Initial states computed from the record, or learned and shared by all."""

    def __init__(self, kind: str, learned: bool, **options: Any) -> None:
        super().__init__(kind, **options)
        self.learned = learned
        count = 2 if kind == "lstm" else 1
        places = self.layer.num_layers * (2 if self.layer.bidirectional else 1)
        self.first = nn.ParameterList(torch.randn(places, 1, 6) for _ in range(count))

    def start(self, x: Tensor) -> Any:
        if self.learned:
            found = [first.expand(-1, len(x), -1).contiguous() for first in self.first]
        else:
            found = [first * x.mean((1, 2))[None, :, None] for first in self.first]
        return tuple(found) if len(found) == 2 else found[0]


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_initial_states_with_gradients(kind, learned, l2):
    torch.manual_seed(4)
    model = GivenStart(kind, learned, num_layers=2, bidirectional=True, batch_first=True)
    layouts = None
    if not learned:
        # The product that makes each state has its records in the middle.
        count = 2 if kind == "lstm" else 1
        middle = RecordLayout(axis=1)
        first = ContactLayout("linear", (RecordLayout(),), (RecordLayout(),))
        scale = ContactLayout("mul", (middle,), (middle,))
        layer = ContactLayout(
            {"tanh": "rnn_tanh", "relu": "rnn_relu"}.get(kind, kind),
            (RecordLayout(), *[middle] * count), (RecordLayout(), *[middle] * count),
        )  # fmt: skip
        layouts = [first, *[scale] * count, layer]
    # Both learned and computed states carry gradients of their own parameters.
    assert_right(model, batch(3), l2=l2, layouts=layouts)


class FixedStart(Reader):
    """Initial states that are constants, but not zero."""

    def start(self, x: Tensor) -> Any:
        one = torch.full((1, len(x), 6), 0.8)
        return (one, one) if isinstance(self.layer, nn.LSTM) else one


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_constant_initial_states(kind, l2):
    torch.manual_seed(13)
    model = FixedStart(kind)
    # Only this way uses the inner products with the weights that the way back leaves behind.
    gates = len(model.layer.weight_hh_l0)
    kernels = Kernels(pinned={f"recurrent {width}->{gates} T=7": "gram" for width in (4, 6)})
    assert_right(model, batch(4), l2=l2, kernels=kernels)


def test_only_some_weights_are_trained():
    torch.manual_seed(5)
    model = Reader("lstm", num_layers=2)
    for name, parameter in model.layer.named_parameters():
        parameter.requires_grad_(name in ("weight_hh_l0", "bias_ih_l1"))
    assert_right(model, batch(4), l2=0.3)


def test_weights_computed_from_others():
    torch.manual_seed(6)
    model = Reader("gru")
    nn.utils.parametrizations.weight_norm(model.layer, "weight_hh_l0")
    assert_right(model, batch(4))


def test_one_weight_in_two_places():
    torch.manual_seed(7)
    model = Reader("tanh", num_layers=2, before=False)
    model.layer.weight_hh_l1 = model.layer.weight_hh_l0
    assert_right(model, batch(4), l2=0.3)


@pytest.mark.parametrize("way", ["gram", "kept"])
def test_both_ways_agree(way):
    torch.manual_seed(8)
    model = Reader("lstm")
    pinned = {f"recurrent {width}->24 T=7": way for width in (4, 6)}
    assert_right(model, batch(4), l2=0.3, kernels=Kernels(pinned=pinned))


def test_several_rows_of_a_record():
    """Three sentences per record, folded into the batch axis either way round."""
    torch.manual_seed(9)
    layer = nn.LSTM(5, 6, batch_first=True)
    data = torch.randn(4, 3, 7, 5)

    for interleaved in (False, True):

        def objective(x: Tensor, interleaved: bool = interleaved) -> Tensor:
            rows = (x.transpose(0, 1) if interleaved else x).reshape(-1, 7, 5)
            score = layer(rows)[0].square().sum((1, 2))
            return score.view(3, len(x)).sum(0) if interleaved else score.view(len(x), 3).sum(1)

        folded, state = RecordLayout(0, interleaved), RecordLayout(1, interleaved)
        layouts = [ContactLayout("lstm", (folded,), (folded, state, state))]
        leaves = dict(layer.named_parameters())
        engine = ClippedSum(leaves, objective, Flat(0.5), layouts=layouts)
        out = torch.zeros(engine.numel)
        engine.add_(out, data)
        truth = clipped_sum(objective, list(leaves.values()), data, Flat(0.5))
        assert (out - truth).norm() <= 2e-6 * truth.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_between_layers(kind):
    """Same masks as torch under the same seed, and each record's gradient under those masks."""
    model = KINDS[kind](5, 6, num_layers=3, dropout=0.4, bidirectional=True)
    leaves = dict(model.named_parameters())
    x = torch.randn(4, 7, 5)

    def objective(inputs: Tensor) -> Tensor:
        return model(inputs.transpose(0, 1))[0].square().sum((0, 2))

    engine = ClippedSum(leaves, objective, Flat(0.5))
    out = torch.zeros(engine.numel)
    engine.add_(out, x)  # times the ways, so that the next call draws nothing else
    out.zero_()
    torch.manual_seed(10)
    norms = engine.add_(out, x)
    torch.manual_seed(10)
    every = objective(x)
    truth, sizes = torch.zeros_like(out), []
    for loss in every:
        found = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
        flat = torch.cat([g.flatten() for g in found])
        sizes.append(flat.norm())
        truth += flat * min(1.0, 0.5 / float(flat.norm()))
    torch.testing.assert_close(norms.float(), torch.stack(sizes), rtol=1e-5, atol=1e-6)
    assert (out - truth).norm() <= 5e-6 * truth.norm()


class Stepper(nn.Module):
    """A cell called step by step, from states torch makes or the model gives."""

    def __init__(self, cell: nn.RNNCellBase, own_start: bool) -> None:
        super().__init__()
        self.cell, self.own_start = cell, own_start
        self.first = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        pair = isinstance(self.cell, nn.LSTMCell)
        state: Any = None
        if self.own_start:
            one = self.first.expand(len(x), -1)
            state = (one, one) if pair else one
        for step in x.unbind(1):
            state = self.cell(step, state)
        last = state[0] + state[1].square() if pair else state
        return last.sin().sum(1)


@pytest.mark.parametrize("own_start", [True, False])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
def test_cells(kind, steps, own_start):
    torch.manual_seed(11)
    cell: nn.RNNCellBase = {
        "lstm": lambda: nn.LSTMCell(5, 6),
        "gru": lambda: nn.GRUCell(5, 6),
        "tanh": lambda: nn.RNNCell(5, 6, bias=False),
        "relu": lambda: nn.RNNCell(5, 6, nonlinearity="relu"),
    }[kind]()
    model = Stepper(cell, own_start)
    assert_right(model, batch(4, steps), l2=0.3, physical_batch=3)
    assert_right(model, batch(1, steps))


@pytest.mark.parametrize("way", ["gram", "kept"])
def test_a_non_finite_record_adds_nothing(way):
    torch.manual_seed(12)
    model = Reader("lstm", num_layers=2)
    kernels = Kernels(pinned={f"recurrent {width}->24 T=7": way for width in (4, 6)})
    data = batch(4)
    data[0][1, 2, 0] = float("nan")
    engine = ClippedSum(trained(model), losses(model), Flat(0.7), kernels=kernels)
    out = torch.zeros(engine.numel)
    norms = engine.add_(out, data)
    kept = torch.tensor([0, 2, 3])
    truth = clipped_sum(
        losses(model), list(model.parameters()), (data[0][kept], data[1][kept]), Flat(0.7)
    )
    assert not norms[1].isfinite()
    assert (out - truth).norm() <= 2e-6 * truth.norm()


@pytest.mark.parametrize("kind", KINDS)
def test_packed_sequences_are_refused(kind):
    layer = KINDS[kind](5, 6, batch_first=True)

    def objective(x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([7, 5, 2]), batch_first=True)
        last = layer(packed)[1]
        return (last[0] if isinstance(last, tuple) else last)[0].sum(1)

    engine = ClippedSum(dict(layer.named_parameters()), objective, Flat(1.0))
    with pytest.raises(UnsupportedModelError, match=r"PackedSequence: must be .*mask the loss"):
        engine.add_(torch.zeros(engine.numel), torch.randn(3, 7, 5))


def test_records_along_time_are_refused():
    layer = nn.GRU(5, 6)  # time first, but the batch has records first
    engine = ClippedSum(
        dict(layer.named_parameters()), lambda x: layer(x)[0].sum((1, 2)), Flat(1.0)
    )
    with pytest.raises(UnsupportedModelError, match=r"batch axis=7 rows: must .*batch_first"):
        engine.add_(torch.zeros(engine.numel), torch.randn(3, 7, 5))
    # Where the sizes happen to agree, the probe's layouts still tell.
    engine.passes.layouts = [
        ContactLayout("gru", (RecordLayout(0),), (RecordLayout(0), RecordLayout(1)))
    ]
    with pytest.raises(UnsupportedModelError, match=r"record axis=0: must be 1.*batch_first"):
        engine.add_(torch.zeros(engine.numel), torch.randn(3, 6, 5))


def test_a_second_backward_pass_fails_loudly():
    """The way back overwrites what it read; doing it twice must not give wrong gradients."""
    layer = nn.LSTM(5, 6, batch_first=True)
    x = torch.randn(3, 7, 5)
    mark(x)
    with Tracer(3, RULES):
        loss = layer(x)[0].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
