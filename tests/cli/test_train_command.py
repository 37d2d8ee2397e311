"""`steppe train`, `resume` and `plan`: one small run, what it says, and bad input."""

from __future__ import annotations

import errno
import json
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cli_calls import Shell

from steppe.training.recipes import model_kinds


def test_a_run_from_a_file(shell: Shell, project: Path) -> None:
    out = shell.ok("train run.toml --run again")
    assert out.startswith("chosen ")
    assert "Flat(bound=1.0)" in out
    assert "probabilities stay calibrated" in out
    assert "\nlast " in out
    assert out.endswith("run: again\nreport: steppe report again\n")
    for name in ("run.toml", "statement.json", "ledger.jsonl", "result.json", "model.safetensors"):
        assert (project / "again" / name).exists()
    out = shell.ok("train run.toml --run", "my run")
    assert out.endswith("run: my run\nreport: steppe report 'my run'\n")


def test_runs_that_share_a_ledger_print_their_sum(shell: Shell, project: Path) -> None:
    out = shell.ok("train run.toml --run one --ledger patients.jsonl")
    assert "together" not in out
    line = f"\nledger: {project / 'patients.jsonl'}, new\n"
    assert out.count(line) == 2  # before training, and at the end
    assert out.index(line) < out.index("\nlast ") < out.rindex(line)
    out = shell.ok("train run.toml --run two --ledger patients.jsonl")
    assert out.count(f"\nledger: {project / 'patients.jsonl'}, 1 run before this one\n") == 2
    assert "\nall 2 runs of the ledger together: ε = " in out
    found = shell.json("train run.toml --run three --ledger patients.jsonl")
    assert found["ledger"]["runs"] == 3
    assert found["ledger"]["epsilon"] > found["epsilon"]
    assert "\nall 3 runs of the ledger together: ε = " in shell.ok("resume two")
    # Every run's own file names the ledger, wherever it is resumed from, and is not overruled.
    settled = tomllib.loads((project / "two" / "run.toml").read_text())
    assert settled["train"]["ledger"] == "{run}/../patients.jsonl"
    assert shell.refused("train two/run.toml --run four --ledger other.jsonl") == (
        f"steppe: error: --ledger='other.jsonl': the file has ledger = "
        f"{str(project / 'patients.jsonl')!r}; leave out one of the two.\n"
    )


@pytest.mark.parametrize(
    ("ledger", "message"),
    [
        ("", "ledger='': must name a file; write \"patients.jsonl\", say."),
        ("run", "ledger='run': is a folder, not a ledger; name a file in it."),
        (
            "table.csv",
            "ledger='table.csv': is not a ledger: line 1 is not a record; name the file that "
            "runs wrote or a new one, or restore it from a copy.",
        ),
    ],
)
def test_what_is_no_ledger_is_refused_before_data_are_loaded(
    shell: Shell, project: Path, ledger: str, message: str
) -> None:
    (project / "own.npz").unlink()
    before = (project / "table.csv").read_text()
    assert shell.refused("train run.toml --ledger", ledger) == f"steppe: error: --{message}\n"
    typed = shell.refused("train --data own.npz --classes 2 --epsilon 2 --ledger", ledger)
    assert typed == f"steppe: error: --{message}\n"
    assert (project / "table.csv").read_text() == before


def test_what_a_ledger_refuses_is_called_as_typed(shell: Shell, project: Path) -> None:
    (project / "other.npz").write_bytes((project / "own.npz").read_bytes())
    shell.ok("train run.toml --run one --ledger patients.jsonl")
    code, _, err = shell(
        "train --data other.npz --classes 2 --epsilon 2 --run two --ledger patients.jsonl"
    )
    assert code == 2
    assert err.startswith(
        "steppe: error: --data='other.npz': must be that of the ledger, 'own.npz'"
    )


def test_the_same_people_in_another_file_are_called_the_same(shell: Shell, project: Path) -> None:
    (project / "other.npz").write_bytes((project / "own.npz").read_bytes())
    shell.ok("train run.toml --run one --ledger patients.jsonl")
    text = (project / "run.toml").read_text().replace("own.npz", "other.npz")
    (project / "run.toml").write_text(text)
    code, _, err = shell("train run.toml --run two --ledger patients.jsonl")
    assert code == 2
    assert err.startswith("steppe: error: data.called='other.npz': must be that of the ledger")
    assert (
        "give the same people's data the same name (PrivateData(name=…), or called under [data])"
        in err
    )
    (project / "run.toml").write_text(text.replace("[data]", '[data]\ncalled = "own.npz"'))
    out = shell.ok("train run.toml --run two --ledger patients.jsonl")
    assert "all 2 runs of the ledger together" in out


def _make_brief(monkeypatch: pytest.MonkeyPatch, steps: int = 20) -> None:
    monkeypatch.setattr(model_kinds, "COLUMNS", replace(model_kinds.COLUMNS, steps=steps))
    monkeypatch.setattr(model_kinds, "NETWORK", replace(model_kinds.NETWORK, steps=steps))


VISITS = "--target ill --classes no,yes --categories sex=f,m --missing middle --epsilon 2"


def test_a_table_with_text_and_gaps(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_brief(monkeypatch)
    rows = [
        f"{age if age % 9 else ''},{'fm'[age % 2] if age % 7 else 'NA'},{('no', 'yes')[age > 50]}"
        for age in list(range(20, 80)) * 10
    ]
    for name, part in (("visits", rows), ("held-out", rows[::7])):
        (project / f"{name}.csv").write_text("\n".join(["age,sex,ill", *part]))
    (project / "new.csv").write_text("sex,age\nf,25\nm,\n,75\n")
    result = shell.json(f"train --data visits.csv --test held-out.csv {VISITS} --run table")
    assert result["table"][0]["accuracy"] > 0.7
    assert result["chosen"]["bounds"]["value"] == "of one column"

    (project / "visits.csv").unlink()  # who predicts needs the run, not its records
    found = shell.json("predict table new.csv --out labels.csv")
    assert [row["label"] for row in found["predictions"]][::2] == ["no", "yes"]
    assert found["accuracy"] is None
    assert (project / "labels.csv").read_text().splitlines()[1].startswith("0,no,")
    assert shell.json("predict table held-out.csv")["accuracy"] > 0.7
    assert shell.refused("predict table own.npz") == (
        "steppe: error: data='own.npz': the run was trained on a table with columns; give a CSV "
        "file with these columns.\n"
    )


def test_declared_bounds_are_not_read_off_the_records(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_brief(monkeypatch)
    rows = [f"{age},{age % 5},{int(age > 50)}" for age in list(range(20, 80)) * 10]
    (project / "ages.csv").write_text("\n".join(["age,visits,old", *rows]))
    command = "train --data ages.csv --target old --classes 2 --epsilon 2"
    result = shell.json(f"{command} --bounds age=0,120 --bounds visits=0,10 --run declared")
    assert "bounds" not in result["chosen"]
    settled = tomllib.loads((project / "declared" / "run.toml").read_text())["data"]
    assert settled["bounds"] == {"age": [0.0, 120.0], "visits": [0.0, 10.0]}
    assert "bounds_from" not in settled
    shell.ok(f"{command} --bounds 0,100 --run one-pair")
    assert "is not a pair of numbers" in shell.refused(f"{command} --bounds 3")
    assert "is for all columns" in shell.refused(f"{command} --bounds 0,1 --bounds age=0,1")


def test_pictures_on_another_scale_are_not_labelled(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_brief(monkeypatch)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    x = (rng.integers(0, 100, (400, 8, 8)) + 150 * y[:, None, None]).astype(np.uint8)
    np.savez(project / "bytes.npz", x_train=x, y_train=y)
    shell.ok("train --data bytes.npz --classes 2 --epsilon 2 --model logistic --run pictures")
    labels = []
    for name, new in (("bytes", x[:9]), ("unit", x[:9] / 255)):
        np.save(project / f"{name}.npy", new)
        rows = shell.json(f"predict pictures {name}.npy")["predictions"]
        labels.append([row["label"] for row in rows])
    assert labels[0] == labels[1]
    np.save(project / "wide.npy", x[:9].astype(np.float32))
    np.savez(project / "wide.npz", x_train=x[:9].astype(np.float32), y_train=y[:9])
    for name in ("wide.npy", "wide.npz"):
        assert "the run's pictures were bytes, scaled to [0, 1]" in shell.refused(
            f"predict pictures {name}"
        )


def test_what_becomes_of_batch_normalisation_is_said(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_brief(monkeypatch)
    model = "--model cli_test_models:normed"
    out = shell.ok(f"train --data own.npz --classes 2 --epsilon 2 {model}")
    assert "normalisation" in out
    assert "GroupNorm" in out
    assert "replaces batch normalisation in one layer, which would mix records" in out


@pytest.mark.parametrize("name", ["fashionmnist", "Fashion_MNIST", "fashion-mnist"])
def test_a_public_data_set_by_any_of_its_names(shell: Shell, project: Path, name: str) -> None:
    assert shell.refused(f"train --data {name} --epsilon 2 --classes 10") == (
        "steppe: error: --classes=10: is for your own data, but data.name is a public data set; "
        "leave it out.\n"
    )


def test_the_private_records_are_not_evaluated_on(shell: Shell, project: Path) -> None:
    line = "train --data table.csv --test ./table.csv --target ill --classes 2 --epsilon 2"
    err = shell.refused(line)
    assert "is the private training data, on which scores must not be shown" in err


def test_a_run_from_data_and_budget_alone(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _make_brief(monkeypatch)
    result = shell.json("train --data own.npz --classes 2 --epsilon 2 --run own")
    assert 1.9 < result["epsilon"] <= 2.0
    assert result["private"] is True
    assert result["chosen"]["model"]["value"] == "logistic"
    assert {"delta", "batch_size", "steps", "clip", "lr", "averages"} <= set(result["chosen"])


def test_a_finished_run_is_only_printed_again(shell: Shell, project: Path) -> None:
    before = json.loads((project / "run" / "result.json").read_text())
    result = shell.json("resume run")
    assert (result["steps"], result["lost"]) == (12, 0)
    assert result["epsilon"] == before["epsilon"]
    for now, then in zip(result["table"], before["table"], strict=True):
        assert {**now, "seconds": then["seconds"]} == then


def test_ctrl_c_says_how_to_go_on_and_resume_does(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steppe.training import loop

    whole = loop.StopRequest
    calls = []

    class AfterThree(whole):  # type: ignore[misc, valid-type]
        @property
        def made(self) -> bool:
            calls.append(1)
            return len(calls) > 3

        @made.setter
        def made(self, value: bool) -> None:
            del value

    monkeypatch.setattr(loop, "StopRequest", AfterThree)
    code, _, err = shell("train run.toml --run stopped")
    assert code == 130
    assert err.startswith("steppe: stopped after step 3 of 12 at ε = ")
    assert err.endswith("nothing is lost; resume with: steppe resume stopped\n")
    monkeypatch.setattr(loop, "StopRequest", whole)
    result = shell.json("resume stopped")
    assert result["steps"] == 12
    assert result["epsilon"] <= 3.0


@pytest.mark.parametrize("options", ["train --data own.npz --classes 2 --epsilon 3", "plan"])
def test_isolation(
    shell: Shell, project: Path, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not proven is refused, and goes one at a time or with a warning."""
    _make_brief(monkeypatch, steps=2)  # of which every record has a process
    monkeypatch.setattr("steppe.training.recipes.recipe._SMALLEST_BATCH", 4)
    if options == "plan":
        text = (project / "run.toml").read_text()
        text = text.replace('name = "logistic"', 'factory = "cli_test_models:reading"')
        text = text.replace("batch_size = 100", "batch_size = 4")
        (project / "reading.toml").write_text(text)
        options = "plan reading.toml"
    else:
        options += " --model cli_test_models:reading"
    message = shell.refused(options)
    assert "must not be read by Python" in message
    assert "Otherwise: --isolation each takes " in message
    assert "; --isolation probed only tries synthetic values" in message
    assert not (project / "runs").exists()
    found = shell.json(f"{options} --isolation each")
    assert (found.get("isolation") or found["statement"]["isolation"]) == "isolated"
    code, out, err = shell(f"{options} --isolation probed")
    assert code == 0
    assert "WARNING: isolation is only probed, not proven: ε is false if " in out
    if not options.startswith("plan"):
        assert "steppe: warning: isolation is only probed, not proven: ε is false if " in err
    else:
        assert "\nisolation: only tried on values (probed)\n" in out


def test_isolation_of_a_file_and_of_the_command_line(shell: Shell, project: Path) -> None:
    (project / "each.toml").write_text((project / "run.toml").read_text() + 'isolation = "each"\n')
    assert "\nisolation: by construction, records" in shell.ok("plan each.toml")
    for command in ("plan", "train"):
        assert shell.refused(f"{command} each.toml --isolation probed") == (
            "steppe: error: --isolation='probed': the file has isolation = 'each'; leave out one "
            "of the two.\n"
        )
    shell.ok("train run.toml --run each --isolation each")
    settled = tomllib.loads((project / "each" / "run.toml").read_text())
    assert settled["train"]["isolation"] == "each"
    assert shell.json("resume each")["isolation"] == "isolated"
    wrong = (project / "each.toml").read_text().replace('"each"', '"one"')
    (project / "each.toml").write_text(wrong)
    assert shell.refused("train each.toml") == (
        "steppe: error: train.isolation='one': must be one of 'proven', 'each', 'probed'.\n"
    )


def test_plan(shell: Shell, project: Path) -> None:
    before = sorted(os.listdir(project))
    out = shell.ok("plan run.toml")
    assert out.startswith("chosen ")
    assert "\n\nPrivacy statement\n\n1. setting: Central" in out
    assert "standard deviation of each column were read once" in " ".join(out.split())
    assert "\nisolation: proven from the operations\nevent: SelfComposedDpEvent(" in out
    assert "gradient depends on that record alone is proven" in " ".join(out.split())
    assert "\nforecast: " in out
    assert sorted(os.listdir(project)) == before
    result = shell.json("plan run.toml")
    assert result["statement"]["epsilon"] <= 3.0
    assert result["plan"]["steps"] == 12
    assert result["chosen"]["bounds"]["value"] == "of 6 columns"
    needs = result["forecast"]
    assert needs["seconds"] == pytest.approx(12 * needs["seconds_a_step"])
    assert needs["peak_bytes"] > 2**20


def test_plan_of_records_of_ones_own(shell: Shell, project: Path) -> None:
    (project / "cli_test_rows.py").write_text(
        "import torch\n\n\ndef make():\n"
        "    rows = [[(torch.randn(6), i % 2) for i in range(n)] for n in (1000, 50)]\n"
        "    return tuple(rows)\n"
    )
    text = (project / "run.toml").read_text().replace("own.npz", "cli_test_rows:make")
    (project / "own.toml").write_text(
        text.replace("classes = 2", "classes = 2\npublic = 30")
        + "\n[plan.clip]\nname = 'GEP'\nbases = 3\ngroups = 1\n"
    )
    result = shell.json("plan own.toml")
    assert result["statement"]["public_records"] == 30
    assert "30 records given as public" in result["statement"]["items"]["data accesses"]
    assert result["forecast"]["seconds"] > 0


def test_features_to_come_are_in_the_forecast(shell: Shell, project: Path) -> None:
    generator = np.random.default_rng(0)
    for name, count in (("few", 300), ("many", 30_300)):
        x = generator.integers(0, 255, (count, 8, 8), dtype=np.uint8)
        np.savez(f"{name}.npz", x_train=x, y_train=np.zeros(count, np.int64))
        (project / f"{name}.toml").write_text(
            f"[data]\nplace = '{name}.npz'\nclasses = 2\n"
            "[plan]\nepsilon = 2.0\nbatch_size = 50\npopulation = 300\n"
        )
    few, many = (
        shell.json(f"plan {name}.toml")["forecast"]["peak_bytes"] for name in ("few", "many")
    )
    assert many - few >= 30_000 * 81 * 4 * 4  # 81 maps of 2×2 in float32


SETTINGS = "train --data own.npz --classes 2 --epsilon 2"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "train",
            "`--data` is required; name the data, or a TOML file.",
        ),
        (
            "train --data own.npz",
            "`--epsilon` is required; add the budget.",
        ),
        (
            "train run.toml --epsilon 2",
            "--epsilon=2.0: cannot be given beside a file; set it in run.toml.",
        ),
        (
            "train nowhere.toml",
            "file='nowhere.toml': cannot be read (No such file or directory); give a TOML file.",
        ),
        (
            "train run.toml --run run",
            "--run='run': contains a run already; resume it with `steppe resume run`, or name "
            "another folder.",
        ),
        (
            "train --data own.npz --epsilon 2",
            "`--classes` is required; give the number of labels, or their names; for a regression "
            "give --regression.",
        ),
        (
            "train --data table.csv --classes 2 --epsilon 2",
            "`--target` is required; name the column of labels.",
        ),
        (
            "train --data gaps.csv --target ill --classes 2 --epsilon 2",
            "--data='gaps.csv': line 3, column 'visits': has no value; fill it in, or set "
            "--missing middle.",
        ),
        (
            "train --data pictures --classes 2 --epsilon 2",
            "--data='pictures': is a folder without .npy files; name an .npz file itself, save "
            "x_train.npy and y_train.npy, or read other files, such as pictures, by "
            "module:factory.",
        ),
        (
            "train no-epsilon.toml",
            "`plan.epsilon` is needed to choose clip, point by rule; give it, or all of "
            "these constants.",
        ),
        (
            "train no-target.toml",
            "`data.target` is required; name the column of labels.",
        ),
        (
            "train --data own.npz --classes 2 --epsilon nan",
            "--epsilon=nan: must not be NaN.",
        ),
        (
            f"{SETTINGS} --model cli_test_models:wide",
            "The model or its loss failed on 2 synthetic records with the shapes and types of the "
            "data (inputs from N(0, 1) or [0, 1), labels 0 and 1). It must take any number of such "
            "records.\n"
            "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x6 and 9x2)",
        ),
        (
            f"{SETTINGS} --model cli_test_models:mixing",
            "layer='1 (Softmax)': must treat every record alone, and aten._softmax mixes the "
            "records of the batch; compute along the axes of a record (dim=1 and later), with "
            "GroupNorm or LayerNorm in place of batch statistics.",
        ),
        (
            "train run.toml --run own.npz",
            "--run='own.npz': is a file; name a folder, new or empty.",
        ),
        (
            "resume nowhere",
            "run='nowhere': contains no run; give the folder that training printed.",
        ),
        (
            "plan nowhere.toml",
            "file='nowhere.toml': cannot be read (No such file or directory); give a TOML file.",
        ),
    ],
)
def test_bad_input(shell: Shell, project: Path, line: str, message: str) -> None:
    (project / "pictures").mkdir()
    (project / "pictures" / "a.png").write_bytes(b"")
    (project / "gaps.csv").write_text("age,visits,ill\n20,1,0\n80,,1\n")
    text = (project / "run.toml").read_text()
    (project / "no-epsilon.toml").write_text(text.replace("epsilon = 3.0\n", ""))
    (project / "no-target.toml").write_text(text.replace("own.npz", "table.csv"))
    before = sorted(os.listdir(project))
    code, _, err = shell(line)
    assert code == 2
    said = err.replace(f"{project}/", "").partition(" Otherwise: ")[0].rstrip("\n")
    said = re.sub(r" \(cli_calls\.py:\d+\)", "", said)  # no line of a user: that of the caller
    assert said == f"steppe: error: {message}"
    assert sorted(set(os.listdir(project)) - {"__pycache__"}) == before


def test_a_model_with_an_unknown_name(shell: Shell, project: Path) -> None:
    err = shell.refused(f"{SETTINGS} --model logistik")
    assert err.startswith("steppe: error: --model='logistik': must be one of linear, ")
    assert err.endswith("did you mean 'logistic'?\n")
    assert shell.refused(f"{SETTINGS} --model src/towers.py") == (
        "steppe: error: --model='src/towers.py': is a file, not a function; write "
        "towers:function, and run where `import` finds it.\n"
    )


def test_one_class_alone(shell: Shell, project: Path) -> None:
    err = shell.refused("train --data own.npz --epsilon 2 --classes yes")
    assert "'yes' is only one name; name at least two, like no,yes, or give their number" in err


def test_a_run_folder_that_cannot_be_made(shell: Shell, project: Path) -> None:
    code, _, err = shell("train run.toml --run own.npz/run")
    assert code == 2
    assert err == (
        "steppe: error: --run='own.npz/run': cannot be made (Not a directory); name a folder in a "
        "place where you may write.\n"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsilon = 3.0", "epsilon = 0", "error: plan.epsilon=0: must be finite and above 0"),
        (
            "epsilon = 3.0",
            "epsilon = 1e6",
            "error: plan.epsilon=1000000.0: is more than the run costs even with",
        ),
        ("epsilon = 3.0", "epsilno = 3.0", "plan.epsilno=3.0: is not known here, only "),
        ("delta = 1e-4", "delta = 2", "error: plan.delta=2: must lie strictly between 0 and 1"),
        ('place = "own.npz"', "place = 3", "data.place=3: must be text"),
        ('place = "own.npz"', 'place = "mislabelled.npz"', "labels must lie from 0 to 1"),
        (
            'place = "own.npz"',
            'place = "table.csv"',
            "`data.target` is required; name the column of labels",
        ),
        (
            'place = "own.npz"',
            'place = "table.csv"\ntarget = "il"',
            "data.target='il': is not a column of",
        ),
        (
            'place = "own.npz"',
            'place = "table.csv"\ntarget = "ill"\ncolumns = ["agge"]',
            "data.columns='agge': is not a column of",
        ),
        ("batch_size = 100", "batch_size = 9999", "plan.batch_size=9999.0: must not exceed the"),
        (
            "store_every = 2",
            'loss = "mse_loss"',
            "data.classes=2: is for class labels, but the loss mse_loss is for regression; leave "
            "out data.classes.",
        ),
        ("store_every = 2", "ledger = 5", "train.ledger=5: must be text"),
        ("store_every = 2", 'seed = "a"', "train.seed='a': must be a whole number"),
        ("classes = 2", "classes = 2\ncolumns = 5", "error: data.columns=5: "),
        ("lr = 1.0", 'momentum = "x"', "error: optimizer.momentum='x': must be a real number"),
        ("lr = 1.0", "momentum = 1.0", "error: optimizer.momentum=1.0: must lie in [0, 1)"),
        ('name = "SGD"', 'name = "SDG"', "optimizer.name='SDG': is not known here, only "),
        (
            'name = "SGD"\nlr = 1.0',
            'name = "Adamm"',
            "optimizer.name='Adamm': is not known here, only ",
        ),
        (
            "store_every = 2",
            "[averages]\nSWA = { warmup = 1000000 }",
            "averages='SWA(cycle=1, warmup=1000000)': would begin after the 12 steps of the plan; ",
        ),
        (
            "store_every = 2",
            "store_every = 4\n[averages]\nOPA = { k = 9 }",
            "averages='OPA(k=9)': needs more than the 3 checkpoints that the run will have stored",
        ),
        ("store_every = 2", "store_every = 99", "error: train.store_every=99: would store no"),
        (
            "steps = 12",
            "steps = 12\nviews = 4",
            "error: plan.views=4: needs a function that makes the views, and a file cannot "
            "contain one; leave it out, or train in Python: steppe.training.read(file).trainer("
            "augment=…).",
        ),
        (
            "steps = 12",
            'steps = 12\nclip = { name = "Flat", bound = -1.0 }',
            "error: plan.clip.bound=-1.0: must be finite and above 0",
        ),
        ("store_every = 2", 'ledger = "run"', "error: train.ledger='run': is a folder, not"),
        ("store_every = 2", 'publish = "SAW"', "error: train.publish='SAW': is not a model"),
        ("[plan]", "[plan", "is not TOML"),
    ],
)
def test_bad_files(shell: Shell, project: Path, old: str, new: str, message: str) -> None:
    text = (project / "run.toml").read_text()
    assert old in text
    (project / "run.toml").write_text(text.replace(old, new))
    for command in ("train run.toml --run never", "plan run.toml"):
        err = shell.refused(command)
        assert err.startswith("steppe: error: ")
        assert message in err
        assert err.count("\n") == 1
    assert not (project / "never").exists()


def test_a_folder_that_the_file_names_is_called_as_there(shell: Shell, project: Path) -> None:
    text = (project / "run.toml").read_text()
    (project / "run.toml").write_text(text.replace("store_every = 2", 'run = "own.npz"'))
    message = "='own.npz': is a file; name a folder, new or empty.\n"
    assert shell.refused("train run.toml") == f"steppe: error: train.run{message}"
    assert shell.refused("train run.toml --run own.npz") == f"steppe: error: --run{message}"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("train run.toml --run", "steppe train: error: argument --run: "),
        ("demo --run", "steppe demo: error: argument --run: "),
        ("report never --out", "steppe report: error: argument --out: "),
        ("predict never own.npz --out", "steppe predict: error: argument --out: "),
        ("resume", "steppe resume: error: argument RUN: "),
    ],
)
def test_empty_text_is_not_the_current_folder(
    shell: Shell, project: Path, command: str, said: str
) -> None:
    before = sorted(project.iterdir())
    err = shell.refused(command, "")
    assert err.startswith(f"{said}'' is not a file or folder; write it like runs/first\n")
    assert "--ledger=''" in shell.refused("train run.toml --ledger", "")
    assert sorted(project.iterdir()) == before


def test_a_full_disk_loses_nothing(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "never/config.json")

    with monkeypatch.context() as patch:
        patch.setattr("steppe.training.folder.write_atomically", full)
        code, _, err = shell("train run.toml --run never")
    assert code == 2
    assert "No space left on device" in err
    assert "Traceback" not in err


def test_another_configuration_is_refused(shell: Shell, project: Path) -> None:
    toml = project / "run" / "run.toml"
    toml.write_text(toml.read_text().replace("lr = 1.0", "lr = 4.0"))
    (project / "run" / "result.json").unlink()
    err = shell.refused("resume run")
    assert "differs from the value that the run began with" in err


def test_a_run_without_a_file_cannot_be_resumed_here(shell: Shell, project: Path) -> None:
    (project / "run" / "run.toml").unlink()
    assert shell.refused("resume run") == (
        "steppe: error: run='run': was not started from a configuration file, so its model and "
        "data are not known; create the same Trainer(…, run='run') and call its resume().\n"
    )


def test_data_and_models_that_are_not_there(shell: Shell, project: Path) -> None:
    place = project / "nowhere.npz"
    assert shell.refused("train --data nowhere.npz --epsilon 2") == (
        f"steppe: error: --data={str(place)!r}: there is no such file or folder; give an .npz or "
        ".csv file, a folder of .npy files, or module:factory.\n"
    )
    err = shell.refused(f"{SETTINGS} --model logistics")
    assert err.endswith("did you mean 'logistic'?\n")
