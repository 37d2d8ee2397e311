"""A first run on one's own table: as the README says it, and as people type it."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_calls import Shell

import steppe
from steppe.training import comparison
from steppe.training.recipes import model_kinds

README = (Path(__file__).parents[2] / "README.md").read_text()


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_kinds, "COLUMNS", replace(model_kinds.COLUMNS, steps=100))
    monkeypatch.setattr(model_kinds, "NUMBERS", replace(model_kinds.NUMBERS, steps=100))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files_of(run: Path) -> str:
    texts = [path.read_text() for path in run.rglob("*.*") if path.suffix in (".json", ".jsonl")]
    return "\n".join([*texts, (run / "run.toml").read_text()])


def test_the_readme_s_first_run_succeeds(shell: Shell, here: Path) -> None:
    (command,) = re.findall(r"^steppe (train votes.csv .*)$", README, re.M)
    out = shell.ok("data example")
    assert f"\ntry: steppe {command}\n" in out
    assert shell.ok("data example") == out  # the same file again
    found = shell.json(command)
    run = here / "runs" / "first"
    held = found["held_out"]
    assert held["score"] == "accuracy"
    assert 160 < held["records"] < 220
    assert 0.5 < held["baseline"] < 0.65 < held["low"] < held["value"] < held["high"] < 1
    # What depends on the labels of held-out records beyond the scores is shown, not written.
    assert "baseline" not in files_of(run)
    said = json.loads((run / "statement.json").read_text())
    assert said["held_out"] == 0.2
    assert (
        "A share of about 0.2 of the records was kept out of training"
        in (said["items"]["data accesses"])
    )
    assert said["population"] == 944 - held["records"]
    # The held-out part is the same wherever the run is used again.
    assert shell.json("predict runs/first votes.csv")["accuracy"] == pytest.approx(held["value"])
    assert len(shell.json("predict runs/first votes.csv")["predictions"]) == held["records"]
    model = steppe.load(run)
    rows = (here / "votes.csv").read_text().splitlines()
    cells = dict(zip(rows[0].split(","), rows[1].split(","), strict=True))
    assert model.predict([cells])[0] in ("Clinton", "Dole")
    (here / "votes.csv").write_text("mine")
    assert "is another file" in shell.refused("data example")


def test_plan_takes_what_train_takes(shell: Shell, here: Path) -> None:
    shell.ok("data example")
    options = "votes.csv --target vote --classes Clinton,Dole --holdout 0.2 --epsilon 2"
    planned = shell.json(f"plan {options} --bounds 0,100 --model mlp")
    trained = shell.json(f"train {options} --bounds 0,100 --model mlp --run run")
    assert planned["statement"]["held_out"] == 0.2
    assert planned["statement"]["checked"] == "records"
    of_run = json.loads((here / "run" / "plan.json").read_text())
    assert planned["plan"]["noise_multiplier"] == of_run["noise_multiplier"]
    assert planned["chosen"] == trained["chosen"]
    assert planned["configuration"]["model"] == {"name": "mlp", "features": 9, "classes": 2}
    assert shell.ok(f"plan {options} --bounds 0,100").startswith("chosen ")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("train votes.csv --data other.csv --epsilon 2", "--data='other.csv': the data are"),
        ("train --epsilon 2", "`--data` is required; name the data, or a TOML file."),
        ("train votes.csv", "`--epsilon` is required; add the budget."),
        ("train run.tml --epsilon 2 --classes 2", "--data='"),
        (
            "train votes.csv --epsilon 2 --target vote --classes 2 --holdout 1.5",
            "--holdout=1.5: must lie strictly between 0 and 1",
        ),
        (
            "train votes.csv --epsilon 2 --target vote --classes 2 --holdout 0.2 --test a.csv",
            "--holdout=0.2: cannot be given beside a test file",
        ),
        (
            "train votes.csv --epsilon 2 --target age --regression --classes 2",
            "--classes=2: is for class labels, but the loss mse_loss is for regression",
        ),
        (
            "train votes.csv --epsilon 2 --target age --regression --loss cross_entropy",
            "--loss='cross_entropy': is for labels, and --regression was given",
        ),
        (
            "train votes.csv --epsilon 2 --target vote --classes 2 --loss mse",
            "--loss='mse': is not known here",
        ),
        (
            "train votes.csv --epsilon 2 --target vote --classes Clinton,Dole --ceiling",
            "--ceiling=True: needs held-out records with targets",
        ),
        (
            "train votes.csv --epsilon 2 --target vote --classes Clinton,Dole --target-bounds 0,1",
            "--target-bounds=[0.0, 1.0]: is for a regression",
        ),
        (
            "train votes.csv --epsilon 2 --target age",
            "`--classes` is required; give the number of labels, or their names; for a "
            "regression give --regression.",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(shell: Shell, here: Path, line: str, message: str) -> None:
    shell.ok("data example")
    assert f"steppe: error: {message}" in shell.refused(line)
    assert not (here / "runs").exists()


def test_the_ceiling_is_shown_and_stated_and_not_written(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison, "_STEPS", 300)
    shell.ok("data example")
    options = "votes.csv --target vote --classes Clinton,Dole --holdout 0.2 --epsilon 0.5"
    found = shell.json(f"train {options} --run run --ceiling")
    ceiling = found["without_privacy"]
    assert ceiling["accuracy"] > 0.8
    text = files_of(here / "run")
    assert repr(ceiling["loss"]) not in text
    assert "a model was trained on the same records without privacy, to compare" in text
    out = shell.ok(f"train {options} --run again --ceiling")
    assert re.search(r"\nwithout privacy: accuracy \d\d\.\d\d %; not covered by ε", out)
    assert re.search(r"\npublished, on \d+ held-out records: accuracy \d\d\.\d\d %, 95 % int", out)
    assert "\nalways the most frequent label: accuracy 5" in out


def write_prices(path: Path, records: int = 1200) -> None:
    dice = random.Random(0)
    lines = ["rooms,district,age,price"]
    for _ in range(records):
        rooms, age = dice.randint(1, 8), dice.randint(0, 100)
        district = dice.choice(("north", "south", "east"))
        worth = {"north": 50_000, "south": 0, "east": 100_000}[district]
        price = 40_000 * rooms + worth - 800 * age + dice.gauss(0, 15_000)
        lines.append(f"{rooms},{district},{age},{price:.0f}")
    path.write_text("\n".join(lines))


PRICES = (
    "prices.csv --target price --regression --categories district=north,south,east "
    "--bounds rooms=1,8 --bounds age=0,100 --holdout 0.2 --epsilon 3"
)


def test_a_regression_says_prices_in_the_units_of_the_table(shell: Shell, here: Path) -> None:
    write_prices(here / "prices.csv")
    message = shell.refused(f"train {PRICES} --run run")
    assert message.startswith("steppe: error: targets='large': are far from unit scale")
    assert "--target-bounds LOW,HIGH" in message
    assert not (here / "run").exists()
    bounded = f"{PRICES} --target-bounds 0,500000 --model embedding-mlp"
    found = shell.json(f"train {bounded} --run run")
    held = found["held_out"]
    assert held["score"] == "loss"
    assert held["low"] < held["value"] < held["high"] < held["baseline"] / 2
    (here / "new.csv").write_text("rooms,district,age\n8,east,0\n1,south,100\n")
    dear, cheap = (row["output"] for row in shell.json("predict run new.csv")["predictions"])
    assert 250_000 < dear < 450_000
    assert -50_000 < cheap < 100_000
    assert steppe.load("run").predict("new.csv") == pytest.approx([dear, cheap])
    intervals = steppe.load("run").intervals("new.csv")
    assert (intervals.low < intervals.predictions).all()
    assert intervals.high[0] - intervals.low[0] > 100
    shell.ok("export run --out model")
    assert "−1 stands for 0, 1 for 500000" in (here / "model" / "README.md").read_text()
    # Other records with targets are scored on the scale of the run.
    write_prices(here / "other.csv", 300)
    for line in ("average run SWA --test other.csv", "flatness run --test other.csv --records 99"):
        rows = shell.json(line).get("table") or shell.json(line)["models"]
        assert all(row["loss"] < held["baseline"] / 2 for row in rows)
    text = (here / "other.csv").read_text().splitlines()
    (here / "unlabelled.csv").write_text("\n".join(line.rpartition(",")[0] for line in text))
    assert "--test='unlabelled.csv': have no targets to score with" in shell.refused(
        "average run SWA --test unlabelled.csv"
    )


def test_an_absolute_loss_by_its_name(shell: Shell, here: Path) -> None:
    write_prices(here / "prices.csv")
    bounded = PRICES.replace("--regression", "--loss l1_loss")
    shell.ok(f"train {bounded} --target-bounds 0,500000 --run run")
    settled = tomllib.loads((here / "run" / "run.toml").read_text())
    assert settled["train"]["loss"] == "l1_loss"
    assert settled["data"]["target_bounds"] == [0.0, 500000.0]


def test_what_looks_wrong_is_said_to_the_owner_alone(shell: Shell, here: Path) -> None:
    lines = ["patient,age,clinic,ill"]
    lines += [f"{n},{20 + n % 60},7,{int(n % 60 > 30)}" for n in range(600)]
    (here / "visits.csv").write_text("\n".join(lines))
    command = "visits.csv --target ill --classes 2 --epsilon 2"
    code, _, err = shell(f"train {command} --run run")
    assert code == 0
    assert "warning: column 'patient' is different in every record, like an identifier" in err
    assert "warning: column 'clinic' is the same in every record" in err
    text = files_of(here / "run")
    assert "identifier:" not in text
    assert "checks for the data's owner read every record" in text
    shell.ok(f"train {command} --run silent --no-checks")
    assert "checks for the data's owner" not in files_of(here / "silent")
    settled = tomllib.loads((here / "silent" / "run.toml").read_text())
    assert settled["data"]["checks"] is False


def test_a_population_far_from_the_records_is_refused(shell: Shell, here: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(here / "own.npz", x=rng.normal(size=(500, 4)), y=rng.integers(0, 2, 500))
    (here / "run.toml").write_text(
        '[data]\nplace = "own.npz"\nclasses = 2\nbounds = [-3, 3]\n'
        "[plan]\nepsilon = 2.0\npopulation = 60_000\n"
    )
    assert "population=60000: is ten or more times off the number of records" in shell.refused(
        "train run.toml --run run"
    )
    text = (here / "run.toml").read_text().replace("60_000", "600")
    (here / "run.toml").write_text(text)
    code, _, err = shell("train run.toml --run run")
    assert code == 0
    assert "warning: population=600: the data have fewer records" in err
    assert not math.isnan(json.loads((here / "run" / "result.json").read_text())["epsilon"])


def test_records_without_finite_inputs_are_counted_first(
    shell: Shell, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(here)
    (here / "first_run_records.py").write_text(
        "import torch\nfrom torch.utils.data import TensorDataset\n\n\n"
        "def made(lost):\n"
        "    x = torch.randn(400, 4)\n"
        "    x[:lost] = float('nan')\n"
        "    return TensorDataset(x, torch.randint(2, (400,)))\n\n\n"
        "def few():\n    return made(20)\n\n\ndef most():\n    return made(300)\n"
    )
    common = "--classes 2 --epsilon 2"
    code, _, err = shell(f"train first_run_records:few {common} --run few")
    assert code == 0
    assert "warning: 5 % of the records have an input that is NaN or infinite" in err
    message = shell.refused(f"train first_run_records:most {common} --run most")
    assert "data='75 %': of the records have an input that is NaN or infinite" in message
    assert shlex.quote("--no-checks") in message
    assert not (here / "most").exists()
