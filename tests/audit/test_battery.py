"""The shipped step under the battery, family by family, and what the battery itself promises."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from audit_subjects import CLIP, FAMILIES, Pooled, lstm, mlp, sequences, subject_of
from torch import nn

import steppe
from probed_once import ProbedOnce
from steppe.audit import (
    AuditedRun,
    Result,
    battery,
    control_flow,
    noise_independence,
    noise_law,
    non_finite_records,
    sampler_law,
    sensitivity,
)
from steppe.audit.adversarial_records import INPUT_SCALES, LOSS_SCALES, adversarial_batches
from steppe.audit.battery import checked
from steppe.audit.result import surprise
from steppe.audit.subject import released
from steppe.clipping.clip import NormClipper
from steppe.errors import ConfigurationError, MisuseError, UnsupportedModelError
from steppe.probing import cache
from steppe.utils.module_modes import without_dropout


def failures(results: list[Result]) -> list[str]:
    return [str(result) for result in results if not result.passed]


@pytest.fixture
def probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run starts from the same weights, where one probe finds what the others would.

    Nobody changes a model during a run, so a second look would find the same again; that it is
    taken, and what it finds, is tested in `tests/probing/test_cache.py`.
    """
    monkeypatch.setattr(cache, "probe", ProbedOnce(same_weights=True))
    monkeypatch.setattr(cache.ProbeCache, "_proven_again", lambda self, known, batch: known)


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize("family", FAMILIES)
def test_the_shipped_step_passes(family: str) -> None:
    """How the sampler draws, and most of the noise, is not up to the network: one tries it long."""
    draws, steps = (20_000, 40) if family == "mlp" else (4_000, 10)
    results = battery(FAMILIES[family](), trials=2, draws=draws, steps=steps)
    assert failures(results) == []
    assert len(results) == 12


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize(
    "constants",
    [
        {"noise": steppe.Gaussian(grid=True)},
        {"sampling": steppe.CappedPoisson(cap=30), "adjacency": "zero-out"},
        {"sampling": steppe.CappedPoisson(fixed_shapes=True), "adjacency": "zero-out"},
        {"batch_size": 7.5, "population": 90},
        {"clip": steppe.Flat(1e-4)},
    ],
    ids=["grid", "cap", "fixed shapes", "declared population", "tiny clip"],
)
def test_other_plans_pass(constants: dict[str, object]) -> None:
    assert failures(battery(mlp(**constants), trials=2, draws=20_000, steps=40)) == []


@pytest.mark.usefixtures("probed_once")
def test_double_precision_passes() -> None:
    torch.manual_seed(0)
    model = nn.Linear(20, 30).double()
    data = (torch.randn(64, 20).double(), torch.randint(30, (64,)))
    assert failures(battery(subject_of(model, data), trials=2, draws=20_000, steps=40)) == []


@pytest.mark.usefixtures("probed_once")
def test_half_precision_passes() -> None:
    """Weights are rounded after the noise, which takes nothing from it."""
    torch.manual_seed(0)
    model = nn.Linear(20, 30).to(torch.bfloat16)
    data = (torch.randn(64, 20).to(torch.bfloat16), torch.randint(30, (64,)))
    assert failures(battery(subject_of(model, data), trials=2, draws=20_000, steps=40)) == []


@pytest.mark.usefixtures("probed_once")
@pytest.mark.parametrize("clip", [steppe.Flat(CLIP), steppe.Quantile(start=CLIP)])
def test_a_row_for_padding_needs_no_noise(clip: steppe.Flat | steppe.Quantile) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(7, 40, padding_idx=0)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(120, 4))
    data = (torch.randint(7, (64, 3)), torch.randint(4, (64,)))
    subject = subject_of(model, data, clip=clip)
    assert failures([*noise_law(subject, 20_000), *noise_independence(subject)]) == []


def test_decoded_gradients_may_be_rounded_and_padded_and_nothing_else() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(7, 4, padding_idx=0)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(12, 4)).to(torch.bfloat16)
    data = (torch.randint(7, (64, 3)), torch.randint(4, (64,)))
    subject = subject_of(model, data, clip=steppe.Quantile(start=0.5))
    assert control_flow(subject).passed
    private = subject.private()
    private.step(next(iter(private)))
    assert len(released(private)) == private.engine.width
    assert float(table.weight.detach()[0].abs().max()) == 0.0
    private.model[2].bias.grad.mul_(2)
    with pytest.raises(
        MisuseError, match=r"The gradient of '2.bias' was changed before the optimizer used it"
    ):
        released(private)


def test_transformer_layer_with_its_own_dropout() -> None:
    model = Pooled()
    model.layer.dropout1.p = 0.1
    subject_of(model, sequences()).private()


@pytest.mark.slow
def test_std_of_the_noise_within_three_per_mille() -> None:
    law, std = noise_law(mlp(), draws=4_000_000)
    assert law.passed, law
    assert std.measured < 0.003


def test_sensitivity_is_tight() -> None:
    """A hostile record reaches the bound: the replay would see a larger one."""
    result = sensitivity(mlp())
    assert 1 - 1e-5 <= result.measured <= 1 + 1e-5


def test_a_check_of_non_finite_records_needs_some() -> None:
    """A subject on which no gradient is ever non-finite proves nothing, so it does not pass."""
    subject = subject_of(
        nn.Linear(20, 4),
        mlp().data,
        objective=lambda model, batch: model(batch[0]).sum(1).tanh(),
    )
    assert non_finite_records(subject).passed

    class Finite(steppe.clipping.ClippedSum):
        def add_(self, out: torch.Tensor, batch: object) -> torch.Tensor:
            return super().add_(out, batch).nan_to_num()

    def sabotage(private: steppe.Private, records: int) -> None:
        private.engine.__class__ = Finite

    assert not non_finite_records(mlp(sabotage=sabotage)).passed


def test_subject_needs_a_declared_population() -> None:
    subject = mlp()
    undeclared = replace(subject.plan, population=None)
    with pytest.raises(ConfigurationError, match=r"`plan.population` must be declared.*declare"):
        AuditedRun(subject.build, undeclared, subject.data)


def test_subject_fixes_the_noise_once() -> None:
    subject = mlp()
    asked = replace(subject.plan, noise_multiplier=None, epsilon=4.0)
    found = AuditedRun(subject.build, asked, subject.data).plan
    assert found.epsilon is None
    assert found.sigma == asked.sigma


def test_a_model_that_cannot_be_built_is_no_result() -> None:
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    with pytest.raises(UnsupportedModelError, match=r"steppe\.fix"):
        battery(subject_of(model, mlp().data))


def test_an_error_in_a_check_is_a_failure() -> None:
    (result,) = checked("sums", lambda: [][0])
    assert not result.passed
    assert (
        str(result) == "FAIL  sums: stopped by IndexError: list index out of range (inf, at most 0)"
    )


def test_nan_never_passes() -> None:
    assert not Result.at_most("x", math.nan, 1.0, "").passed
    assert surprise(math.nan) == math.inf
    assert surprise(0.0) == 300


def test_hostile_records_touch_only_the_last_record() -> None:
    batch, scales = mlp().records.batch(torch.arange(5)), torch.ones(5)
    generator = torch.Generator().manual_seed(0)
    attacks = list(adversarial_batches(batch, scales, generator))
    assert len(attacks) == len(LOSS_SCALES) + len(INPUT_SCALES) + 3
    for _, ((inputs, labels), factors) in attacks:
        assert torch.equal(inputs[:-1], batch[0][:-1])
        assert torch.equal(labels, batch[1])
        assert torch.equal(factors[:-1], scales[:-1])


def test_hostile_tokens_have_hostile_losses_only() -> None:
    batch = lstm().records.batch(torch.arange(3))
    attacks = list(adversarial_batches(batch, torch.ones(3), torch.Generator()))
    assert len(attacks) == len(LOSS_SCALES)


def test_dropout_comes_back() -> None:
    model = Pooled()
    model.layer.self_attn.dropout = 0.25
    recurrent = nn.LSTM(3, 3, 2, dropout=0.5)
    both = nn.ModuleList([model, recurrent])
    with without_dropout(both):
        assert (model.dropout.p, model.layer.self_attn.dropout, recurrent.dropout) == (0, 0, 0)
    assert (model.dropout.p, model.layer.self_attn.dropout, recurrent.dropout) == (0.1, 0.25, 0.5)


def test_global_generators_are_left_alone() -> None:
    subject = mlp()
    before = torch.get_rng_state()
    assert failures(battery(subject, trials=1, draws=10_000, steps=20)) == []
    assert torch.equal(before, torch.get_rng_state())


def test_sampler_law_of_a_tight_cap() -> None:
    """A cap below the mean changes the law of the sizes, and the law that is tested with it."""
    subject = mlp(sampling=steppe.CappedPoisson(cap=20), adjacency="zero-out")
    assert failures(sampler_law(subject, steps=60)) == []


def test_sensitivity_of_sequences_with_huge_values() -> None:
    torch.manual_seed(1)
    data = sequences()
    scaled = (data[0] * 1e15, data[1])
    assert sensitivity(subject_of(Pooled(), scaled), trials=2).passed


def test_the_clip_of_the_subject_is_the_unit() -> None:
    assert mlp().plan.sensitivity == CLIP


def test_what_is_audited_is_the_path_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clip that hands answers on as they are is neither prepared nor asked to decode."""
    calls: list[str] = []
    for name in ("prepare", "decode"):
        monkeypatch.setattr(NormClipper, name, lambda *given, name=name: calls.append(name))
    run = mlp().private()
    run.step(next(iter(run)))
    assert calls == []
    seen = torch.cat([weight.grad.flatten() for weight in run.model.parameters()])
    assert released(run).float().equal(seen)
