"""The measured networks are the ones that the targets were set for."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks.cases import CASES, Case, mean_loss, record_losses, select
from benchmarks.clipping import RESULTS
from benchmarks.models import VOCABULARY
from steppe.errors import ConfigurationError

PARAMETERS = {
    "a": 216_058,
    "b": 550_570,
    "c": 4_902_090,
    "d": 2_751_562,
    "e-logistic": 7_850,
    "e-mlp": 407_050,
    "f": 4_053_428,  # 4,050,748 with the single bias of other frameworks' LSTM
    "g": 2_693_578,
}
EACH_CASE = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.model}-{case.batch}")


@EACH_CASE
def test_parameter_counts(case: Case) -> None:
    found = sum(parameter.numel() for parameter in case.new_model().parameters())
    assert found == PARAMETERS[case.model]


@EACH_CASE
def test_shapes_and_losses(case: Case) -> None:
    inputs, target = case.new_batch(3)
    with torch.no_grad():
        output = case.new_model()(inputs)
    expected = (3, 10) if case.shape is not None else (3, 20, VOCABULARY)
    assert output.shape == expected
    losses = record_losses(output, target)
    assert losses.shape == (3,)
    torch.testing.assert_close(losses.mean(), mean_loss(output, target))


@EACH_CASE
def test_same_weights_and_batch_every_time(case: Case) -> None:
    first, second = case.new_model().state_dict(), case.new_model().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.equal(a, b) for a, b in zip(case.new_batch(2), case.new_batch(2), strict=True))


def test_quick_takes_three_families() -> None:
    cases = select(None, quick=True)
    assert {case.model[0] for case in cases} == {"a", "e", "f"}
    assert {case.model for case in cases if case.rivals} == {"a", "e-logistic", "e-mlp"}


@EACH_CASE
def test_rivals_are_the_best_peers_of_the_stored_run(case: Case) -> None:
    stored = json.loads(RESULTS.read_text())["rows"]
    ratios = {
        row["engine"]: row["ratio"]
        for row in stored
        if (row["model"], row["batch"]) == (case.model, case.batch)
    }
    opacus = {name: ratio for name, ratio in ratios.items() if name.startswith("opacus")}
    for rival in case.rivals:
        # Rows of several runs, on a machine whose ratios waver by more than this.
        assert rival == "vmap" or ratios[rival] >= 0.9 * max(opacus.values())
    if case.in_quick and not case.rivals and opacus:
        assert max(opacus.values()) < case.target / 5


def test_unknown_model_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"models='z': must be one of a, b, .*; choose"):
        select(["a", "z"], quick=False)
