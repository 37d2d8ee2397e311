"""`steppe inspect`: the layer table of a named network and of the user's own; bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_calls import Shell

MODELS = """
import torch
from torch import nn

not_a_function = 3

def build():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))

def words():
    return nn.Embedding(10, 4)

def mixing():
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))

def number():
    return 3

class Reads(nn.Linear):
    def forward(self, x):
        float(x.detach().sum())
        return super().forward(x)

def reading():
    return Reads(3, 2)

def broken():
    raise KeyError("weights.bin")
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inspected_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "inspected_models", raising=False)


def test_a_network_by_name(shell: Shell) -> None:
    out = shell.ok("inspect cnn-tanh-26k --input-shape 1,28,28")
    assert out.startswith("weights           operation  path         size")
    assert out.endswith(
        "\nisolation: proven from the operations\ntrained weights: 26,010\n",
    )


def test_the_users_own_model(shell: Shell) -> None:
    result = shell.json("inspect inspected_models:build --input-shape 3,4")
    assert result["trained_weights"] == 52
    (layer,) = result["layers"]
    assert (layer["operation"], layer["path"], layer["size"]) == ("linear", "linear", 52)
    assert layer["weights"] == ["1.weight", "1.bias"]
    assert result["bytes_per_record"] > 0


def test_tokens(shell: Shell) -> None:
    result = shell.json("inspect inspected_models:words --input-shape 5 --dtype int64")
    assert result["layers"][0]["operation"] == "embedding"


def test_how_it_is_known_that_records_stand_alone(shell: Shell) -> None:
    assert shell.json("inspect inspected_models:build --input-shape 3,4")["isolation"] == "proven"
    message = shell.refused("inspect inspected_models:reading --input-shape 3")
    assert "values made from records must not be read by Python" in message
    assert " Otherwise: --isolation each " in message
    assert "; --isolation probed only " in message
    out = shell.ok("inspect inspected_models:reading --input-shape 3 --isolation each")
    assert "\nisolation: by construction, records go through the model one at a time\n" in out
    assert "WARNING" not in out
    out = shell.ok("inspect inspected_models:reading --input-shape 3 --isolation probed")
    assert "\nisolation: only tried on values (probed)\nWARNING: isolation is only probed, " in out
    result = shell.json("inspect inspected_models:reading --input-shape 3 --isolation probed")
    assert result["isolation"] == "probed"
    for isolation in ("proven", "probed"):
        words = f"inspect inspected_models:mixing --input-shape 3 --isolation {isolation}"
        assert "BatchNorm1d" in shell.refused(words)
    words = "inspect inspected_models:build --input-shape 3,4 --isolation no"
    assert "argument --isolation: invalid choice: 'no'" in shell.refused(words)


def test_records_that_influence_each_other(shell: Shell) -> None:
    message = shell.refused("inspect inspected_models:mixing --input-shape 3")
    assert message.startswith("steppe: error: ")
    assert "BatchNorm1d" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "no_such_module:build --input-shape 3",
            "model='no_such_module:build': cannot be imported: "
            "ModuleNotFoundError: No module named 'no_such_module'; "
            "write module:factory, and run where `import module` works.",
        ),
        (
            "inspected_models:bild --input-shape 3",
            "model='inspected_models:bild': inspected_models has no 'bild'; write module:factory.",
        ),
        (
            "inspected_models:not_a_function --input-shape 3",
            "model='inspected_models:not_a_function': is not a function; name a function without "
            "arguments.",
        ),
        (
            "inspected_models:number --input-shape 3",
            "model='inspected_models:number': gave a int; let the factory return an nn.Module.",
        ),
        (
            "inspected_models:broken --input-shape 3",
            "model='inspected_models:broken': raised KeyError at inspected_models.py:28; see "
            'the whole error with python -c "import inspected_models; inspected_models.broken()".',
        ),
        (
            "inspected_models:build --input-shape 3,-4",
            "--input-shape=-4: must be a whole number of at least 1.",
        ),
    ],
)
def test_bad_models(shell: Shell, words: str, message: str) -> None:
    assert shell.refused(f"inspect {words}") == f"steppe: error: {message}\n"


def test_a_name_that_is_almost_right(shell: Shell) -> None:
    message = shell.refused("inspect cnn-tanh-26 --input-shape 1,28,28")
    assert message.endswith("did you mean 'cnn-tanh-26k'?\n")


def test_a_shape_that_the_model_cannot_take(shell: Shell) -> None:
    message = shell.refused("inspect inspected_models:build --input-shape 7")
    assert message.startswith(
        "steppe: error: --input-shape='7': the model fails on these records: RuntimeError: "
    )
    assert message.endswith("give the shape of one record without the batch, and its --dtype.\n")


def test_a_shape_that_is_none(shell: Shell) -> None:
    assert shell.refused("inspect cnn-tanh-26k --input-shape 1x28") == (
        "steppe inspect: error: argument --input-shape: '1x28' is not a whole number; write "
        "it like 60000\nSee steppe inspect --help.\n"
    )
