"""Bugs that users of other libraries met, each as a test of the native interface.

Part a: fixed in the peer's history. Part b: live in its present release. Part c: seeds, b19 too.

Some are measured elsewhere: several processes, which are refused (a, b2), in `test_set_up.py`;
batch normalisation that passed validation (b4) in `test_bad_input.py`, rows 20 and 21; noise for a
bound of each layer (a) in `compat/test_compat_bounds.py`; an adaptive bound that sees one piece of
a batch (b10) and its share of the noise (a) in `conformance/test_methods.py`; states that come back
(a, b17) there, in `compat/test_compat_accountant.py` and in `training/`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe import accounting
from steppe.accounting import Segment
from steppe.audit import AuditedRun, sensitivity
from steppe.clipping.reference import clipped_sum
from steppe.errors import ConfigurationError, MisuseError

N = 64


def vectors() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, 6), torch.randint(3, (N,))


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def plan(**constants: Any) -> steppe.Plan:
    settings: dict[str, Any] = {
        "delta": 1e-5,
        "noise_multiplier": 1.0,
        "population": N,
        "batch_size": 8,
        "steps": 4,
        "clip": steppe.Flat(0.5),
    }
    return steppe.Plan(**(settings | constants))


def private(
    model: nn.Module | None = None,
    data: Any = None,
    constants: dict[str, Any] | None = None,
    **options: Any,
) -> steppe.Private:
    model = model or mlp()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(trained, lr=0.1)
    if "objective" not in options:
        options.setdefault("loss", F.cross_entropy)
    data = vectors() if data is None else data
    return steppe.make_private(model, optimizer, data, plan(**(constants or {})), **options)


def gradient(run: steppe.Private) -> Tensor:
    return torch.cat([p.grad.flatten() for p in run.model.parameters() if p.grad is not None])


def same_as_one_by_one(run: steppe.Private, batch: Any) -> None:
    """The engine's sum equals the slow, obvious one, with records above and below the clip."""
    engine = run.engine
    for bound in (0.05, 0.5, 1e3):
        clip = steppe.Flat(bound)
        engine.clipper = clip.begin(engine.parameters)
        found = torch.zeros(engine.numel)
        engine.add_(found, batch)
        leaves = list(engine.parameters.values())
        truth = clipped_sum(engine.objective, leaves, batch, clip)
        assert torch.allclose(found, truth, rtol=1e-4, atol=1e-5 * min(1.0, float(truth.norm())))


def subject(model: nn.Module, data: Any, **options: Any) -> AuditedRun:
    def build(chosen: steppe.Plan, records: Any, source: Any) -> steppe.Private:
        fresh = copy.deepcopy(model)
        optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
        more = {"loss": F.cross_entropy} | options
        return steppe.make_private(fresh, optimizer, records, chosen, source=source, **more)

    return AuditedRun(build, plan(), data)


# --- a: fixed in its history -----------------------------------------------------------------


def test_a_fixed_size_batches_accounted_as_poisson() -> None:
    with pytest.raises(ConfigurationError, match=r"must be a Sampler.*Poisson\(\)"):
        plan(sampling="shuffle")
    run = private(constants={"steps": 40})
    sizes = []
    for batch in run:
        sizes.append(len(batch[0]))
        run.step(batch)
    assert np.var(sizes) > 1


@pytest.mark.parametrize("mode", ["whole", "pieces", "parts", "data set"])
def test_a_empty_batch_is_a_noise_step(mode: str) -> None:
    data = list(zip(*vectors(), strict=True)) if mode == "data set" else None
    options = {"physical_batch": 1} if mode == "pieces" else {}
    run = private(data=data, constants={"batch_size": 1e-6, "steps": 3}, **options)
    for batch in run:
        assert len(batch[0]) == 0
        if mode == "parts":
            run.accumulate(batch)
            run.accumulate(batch)
            run.step()
        else:
            run.step(batch)
        assert bool((gradient(run) != 0).all())
    assert run.steps_done == 3
    assert run.epsilon() == run.plan.epsilon_spent()


@pytest.mark.parametrize("size", [7, 10, 30])
def test_a_steps_are_counted_not_derived(size: int) -> None:
    """103 records do not divide: what is accounted is what is iterated."""
    x, y = torch.randn(103, 6), torch.randint(3, (103,))
    constants = {"population": 103, "batch_size": size, "steps": None, "epochs": 3}
    run = private(data=(x, y), constants=constants)
    taken = 0
    for batch in run:
        run.step(batch)
        taken += 1
    assert taken == run.steps_done == run.plan.total_steps == 3 * 103 // size
    assert sum(segment.steps for segment in run.plan.segments()) == taken


def test_a_steps_and_epochs_calibrate_alike() -> None:
    asked = {"noise_multiplier": None, "epsilon": 2.0, "population": 1000, "batch_size": 50}
    assert plan(**asked, steps=40).sigma == plan(**asked, steps=None, epochs=2).sigma


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 20.0])
def test_a_calibrated_noise_never_overshoots(epsilon: float) -> None:
    asked = plan(noise_multiplier=None, epsilon=epsilon, population=1000, batch_size=50, steps=40)
    assert 0.99 * epsilon < asked.epsilon_spent() <= epsilon


def test_a_no_closure_wipes_the_noise() -> None:
    """The inner optimizer sees the noised gradient, once, and has nothing to evaluate again."""
    seen: list[tuple[Any, Tensor]] = []

    class Watched(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pieces = [p.grad.flatten() for g in self.param_groups for p in g["params"]]
            seen.append((closure, torch.cat(pieces).clone()))
            super().step()

    model = mlp()
    run = private(model, optimizer=Watched(model.parameters(), lr=0.1))
    for batch in run:
        total = torch.zeros(run.engine.numel)
        run.engine.add_(total, batch)
        run.step(batch)
        closure, found = seen.pop()
        assert closure is None
        assert not seen
        noise = found * run.plan.divisor - total
        assert 0.5 < float(noise.std()) / run.plan.noise_std < 2


def test_a_zero_grad_anywhere_and_nowhere() -> None:
    paths = []
    for place in ("nowhere", "before", "after"):
        run = private(source=steppe.SeededSource(2))
        for batch in run:
            if place == "before":
                run.optimizer.zero_grad()
            run.step(batch)
            if place == "after":
                run.optimizer.zero_grad(set_to_none=False)
        paths.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    assert torch.equal(paths[0], paths[1])
    assert torch.equal(paths[0], paths[2])


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(tokens)).mean(1))


class _Mixed(nn.Module):
    """A parameter of its own beside submodules, some of it used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(5))
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x) * self.scale) + self.scale)


def test_a_tied_parameters() -> None:
    torch.manual_seed(0)
    data = (torch.randint(7, (N, 5)), torch.randint(7, (N,)))
    same_as_one_by_one(private(_Tied(), data), tuple(c[:9] for c in data))


def test_a_own_parameters_beside_submodules() -> None:
    same_as_one_by_one(private(_Mixed()), tuple(c[:9] for c in vectors()))


@pytest.mark.parametrize("kept", ["bias", "weight"])
def test_a_frozen_and_trained_in_one_layer(kept: str) -> None:
    model = mlp()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(kept in name)
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    run = private(model)
    same_as_one_by_one(run, tuple(c[:9] for c in vectors()))
    for batch in run:
        run.step(batch)
    assert all(torch.equal(dict(model.named_parameters())[n], old) for n, old in frozen.items())


def test_a_optimizer_of_the_model_before_the_fix() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"optimizer lacks.*after the last change"):
        private(steppe.fix(model), optimizer=optimizer)


def test_a_rounded_noise_lies_on_its_grid() -> None:
    noise, source = steppe.Gaussian(grid=True), steppe.SecureSource()
    buffer = torch.empty(1000, dtype=torch.float64)
    noise.start_(buffer, 3.0, source).add_(torch.rand(1000, dtype=torch.float64))
    released = noise.finish_(buffer, 3.0, 1.0, source)
    assert torch.equal(released, torch.round(released * 2.0**31) / 2.0**31)


def test_a_asking_for_epsilon_changes_nothing() -> None:
    run = private()
    for batch in run:
        run.step(batch)
        assert run.epsilon() == run.epsilon()
    assert run.steps_done == 4
    assert "privacy loss distributions" in str(run.statement())


@pytest.mark.parametrize(("sigma", "rate"), [(0.4, 0.5), (0.7, 0.1), (5.0, 0.001)])
def test_a_accountant_at_large_and_small_epsilon(sigma: float, rate: float) -> None:
    found = plan(noise_multiplier=sigma, population=10_000, batch_size=10_000 * rate, steps=50)
    second = found.statement().rdp_epsilon
    assert second is not None
    assert 0 <= found.epsilon_spent() <= second < math.inf


def test_a_schedulers_reach_the_optimizer() -> None:
    run = private()
    scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda step: float(step == 0))
    weights = []
    for batch in run:
        run.step(batch)
        scheduler.step()
        weights.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
    assert all(torch.equal(weights[0], later) for later in weights[1:])


@pytest.mark.parametrize("bound", [0.01, 0.5, 30.0])
def test_a_the_bound_is_the_plans(bound: float) -> None:
    run = private(constants={"clip": steppe.Flat(bound)})
    x, y = vectors()
    total = torch.zeros(run.engine.numel)
    run.engine.add_(total, (x[:1] * 1e4, (y[:1] + 1) % 3))
    norm = float(total.norm())
    assert norm <= bound * (1 + 1e-5)
    assert run.plan.noise_std == bound


@pytest.mark.parametrize("pieces", [1, 3, 5, 64])
def test_a_physical_batches_are_one_logical_batch(pieces: int) -> None:
    totals = []
    for physical in (None, pieces):
        run = private(physical_batch=physical)
        totals.append(torch.zeros(run.engine.numel))
        run.engine.add_(totals[-1], vectors())
        run.engine.add_(totals[-1], vectors())
    assert torch.allclose(*totals, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_a_bias_norm_with_more_axes(axes: int) -> None:
    torch.manual_seed(0)
    data = (torch.randn(N, *[2] * (axes - 1), 6), torch.randint(3, (N,)))
    run = private(
        mlp(),
        data,
        objective=lambda m, b: (
            F.cross_entropy(m(b[0]).flatten(1, -2).mean(1), b[1], reduction="none")
            if b[0].ndim > 2
            else F.cross_entropy(m(b[0]), b[1], reduction="none")
        ),
    )
    same_as_one_by_one(run, tuple(c[:9] for c in data))


def test_a_masked_tokens() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(7, (N, 5))
    targets = torch.randint(7, (N, 5))
    targets[:, 3:] = -100
    targets[1] = -100  # a record that is masked altogether

    class Tagger(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x).mT

    model = Tagger(nn.Embedding(7, 4), nn.Linear(4, 7))
    run = private(model, (tokens, targets))
    same_as_one_by_one(run, (tokens[:9], targets[:9]))
    alone = torch.zeros(run.engine.numel)
    run.engine.add_(alone, (tokens[1:2], targets[1:2]))
    assert not alone.any()


class _Attention(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)
        self.head = nn.Linear(4, 3)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.batch_first else x.transpose(0, 1)
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head(mixed.mean(1 if self.batch_first else 0))


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_attention_keeps_the_records_apart(batch_first: bool) -> None:
    torch.manual_seed(0)
    data = (torch.randn(N, 9, 4), torch.randint(3, (N,)))  # as many positions as records below
    same_as_one_by_one(private(_Attention(batch_first), data), tuple(c[:9] for c in data))


@pytest.mark.parametrize(
    "options",
    [
        {"stride": (2, 1), "padding": (0, 2)},
        {"dilation": (1, 2), "padding": "same"},
        {"groups": 2, "stride": 3, "padding": 1, "padding_mode": "circular"},
    ],
    ids=str,
)
def test_a_convolutions_with_uneven_arguments(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    data = (torch.randn(N, 4, 7, 6), torch.randint(3, (N,)))
    model = nn.Sequential(nn.Conv2d(4, 6, (3, 2), **options), nn.Tanh(), nn.Flatten())
    width = model(data[0][:1]).shape[1]
    model.append(nn.Linear(width, 3))
    same_as_one_by_one(private(model, data), tuple(c[:9] for c in data))


# --- b: live in its present release ----------------------------------------------------------


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), F.cross_entropy], ids=["mean", "function"])
@pytest.mark.parametrize("clip", [steppe.Flat(0.5), steppe.Quantile(start=0.5)], ids=str)
def test_b1_a_mean_loss_is_still_clipped_by_record(loss: Any, clip: Any) -> None:
    """It was the adaptive bound that let an outlier through."""
    x, y = vectors()
    x[5] *= 1e6
    run = private(data=(x, y), loss=loss, constants={"clip": clip})
    total, without = (torch.zeros(run.engine.width) for _ in range(2))
    run.engine.add_(total, (x, y))
    rest = torch.arange(N) != 5
    run.engine.add_(without, (x[rest], y[rest]))
    moved = float((total - without).norm())
    assert 0.99 * clip.sensitivity < moved <= clip.sensitivity * (1 + 1e-5)
    assert getattr(loss, "reduction", "mean") == "mean", "the caller's loss was changed"


def test_b3_rate_and_divisor_do_not_follow_the_data() -> None:
    found = set()
    for records in (99, 100, 101):
        x, y = torch.zeros(records, 6), torch.zeros(records, dtype=torch.long)
        run = private(data=(x, y), constants={"population": 100, "batch_size": 10})
        found.add((run.plan.rate, run.plan.divisor, run.plan.digest(), run.epsilon(), len(run)))
    assert len(found) == 1


class _Positions(nn.Module):
    """Looks positions up by a range that has no record axis."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(7, 4), nn.Embedding(8, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.positions(torch.arange(tokens.shape[1]))
        return self.head(torch.tanh(self.words(tokens) + places).mean(1))


def test_b5_input_without_record_axis_of_the_batchs_length() -> None:
    torch.manual_seed(0)
    data = (torch.randint(7, (N, 8)), torch.randint(3, (N,)))
    same_as_one_by_one(private(_Positions(), data), tuple(c[:8] for c in data))
    assert sensitivity(subject(_Positions(), data), trials=2).passed


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_b6_embedding_bag_with_repeated_indices(mode: str) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(3, (N, 6))  # three words in six places: every bag repeats
    model = nn.Sequential(nn.EmbeddingBag(3, 4, mode=mode), nn.Linear(4, 3))
    data = (tokens, torch.randint(3, (N,)))
    same_as_one_by_one(private(model, data), tuple(c[:9] for c in data))
    assert sensitivity(subject(model, data), trials=2).passed


def test_b7_empty_batches_are_handed_out() -> None:
    x, y = vectors()
    run = private(
        data=(x[:20], y[:20]), constants={"population": 20, "batch_size": 0.4, "steps": 50}
    )
    sizes = []
    for batch in run:
        sizes.append(len(batch[0]))
        run.step(batch)
    assert len(sizes) == 50
    assert 0 in sizes


def test_b8_hooks_of_the_user_do_not_touch_the_account() -> None:
    run = private()
    calls: list[int] = []
    run.optimizer.register_step_post_hook(lambda *_: calls.append(run.steps_done))
    for batch in run:
        run.step(batch)
    assert calls == [1, 2, 3, 4]
    assert run.epsilon() == run.plan.epsilon_spent() > 0


def test_b9_no_way_to_switch_poisson_off() -> None:
    with pytest.raises(TypeError, match="poisson_sampling"):
        private(poisson_sampling=False)


def test_b10_accumulation_left_early_leaves_nothing_behind() -> None:
    run = private(constants={"batch_size": 32}, source=steppe.SeededSource(8))
    other = private(constants={"batch_size": 32}, source=steppe.SeededSource(8))
    batch = next(iter(run))
    run.accumulate(tuple(column[:5] for column in batch))
    with pytest.raises(MisuseError, match="each record once"):
        run.step(batch)
    assert run.steps_done == 0
    run.step(batch)
    other.step(next(iter(other)))
    assert torch.equal(gradient(run), gradient(other))


def test_b11_one_broken_record_breaks_nothing() -> None:
    x, y = vectors()
    x[0], x[1] = math.nan, math.inf
    run = private(data=(x, y), constants={"batch_size": N})
    for batch in run:
        run.step(batch)
    assert run.steps_done == 4
    assert all(bool(torch.isfinite(p).all()) for p in run.model.parameters())


def test_b12_half_precision_keeps_the_bound() -> None:
    x, y = vectors()
    assert sensitivity(subject(mlp().bfloat16(), (x.bfloat16(), y))).passed


def test_b13_one_epoch_of_single_records_has_all_its_steps() -> None:
    wrong = [
        n
        for n in range(2, 1500)
        if plan(population=n, batch_size=1, steps=None, epochs=1).total_steps != n
    ]
    assert wrong == []
    assert int(1 / (1 / 93)) == 92, "the arithmetic to avoid"


@pytest.mark.parametrize("size", [16, 300, 999])
def test_b14_the_batch_is_the_one_asked_for(size: int) -> None:
    found = plan(population=1000, batch_size=size)
    assert (found.rate, found.divisor) == (pytest.approx(size / 1000, rel=1e-15), size)


def test_b15_accountant_at_its_edges() -> None:
    assert plan().epsilon_spent(0) == 0.0
    quiet = plan(noise_multiplier=500.0, population=10**6, batch_size=1, delta=1e-7)
    assert 0.0 <= quiet.epsilon_spent() < 1e-3
    assert accounting.epsilon([Segment(0.1, 0.01, 10)], 1e-5) > 100
    with pytest.raises(ConfigurationError, match="beyond the largest noise reveals a record"):
        plan(noise_multiplier=0.01)


def test_b16_an_adaptive_bound_counts_nobody_in_an_empty_batch() -> None:
    """Neither a crash nor a division by the records there are: the noise alone moves the bound."""
    clip = steppe.Quantile(count_share=0.5)
    run = private(constants={"clip": clip, "batch_size": 1e-6, "steps": 3})
    bounds = [run.engine.clipper.state()["bound"]]
    for batch in run:
        assert len(batch[0]) == 0
        run.step(batch)
        assert bool((gradient(run) != 0).all())
        bounds.append(run.engine.clipper.state()["bound"])
    assert bounds[0] == clip.start
    assert set(bounds[1:]) <= {clip.low, clip.high}, "noise of a million expected batches"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_b17_a_source_cannot_be_saved(copied: Callable[[Any], Any]) -> None:
    with pytest.raises(MisuseError, match="second copy would repeat the noise; make a new source"):
        copied(steppe.SecureSource())


class _Awkward(nn.Module):
    """Four axes, a keyword call, a padding index and a weight that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4, padding_idx=0)
        self.lift, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        lifted = self.lift(input=self.words(tokens))
        return self.head(torch.tanh(lifted).mean((1, 2)))


def test_b18_awkward_calls() -> None:
    torch.manual_seed(0)
    data = (torch.randint(7, (N, 3, 2)), torch.randint(3, (N,)))
    with pytest.warns(UserWarning, match=r"parameters=\['unused.weight', 'unused.bias'\]"):
        run = private(_Awkward(), data)
    assert set(run.report().unused) == {"unused.weight", "unused.bias"}
    same_as_one_by_one(run, tuple(c[:9] for c in data))
    total = torch.zeros(run.engine.numel)
    run.engine.add_(total, data)
    assert not total[:4].any(), "the padding row got a gradient"


def test_b20_unknown_keywords_are_refused_and_the_fix_keeps_weights() -> None:
    with pytest.raises(TypeError, match="max_grad_nrom"):
        private(max_grad_nrom=5)
    norm = nn.BatchNorm2d(8)
    nn.init.uniform_(norm.weight)
    nn.init.uniform_(norm.bias)
    fixed = steppe.fix(nn.Sequential(norm))[0]
    assert isinstance(fixed, nn.GroupNorm)
    assert torch.equal(fixed.weight, norm.weight)
    assert torch.equal(fixed.bias, norm.bias)


# --- c: seeds --------------------------------------------------------------------------------


def test_c_every_bit_of_a_seed_counts() -> None:
    """torch keeps 32 of them, so that these seeds would give one stream."""
    seeds = (5, 5 + 2**32, 5 + 7 * 2**32, -5, 5 + 2**64)
    assert len({steppe.SeededSource(seed).words(2).tobytes() for seed in seeds}) == len(seeds)
    low, high = (torch.Generator().manual_seed(seed) for seed in (5, 5 + 2**32))
    assert torch.equal(torch.randn(3, generator=low), torch.randn(3, generator=high))


def test_c_a_script_that_seeds_itself_and_starts_again_repeats_nothing() -> None:
    releases, batches = [], []
    for _ in range(2):
        torch.manual_seed(42)
        np.random.seed(42)
        run = private(constants={"batch_size": 32, "steps": 3})
        for batch in run:
            run.step(batch)
            releases.append(gradient(run))
            batches.append(batch[0])
    for i, later in enumerate(releases):
        assert all(not bool((earlier == later).any()) for earlier in releases[:i])
    assert len({tuple(batch[:, 0].tolist()) for batch in batches}) == len(batches)


def test_c_seeding_and_drawing_do_not_disturb_the_users_generator() -> None:
    torch.manual_seed(7)
    expected = torch.randn(3)
    model, data = mlp(), vectors()
    torch.manual_seed(7)
    run = private(model, data)
    for batch in run:
        run.step(batch)
    assert torch.equal(expected, torch.randn(3))
