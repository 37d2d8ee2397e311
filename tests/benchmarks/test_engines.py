"""All engines take the same step, so their times compare the same work."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from benchmarks import engine_steppe, engines, settings
from benchmarks.cases import CASES, Case, record_losses
from probed_once import ProbedOnce
from silent import Silent
from steppe.errors import ConfigurationError

RECORDS = 6
probed_once = ProbedOnce()


@pytest.fixture(autouse=True)
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our engines differ in what they do after it, which takes far less time."""
    monkeypatch.setattr(engine_steppe, "probe", probed_once)


def weights_after_one_step(engine: str, case: Case) -> list[Tensor]:
    built: list[nn.Module] = []

    def build() -> nn.Module:
        built.append(case.build())
        return built[-1]

    step = engines.setup(engine, replace(case, build=build), case.new_batch(RECORDS), vmap_chunk=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peer's hooks warn
        step()
    return [parameter.detach() for parameter in built[0].parameters()]


def without_noise(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Our plans refuse to be without noise, so that ours is taken out at its place. The rate makes
    # the step large against rounding.
    if engine.startswith("steppe"):
        monkeypatch.setattr(engine_steppe, "noise", Silent)
    else:
        monkeypatch.setattr(settings, "NOISE_MULTIPLIER", 1e-9)
    monkeypatch.setattr(settings, "LEARNING_RATE", 1.0)


def weights_one_record_at_a_time(case: Case) -> list[Tensor]:
    model = case.new_model()
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for inputs, target in zip(*case.new_batch(RECORDS), strict=True):
        loss = record_losses(model(inputs[None]), target[None]).sum()
        gradient = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.norm() for g in gradient]).norm()
        for t, g in zip(total, gradient, strict=True):
            t += g * min(1.0, settings.CLIP / float(norm))
    rate = settings.LEARNING_RATE / RECORDS
    return [p.detach() - rate * t for p, t in zip(parameters, total, strict=True)]


@pytest.mark.parametrize("engine", [name for name in engines.NAMES if "plain" not in name])
@pytest.mark.parametrize("model", ["a", "e-mlp"])
def test_every_engine_takes_the_same_step(
    engine: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(engine, monkeypatch)
    case = next(case for case in CASES if case.model == model)
    found = weights_after_one_step(engine, case)
    for weight, expected in zip(found, weights_one_record_at_a_time(case), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("engine", ["opacus-hooks", "opacus-ghost", "vmap", "steppe-whole"])
def test_micro_batches_take_the_same_step(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(engine, monkeypatch)
    case = replace(next(case for case in CASES if case.model == "e-mlp"), physical=4)
    found = weights_after_one_step(engine, case)
    for weight, expected in zip(found, weights_one_record_at_a_time(case), strict=True):
        torch.testing.assert_close(weight, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("engine", [name for name in engines.NAMES if "plain" not in name])
def test_every_engine_adds_noise(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "NOISE_MULTIPLIER", 1e4)
    monkeypatch.setattr(settings, "LEARNING_RATE", 1.0)
    case = next(case for case in CASES if case.model == "e-mlp")
    hidden = weights_after_one_step(engine, case)[0]
    assert float(hidden.std()) == pytest.approx(1e4 * settings.CLIP / RECORDS, rel=0.02)


def test_unknown_engine_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"engines='fast': must be one of plain, .*; choo"):
        engines.select(["fast"])


def test_physical_batches_are_told() -> None:
    [case] = [case for case in CASES if (case.model, case.batch) == ("a", 2048)]
    told = {name: engines.physical_batch(name, case, vmap_chunk=16) for name in engines.NAMES}
    assert told["plain"] == 2048
    assert told["plain-micro"] == told["opacus-ghost"] == told["steppe-whole"] == case.physical
    assert told["steppe-micro"] == case.micro
    assert told["vmap"] == 16
    assert 1 < told["steppe"] < 2048, "the engine's own choice"


def test_replaced_layers_are_told() -> None:
    case = next(case for case in CASES if case.model == "f")
    assert engines.opacus_replacements(case) == ["DPLSTM in place of LSTM"]
