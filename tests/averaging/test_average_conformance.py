"""Every average of weights through one battery; a new one joins by a row in averaging_cases."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from averaging_cases import ROWS, Row, Tied, bits, same_bits, walk
from torch import nn

from steppe.averaging import EMA, SWA, Averages, PolynomialDecay, Window
from steppe.errors import ConfigurationError, MisuseError

every_average = pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@every_average
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_constant_sequence_stays_as_it_is(row: Row, dtype: torch.dtype, tmp_path: Path) -> None:
    model = Tied(dtype)
    average = row.make(model, tmp_path)
    for _ in range(10):
        average.update(model)
    before = bits(model)
    average.copy_to(model)
    exact = row.tolerance < 1e-3 or dtype == torch.bfloat16
    for name, tensor in bits(model).items():
        difference = (tensor - before[name]).double().abs().max()
        assert difference <= (0 if exact else row.tolerance * before[name].double().abs().max())


@every_average
@pytest.mark.parametrize("updates", [7, 12, 20])
def test_a_sequence_of_numbers_has_the_known_mean(row: Row, updates: int, tmp_path: Path) -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    values = np.random.default_rng(0).normal(size=updates)
    for sequence in (np.arange(1.0, updates + 1), values):
        average = row.make(model, tmp_path)
        for value in sequence:
            nn.init.constant_(model.weight, value)
            average.update(model)
        profile = row.profile(updates)
        assert profile.sum() == pytest.approx(1)
        expected = float(profile @ sequence)
        size = float(profile @ np.abs(sequence))
        tolerance = row.tolerance * size if row.tolerance > 1e-3 else 1e-12
        assert abs(average.weights()["weight"].item() - expected) <= tolerance


@every_average
def test_a_state_in_the_middle_of_a_run_goes_on_as_if_nothing_had_happened(
    row: Row, tmp_path: Path
) -> None:
    model = Tied()
    average, resumed = row.make(model, tmp_path), row.make(model, tmp_path)
    for step in range(8):
        walk(model, step)
        average.update(model)
    resumed.load_state_dict(copy.deepcopy(average.state_dict()))
    for step in range(8, 17):
        walk(model, step)
        average.update(model)
        resumed.update(model)
    assert resumed.updates == average.updates == 17
    assert same_bits(resumed.weights(), average.weights())


@every_average
def test_a_state_survives_safetensors(row: Row, tmp_path: Path) -> None:
    from safetensors.torch import load, save

    model = Tied()
    average, resumed = row.make(model, tmp_path), row.make(model, tmp_path)
    for step in range(8):
        walk(model, step)
        average.update(model)
    resumed.load_state_dict(load(save(average.state_dict())))
    assert same_bits(resumed.weights(), average.weights())


@every_average
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_updates_only_read_and_swaps_come_back_bit_for_bit(
    row: Row, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = Tied(dtype)
    average = row.make(model, tmp_path)
    for step in range(7):
        walk(model, step)
        before = bits(model)
        average.update(model)
        assert same_bits(bits(model), before)
    with torch.no_grad():
        model.embed.weight[0, 0] = float("nan")
        model.embed.weight[0, 1] = -0.0
    before = bits(model)
    with average.applied(model) as worn:
        assert worn is model
        assert not same_bits(bits(model), before)
        assert model.out.weight is model.embed.weight
        assert model.seen == 6
    assert same_bits(bits(model), before)

    def fail_inside() -> None:
        with average.applied(model):
            nn.init.zeros_(model.embed.weight)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail_inside()
    assert same_bits(bits(model), before)


@every_average
def test_many_at_once_are_the_same_as_one_by_one(row: Row, tmp_path: Path) -> None:
    model = Tied(torch.bfloat16)
    alone = row.make(model, tmp_path)
    together = Averages([row.make(model, tmp_path), EMA(model, decay=0.5)])
    resumed = Averages([row.make(model, tmp_path), EMA(model, decay=0.5)])
    for step in range(9):
        walk(model, step)
        alone.update(model)
        together.update(model)
    resumed.load_state_dict(together.state_dict())
    assert same_bits(together[0].weights(), alone.weights())
    assert same_bits(resumed[0].weights(), alone.weights())
    assert len(together) == 2
    assert [average.updates for average in together] == [9, 9]


@every_average
def test_nothing_is_applied_before_anything_was_averaged(row: Row, tmp_path: Path) -> None:
    model = Tied()
    before = bits(model)
    with (
        pytest.raises(
            MisuseError, match=r"No weights have been averaged yet, after 0 updates. Call"
        ),
        row.make(model, tmp_path).applied(model),
    ):
        pass
    assert same_bits(bits(model), before)


def test_half_precision_models_are_averaged_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    average = SWA(model)
    for value in (256.0, 258.0, 258.0, 258.0):  # bfloat16 has nothing between 256 and 258
        nn.init.constant_(model.weight, value)
        average.update(model)
    assert average.weights()["weight"].item() == 257.5
    assert average.weights()["weight"].dtype == torch.float32


def test_buffers_are_copied_unless_named_and_frozen_weights_left_alone() -> None:
    model = Tied()
    copied, averaged = SWA(model), SWA(model, average_buffers=["level"])
    for step in range(1, 4):
        walk(model, step)
        copied.update(model)
        averaged.update(model)
    assert copied.weights()["level"].tolist() == [3.0, 3.0]
    assert averaged.weights()["level"].tolist() == [2.0, 2.0]
    assert averaged.weights()["seen"] == 3
    assert "frozen" not in copied.weights()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m: EMA(m, decay=1.0), r"decay=1\.0: must lie in \[0, 1\)"),
        (lambda m: EMA(m, 0.9, warmup=100), r"warmup=100: must be True or False, since its length"),
        (lambda m: EMA(m, decay=-0.1), r"decay=-0\.1: must be finite and not negative; give"),
        (
            lambda m: SWA(m, warmup=0.5),
            r"`steps` is required where warmup is a fraction of the run",
        ),
        (lambda m: SWA(m, warmup=1.5), r"warmup=1\.5: must be a whole number of updates, or a"),
        (lambda m: SWA(m, warmup=9, steps=8), r"warmup=9: must not be longer than the run"),
        (lambda m: SWA(m, cycle=0), r"cycle=0: must be a whole number of at least 1"),
        (lambda m: PolynomialDecay(m, gamma=-1), r"gamma=-1: must be finite and not negative"),
        (lambda m: Window(m, k=10, block=3), r"block=3: must divide k=10; choose a divisor of k"),
        (lambda m: Window(m, k=2, dtype=torch.int8), r"dtype=torch.int8: must be a floating"),
        (lambda m: Window(m, k=2, folder="/nowhere"), r"folder='/nowhere': cannot hold a scratch"),
        (
            lambda m: SWA(m, average_buffers=["seen"]),
            r"average_buffers='seen': has dtype torch.int64, and whole numbers cannot",
        ),
        (
            lambda m: SWA(m, average_buffers=["heard"]),
            r"average_buffers='heard': is no buffer that the model stores; use one of: level, seen",
        ),
        (lambda m: SWA(m.requires_grad_(False)), r"model='Tied': has no trained parameter"),
        (lambda m: Averages([]), r"averages=\[\]: must not be empty"),
        (lambda m: Averages([SWA(m), SWA(nn.Linear(1, 1))]), r"averages=1: was made for another"),
    ],
)
def test_bad_settings_are_refused(make, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigurationError, match=message):
        make(Tied())


def test_another_model_or_state_is_refused() -> None:
    average = EMA(nn.Linear(2, 3), decay=0.9)
    with pytest.raises(ConfigurationError, match=r"model='weight': has shape \(3, 4\) here and"):
        average.update(nn.Linear(4, 3))
    with pytest.raises(ConfigurationError, match=r"model='weight': has no tensor of this name"):
        average.update(nn.Sequential(nn.Linear(2, 3)))
    other = EMA(nn.Linear(2, 3), decay=0.99)
    with pytest.raises(
        ConfigurationError, match=r"decay=0\.9: the state was made with decay=0\.99"
    ):
        average.load_state_dict(other.state_dict())
    with pytest.raises(ConfigurationError, match=r"'average\.bias': the state belongs to another"):
        average.load_state_dict(Window(nn.Linear(2, 3), k=2).state_dict())
    wider = EMA(nn.Linear(5, 3), decay=0.9)
    with pytest.raises(ConfigurationError, match=r"'average.weight': has shape \(3, 5\), not"):
        average.load_state_dict(wider.state_dict())


def test_weights_that_are_unfrozen_later_are_not_lost_silently() -> None:
    model = Tied()
    average = SWA(model)
    model.frozen.requires_grad_(True)
    with pytest.raises(ConfigurationError, match=r"parameter='frozen': was frozen or absent when"):
        average.update(model)


def test_a_window_covers_what_it_says_and_stores_within_its_rounding(tmp_path: Path) -> None:
    model = nn.Linear(40, 25, bias=False)
    exact = Window(model, k=4)
    narrow = {
        dtype: Window(model, k=4, folder=tmp_path, dtype=dtype)
        for dtype in (torch.bfloat16, torch.float16)
    }
    blocks = Window(model, k=4, block=2)
    sizes = []
    for step in range(7):
        walk(model, step)
        sizes.append(model.weight.detach().abs().double())
        for average in (exact, blocks, *narrow.values()):
            average.update(model)
    assert (exact.covers, blocks.covers) == (4, 5)
    mean_size = torch.stack(sizes[-4:]).mean(0)
    for average in narrow.values():
        error = (average.weights()["weight"] - exact.weights()["weight"]).abs()
        assert bool((error <= average.rounding * mean_size * (1 + 1e-4)).all())
        assert error.max() > 0.1 * average.rounding  # the bound is not idle
    assert list(tmp_path.iterdir()) == []  # the scratch file has no name


def test_float16_refuses_weights_beyond_its_range() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1e6)
    with pytest.raises(ConfigurationError, match=r"dtype=torch.float16: cannot hold the weights"):
        Window(model, k=2, dtype=torch.float16).update(model)


def test_a_long_window_does_not_drift() -> None:
    model = nn.Linear(1, 1, bias=False)
    average = Window(model, k=3)
    for value in [1e7] * 50 + [0.1, 0.2, 0.3]:
        nn.init.constant_(model.weight, value)
        average.update(model)
    assert average.weights()["weight"].item() == pytest.approx(0.2, rel=1e-7)


def test_the_tail_mean_needs_one_copy_only() -> None:
    model = nn.Linear(3, 3)
    tail, window = SWA(model, warmup=20 - 6 + 1), Window(model, k=6)
    for step in range(20):
        walk(model, step)
        tail.update(model)
        window.update(model)
    torch.testing.assert_close(tail.weights(), window.weights(), rtol=0, atol=1e-6)


def test_running_averages_agree_with_torch() -> None:
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    model = nn.Linear(5, 4)
    pairs = [
        (SWA(model), AveragedModel(model)),
        (
            EMA(model, decay=0.7, warmup=False),
            AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7)),
        ),
    ]
    for step in range(9):
        walk(model, step)
        for ours, theirs in pairs:
            ours.update(model)
            theirs.update_parameters(model)
    for ours, theirs in pairs:
        expected = dict(theirs.module.named_parameters())
        for name, tensor in ours.weights().items():
            torch.testing.assert_close(tensor, expected[name].detach(), rtol=1e-6, atol=1e-6)


def test_the_stated_rounding_of_each_dtype() -> None:
    model = nn.Linear(1, 1)
    found = {d: Window(model, k=1, dtype=d).rounding for d in (torch.bfloat16, torch.float16)}
    assert found == {torch.bfloat16: 2**-8, torch.float16: 2**-11}
    assert Window(model, k=1).rounding == 2**-24
