"""Methods of pre-training: closed forms on a quadratic, and the limits in which they meet."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_cases import flat, network, public, trained
from torch import Tensor, nn

from steppe.errors import ConfigurationError
from steppe.pretraining import (
    AMP,
    ASAM,
    SAM,
    Ascent,
    DPAdapter,
    KeptPerturbation,
    Labels,
    MeanPerturbation,
    PublicData,
    Standard,
    pretrain,
)

RATE = 0.1


class Point(nn.Module):
    """Two weight tensors and no input: the loss is half their squared distance to each record."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.tensor([3.0, 4.0]))
        self.second = nn.Parameter(torch.tensor([1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.first, self.second]) - x


def half_square(distance: Tensor, _: Tensor) -> Tensor:
    return distance.square().sum(1).mean() / 2


RECORDS = torch.randn(40, 3, generator=torch.Generator().manual_seed(3))


def one_step(method: Any, tmp_path: Path, batch_size: int = 40) -> Tensor:
    model = Point()
    pretrain(
        model,
        PublicData(RECORDS, torch.zeros(40), "points"),
        method,
        batch_size=batch_size,
        steps=1,
        objective=Labels(half_square),
        optimizer=lambda weights: torch.optim.SGD(weights, lr=RATE),
        run=tmp_path / "run",
        progress=False,
    )
    return torch.cat([model.first, model.second]).detach()


THETA = torch.tensor([3.0, 4.0, 1.0])


def capped(step: Tensor, cap: float) -> Tensor:
    return step * min(1.0, cap / float(step.norm()))


def capped_by_tensor(step: Tensor, cap: float) -> Tensor:
    return torch.cat([capped(step[:2], cap), capped(step[2:], cap)])


def adaptive(gradient: Tensor, radius: float) -> Tensor:
    size = THETA.abs() + 0.01
    return radius * size**2 * gradient / (size * gradient).norm()


@pytest.mark.parametrize(
    ("method", "offset"),
    [
        (Standard(), lambda g: 0 * g),
        (SAM(0.5), lambda g: 0.5 * g / g.norm()),
        (ASAM(0.5), lambda g: adaptive(g, 0.5)),
        (AMP(rate=0.7, cap=0.5), lambda g: capped_by_tensor(0.7 * g, 0.5)),
        (AMP(rate=0.01, cap=0.5), lambda g: 0.01 * g),
        (DPAdapter(40, rate=0.7, cap=0.5), lambda g: capped(0.7 * g, 0.5)),
        (DPAdapter(40, rate=0.7, cap=None), lambda g: 0.7 * g),
        (
            DPAdapter(40, rate=0.7, cap=0.5, scope="tensor"),
            lambda g: capped_by_tensor(0.7 * g, 0.5),
        ),
        (DPAdapter(40, warmup=1), lambda g: 0 * g),
        (KeptPerturbation(3, 40, rate=0.7, cap=0.5), lambda g: capped(0.7 * g, 0.5)),
        (MeanPerturbation(), lambda g: 0 * g),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_a_step_on_a_quadratic_is_the_closed_form(
    method: Any, offset: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    gradient = THETA - RECORDS.mean(0)
    wanted = THETA - RATE * (gradient + offset(gradient))
    torch.testing.assert_close(one_step(method, tmp_path), wanted, rtol=1e-5, atol=1e-6)


def test_the_mean_of_past_gradients_is_corrected_for_its_start() -> None:
    run = MeanPerturbation(decay=0.9, rate=1.0, cap=None).begin([torch.zeros(1)])
    seen = [torch.tensor([value]) for value in (1.0, 5.0, -2.0)]
    for gradient in seen:
        run.observe([gradient])
    weights = [0.9**2, 0.9, 1.0]
    wanted = sum(w * float(g) for w, g in zip(weights, seen, strict=True)) / sum(weights)
    (found,) = run.offset(3, None) or ()  # type: ignore[arg-type]
    assert float(found) == pytest.approx(wanted)


@pytest.mark.parametrize(
    "method",
    [
        SAM(1e-30),
        ASAM(1e-30),
        AMP(cap=1e-30),
        AMP(rate=1e-30),
        DPAdapter(64, cap=1e-30),
        DPAdapter(64, rate=1e-30),
        KeptPerturbation(3, 64, cap=1e-30),
        MeanPerturbation(cap=1e-30),
        DPAdapter(64, warmup=12),
    ],
    ids=str,
)
def test_without_perturbation_every_method_is_standard_training_to_the_bit(
    method: Any, tmp_path: Path
) -> None:
    plain, _ = trained(tmp_path / "plain", model=network(dropout=0.3), augment=torch.neg)
    other, _ = trained(tmp_path / "other", method, model=network(dropout=0.3), augment=torch.neg)
    assert torch.equal(flat(plain), flat(other))


def test_dp_adapter_of_one_batch_whose_cap_is_always_reached_is_sam(tmp_path: Path) -> None:
    whole = {"batch_size": 96, "steps": 6}  # so that both batches are all records
    sam, _ = trained(tmp_path / "sam", SAM(0.2), **whole)
    adapter, _ = trained(tmp_path / "dp", DPAdapter(96, rate=1e6, cap=0.2), **whole)
    plain, _ = trained(tmp_path / "plain", Standard(), **whole)
    torch.testing.assert_close(flat(adapter), flat(sam), rtol=0, atol=2e-6)
    assert (flat(sam) - flat(plain)).norm() > 1e-3


def test_dp_adapter_without_cap_is_sam_where_all_gradients_have_one_length(tmp_path: Path) -> None:
    gradient = THETA - RECORDS.mean(0)
    rate = 0.3 / float(gradient.norm())
    adapter = one_step(DPAdapter(40, rate=rate, cap=None), tmp_path / "dp")
    torch.testing.assert_close(adapter, one_step(SAM(0.3), tmp_path / "sam"))


def test_a_perturbation_kept_for_one_update_is_dp_adapters(tmp_path: Path) -> None:
    kept, _ = trained(tmp_path / "kept", KeptPerturbation(1, 64))
    every, _ = trained(tmp_path / "every", DPAdapter(64))
    longer, _ = trained(tmp_path / "longer", KeptPerturbation(4, 64))
    assert torch.equal(flat(kept), flat(every))
    assert not torch.equal(flat(longer), flat(every))


@pytest.mark.parametrize(
    ("method", "times"),
    [
        (Standard(), 1),
        (SAM(), 2),
        (AMP(), 2),
        (DPAdapter(64), 5),
        (DPAdapter(64, warmup=6), 3),
        (KeptPerturbation(4, 64), 2),
        (MeanPerturbation(), 1),
    ],
    ids=str,
)
def test_the_cost_is_counted_in_gradients_of_records(
    method: Any, times: float, tmp_path: Path
) -> None:
    _, outcome = trained(tmp_path / "run", method)
    assert outcome.times_standard == times
    assert outcome.gradients == times * 12 * 16


def test_a_large_batch_in_parts_has_the_gradient_of_the_whole(tmp_path: Path) -> None:
    data = public(600)
    parts, _ = trained(tmp_path / "parts", DPAdapter(600), data=data)

    class Whole(Labels):
        largest_part = 10_000  # type: ignore[assignment]

    whole, _ = trained(tmp_path / "whole", DPAdapter(600), data=data, objective=Whole())
    torch.testing.assert_close(flat(parts), flat(whole), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SAM(0.0), r"radius=0\.0: must be finite and above 0; 0\.05 is common"),
        (lambda: ASAM(-1.0), r"radius=-1\.0: must be finite and above 0"),
        (lambda: ASAM(floor=0.0), r"floor=0\.0: must be finite and above 0"),
        (lambda: AMP(cap=0.0), r"cap=0\.0: must be finite and above 0; 0\.5 to 2 is common"),
        (lambda: AMP(rate=-2.0), r"rate=-2\.0: must be finite and above 0; 1\.0 is common"),
        (lambda: DPAdapter(cap=0.0), r"cap=0\.0: must be finite and above 0"),
        (lambda: DPAdapter(rate=0.0), r"rate=0\.0: must be finite and above 0"),
        (lambda: DPAdapter(cap=math.inf), r"cap=inf: must be finite .* None for no cap"),
        (lambda: DPAdapter(0), r"perturbation_batch=0: must be a whole number of at least 1"),
        (lambda: DPAdapter(warmup=-1), r"warmup=-1: must be a whole number of at least 0"),
        (lambda: DPAdapter(scope="layer"), r"scope='layer': must be one of 'model', 'tensor'"),
        (lambda: KeptPerturbation(0), r"updates=0: must be a whole number of at least 1"),
        (lambda: MeanPerturbation(decay=1.0), r"decay=1\.0: must lie strictly between 0 and 1"),
        (lambda: Ascent(math.nan, 1.0, "model"), r"rate=nan: must not be NaN"),
    ],
)
def test_constants_out_of_range_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
