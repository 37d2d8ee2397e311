"""Models that are a row of layers: the same gradients without a tracer, and no others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_torch_only import OTHERS
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from global_generators import states
from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.errors import UnsupportedModelError
from steppe.gradients import objective_of
from steppe.gradients import sequential as rows
from steppe.gradients.objective import _STILL
from steppe.gradients.passes import TracedPasses
from steppe.gradients.sequential import _WEIGHTLESS, plain_sequential
from steppe.randomness.secret_generators import SecretGenerators

BETWEEN: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "relu": nn.ReLU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "gelu by tanh": lambda: nn.GELU("tanh"),
    "silu": nn.SiLU,
    "silu in place": lambda: nn.SiLU(inplace=True),
    "flatten": nn.Flatten,
    "nested": lambda: nn.Sequential(nn.Sequential(), nn.Tanh()),
}
LOSSES: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], Tensor]]] = {
    "cross-entropy": (F.cross_entropy, lambda y: y),
    "sum": (functools.partial(F.cross_entropy, reduction="sum"), lambda y: y),
    "smoothed": (functools.partial(F.cross_entropy, label_smoothing=0.1), lambda y: y),
    "probabilities": (F.cross_entropy, lambda y: F.one_hot(y, 3) * 0.8 + 0.1),
    "squares": (F.mse_loss, lambda y: F.one_hot(y, 3) * 1.0),
    "logits": (F.binary_cross_entropy_with_logits, lambda y: F.one_hot(y, 3) * 1.0),
}


def perceptron(between: Callable[[], nn.Module] = nn.Tanh, classes: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(6, 5),
        between(),
        nn.Linear(5, 4, bias=False),
        nn.ReLU(),
        nn.Linear(4, classes),
    )


def batch(records: int = 9, classes: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(records, 2, 3), torch.randint(classes, (records,))


def sums(
    model: nn.Module, data: Any, loss: Callable[..., Tensor] = F.cross_entropy, l2: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The clipped sum by the row, by the tracer, and one record at a time."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    objective = objective_of(model, loss)
    engine = ClippedSum(trained, objective, Flat(0.4), l2=l2)
    dtype = next(model.parameters()).dtype
    found = []
    for row in (engine.sequential(), None):
        found.append(torch.zeros(engine.width, dtype=dtype))
        engine.add_(found[-1], data, row)
    assert engine.sequential() is not None
    return found[0], found[1], clipped_sum(objective, trained, data, Flat(0.4), l2)


def assert_row_is_right(model: nn.Module, data: Any, *loss: Any, l2: float = 0.0) -> None:
    row, traced, one_by_one = sums(model, data, *loss, l2=l2)
    torch.testing.assert_close(row, traced, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(row, one_by_one, rtol=1e-4, atol=1e-6, check_dtype=False)


@pytest.fixture
def only_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a tracer fails."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("traced")

    monkeypatch.setattr(TracedPasses, "trace", refuse)


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("name", BETWEEN)
def test_layers(name: str, l2: float) -> None:
    torch.manual_seed(len(name))
    assert_row_is_right(perceptron(BETWEEN[name]), batch(), l2=l2)
    data = batch()
    assert_row_is_right(perceptron(BETWEEN[name]).double(), (data[0].double(), data[1]), l2=l2)


def test_every_layer_that_a_row_knows_is_tested() -> None:
    assert {type(m) for make in BETWEEN.values() for m in make().modules()} >= set(_WEIGHTLESS)


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    torch.manual_seed(len(name))
    loss, targets = LOSSES[name]
    x, y = batch()
    assert_row_is_right(perceptron(), (x, targets(y)), loss)


@pytest.mark.parametrize("classes", [2, 16, 17, 40])
def test_few_classes_and_many(classes: int) -> None:
    torch.manual_seed(classes)
    assert_row_is_right(perceptron(classes=classes), batch(classes=classes))


@pytest.mark.parametrize("records", [1, 3, 63, 64, 100])
def test_products_with_few_outputs(records: int) -> None:
    torch.manual_seed(records)
    model = nn.Sequential(nn.Linear(300, 12), nn.Sigmoid(), nn.Linear(12, 1), nn.Flatten(0))
    assert_row_is_right(model, (torch.randn(records, 300), torch.randn(records)), F.mse_loss)


@pytest.mark.parametrize("frozen", ["1.weight", "1.bias", "1.", "3.", "5.weight", "5."])
def test_frozen_weights(frozen: str) -> None:
    torch.manual_seed(1)
    model = perceptron()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    assert_row_is_right(model, batch())
    assert_row_is_right(model, batch(), l2=0.2)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(sorted(BETWEEN)), max_size=4), st.integers(0, 10**6))
def test_random_rows(names: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    layers = [layer for name in names for layer in (nn.Linear(6, 6), BETWEEN[name]())]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(6, 3))
    assert_row_is_right(model, batch(int(torch.randint(1, 20, ()))))


def test_records_without_a_label_and_labels_that_are_none() -> None:
    torch.manual_seed(2)
    x, y = batch()
    y[3] = -100
    assert_row_is_right(perceptron(), (x, y))
    engine = engine_of(perceptron())
    for wrong in (-1, 3, -99):
        y[3] = wrong
        with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
            engine.slots((x, y), sequential=engine.sequential())


def test_a_record_that_is_not_finite_adds_nothing() -> None:
    torch.manual_seed(3)
    x, y = batch()
    model = perceptron()
    kept = [i for i in range(len(y)) if i != 4]
    without, _, _ = sums(model, (x[kept], y[kept]))
    for value in (float("nan"), float("inf")):
        x[4] = value
        with_it, _, _ = sums(model, (x, y))
        torch.testing.assert_close(with_it, without, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", BETWEEN)
def test_nothing_is_written_and_nothing_is_left(name: str) -> None:
    torch.manual_seed(4)
    model = nn.Sequential(BETWEEN[name](), nn.Linear(6, 3))
    data = (torch.randn(9, 6), torch.randint(3, (9,)))
    before = data[0].clone()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    sums(model, data)
    assert torch.equal(data[0], before)
    assert data[0]._version == 0
    assert not vars(data[0])
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert all(p.grad is None and not vars(p) for p in model.parameters())


@pytest.mark.parametrize("name", BETWEEN)
def test_one_record_more_moves_no_bit_of_the_others(name: str, monkeypatch: Any) -> None:
    """Behind a rounding error may lie a step. Some functions of torch round at their end."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(300, 10), BETWEEN[name](), nn.Linear(10, 20), nn.ReLU())
    model.append(nn.Linear(20, 2))
    x, y = torch.randn(130, 300), torch.zeros(130, dtype=torch.long)
    seen: list[Tensor] = []
    step = rows._WEIGHTLESS[nn.ReLU]

    def watched(layer: nn.Module, into: Tensor) -> Tensor:
        if into.shape[1] == 20:
            seen.append(into.clone())
        return step.forward(layer, into)

    monkeypatch.setitem(rows._WEIGHTLESS, nn.ReLU, rows._Weightless(watched, step.backward))
    row = plain_sequential(objective_of(model, F.cross_entropy))
    assert row is not None
    ends = 16 if name in ("sigmoid", "silu", "silu in place", "gelu by tanh") else 0
    with torch.no_grad():
        for records in (12, 31, 32, 63, 64, 95, 96, 127, 128):
            seen.clear()
            for size in (records, records + 1):
                assert row.slots((x[:size], y[:size]), size, False) is not None
            first, second = seen[-2:]
            kept = max(records - ends, 0)
            assert torch.equal(first[:kept], second[:kept]), records


@pytest.mark.usefixtures("only_rows")
def test_a_row_is_not_traced() -> None:
    engine = engine_of(perceptron())
    engine.add_(torch.zeros(engine.width), batch(), engine.sequential())
    with pytest.raises(AssertionError, match="traced"):
        engine.add_(torch.zeros(engine.width), batch())


def weights_after_steps() -> Tensor:
    torch.manual_seed(5)
    model, data = perceptron(), batch(60)
    plan = steppe.Plan(
        noise_multiplier=1.0, delta=1e-3, population=60, batch_size=20, steps=6, l2=0.01
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = steppe.SeededSource(1)
    private = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, source=source)
    for drawn in private.batches(3):
        private.step(drawn)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_steps_walk_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come to the same weights as traced ones, and without asking for secret numbers."""
    asked: list[Any] = []
    hide = SecretGenerators.hidden

    def watched(self: SecretGenerators, *arguments: Any) -> Any:
        asked.append(self)
        return hide(self, *arguments)

    monkeypatch.setattr(SecretGenerators, "hidden", watched)
    by_row = weights_after_steps()
    reading = len(asked)
    monkeypatch.setattr(ClippedSum, "sequential", lambda self: None)
    traced = weights_after_steps()
    assert len(asked) == 2 * reading + 3
    torch.testing.assert_close(by_row, traced, rtol=1e-5, atol=1e-6)


def test_the_probe_compares_the_way_that_steps_take(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = rows._Weightless(lambda layer, x: x.tanh(), lambda layer, g, x, y: g)
    monkeypatch.setitem(rows._WEIGHTLESS, nn.Tanh, wrong)
    model = perceptron()
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-3, population=9, batch_size=3, steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UnsupportedModelError, match="must equal autograd's"):
        steppe.make_private(model, optimizer, batch(), plan, loss=F.cross_entropy)


def engine_of(model: nn.Module, loss: Callable[..., Tensor] = F.cross_entropy) -> ClippedSum:
    return ClippedSum(dict(model.named_parameters()), objective_of(model, loss), Flat())


@pytest.mark.parametrize("name", [name for name in OTHERS if isinstance(OTHERS[name](), nn.Module)])
def test_somebody_elses_layers_are_no_row(name: str) -> None:
    assert plain_sequential(objective_of(OTHERS[name](), F.cross_entropy)) is None


def tied_unregistered() -> nn.Module:
    """A weight in two layers, and among the parameters of one."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False))
    del model[2]._parameters["weight"]
    object.__setattr__(model[2], "weight", model[0].weight)
    return model


def made_of_another() -> nn.Module:
    model = nn.Linear(3, 3)
    model.raw = nn.Parameter(torch.randn(3, 3))
    del model.weight
    model.weight = model.raw.t()
    return model


def with_buffer() -> nn.Module:
    model = nn.Linear(3, 3)
    del model.weight
    model.register_buffer("weight", torch.randn(3, 3))
    return model


def inside_itself() -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 3))
    model.append(model)
    return model


SHARED = nn.Linear(3, 3)
NO_ROWS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0)),
    "convolution": lambda: nn.Sequential(nn.Conv1d(1, 1, 1), nn.Flatten()),
    "used twice": lambda: nn.Sequential(SHARED, nn.Tanh(), SHARED),
    "batch norm": lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "tied, unregistered": tied_unregistered,
    "made of another": made_of_another,
    "buffer": with_buffer,
    "inside itself": inside_itself,
}


def test_an_activation_may_come_twice() -> None:
    torch.manual_seed(8)
    tanh = nn.Tanh()
    assert_row_is_right(nn.Sequential(nn.Linear(6, 4), tanh, nn.Linear(4, 3), tanh), flat_batch())


def flat_batch() -> tuple[Tensor, Tensor]:
    return torch.randn(9, 6), torch.randint(3, (9,))


def test_weights_tied_behind_torchs_back_are_clipped_as_one() -> None:
    torch.manual_seed(9)
    model, data = tied_unregistered(), (torch.randn(9, 3), torch.randint(3, (9,)))
    engine = engine_of(model)
    out = torch.zeros(engine.width)
    engine.add_(out, data, engine.sequential())
    wanted = clipped_sum(engine.objective, dict(model.named_parameters()), data, Flat())
    torch.testing.assert_close(out, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NO_ROWS)
def test_other_models_are_no_row(name: str) -> None:
    assert plain_sequential(objective_of(NO_ROWS[name](), F.cross_entropy)) is None


def test_a_weight_that_two_layers_share_is_no_row() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert plain_sequential(objective_of(model, F.cross_entropy)) is not None
    model[1].weight = model[0].weight
    assert plain_sequential(objective_of(model, F.cross_entropy)) is None


def test_weights_made_from_weights_are_no_row() -> None:
    model, origin = nn.Linear(3, 3), nn.Parameter(torch.randn(3, 3))
    model._parameters["weight"] = origin * 2
    assert plain_sequential(objective_of(model, F.cross_entropy)) is None


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: F.cross_entropy(output, target, reduction="none"),
        functools.partial(F.cross_entropy, weight=torch.ones(3)),
        nn.CrossEntropyLoss(label_smoothing=0.1),
        nn.CrossEntropyLoss(weight=torch.ones(3)),
        F.dropout,
    ],
)
def test_losses_that_are_not_known(loss: Callable[..., Tensor]) -> None:
    assert plain_sequential(objective_of(perceptron(), loss)) is None


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_of_torchs_classes_is_the_function_that_it_calls(reduction: str) -> None:
    model, batch = perceptron(), (torch.randn(6, 6), torch.randint(3, (6,)))
    row = plain_sequential(objective_of(model, nn.CrossEntropyLoss(reduction=reduction).eval()))
    plain = plain_sequential(
        objective_of(model, functools.partial(F.cross_entropy, reduction=reduction))
    )
    assert row is not None
    assert plain is not None
    with torch.no_grad():
        found, wanted = (r.slots(batch, 6, want_dots=False) for r in (row, plain))
    for (_, one), (_, other) in zip(found, wanted, strict=True):
        assert torch.equal(one.written_out(), other.written_out())


def test_a_loss_that_was_changed_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_row(loss: nn.Module) -> bool:
        return plain_sequential(objective_of(perceptron(), loss)) is not None

    hooked, extended = nn.CrossEntropyLoss(), nn.CrossEntropyLoss()
    assert is_row(hooked)
    hooked.register_forward_hook(lambda *_: None)
    extended.temperature = 2.0
    assert not is_row(hooked)
    assert not is_row(extended)
    assert not is_row(type("Own", (nn.CrossEntropyLoss,), {})())
    monkeypatch.setattr(nn.CrossEntropyLoss, "forward", lambda self, output, target: output.sum(1))
    assert not is_row(nn.CrossEntropyLoss())


def test_views_and_objectives_of_ones_own_are_no_row() -> None:
    assert plain_sequential(objective_of(perceptron(), F.cross_entropy, 2, lambda x: x + 1)) is None
    model = perceptron()
    assert plain_sequential(lambda batch: F.cross_entropy(model(batch[0]), batch[1])) is None


def test_a_class_that_was_given_another_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = perceptron()
    assert plain_sequential(objective_of(model, F.cross_entropy)) is not None
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: x)
    assert plain_sequential(objective_of(model, F.cross_entropy)) is None


def test_hooks_and_autocast_are_seen_in_every_step() -> None:
    model = perceptron()
    engine = engine_of(model)
    assert engine.sequential() is not None
    for register in (
        model[1].register_forward_hook,
        nn.modules.module.register_module_forward_hook,
    ):
        handle = register(lambda *_: None)
        assert engine.sequential() is None
        handle.remove()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert engine.sequential() is None
    assert engine.sequential() is not None


class Doubled(Tensor):
    """A tensor that others see as twice itself."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.as_subclass(Tensor) * 2 if type(a) is cls else a for a in args]
        return func(*plain, **(kwargs or {}))


UNUSUAL: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any]]] = {
    "positions": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3)),
        batch,
    ),
    "half precision": (
        lambda: perceptron().bfloat16(),
        lambda: (torch.randn(9, 6).bfloat16(), torch.randint(3, (9,))),
    ),
    "list": (perceptron, lambda: list(batch())),
    "parameter": (perceptron, lambda: (nn.Parameter(torch.randn(9, 6)), torch.randint(3, (9,)))),
}


@pytest.mark.parametrize("part", [0, 1])
def test_tensors_with_operations_of_their_own_are_left_to_the_tracer(part: int) -> None:
    torch.manual_seed(10)
    row = engine_of(perceptron()).sequential()
    data = [torch.randn(9, 6), torch.zeros(9, dtype=torch.long)]
    assert row is not None
    with torch.no_grad():
        assert row.slots(data, 9, False) is not None
        data[part] = data[part].as_subclass(Doubled)
        assert row.slots(data, 9, False) is None


@pytest.mark.parametrize("records", [9, 3])
def test_rows_that_are_not_records_are_left_to_the_tracer(records: int) -> None:
    """Two rows for each record, or a label for each row."""
    torch.manual_seed(11)
    model = nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 3))
    row = engine_of(model).sequential()
    assert row is not None
    labels = torch.zeros(18, dtype=torch.long)
    with torch.no_grad():
        assert row.slots((torch.randn(9, 2, 3), labels), records, False) is None
        assert row.slots((torch.randn(18, 1, 3), labels), 18, False) is not None
        with pytest.raises(ValueError, match="to match target batch_size"):
            row.slots((torch.randn(9, 1, 3), labels[:3]), 9, False)


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_forms_come_out_as_traced(name: str) -> None:
    torch.manual_seed(6)
    model, data = UNUSUAL[name][0](), UNUSUAL[name][1]()
    engine = engine_of(model)
    assert engine.sequential() is not None
    found = [torch.zeros(engine.width), torch.zeros(engine.width)]
    engine.add_(found[0], data, engine.sequential())
    engine.add_(found[1], data)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)
    assert bool(found[0].any())


def test_a_row_draws_no_random_numbers() -> None:
    """Steps leave out secret numbers for it."""
    torch.manual_seed(7)
    for make in BETWEEN.values():
        for loss, targets in LOSSES.values():
            model, (x, y) = perceptron(make), batch()
            before = states()
            sums(model, (x, targets(y)), loss)
            assert states() == before
    for loss in _STILL:
        assert getattr(F, loss.__name__) is loss
