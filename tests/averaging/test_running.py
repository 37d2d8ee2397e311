"""Accumulators that share rows stay the averages that they were."""

from __future__ import annotations

import copy
import io
import math
import pickle

import pytest
import torch
from torch import nn

from steppe.averaging import EMA, SWA, Averages, PolynomialDecay, Window
from steppe.averaging.layout import ModelTensors
from steppe.averaging.running import Accumulators
from steppe.errors import SteppeError


def _model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4).double())
    model.scale = nn.Parameter(torch.tensor(0.5))
    return model


def _train(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))


def _same(one: EMA | SWA | PolynomialDecay, other: EMA | SWA | PolynomialDecay) -> bool:
    mine, theirs = one.weights(), other.weights()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_rows_move_by_the_formula_in_every_dtype() -> None:
    model = _model()
    layout = ModelTensors.of(model)
    rows = Accumulators(layout, 3)
    rows.move(layout.now(model).averaged, [1.0, 1.0, 1.0])
    before = [[tensor.clone() for tensor in rows.row(index)] for index in range(3)]
    _train(model)
    now = layout.now(model).averaged
    rows.move(now, [0.25, None, 1.0])
    for old, new, current in zip(before[0], rows.row(0), now, strict=True):
        expected = old + 0.25 * (current - old)
        torch.testing.assert_close(new, expected)
        assert new.dtype == current.dtype
    assert all(torch.equal(a, b) for a, b in zip(before[1], rows.row(1), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(now, rows.row(2), strict=True))


def test_a_row_that_rests_never_sees_what_is_not_finite() -> None:
    model = nn.Linear(1, 1, bias=False)
    layout = ModelTensors.of(model)
    rows = Accumulators(layout, 2)
    rows.move([torch.tensor([[1.0]])], [1.0, 1.0])
    rows.move([torch.tensor([[math.inf]])], [None, 1.0])
    assert [rows.row(index)[0].item() for index in (0, 1)] == [1.0, math.inf]


def test_averages_that_have_begun_keep_what_they_hold() -> None:
    model = _model()
    apart, joined = EMA(model, 0.9), EMA(model, 0.9)
    for _ in range(3):
        _train(model)
        apart.update(model)
        joined.update(model)
    together = Averages([SWA(model), joined])
    assert _same(apart, joined)
    _train(model)
    apart.update(model)
    together.update(model)
    assert _same(apart, joined)
    assert together[0].covers == 1


def test_an_average_of_two_groups_is_moved_by_both() -> None:
    model = _model()
    twice, other = EMA(model, 0.9), SWA(model)
    first, second = Averages([twice, other]), Averages([Window(model, 2), twice])
    reference = EMA(model, 0.9)
    for group in (first, second, first):
        _train(model)
        group.update(model)
        reference.update(model)
    assert _same(twice, reference)
    assert (twice.updates, other.updates) == (3, 2)


def test_the_same_average_twice_is_refused() -> None:
    model = nn.Linear(1, 1)
    average = EMA(model, 0.9)
    with pytest.raises(SteppeError, match="averages=1: is in the list twice"):
        Averages([average, average])


def test_one_saved_average_does_not_carry_the_others() -> None:
    model = nn.Linear(100, 100)
    together = Averages([EMA(model, 0.9), EMA(model, 0.99), SWA(model), SWA(model, warmup=3)])
    together.update(model)
    file = io.BytesIO()
    torch.save(together[0].state_dict(), file)
    assert file.getbuffer().nbytes < 1.5 * 4 * 10_100


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
def test_copies_go_on_by_themselves(way: str) -> None:
    model = _model()
    together = Averages([EMA(model, 0.9), SWA(model)])
    together.update(model)
    if way == "deepcopy":
        twin = copy.deepcopy(together)
    else:
        twin = pickle.loads(pickle.dumps(together))  # noqa: S301, the bytes are our own
    before = {name: tensor.clone() for name, tensor in together[0].weights().items()}
    _train(model)
    twin.update(model)
    assert all(torch.equal(before[name], t) for name, t in together[0].weights().items())
    together.update(model)
    assert _same(together[0], twin[0])
    assert _same(together[1], twin[1])


def test_buffers_are_averaged_in_the_order_of_the_model() -> None:
    model = nn.BatchNorm1d(2)
    names = ["running_mean", "running_var"]
    together = Averages([EMA(model, 0.9, average_buffers=order) for order in (names, names[::-1])])
    nn.init.constant_(model.running_mean, 5.0)
    nn.init.constant_(model.running_var, 7.0)
    together.update(model)
    for average in together:
        assert average.weights()["running_mean"].tolist() == [5.0, 5.0]
        assert average.weights()["running_var"].tolist() == [7.0, 7.0]


def test_another_order_of_the_same_names_is_another_model() -> None:
    one, other = nn.Module(), nn.Module()
    for model, names in ((one, "ab"), (other, "ba")):
        for name in names:
            model.register_parameter(name, nn.Parameter(torch.zeros(2)))
    with pytest.raises(SteppeError, match="averages=1: was made for another model"):
        Averages([EMA(one, 0.9), EMA(other, 0.9)])


def test_weights_that_one_average_cannot_hold_reach_none() -> None:
    model = nn.Linear(1, 1, bias=False)
    together = Averages([EMA(model, 0.5, warmup=False), Window(model, 2, dtype=torch.float16)])
    for value in (1.0, 3.0):
        nn.init.constant_(model.weight, value)
        together.update(model)
    nn.init.constant_(model.weight, 1e6)
    with pytest.raises(SteppeError, match="cannot hold the weights"):
        together.update(model)
    assert [average.updates for average in together] == [2, 2]
    assert [average.weights()["weight"].item() for average in together] == [2.0, 2.0]


def test_a_state_that_fits_only_in_part_is_not_loaded_at_all() -> None:
    model = nn.Linear(1, 1, bias=False)
    together = Averages([SWA(model), EMA(model, 0.9)])
    together.update(model)
    before = together[0].weights()["weight"].item()
    state = together.state_dict()
    state["0.average.weight"] = torch.tensor([[-7.0]])
    state["1.setting.decay"] = torch.tensor(0.5, dtype=torch.float64)
    with pytest.raises(SteppeError, match=r"the state was made with decay=0\.5"):
        together.load_state_dict(state)
    assert together[0].weights()["weight"].item() == before


def test_averages_made_in_inference_mode_can_be_updated_outside() -> None:
    model = nn.Linear(2, 1)
    with torch.inference_mode():
        together = Averages([EMA(model, 0.9), SWA(model), Window(model, 4, block=2)])
    for _ in range(3):
        together.update(model)
    assert [average.covers for average in together] == [3, 3, 3]
