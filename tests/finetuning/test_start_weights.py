"""Weights of a start in a model: what fits, what is listed, and what the statement says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from finetuning_cases import network, privately, started
from torch import nn

import steppe
from steppe.errors import ConfigurationError, DataError, UnsupportedModelError
from steppe.finetuning import freeze_batch_norm, load_start, replace_head


def test_a_start_gives_all_weights_and_statistics(tmp_path: Path) -> None:
    origin, path = started(tmp_path)
    model = load_start(network(), path).eval()
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(model(x), origin(x))


def test_a_new_head_leaves_the_rest_as_the_start_has_it(tmp_path: Path) -> None:
    origin, path = started(tmp_path)
    for classes in (3, 7):  # the network that is given may have been made for other classes
        model = load_start(network(classes), path, head=5)
        assert model[10].out_features == 5
        assert torch.equal(model[8].weight, origin[8].weight)
        fresh = load_start(network(classes), path, head=3)
        assert not torch.equal(fresh[10].weight, origin[10].weight)


def test_what_does_not_match_is_listed(tmp_path: Path) -> None:
    _, path = started(tmp_path)
    text = (
        r"does not fit the model; of other shapes: 10\.weight \(3, 8\) in the start, \(4, 8\) in "
        r"the model, 10\.bias \(3,\) in the start, \(4,\) in the model; use its network, network, "
        r"with the same sizes, or give head= with the number of classes if the head alone differs\."
    )
    with pytest.raises(DataError, match=text):
        load_start(network(4), path)
    other = network()
    other[4] = nn.Identity()
    with pytest.raises(DataError, match=r"does not fit the model; not in the model: 4\.bias, "):
        load_start(other, path)
    longer = nn.Sequential(*network()[:-1], nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.raises(DataError, match=r"not in the start: 12\.weight, 12\.bias; of other shapes"):
        load_start(longer, path)
    with pytest.raises(DataError, match=r"0\.weight \(4, 1, 3, 3\) in the start, \(6, 1, 3, 3\)"):
        load_start(network(width=6), path, head=3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            nn.Linear(4, 2),
            r"head='Linear': is the whole model, so nothing of a start would",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)),
            r"head=\"'1', a LayerNorm\": the last layer with weights must be torch.nn.Linear",
        ),
        (nn.ReLU(), r"head='none': the last layer with weights must be"),
    ],
)
def test_a_model_without_a_linear_head_keeps_it(model: nn.Module, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        replace_head(model, 3)


@pytest.mark.parametrize("head", [0, 2.0, True])
def test_a_head_has_a_number_of_outputs(head: int) -> None:
    with pytest.raises(ConfigurationError, match=r"head=.*: must be a whole number of at least 1"):
        replace_head(network(), head)


def test_batch_norm_left_in_training_mode_is_refused_by_name(tmp_path: Path) -> None:
    _, path = started(tmp_path)
    model = load_start(network(), path, head=3).train()
    text = r"layer='1 \(BatchNorm2d\)', batch_norm training=True: .* or call eval\(\) on"
    with pytest.raises(UnsupportedModelError, match=text):
        privately(model)


def test_the_statement_says_what_the_start_saw(tmp_path: Path) -> None:
    _, path = started(tmp_path)
    model = freeze_batch_norm(load_start(network(), path, head=3))
    private = privately(model)
    for batch in private:
        private.step(batch)
    statement = private.statement()
    text = statement.items["data accesses"]
    assert "begin with a start trained on shapes (320 records), by DPAdapter training" in text
    assert statement.to_dict()["starts"] == ["shapes (320 records), by DPAdapter training"]
    plain = privately(freeze_batch_norm(network())).statement()
    assert "start" not in plain.items["data accesses"]
    assert plain.starts == ()


def test_a_detached_part_of_a_start_is_an_error(tmp_path: Path) -> None:
    class Detached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = freeze_batch_norm(load_start(network(), started(tmp_path)[1]))
            self.head = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x).detach())

    text = r"parameters=\['body\.0\.weight', .*cannot move: no gradient comes to these weights"
    with pytest.raises(steppe.errors.UnsupportedModelError, match=text):
        privately(Detached())
