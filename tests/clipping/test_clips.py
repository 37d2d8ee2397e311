"""Every clip: the fast sum is the slow one, no record says too much, NaN says nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from clip_cases import CLIPS, DECAYS, Case, every_clip
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steppe.clipping import GEP, Automatic, Clip, ClippedSum, Flat, PerLayer, Quantile
from steppe.clipping.clip import Clipper, PublicGradients
from steppe.errors import ConfigurationError, MisuseError


def added(engine: ClippedSum, batch: Any) -> Tensor:
    out = torch.zeros(engine.width, dtype=next(iter(engine.parameters.values())).dtype)
    engine.add_(out, batch)
    return out


@every_clip
@pytest.mark.parametrize("l2", DECAYS, ids=str)
def test_the_fast_sum_is_the_slow_one(clip: Clip, l2: Any) -> None:
    case = Case()
    for physical in (None, 5):
        engine = case.engine(clip, l2=l2, physical_batch=physical)
        parts = engine.clipper.encode(case.gradients(case.batch, l2))
        assert parts.shape == (12, engine.width)
        torch.testing.assert_close(added(engine, case.batch), parts.sum(0), rtol=1e-6, atol=1e-7)
        assert float(parts.norm(dim=1).max()) <= clip.sensitivity * (1 + 1e-12)


@every_clip
def test_gradients_of_a_mean_loss_are_scaled_back(clip: Clip) -> None:
    case = Case()
    engine = case.engine(clip, l2=0.1)
    plain = added(engine, case.batch)
    mean = case.engine(clip, l2=0.1)
    mean.clipper = engine.clipper
    mean.exchange_objective_(lambda batch: case.objective(batch) / 12)
    out = torch.zeros(mean.width, dtype=torch.float64)
    with torch.no_grad():
        mean.add_slots_(out, mean.slots(case.batch), 12, scale=12.0)
    torch.testing.assert_close(out, plain, rtol=1e-6, atol=1e-7)


@every_clip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_adds_exactly_nothing(
    clip: Clip, dtype: torch.dtype, bad: float
) -> None:
    case = Case(dtype)
    engine = case.engine(clip)
    x, y = case.batch
    without = added(engine, (x[:-1], y[:-1]))
    x = x.clone()
    x[-1, 2] = bad
    found = added(engine, (x, y))
    assert float((found - without).norm()) <= 1e-6
    assert engine.clipper.encode(torch.full((1, engine.numel), bad)).equal(
        torch.zeros(1, engine.width)
    )


@every_clip
def test_a_gradient_of_zero_adds_no_gradient(clip: Clip) -> None:
    engine = Case().engine(clip)
    part = engine.clipper.encode(torch.zeros(2, engine.numel, dtype=torch.float64))
    assert part[:, : engine.numel].equal(torch.zeros_like(part[:, : engine.numel]))


def begun(clip: Clip) -> Clipper:
    case = Case()
    torch.manual_seed(1)
    matrix = torch.randn(10, 39)
    anchors = PublicGradients(10, lambda: iter([matrix])) if isinstance(clip, GEP) else None
    return clip.begin(case.parameters, anchors)


@pytest.mark.parametrize("name", CLIPS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), exponent=st.floats(-35, 35), spread=st.floats(0, 10))
def test_no_gradient_says_more_than_the_sensitivity(
    name: str, seed: int, exponent: float, spread: float
) -> None:
    """Any size, any direction, also one that lies in few layers or in the subspace."""
    clip = CLIPS[name]
    clipper = begun(clip)
    torch.manual_seed(seed)
    sizes = torch.exp(spread * torch.randn(39)) * 10.0**exponent
    gradients = torch.randn(4, 39).double() * sizes
    part = clipper.encode(gradients)
    assert torch.isfinite(part).all()
    assert float(part.norm(dim=1).max()) <= clip.sensitivity * (1 + 1e-9)
    part = clipper.encode(gradients.float()).double()
    assert float(part.norm(dim=1).max()) <= clip.sensitivity * (1 + 1e-5)


@every_clip
def test_the_state_is_public_and_brings_a_run_back(clip: Clip) -> None:
    case = Case()
    first, second = case.engine(clip), case.engine(clip)
    for _ in range(3):
        first.prepare()
        first.decode(added(first, case.batch) / 12)
    state = first.clipper.state()
    assert all(isinstance(value, float | Tensor) for value in state.values())
    second.clipper.load(state)
    first.prepare()
    second.prepare()
    assert added(first, case.batch).equal(added(second, case.batch))


@every_clip
def test_a_wrong_buffer_is_refused(clip: Clip) -> None:
    case = Case()
    engine = case.engine(clip)
    with pytest.raises(MisuseError, match=rf"of {engine.width} numbers; make it with torch.zeros"):
        engine.add_(torch.zeros(engine.width + 1), case.batch)


BAD: list[tuple[Callable[[], object], str]] = [
    (lambda: Quantile(target=-0.1), r"Quantile\.target=-0\.1: must lie strictly between 0 and 1"),
    (lambda: Quantile(target=math.nan), r"Quantile\.target=nan: must not be NaN"),
    (lambda: Quantile(learning_rate=0), r"Quantile\.learning_rate=0: must be finite and above 0"),
    (lambda: Quantile(count_share=1.0), r"Quantile\.count_share=1\.0: must lie strictly"),
    (lambda: Quantile(start=9, high=5), r"Quantile\.start=9\.0: must lie between low=0\.001 and"),
    (lambda: Quantile.share_for(2.0, 0.9), r"count_noise=0\.9: must be above half the noise"),
    (lambda: Automatic(0.0), r"Automatic\.bound=0\.0: must be finite and above 0; a common"),
    (lambda: Automatic(gamma=-1), r"Automatic\.gamma=-1: must be finite and not negative"),
    (lambda: PerLayer(math.inf), r"PerLayer\.bound=inf: must be finite and above 0"),
    (lambda: PerLayer(1.0, "even"), r"PerLayer\.budget='even': must be one of 'equal', 'size'; u"),
    (lambda: PerLayer(1.0, {"a": 0}), r"PerLayer\.budget\['a'\]=0: must be finite and above 0"),
    (lambda: PerLayer(1.0, {}), r"PerLayer\.budget=\{\}: must name at least one prefix"),
    (lambda: PerLayer(1.0, 7), r"PerLayer\.budget=7: must be a mapping from name prefixes"),  # type: ignore[arg-type]
    (lambda: begun(PerLayer(1.0, {"0": 1})), r"PerLayer\.budget=.*: gives '2\.weight' no share"),
    (lambda: begun(PerLayer(1.0, {"x": 1, "": 1})), r"PerLayer\.budget='x': must begin the name"),
    (lambda: GEP(bases=0), r"GEP\.bases=0: must be a whole number of at least 1"),
    (lambda: GEP(bases=2, groups=3), r"GEP\.groups=3: must not exceed bases=2"),
    (lambda: GEP(residual_bound=-1), r"GEP\.residual_bound=-1: must be finite and above 0"),
    (lambda: GEP(biased=1), r"GEP\.biased=1: must be True or False"),  # type: ignore[arg-type]
    (lambda: begun(GEP(11, groups=1)), r"GEP\.bases=11: gives a group 11 .* the 10 public records"),
    (
        lambda: GEP(40).begin(Case().parameters, PublicGradients(99, list)),
        r"bases=40: must not.* 39 weig",
    ),  # type: ignore[arg-type]
    (
        lambda: GEP(5).begin(Case().parameters),
        r"`public` is required, since GEP finds its subspace with public",
    ),
    (
        lambda: Flat().begin({}, PublicGradients(3, list)),
        r"public='3 records': this clip learns nothing",
    ),  # type: ignore[arg-type]
    (lambda: Quantile(start=1e-3, low=1e-35), "Quantile.low=1e-35: must lie between 1e-30"),
    (lambda: Quantile(start=1e38, high=1e39), r"Quantile\.start=1e\+38: must lie between 1e-30"),
    (lambda: Quantile(high=1e39), r"Quantile\.high=1e\+39: must lie between 1e-30 and 1e30"),
    (lambda: GEP(6, 2, residual_bound=1e-42), "GEP.residual_bound=1e-42: must lie between"),
    (lambda: GEP(6, 2, embedding_bound=1e39), r"GEP\.embedding_bound=1e\+39: must lie between"),
]


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_constants_are_refused_with_a_reason(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
