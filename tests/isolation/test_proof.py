"""The proof refuses every case in which records meet, by name, and takes those that stand alone."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from cases_that_do_not import HONEST, HONEST_BY_VALUE
from cases_that_mix import MIXING
from isolation_case import Case, Honest, Mixing
from torch import Tensor, nn
from torch.nn import functional as F

from steppe import Plan, make_private
from steppe.clipping import ClippedSum, Flat
from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients.one_at_a_time.each_record import EachRecord
from steppe.isolation import Proof, prove
from steppe.noise import SeededSource
from steppe.probing import probe
from steppe.randomness.global_generators import global_generators_kept

# Honest, and not proven: what keeps the proof from it, as a pattern of the error.
NOT_PROVEN = {
    "four at a time": "number of records=decides which operations run",
    "filled up and cut": r"number of records=decides which operations run \(pad\)",
    "inputs looked at": "must not be read by Python",
    "words packed": "must not decide shapes",
    "packed for the LSTM": "must not decide shapes",
    "sorted and put back": "aten.sort",
    "shuffled and put back": "aten.index",
    "experts by rows": "must not decide shapes",
    "until all are done": "must not be read by Python",
    "mask left out": "must not be read by Python",
    "block checkpointed the older way": "checkpointed",
    "records in a loop": "number of records=decides which operations run",
}
# Proven, and refused by the engine, which does not see how the weights are used.
NOT_BY_THE_ENGINE = {
    "checkpointed block": "checkpointed",
    "gradient penalty": "must be used by ordinary torch operations",
}
_PROVEN = [case for case in (*HONEST, *HONEST_BY_VALUE) if case.name not in NOT_PROVEN]
_REFUSED = [case for case in (*HONEST, *HONEST_BY_VALUE) if case.name in NOT_PROVEN]


@pytest.fixture(autouse=True)
def seeds_kept() -> Iterator[None]:
    """What a case draws comes back."""
    with global_generators_kept():
        torch.manual_seed(0)
        yield


def made(case: Case) -> tuple[nn.Module, Callable[[Any], Tensor], Any]:
    """A case as a probe takes it; what it makes of random views is followed with the rest."""
    model, objective, batch = case.make()
    augment = case.augment

    def losses(batch: Any) -> Tensor:
        return objective(model, batch if augment is None else (augment(batch[0]), *batch[1:]))

    return model, losses, batch


def proven(case: Case) -> Proof:
    """The proof of a case."""
    return prove(*made(case))


def without_collate(cases: Any) -> list[Any]:
    """Those that a proof from operations is about: how records are collated is looked at
    elsewhere."""
    return [case for case in cases if case.collate is None]


@pytest.mark.parametrize("case", without_collate(MIXING), ids=lambda case: case.name)
def test_a_case_that_mixes_is_refused_by_name(case: Mixing) -> None:
    with pytest.raises((IsolationError, UnsupportedModelError)) as caught:
        proven(case)
    assert re.search(case.says, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("case", without_collate(_PROVEN), ids=lambda case: case.name)
def test_a_case_that_does_not_mix_is_proven(case: Honest) -> None:
    """And by the engine, which finds the same functions in its own passes."""
    model, losses, batch = made(case)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if case.name in NOT_BY_THE_ENGINE:
        assert proven(case).layouts
        with pytest.raises(UnsupportedModelError, match=NOT_BY_THE_ENGINE[case.name]):
            probe(model, trained, losses, batch)
    else:
        assert probe(model, trained, losses, batch).isolation == "proven"


@pytest.mark.parametrize("case", _REFUSED, ids=lambda case: case.name)
def test_what_is_honest_and_not_proven_is_refused_with_its_reason(case: Honest) -> None:
    with pytest.raises((IsolationError, UnsupportedModelError), match=NOT_PROVEN[case.name]):
        proven(case)


def test_what_is_not_proven_is_few_and_known() -> None:
    honest = {case.name for case in HONEST}
    assert set(NOT_PROVEN) & honest == {"four at a time", "filled up and cut"}
    assert len(_REFUSED) == len(NOT_PROVEN)


# The examples of the issue: sums with and without one record, and what make_private says. -------


def finite_or_nothing(g: Tensor) -> Tensor:
    return g if torch.isfinite(g).all() else torch.zeros_like(g)


def cut(g: Tensor) -> Tensor:
    return g * torch.clamp(1e6 / g.norm(), max=1.0)


class Hooked(nn.Module):
    """A guard in a hook of the hidden tensor."""

    def __init__(self, guard: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.guard = nn.Linear(4, 8), nn.Linear(8, 1), guard

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        if h.requires_grad:
            h.register_hook(self.guard)
        return self.b(h).squeeze(1)


class FullHook(Hooked):
    """The same by a hook of the layer that comes next."""

    def __init__(self, guard: Callable[[Tensor], Tensor]) -> None:
        super().__init__(guard)
        self.b.register_full_backward_hook(lambda layer, came, went: tuple(map(guard, came)))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).tanh()).squeeze(1)


class Guarding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.view_as(h)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return finite_or_nothing(g)


class OwnFunction(Hooked):
    """The same by a function of one's own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(Guarding.apply(self.a(x).tanh())).squeeze(1)


def squares(model: nn.Module, batch: Any) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1], reduction="none")


def hardest(model: nn.Module, batch: Any) -> Tensor:
    losses = F.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return torch.where(losses.max() > 3, losses * (losses >= losses.max()), losses)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.out = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.words(x).mean(1))


def numbers() -> Any:
    return torch.randn(32, 4), torch.randn(32)


def words() -> Any:
    return torch.randint(49, (32, 5)), torch.randint(3, (32,))


def with_target(value: float) -> Callable[[Any], Any]:
    def change(batch: Any) -> Any:
        targets = batch[1].clone()
        targets[7] = value
        return batch[0], targets

    return change


def with_rare_word(batch: Any) -> Any:
    inputs, labels = batch[0].clone(), torch.full_like(batch[1], 2)
    inputs[7], labels[7] = 49, 1
    return inputs, labels


def loud_word() -> nn.Module:
    model = Words()
    with torch.no_grad():
        model.words.weight[49] = 30.0
        model.out.weight[0] = 1.0
    return model


EXAMPLES = {
    "hook": (lambda: Hooked(finite_or_nothing), squares, numbers, with_target(float("inf"))),
    "hook that cuts": (lambda: Hooked(cut), squares, numbers, with_target(1e8)),
    "hook of a module": (lambda: FullHook(cut), squares, numbers, with_target(1e8)),
    "backward": (
        lambda: OwnFunction(finite_or_nothing),
        squares,
        numbers,
        with_target(float("nan")),
    ),
    "hard examples": (loud_word, hardest, words, with_rare_word),
}


def moved(model: nn.Module, losses: Any, batch: Any, one_by_one: bool) -> float:
    """How far the sum of clipped gradients, with the bound 1, moves by record 7."""
    parameters = dict(model.named_parameters())
    each = EachRecord(parameters, model) if one_by_one else None
    if each is not None:
        each.choose(losses, batch)
    sums = []
    for rows in (range(32), [i for i in range(32) if i != 7]):
        engine = ClippedSum(parameters, losses, Flat(1.0), one_at_a_time=each)
        out = torch.zeros(engine.numel)
        engine.add_(out, tuple(t[list(rows)] for t in batch))
        sums.append(out)
    return float((sums[0] - sums[1]).norm())


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_silences_others_moves_the_sum_and_is_refused(name: str) -> None:
    make, objective, data, change = EXAMPLES[name]
    model, batch = make(), data()
    losses = functools.partial(objective, model)
    assert moved(model, losses, change(batch), one_by_one=False) > 1.5
    plan = Plan(epsilon=3.0, delta=1e-3, population=32, batch_size=8, steps=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(IsolationError, match=r"test_proof\.py:\d+|batch"):
        make_private(model, optimizer, batch, plan, objective=objective)


def divided(h: Tensor) -> Tensor:
    return h / len(h)


def one_way_when_many(h: Tensor) -> Tensor:
    return torch.relu(h) if len(h) > 4 else torch.sigmoid(h)


def cut_by_many(g: Tensor) -> Tensor:
    return g / len(g)


class Between(Hooked):
    """Something in the middle of the model, in place of a hook."""

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.guard(self.a(x).tanh())).squeeze(1)


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (Between(divided), r"a number in div \(model \(Between\), test_proof\.py:\d+\)"),
        (
            Between(one_way_when_many),
            r"which operations run \(sigmoid\) \(model \(Between\), test_proof\.py:\d+\)",
        ),
        (
            Hooked(cut_by_many),
            r"a number in div \(a hook or backward\(\) on the way back to model \(Hooked\), "
            r"test_proof\.py:\d+\)",
        ),
    ],
    ids=["number", "branch", "hook"],
)
def test_where_the_number_of_records_decides_is_said(model: nn.Module, what: str) -> None:
    with pytest.raises(IsolationError, match=f"^number of records=decides {what}: "):
        prove(model, functools.partial(squares, model), numbers())


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_same_one_record_at_a_time_keeps_the_bound(name: str) -> None:
    make, objective, data, change = EXAMPLES[name]
    model, batch = make(), data()
    losses = functools.partial(objective, model)
    assert moved(model, losses, change(batch), one_by_one=True) <= 1 + 1e-5
    plan = Plan(epsilon=3.0, delta=1e-3, population=32, batch_size=8, steps=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = make_private(
        model, optimizer, batch, plan, objective=objective, source=SeededSource(0), isolation="each"
    )
    private.step(next(iter(private)))
    assert all(bool(p.isfinite().all()) for p in model.parameters())
