"""One table of methods, one battery: every row keeps the promises of a private step.

A row is what a plan is given beside its constants, how often it asks a batch, the size of its noise
and the rate of the record that pays most, step by step, its clip wide open and tight, and the same
method without privacy, written by hand. A new method joins by adding a row.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

import steppe
from probed_once import ProbedOnce
from steppe import accounting
from steppe.accounting import Participation, Segment
from steppe.clipping import Clip
from steppe.noise import Correlated, Source
from steppe.probing import cache

RECORDS, FEATURES, CLASSES, STEPS, BATCH = 24, 3, 3, 6, 8.0
HOST = torch.device("cpu")
SIGMA, RADIUS, L2, SHIFT = 1.5, 0.3, 0.05, 0.2
LOOSE, TIGHT = steppe.Flat(16.0), steppe.Flat(0.01)  # more and less than any gradient here

Gradient = Callable[[], Tensor]
Move = Callable[[Tensor], None]
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


class PlainHere:
    """The gradient where we are."""

    def gradient(self, here: Tensor, go: Move, ask: Gradient) -> Tensor:
        return ask()


class PlainSAM(PlainHere):
    """w → ∇f(w + ρ ∇f(w)/‖∇f(w)‖)."""

    def gradient(self, here: Tensor, go: Move, ask: Gradient) -> Tensor:
        first = ask()
        go(here + RADIUS * first / first.norm())
        return ask()


class PlainSAT(PlainHere):
    """w → ∇f(w + ρ g/‖g‖) with g the gradient of the step before."""

    previous: Tensor | None = None

    def gradient(self, here: Tensor, go: Move, ask: Gradient) -> Tensor:
        if self.previous is not None:
            go(here + RADIUS * self.previous / self.previous.norm())
        self.previous = ask()
        return self.previous


class PlainSATMomentum(PlainHere):
    """w → ∇f(w + ρ d/‖d‖) with d the previous weights minus these."""

    previous: Tensor | None = None

    def gradient(self, here: Tensor, go: Move, ask: Gradient) -> Tensor:
        if self.previous is not None:
            back = self.previous - here
            go(here + RADIUS * back / back.norm())
        self.previous = here
        return ask()


def summed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The records' losses."""
    return F.cross_entropy(model(x), y, reduction="sum")


def pulled(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """With λ/2 ‖θ‖² in every record's loss."""
    length = sum(weight.square().sum() for weight in model.parameters())
    return summed(model, x, y) + len(y) * L2 / 2 * length


def seen_twice(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean over the two views of `Shifts`."""
    return (summed(model, x + SHIFT, y) + summed(model, x - SHIFT, y)) / 2


class Shifts:
    """Views to one side and to the other by turns."""

    turn = 1

    def __call__(self, x: Tensor) -> Tensor:
        self.turn = -self.turn
        return x + self.turn * SHIFT


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    choices: dict[str, Any] = field(default_factory=dict)
    queries: int = 1
    plain: type[PlainHere] = PlainHere
    loss: Loss = summed
    noise: Callable[[int], float] = lambda step: 1.0
    rate: Callable[[int], float] = lambda step: BATCH / RECORDS
    cap: int | None = None
    adjacencies: tuple[str, ...] = ("add-remove", "replace-one")
    loose: Clip = LOOSE
    tight: Clip = TIGHT
    # Whether the whole run is one answer; `noise` is then the sensitivity of its matrix.
    one_answer: bool = False
    # Constants with which no draw is left to chance.
    no_chance: dict[str, Any] = field(default_factory=lambda: {"batch_size": RECORDS})

    def plan(self, **constants: Any) -> steppe.Plan:
        values: dict[str, Any] = {
            "clip": self.tight,
            "delta": 1e-3,
            "noise_multiplier": SIGMA,
            "population": RECORDS,
            "batch_size": BATCH,
            "steps": STEPS,
        }
        return steppe.Plan(**(values | self.choices | constants))


POINTS = [
    Method("DP-SGD"),
    Method("SAM", {"point": steppe.SAM(RADIUS)}, queries=2, plain=PlainSAM),
    Method("SAT", {"point": steppe.SAT(RADIUS)}, plain=PlainSAT),
    Method("SATMomentum", {"point": steppe.SATMomentum(RADIUS)}, plain=PlainSATMomentum),
]
NOISES = [
    Method("constant"),
    Method("grid", {"noise": steppe.Gaussian(grid=True)}),
    Method(
        "exponential",
        {"noise": steppe.ExponentialSchedule(0.1, every=2)},
        noise=lambda step: math.exp(-0.1 * (step // 2)),
    ),
    Method(
        "time",
        {"noise": steppe.TimeSchedule(0.2, every=1, grid=True)},
        noise=lambda step: 1 / (1 + 0.2 * step),
    ),
    Method(
        "step",
        {"noise": steppe.StepSchedule(0.6, every=4)},
        noise=lambda step: 1.0 if step < 4 else 0.6,
    ),
    Method(
        "polynomial",
        {"noise": steppe.PolynomialSchedule(0.5, every=2)},
        noise=lambda step: 0.5 * (1 - (step // 2) / 3) ** 3 + 0.5,
    ),
]
OBJECTIVES = [
    Method("l2", {"l2": L2}, loss=pulled),
    Method("views", {"views": 2}, loss=seen_twice),
]
# Of the two halves of the records the first comes first, and pays more in a run of six steps.
PERIODIC = Method(
    "Periodic",
    {"sampling": steppe.Periodic(4)},
    rate=lambda step: BATCH / (RECORDS / 2) * (1.0, 0.5, 0.0, 0.5)[step % 4],
    adjacencies=("add-remove",),
)
# Every batch, of 8 records on average, is filled up to 22 rows.
FIXED = Method(
    "fixed shapes",
    {"sampling": steppe.CappedPoisson(fixed_shapes=True), "adjacency": "zero-out"},
    cap=22,
    adjacencies=("zero-out",),
)
# Two epochs of three batches, all of which noise that takes itself back must hide together.
_TURNS = Participation(times=2, separation=3)


def _sensitivity(noise: Correlated, turns: Participation) -> float:
    """Of the record that takes part first, by the matrix."""
    columns = noise.factor(STEPS, turns).encoder()[:, :: turns.separation][:, : turns.times]
    return math.sqrt(float((columns.sum(1) ** 2).sum()))


def in_fixed_order(name: str, noise: Correlated) -> Method:
    size = _sensitivity(noise, _TURNS)
    return Method(
        name,
        {"noise": noise, "sampling": steppe.FixedOrder(2), "adjacency": "zero-out"},
        noise=lambda step: size,
        rate=lambda step: float(step % 3 == 0),
        adjacencies=("zero-out", "replace-one"),
        one_answer=True,
        no_chance={},
    )


BLT = in_fixed_order("BLT", steppe.BLT(2))
CYCLIC = Method(
    "BandedToeplitz, cyclic",
    {
        "noise": steppe.BandedToeplitz(2),
        "sampling": steppe.CyclicPoisson(2),
        "adjacency": "zero-out",
    },
    noise=lambda step: _sensitivity(steppe.BandedToeplitz(2), Participation()),
    rate=lambda step: 2 * BATCH / RECORDS if step % 2 == 0 else 0.0,
    adjacencies=("zero-out",),
    no_chance={"batch_size": RECORDS / 2},
)
ORDERED = Method(
    "FixedOrder",
    {"sampling": steppe.FixedOrder(2), "adjacency": "zero-out"},
    rate=lambda step: float(step % 3 == 0),
    adjacencies=("zero-out", "replace-one"),
    no_chance={},
)
CLIPS = [
    Method(
        "Quantile",
        loose=steppe.Quantile(start=16.0, low=16.0),
        tight=steppe.Quantile(start=0.01, high=0.02, count_share=0.2),
    ),
    Method(
        "Automatic",
        loose=steppe.Automatic(1e12, gamma=1e12),
        tight=steppe.Automatic(0.01, gamma=1e-6),
    ),
    Method(
        "PerLayer",
        loose=steppe.PerLayer(32.0, "size"),
        tight=steppe.PerLayer(0.01, {"0": 2.0, "2": 1.0}),
    ),
    Method(
        "GEP",
        loose=steppe.GEP(4, 2, embedding_bound=16.0, residual_bound=16.0),
        tight=steppe.GEP(4, 2, embedding_bound=0.01, residual_bound=0.002, refresh_every=2),
    ),
    Method(  # as many directions as weights, so that nothing lies outside of them
        "biased GEP",
        loose=steppe.GEP(31, 4, embedding_bound=16.0, biased=True),
        tight=steppe.GEP(31, 4, embedding_bound=0.01, biased=True),
    ),
]


def together(first: Method, second: Method) -> Method:
    """Two choices at different places: everything must work with everything."""
    name = f"{first.name} + {second.name}"
    return replace(first, name=name, choices=first.choices | second.choices, noise=second.noise)


def saying(first: Method, objective: Method) -> Method:
    """The same with another objective."""
    name, choices = f"{first.name} + {objective.name}", first.choices | objective.choices
    return replace(first, name=name, choices=choices, loss=objective.loss)


def clipped(first: Method, clip: Method) -> Method:
    """The same with another clip."""
    name = f"{first.name} + {clip.name}"
    return replace(first, name=name, loose=clip.loose, tight=clip.tight)


def sampled(first: Method, sample: Method) -> Method:
    """The same with another sample."""
    name, choices = f"{first.name} + {sample.name}", first.choices | sample.choices
    rates = {"rate": sample.rate, "cap": sample.cap, "adjacencies": sample.adjacencies}
    return replace(first, name=name, choices=choices, **rates)  # type: ignore[arg-type]


def correlated(first: Method, noise: Method) -> Method:
    """The same with a correlated noise and the sampler that it needs."""
    name, choices = f"{first.name} + {noise.name}", first.choices | noise.choices
    return replace(
        noise, name=name, choices=choices, queries=first.queries, plain=first.plain, loss=first.loss
    )


METHODS = [together(point, noise) for point, noise in itertools.product(POINTS, NOISES)]
_POINTS_AND_NOISES = list(METHODS)
ALL = METHODS + [clipped(method, clip) for method, clip in itertools.product(METHODS, CLIPS)]
ALL += [sampled(method, sample) for method in ALL for sample in (PERIODIC, FIXED)]
# Every clip with every point, and with noises in turn. The grid of `loose` Automatic, which is
# relative to its bound, would be too coarse for a comparison; the others do not mind.
_TURN = [NOISES[0], NOISES[2], NOISES[4], NOISES[5]]
METHODS += [
    clipped(together(point, _TURN[(i + j) % 4]), clip)
    for i, point in enumerate(POINTS)
    for j, clip in enumerate(CLIPS)
]
# The other samples with every point, every clip, and noises in turn.
for sample in (PERIODIC, FIXED):
    METHODS += [sampled(together(point, _TURN[i]), sample) for i, point in enumerate(POINTS)]
    METHODS += [sampled(clipped(POINTS[0], clip), sample) for clip in CLIPS]
# The other objectives with every point, every clip, and noises in turn.
for objective in OBJECTIVES:
    METHODS += [saying(together(point, _TURN[i]), objective) for i, point in enumerate(POINTS)]
    METHODS += [saying(clipped(POINTS[0], clip), objective) for clip in CLIPS]
    METHODS += [saying(sampled(clipped(POINTS[0], clip), FIXED), objective) for clip in CLIPS]
# Correlated noise with every point, every clip and every objective.
_ROWS = [*POINTS, *OBJECTIVES]
METHODS += [correlated(method, BLT) for method in _ROWS]
METHODS += [clipped(correlated(POINTS[0], BLT), clip) for clip in CLIPS]
METHODS += [correlated(POINTS[1], CYCLIC), correlated(POINTS[2], CYCLIC), ORDERED]
METHODS.append(in_fixed_order("BandInvMF", steppe.BandInvMF(2, momentum=0.9)))
# All other combinations, for the tests that tell most.
_KNOWN = {method.plan().digest() for method in METHODS}
REST = [method for method in ALL if method.plan().digest() not in _KNOWN]


_CORRELATED = [row.choices["noise"] for row in (BLT, CYCLIC)]


def decayed_sgd(weights: Any) -> Optimizer:
    optimizer = torch.optim.SGD(weights, lr=0.2, momentum=0.9)
    steppe.DecoupledDecay(optimizer, 0.1)
    return optimizer


OPTIMIZERS: dict[str, Callable[[Any, steppe.Plan], Optimizer]] = {
    "SGD": lambda weights, _: torch.optim.SGD(weights, lr=0.5),
    "SGD momentum": lambda weights, _: torch.optim.SGD(
        weights, lr=0.2, momentum=0.9, nesterov=True
    ),
    "SGD, DecoupledDecay": lambda weights, _: decayed_sgd(weights),
    "Adam": lambda weights, _: torch.optim.Adam(weights, lr=0.05),
    "AdamW": lambda weights, _: torch.optim.AdamW(weights, lr=0.05, weight_decay=0.1),
    "RMSprop": lambda weights, _: torch.optim.RMSprop(weights, lr=0.02),
    "DPAdam": lambda weights, plan: steppe.DPAdam.for_plan(weights, plan, lr=0.05),
}

_USUAL_OPTIMIZER = "SGD momentum"

every_method = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)


class Silent(steppe.SeededSource):
    """Draws batches as ever, and noise that is zero; notes how large it was meant to be."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.asked_for: list[float] = []

    def fill_normal_(self, tensor: Tensor, std: float) -> Tensor:
        self.asked_for.append(std)
        return tensor.zero_()


def network() -> nn.Module:
    torch.manual_seed(5)
    with HOST:
        return nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()


def records(seed: int = 6, count: int = RECORDS) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    with HOST:
        return torch.randn(count, FEATURES).double(), torch.randint(CLASSES, (count,))


def public_records() -> tuple[Tensor, Tensor]:
    return records(seed=7, count=9)


def private_run(
    plan: steppe.Plan,
    source: Source,
    optimizer: str = _USUAL_OPTIMIZER,
    data: tuple[Tensor, Tensor] | None = None,
    **options: Any,
) -> steppe.Private:
    model = network()
    moving = OPTIMIZERS[optimizer](model.parameters(), plan)
    usual: dict[str, Any] = {"loss": F.cross_entropy, "source": source}
    options = usual | options
    if isinstance(plan.clip, steppe.GEP):
        options["public"] = public_records()
    if plan.views > 1:
        options["augment"] = Shifts()
    if plan.sampling.groups > 1:
        rows = torch.arange(RECORDS, device=HOST)
        options["groups"] = rows.split(RECORDS // plan.sampling.groups)
    return steppe.make_private(model, moving, data or records(), plan, **options)


def tolerance(plan: steppe.Plan) -> float:
    """A grid rounds, and so do the directions of GEP, which are float32 numbers."""
    if inside_only(plan):
        return 1e-4
    return 1e-6 if plan.noise.grid else 1e-10


def inside_only(plan: steppe.Plan) -> bool:
    """Whether the answer has no residual to make up for what the directions miss."""
    return isinstance(plan.clip, steppe.GEP) and plan.clip.biased


def flat(model: nn.Module) -> Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def finish(private: steppe.Private) -> Tensor:
    for batch in private:
        private.step(batch)
    return flat(private.model)


@functools.cache
def usual_end(name: str) -> Tensor:
    """Where the row of this name arrives."""
    (method,) = (method for method in METHODS if method.name == name)
    return finish(private_run(method.plan(), steppe.SeededSource(3)))


probed_once = ProbedOnce()


@pytest.fixture
def few_probes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that compare run with run: points and noises alone have probes of their own."""
    if request.node.callspec.params["method"] not in _POINTS_AND_NOISES:
        monkeypatch.setattr(cache, "probe", probed_once)


def by_optimizers() -> Iterator[Any]:
    """Every point, noise and clip with every optimizer; other rows with two, one of them in turn.

    An optimizer gets a gradient and does not know from how many choices it came.
    """
    turn = itertools.cycle(name for name in OPTIMIZERS if name != _USUAL_OPTIMIZER)
    points, noises = _POINTS_AND_NOISES[:: len(NOISES)], _POINTS_AND_NOISES[: len(NOISES)]
    clips = METHODS[len(_POINTS_AND_NOISES) :][: len(CLIPS)]
    fully = [*points, *noises[1:], *clips]
    for method in METHODS:
        two = _USUAL_OPTIMIZER, next(turn)
        for optimizer in OPTIMIZERS if method in fully else two:
            yield pytest.param(method, optimizer, id=f"{optimizer}-{method.name}")


@pytest.mark.parametrize(("method", "optimizer"), list(by_optimizers()))
def test_without_noise_and_clip_it_is_the_plain_method(
    method: Method, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = method.plan(clip=method.loose)
    if optimizer != _USUAL_OPTIMIZER and method is not METHODS[0]:
        monkeypatch.setattr(cache, "probe", probed_once)
    if optimizer == "DPAdam" and isinstance(plan.clip, steppe.Quantile | steppe.GEP):
        with pytest.raises(ValueError, match="must have constant noise"):
            private_run(plan, Silent(1), optimizer)
        return
    private = private_run(plan, Silent(1), optimizer)
    close = tolerance(plan)
    model, plain = copy.deepcopy(private.model), method.plain()
    moving = OPTIMIZERS[optimizer](model.parameters(), plan)

    def go(vector: Tensor) -> None:
        vector_to_parameters(vector.clone(), model.parameters())  # which become views of it

    for x, y in private:

        def ask(x: Tensor = x, y: Tensor = y) -> Tensor:
            loss = method.loss(model, x, y) / BATCH
            return parameters_to_vector(torch.autograd.grad(loss, list(model.parameters())))

        here = flat(model)
        gradient = plain.gradient(here, go, ask)
        go(here)
        start = 0
        for weight in model.parameters():
            weight.grad = gradient[start : start + weight.numel()].view_as(weight)
            start += weight.numel()
        moving.step()
        private.step((x, y))
        torch.testing.assert_close(flat(private.model), flat(model), rtol=close, atol=close)
    assert private.steps_done == STEPS


@every_method
def test_the_noise_of_every_query_is_the_planned_one(method: Method) -> None:
    source = Silent(2)
    plan = method.plan()
    finish(private_run(plan, source))
    std = SIGMA * plan.sensitivity
    expected = [std * method.noise(t) for t in range(STEPS) for _ in range(method.queries)]
    # The grid adds a hair, to make up for its rounding.
    assert source.asked_for == pytest.approx(expected, rel=1e-6)
    assert all(a >= b * (1 - 1e-12) for a, b in zip(source.asked_for, expected, strict=True))


@every_method
@pytest.mark.usefixtures("few_probes")
def test_pieces_of_a_batch_are_the_batch(method: Method) -> None:
    plan = method.plan()
    close = {"rtol": 1e-9, "atol": 1e-11}
    if isinstance(plan.clip, steppe.GEP):
        # Public records come in pieces too, and directions turn with the rounding of float32: those
        # of small weight far, which a residual makes up for up to what is clipped apart.
        close = dict.fromkeys(close, 1e-4 if inside_only(plan) else 1e-6)
    whole = usual_end(method.name)
    physical = finish(private_run(plan, steppe.SeededSource(3), physical_batch=2))
    torch.testing.assert_close(physical, whole, **close)
    private = private_run(plan, steppe.SeededSource(3))
    if plan.padded_to is not None:
        with pytest.raises(steppe.errors.MisuseError, match="must be the whole batch"):
            private.accumulate(next(iter(private)))
        return
    for x, y in private:
        for part in zip(x.split(3), y.split(3), strict=True):
            private.accumulate(part)
        private.step()
    torch.testing.assert_close(flat(private.model), whole, **close)


@every_method
def test_everything_is_made_where_the_weights_are(method: Method) -> None:
    """As in `test_layers`: another default device stands for weights on an accelerator."""
    usual = usual_end(method.name)
    with torch.device("meta"):
        found = finish(private_run(method.plan(), steppe.SeededSource(3)))
    assert torch.equal(found, usual)


@every_method
def test_a_step_that_fails_leaves_the_weights_as_they_were(method: Method) -> None:
    private = private_run(method.plan(), steppe.SeededSource(4), physical_batch=2)
    batches = iter(private)
    for _ in range(3):
        private.step(next(batches))
    before, plain = flat(private.model), private.engine.objective
    clip = private.engine.clipper.state()
    batch = next(batches)
    pieces = math.ceil((private.plan.padded_to or len(batch[1])) / 2)
    assert pieces > 1
    stood_at: list[Tensor] = []

    def failing(piece: Any) -> Tensor:
        with torch._C.DisableTorchFunction():  # a look of ours, which is no part of the model
            stood_at.append(flat(private.model))
        if len(stood_at) == pieces * method.queries:  # the last piece of the last query
            raise RuntimeError("half way")
        return plain(piece)

    private.engine.exchange_objective_(failing)
    with pytest.raises(RuntimeError, match="half way"):
        private.step(batch)
    assert stood_at[-1].equal(before) == (method.plain is PlainHere)
    assert flat(private.model).equal(before)
    assert all(weight.grad is None for weight in private.model.parameters())
    assert private.steps_done == 4
    assert private.engine.clipper.state() == clip
    private.engine.exchange_objective_(plain)
    finish(private)
    assert private.steps_done == STEPS


@pytest.mark.parametrize(
    ("method", "adjacency"),
    [
        pytest.param(method, adjacency, id=f"{method.name}, {adjacency}")
        for method in METHODS
        for adjacency in method.adjacencies
    ],
)
def test_epsilon_is_the_closed_statement(method: Method, adjacency: str) -> None:
    plan = method.plan(adjacency=adjacency)
    accounted = SIGMA / math.sqrt(method.queries)
    whole = None if method.cap is None else RECORDS
    run = [
        Segment(
            method.rate(step),
            accounted * (1.0 if plan.noise in _CORRELATED else method.noise(step)),
            1,
            method.cap,
            whole,
        )
        for step in range(STEPS)
    ]
    if method.one_answer:
        run = [Segment(1.0, accounted, 1)]
    expected = accounting.epsilon(run, plan.delta, adjacency)
    assert plan.epsilon_spent() == pytest.approx(expected, rel=1e-4)
    same = replace(plan, point=steppe.Here(), noise_multiplier=accounted)
    assert plan.epsilon_spent() == same.epsilon_spent()


@every_method
@pytest.mark.usefixtures("few_probes")
def test_a_record_moves_every_answer_by_no_more_than_the_sensitivity(method: Method) -> None:
    """Both runs meet the same draws and the same noise, and walk where the first was led.

    One record's input is NaN in the second run, so it says nothing. That is how the account sees
    it: each query may depend on all earlier answers, and given these it moves by at most C/B.
    """
    plan = method.plan()
    bound = plan.sensitivity / plan.divisor
    x, y = records()
    gone = torch.where(torch.arange(RECORDS)[:, None] == 7, math.nan, x)
    with_record = answers(plan, (x, y))
    without = answers(plan, (gone, y), lead=with_record)
    moves = [float((a - b).norm()) for a, b in zip(with_record, without, strict=True)]
    assert len(moves) == STEPS * method.queries
    assert max(moves) <= bound * (1 + 1e-9)
    assert max(moves) > 0.99 * bound  # it was drawn, and clipped
    assert min(moves) == pytest.approx(0.0, abs=1e-9 * bound)  # and not in every step


def answers(
    plan: steppe.Plan, data: tuple[Tensor, Tensor], lead: Sequence[Tensor] = ()
) -> list[Tensor]:
    """What the batches answered to each query; the run hears the leading run's answers."""
    private = private_run(plan, steppe.SeededSource(11), data=data)
    own: list[Tensor] = []
    leading, decode = iter(lead), private.engine.decode

    def led(answer: Tensor) -> Tensor:
        own.append(answer.clone())
        return decode(next(leading, own[-1]).clone())

    private.engine.decode = led  # type: ignore[method-assign]
    finish(private)
    return own


@every_method
def test_the_statement_names_the_method(method: Method) -> None:
    plan = method.plan()
    described = json.loads(json.dumps(plan.to_dict()))
    assert described["sampling"]["kind"] == type(plan.sampling).__name__
    assert described["point"]["kind"] == type(plan.point).__name__
    assert described["noise"]["kind"] == type(plan.noise).__name__
    assert described["clip"]["kind"] == type(plan.clip).__name__
    assert str(plan.statement())
    assert replace(plan).digest() == plan.digest()


def test_every_row_is_another_mechanism() -> None:
    rows = METHODS + REST
    assert len({method.plan().digest() for method in rows}) == len(rows)


@every_method
@pytest.mark.usefixtures("few_probes")
def test_a_run_can_be_taken_up_again(method: Method) -> None:
    """There is no noise, and everybody takes part whose turn it is: no draw differs."""
    plan = method.plan(**method.no_chance)
    close = tolerance(plan)
    whole = private_run(plan, Silent(1))
    first = private_run(plan, Silent(1))
    for batch in whole.batches(3):
        whole.step(batch)
    for batch in first.batches(3):
        first.step(batch)
    second = private_run(plan, Silent(2))
    second.model.load_state_dict(first.model.state_dict())
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.load_state_dict(first.state_dict())
    assert second.steps_done == 3
    torch.testing.assert_close(finish(second), finish(whole), rtol=close, atol=close)
    with pytest.raises(steppe.errors.ConfigurationError, match=r"steps_done=3: must be from 6"):
        second._step.load_state_dict(first.state_dict())


@pytest.mark.slow
@pytest.mark.usefixtures("few_probes")
@pytest.mark.parametrize("method", REST, ids=lambda method: method.name)
def test_everything_works_with_everything(method: Method) -> None:
    test_a_record_moves_every_answer_by_no_more_than_the_sensitivity(method)
    test_a_run_can_be_taken_up_again(method)
