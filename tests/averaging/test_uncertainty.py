"""Intervals and variances against textbook values and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from averaging_cases import bits, same_bits
from torch import Tensor, nn

from steppe.averaging import OMV, OPA, best_number, checkpoint_variance, error_bound
from steppe.averaging.uncertainty import variance_of
from steppe.errors import ConfigurationError


def one_logit_models(logits: list[float]) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    model = nn.Linear(1, 2, bias=False)
    return model, [{"weight": torch.tensor([[logit], [0.0]])} for logit in logits]


def test_intervals_are_those_of_student() -> None:
    logits = [0.1, -0.4, 0.8, 0.3, 0.2]
    model, stored = one_logit_models(logits)
    found = OPA(model, stored).predict(torch.ones(1, 1), interval=0.9)
    p = 1 / (1 + np.exp(-np.float32(logits).astype(float)))
    quantile = 2.1318467863266499  # Student's 95 % point with 4 degrees of freedom
    half = quantile * p.std(ddof=1) / math.sqrt(5)
    assert found.count == 5
    assert found.low[0, 0].item() == pytest.approx(p.mean() - half)
    assert found.high[0, 0].item() == pytest.approx(p.mean() + half)
    assert found.labels.tolist() == [0]
    assert found.agreement.item() == pytest.approx(4 / 5)
    indices = np.array([0, 1, 0, 0, 0])
    width = 2 * quantile * indices.std(ddof=1) / math.sqrt(5)
    assert found.label_width.item() == pytest.approx(width)


def test_checkpoints_can_be_asked_about_the_label_of_another_model() -> None:
    model, stored = one_logit_models([0.1, -0.4, 0.8, 0.3, 0.2])
    own = OPA(model, stored).predict(torch.ones(1, 1))
    other = OPA(model, stored).predict(torch.ones(1, 1), labels=torch.tensor([1]))
    assert other.labels.tolist() == [1]
    assert other.agreement.item() == pytest.approx(1 / 5)
    assert torch.equal(other.low, own.low)


def test_intervals_stay_between_zero_and_one_and_vanish_without_spread() -> None:
    model, stored = one_logit_models([-4.0, 4.0, 4.0])
    wide = OMV(model, stored).predict(torch.ones(1, 1))
    assert wide.high.max() == 1
    assert wide.low.min() == 0
    model, stored = one_logit_models([1.0, 1.0, 1.0])
    none = OPA(model, stored).predict(torch.ones(2, 1))
    assert (none.high - none.low).abs().max() < 1e-12
    assert none.agreement.tolist() == [1.0, 1.0]
    assert none.label_width.tolist() == [0.0, 0.0]


def test_intervals_cover_as_often_as_they_say() -> None:
    """Independent checkpoints with normal logits, small enough for the mean to be theirs."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.linspace(0.5, 1, 4000).unsqueeze(1)  # 4000 inputs, each with models of its own
    noise = 0.05 * torch.randn(6, 4000, generator=generator)

    class PerInput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logit = nn.Parameter(torch.zeros(4000))

        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([self.logit, torch.zeros_like(self.logit)], dim=-1) + 0 * x

    found = OPA(PerInput(), [{"logit": row} for row in noise], 4000).predict(inputs, 0.8)
    covered = ((found.low[:, 0] <= 0.5) & (found.high[:, 0] >= 0.5)).double().mean().item()
    assert abs(covered - 0.8) < 4 * math.sqrt(0.16 / 4000)


def test_the_variance_and_its_standard_error_of_normal_draws() -> None:
    draws = torch.randn(3000, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = [variance_of(row) for row in draws]
    mean = sum(f.variance for f in found) / len(found)
    true_error = math.sqrt(2 / 11)
    assert mean == pytest.approx(1, abs=4 * true_error / math.sqrt(3000))
    # The jackknife estimates the squared error with a small upward bias.
    squared = sum(f.standard_error**2 for f in found) / len(found)
    assert true_error**2 * 0.95 < squared < true_error**2 * 1.3


def test_the_jackknife_equals_leaving_out_one_by_one() -> None:
    values = torch.tensor([0.3, -1.0, 2.5, 0.9, 0.1], dtype=torch.float64)
    rest = torch.stack([torch.cat([values[:i], values[i + 1 :]]).var() for i in range(5)])
    expected = (4 / 5 * ((rest - rest.mean()) ** 2).sum()).sqrt().item()
    assert variance_of(values).standard_error == pytest.approx(expected)


def test_any_statistic_of_the_model_which_comes_back_unchanged() -> None:
    model, stored = one_logit_models([1.0, 2.0, 4.0])
    before = bits(model)
    found = checkpoint_variance(model, stored, lambda m: m.weight.sum().item() ** 2)
    assert found.mean == pytest.approx(7)
    assert found.variance == pytest.approx(np.var([1, 4, 16], ddof=1))
    assert same_bits(bits(model), before)
    with pytest.raises(ZeroDivisionError):
        checkpoint_variance(model, stored, lambda m: 1 / 0)
    assert same_bits(bits(model), before)


@pytest.mark.parametrize(
    ("time", "burn_in", "mixing"),
    [(1000, 10, 5), (50, 20, 1), (1e5, 3, 40), (10, 0, 8), (9, 4.5, 1)],
)
def test_the_best_number_minimises_the_bound(time: float, burn_in: float, mixing: float) -> None:
    allowed = [k for k in range(2, 100_000) if time / k >= burn_in][:20_000]
    best = min(allowed, key=lambda k: error_bound(k, time, burn_in, mixing))
    assert best_number(time, burn_in, mixing) == best


def test_the_bound_refuses_what_has_none() -> None:
    with pytest.raises(ConfigurationError, match=r"k=0: must be a whole number of at least 1"):
        error_bound(0, 10.0, 1.0, 1.0)
    with pytest.raises(ConfigurationError, match=r"mixing=0: must be finite and above 0"):
        error_bound(2, 10.0, 1.0, 0)
    assert error_bound(2, 1.0, 1e6, 1.0) == math.inf


def test_checkpoints_of_a_stationary_chain_estimate_its_variance() -> None:
    """Theorem 3.1 on the quadratic: spaced checkpoints are right on average, close ones low."""
    rng = np.random.default_rng(0)
    eta, runs, steps = 0.05, 2000, 600
    chain, path = np.zeros(runs), []
    for _ in range(steps):
        chain = (1 - eta) * chain + math.sqrt(2 * eta) * rng.normal(size=runs)
        path.append(chain)
    truth = 2 * eta / (1 - (1 - eta) ** 2)
    spaced = np.stack(path)[-1::-60][:8].var(axis=0, ddof=1).mean()
    close = np.stack(path)[-8:].var(axis=0, ddof=1).mean()
    assert spaced == pytest.approx(truth, rel=0.06)
    assert close < 0.3 * truth


def test_bad_input_is_refused() -> None:
    model, stored = one_logit_models([1.0, 2.0])
    with pytest.raises(ConfigurationError, match=r"interval=1: must lie strictly between 0 and 1"):
        OPA(model, stored).predict(torch.ones(1, 1), interval=1)
    with pytest.raises(
        ConfigurationError, match=r"k=1: one checkpoint has no spread; use at least"
    ):
        OPA(model, stored[:1]).predict(torch.ones(1, 1))
    with pytest.raises(ConfigurationError, match=r"k=2: a variance with a standard error needs"):
        checkpoint_variance(model, stored, lambda m: 0.0)
    with pytest.raises(ConfigurationError, match=r"time=10.0: must be at least 2·burn_in = 12"):
        best_number(10, burn_in=6, mixing=1)
