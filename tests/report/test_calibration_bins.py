"""Calibration against cases whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from steppe.errors import ConfigurationError
from steppe.report import calibration


def test_a_model_that_means_what_it_says_has_a_small_error() -> None:
    generator = torch.Generator().manual_seed(0)
    probabilities = (2 * torch.randn(40_000, 5, generator=generator)).softmax(1)
    targets = torch.multinomial(probabilities, 1, generator=generator).squeeze(1)
    honest = calibration(probabilities, targets)
    boastful = calibration(
        probabilities.pow(3) / probabilities.pow(3).sum(1, keepdim=True), targets
    )
    assert honest.error < 0.01
    assert boastful.error > 0.05
    assert honest.accuracy == boastful.accuracy


def test_every_record_is_in_one_bin_that_holds_its_confidence() -> None:
    confidence = torch.linspace(0.5, 1.0, 101, dtype=torch.float64)
    probabilities = torch.stack([confidence, 1 - confidence], dim=1)
    found = calibration(probabilities, torch.zeros(101, dtype=torch.long), bins=10)
    assert sum(b.records for b in found.bins) == 101
    assert all(b.low <= b.confidence <= b.high for b in found.bins if b.records)
    assert all(b.accuracy == 1.0 for b in found.bins if b.high > 0.55)
    assert found.error == pytest.approx(float((1 - confidence).mean()))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be \(records, classes\) and \(records,\)"):
        calibration(torch.rand(3, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ConfigurationError, match="not empty; give one row and one class"):
        calibration(torch.rand(0, 2), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize(
    ("probabilities", "target", "message"),
    [
        ([4.0, -1.0], 0, "must lie in .*; take the softmax of logits"),
        ([math.nan, 0.5], 0, "must lie in"),
        ([0.5, 0.5], 2, "must be whole numbers from 0 to 1"),
        ([0.5, 0.5], -1, "must be whole numbers from 0 to 1"),
        ([0.5, 0.5], 0.5, "must be whole numbers from 0 to 1"),
    ],
)
def test_what_is_no_probability_or_class_is_refused(
    probabilities: list[float], target: float, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        calibration(torch.tensor([probabilities]), torch.tensor([target]))
