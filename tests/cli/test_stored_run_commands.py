"""`steppe average`, `predict` and `flatness` on one small run; bad input for each."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from cli_calls import Shell


def test_averages_of_the_stored_checkpoints(shell: Shell, project: Path) -> None:
    out = shell.ok("average run EMA:decay=0.5 OPA:k=3")
    assert out.startswith("6 checkpoints of run, scored on its held-out data\n\nmodel ")
    rows = shell.json("average run SWA --burn-in 6")
    assert rows["checkpoints"] == 3
    names = [row["model"] for row in rows["table"]]
    assert names == ["last stored", "SWA(cycle=1, warmup=0) of 3 stored"]
    written = {path.name for path in (project / "run" / "averages").iterdir()}
    assert "SWA_cycle=1_warmup=0_of_3_stored.safetensors" in written


def test_an_average_is_the_mean_of_the_checkpoints(shell: Shell, project: Path) -> None:
    from safetensors.torch import load_file

    from steppe.averaging import CheckpointStore

    shell.ok("average run SWA")
    found = load_file(project / "run/averages/SWA_cycle=1_warmup=0_of_6_stored.safetensors")
    store = CheckpointStore(project / "run" / "store")
    stored = [store.load(entry) for entry in store.entries()]
    for name, value in found.items():
        mean = sum(weights[name] for weights in stored) / len(stored)
        np.testing.assert_allclose(value.numpy(), mean.numpy(), atol=1e-6)


def test_what_comes_of_a_seeded_run_is_stamped(shell: Shell, project: Path) -> None:
    from safetensors import safe_open

    from steppe.noise import SeededSource
    from steppe.training import config

    made = config.read("run.toml").trainer("seeded", source=SeededSource(0), progress=False)
    reason = made.fit().statement.not_private_reason
    shell.ok("average seeded SWA")
    with safe_open("seeded/averages/SWA_cycle=1_warmup=0_of_6_stored.safetensors", "pt") as file:
        assert file.metadata()["not_private_reason"] == reason
    again = shell.json("resume seeded")
    assert (again["epsilon"], again["private"]) == (None, False)
    shell.ok("report seeded")
    assert "NOT PRIVATE" in (project / "seeded" / "report.html").read_text()
    shell.ok("report run seeded --out both.html")


def test_one_of_each_kind_without_arguments(shell: Shell, project: Path) -> None:
    names = [row["model"] for row in shell.json("average run")["table"]]
    assert [name.partition("(")[0] for name in names] == [
        "last stored",
        "SWA",
        "EMA",
        "PolynomialDecay",
        "OPA",
        "OMV",
    ]


def test_any_horizon_is_rebuilt_from_power_averages(shell: Shell, project: Path) -> None:
    text = (project / "run.toml").read_text()
    power = "[averages]\nPowerAverages = { every = 2 }\nPolynomialDecay = { gamma = 5 }\n"
    (project / "run.toml").write_text(f"{text}\n{power}")
    shell.ok("train run.toml --run powers")
    kept = json.loads((project / "powers" / "result.json").read_text())["table"][-1]
    _, rebuilt = shell.json("average powers PolynomialDecay:gamma=5")["table"]
    assert rebuilt["model"] == "PolynomialDecay(gamma=5) of all steps"
    assert rebuilt["residual"] < 0.1
    assert rebuilt["loss"] == pytest.approx(kept["loss"], abs=0.01)
    assert "residual" in shell.ok("average powers EMA:decay=0.9 SWA")
    _, later = shell.json("average powers PolynomialDecay:gamma=5 --burn-in 4")["table"]
    assert later["model"].endswith(" stored")  # power averages hold the first steps too
    assert "residual" not in later


def test_predictions(shell: Shell, project: Path) -> None:
    out = shell.ok("predict run new.npy")
    assert out.startswith("record  label  probability   95% interval  agreement\n     0 ")
    assert "… and 2 more; --out FILE writes all of them" in out
    model = "EMA(decay=0.33, warmup=1)"
    assert out.endswith(f"\n12 records, predictions by {model}, intervals by 6 checkpoints\n")
    result = shell.json("predict run new.npy --checkpoints 3 --interval 0.5")
    assert (result["checkpoints"], result["interval"], result["accuracy"]) == (3, 0.5, None)
    for row in result["predictions"]:
        assert 0 <= row["low"] <= row["probability"] <= row["high"] <= 1
    assert len(result["predictions"]) == 12


def spoil_published(project: Path) -> None:
    """Let the published model always say 1, which the checkpoints do not."""
    from safetensors.torch import load_file, save_file

    path = project / "run" / "published.safetensors"
    weights = {name: value.zero_() for name, value in load_file(path).items()}
    weights["1.bias"][1] = 1.0
    save_file(weights, path, {"model": "EMA(spoilt)"})


def test_labels_are_those_of_the_published_model(shell: Shell, project: Path) -> None:
    by_both = shell.json("predict run new.npy")["predictions"]
    spoil_published(project)
    found = shell.json("predict run new.npy")
    assert found["model"] == "EMA(spoilt)"
    assert {row["label"] for row in found["predictions"]} == {1}
    # What is said about a label is what the checkpoints say about this label.
    pairs = zip(found["predictions"], by_both, strict=True)
    others = [(now, before) for now, before in pairs if before["label"] == 0]
    assert others
    for now, before in others:
        assert now["probability"] == pytest.approx(1 - before["probability"], abs=1e-5)
        assert now["agreement"] == pytest.approx(1 - before["agreement"], abs=1e-5)
    together = shell.json("predict run new.npy --by checkpoints")
    assert together["model"] == "OPA(k=6)"
    assert {row["label"] for row in together["predictions"]} == {0, 1}


def test_a_run_that_published_no_model_answers_by_its_checkpoints(
    shell: Shell, project: Path
) -> None:
    (project / "run" / "published.safetensors").unlink()
    assert shell.json("predict run new.npy")["model"] == "OPA(k=6)"


def test_a_run_that_has_not_ended_says_so(shell: Shell, project: Path) -> None:
    for name in ("published.safetensors", "result.json"):
        (project / "run" / name).unlink()
    code, out, err = shell("predict run new.npy")
    assert code == 0
    assert "predictions by OPA(k=6)" in out
    assert err == "the run has not ended and has published no model yet: its checkpoints are used\n"
    assert shell("predict run new.npy --by checkpoints")[2] == ""


def test_the_accuracy_is_that_of_the_published_row(shell: Shell, project: Path) -> None:
    result = json.loads((project / "run" / "result.json").read_text())
    row = next(row for row in result["table"] if row["model"] == result["published"])
    assert shell.json("predict run own.npz")["accuracy"] == pytest.approx(row["accuracy"])


def test_predictions_as_a_file(shell: Shell, project: Path) -> None:
    assert shell.ok("predict run new.npy --out labels.csv").endswith("written: labels.csv\n")
    lines = (project / "labels.csv").read_text().splitlines()
    assert lines[0] == "record,label,probability,low,high,agreement"
    assert len(lines) == 13


def test_labels_give_an_accuracy_and_public_data_a_figure(shell: Shell, project: Path) -> None:
    x = np.load(project / "new.npy")
    np.savez(project / "may.npz", x_train=x, y_train=(x[:, 0] + x[:, 1] > 0).astype(np.int64))
    result = shell.json("predict run may.npz --public")
    assert result["accuracy"] >= 0.5
    kept = json.loads((project / "run" / "figures.json").read_text())["intervals"]
    assert (kept["data"], kept["public"], kept["records"]) == ("may.npz", True, 12)


def test_of_the_runs_own_data_the_test_part_is_taken(shell: Shell, project: Path) -> None:
    out = shell.ok("predict run own.npz --public")
    assert "\n200 records, predictions by EMA(" in out
    assert ", intervals by 6 checkpoints, accuracy " in out
    assert out.endswith("; the test part of own.npz\n")
    kept = json.loads((project / "run" / "figures.json").read_text())["intervals"]
    assert (kept["data"], kept["records"]) == ("own.npz", 200)


PRIVATE = "are the private records of the run, but the results would be shown; use other records"


def as_folder(project: Path) -> None:
    """The run's training records, and no others, as a folder of arrays that the run names."""
    (project / "arrays").mkdir()
    with np.load(project / "own.npz") as own:
        for name in ("x_train", "y_train"):
            np.save(project / "arrays" / f"{name}.npy", own[name])
    toml = project / "run" / "run.toml"
    toml.write_text(toml.read_text().replace("own.npz", "arrays"))


@pytest.mark.parametrize("public", ["", " --public"])
def test_the_private_records_are_refused(shell: Shell, project: Path, public: str) -> None:
    toml = project / "run" / "run.toml"
    with_test = toml.read_text()
    toml.write_text(with_test.replace("own.npz", "untested.npz"))
    (project / "link.npz").symlink_to(project / "untested.npz")
    for place in ("untested.npz", "./run/../untested.npz", "link.npz"):
        assert shell.refused(f"predict run {place}{public} --out rows.csv") == (
            f"steppe: error: data='{place}': {PRIVATE}, or add a test part.\n"
        )
    toml.write_text(with_test)
    as_folder(project)
    for place in ("arrays", "arrays/x_train.npy"):
        assert PRIVATE in shell.refused(f"predict run {place}{public} --out rows.csv")
    assert not (project / "run" / "figures.json").exists()
    assert not (project / "rows.csv").exists()


def test_the_private_records_of_a_table_and_of_own_code_are_refused(
    shell: Shell, project: Path
) -> None:
    rows = "".join(f"{n % 90},{n % 7},{n % 2}\n" for n in range(400))
    for name in ("visits.csv", "later.csv"):
        (project / name).write_text(f"age,visits,ill\n{rows}")
    (project / "cli_test_private.py").write_text(
        "import numpy as np\n\n\ndef rows():\n"
        "    x = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)\n"
        "    return x, (x[:, 0] > 0).astype(np.int64)\n"
    )
    text = (project / "run.toml").read_text().replace("population = 1000", "population = 400")
    columns = 'target = "ill"\nbounds = { age = [0, 120], visits = [0, 9] }\ntest = "later.csv"'
    runs = {"table": ("visits.csv", columns), "code": ("cli_test_private:rows", "")}
    for run, (place, more) in runs.items():
        (project / "private.toml").write_text(text.replace('"own.npz"', f'"{place}"\n{more}'))
        shell.ok(f"train private.toml --run {run}")
        assert PRIVATE in shell.refused(f"predict {run} {place} --public")
    assert shell.json("predict table later.csv --public")["accuracy"] is not None


def test_flatness(shell: Shell, project: Path) -> None:
    result = shell.json("flatness run --records 50 --eigenvalues 2")
    assert (result["records"], result["public"]) == (50, False)
    assert result["models"][0]["model"] == "last"
    assert len(result["models"]) == 5  # and the four averages of weights
    for row in result["models"]:
        assert row["sharpness"] == row["eigenvalues"][0] > 0
    kept = json.loads((project / "run" / "figures.json").read_text())["flatness"]
    assert kept["public"] is False
    out = shell.ok("flatness run --records 50 --public")
    assert out.endswith("50 held-out records of own.npz; shown in the report\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "average nowhere",
            "run='nowhere': contains no run; give the folder that training printed.",
        ),
        (
            "average run EMAA:decay=0.9",
            "average.name='EMAA': is not known here, only EMA, OMV, OPA, PolynomialDecay, SWA, "
            "Window; did you mean 'EMA'?",
        ),
        ("average run EMA", "`average.decay` is needed by EMA; add decay = …."),
        ("average run EMA:decay=x", "EMA.decay='x': must be a number; write it like 0.01."),
        (
            "average run EMA:decy=1",
            "average.decy=1: is not known here, only average_buffers, decay, warmup; did you mean "
            "'decay'?",
        ),
        (
            "average run OPA:k=9",
            "average.k=9: is more than the 6 checkpoints stored with burn_in=0, spacing=1; use a "
            "smaller k, or keep more checkpoints.",
        ),
        (
            "average run --burn-in 99",
            "--burn-in=99: leaves none of the 6 stored checkpoints; use a smaller number.",
        ),
        (
            "predict run nowhere.npy",
            "data='nowhere.npy': there is no such file or folder; give an .npz or .csv file, a "
            "folder of .npy files, or module:factory.",
        ),
        (
            "predict run wide.npy",
            "data='wide.npy': has 9 columns, and there are bounds for 6; give as many of one as "
            "of the other.",
        ),
        (
            "predict run mnist",
            "data='mnist': would not be scaled, but the run's own inputs were scaled by "
            "bounds; give a file.",
        ),
        (
            "predict run new.npy --interval 2",
            "--interval=2.0: must lie strictly between 0 and 1.",
        ),
        (
            "predict run new.npy --checkpoints 1",
            "--checkpoints=1: one checkpoint has no spread; use at least two checkpoints.",
        ),
        (
            "predict run new.npy --public",
            "--public=True: needs labels to measure calibration, and the data have none; give "
            "data with labels.",
        ),
        (
            "predict run new.npy --checkpoints 0",
            "--checkpoints=0: must be a whole number of at least 1.",
        ),
        (
            "predict run new.npy --out nowhere/labels.csv",
            "--out='nowhere/labels.csv': there is no folder 'nowhere'; make it first, or choose "
            "another.",
        ),
        ("predict run new.npy --out run", "--out='run': is a folder; name a file in it."),
        (
            "flatness run --eigenvalues 0",
            "--eigenvalues=0: must be a whole number of at least 1.",
        ),
        (
            "flatness run --records 0",
            "--records=0: must be a whole number of at least 1.",
        ),
    ],
)
def test_bad_input(shell: Shell, project: Path, line: str, message: str) -> None:
    assert shell.refused(line) == f"steppe: error: {message}\n"


@pytest.mark.parametrize("command", ["average run", "predict run new.npy"])
def test_steps_are_counted_from_zero(shell: Shell, project: Path, command: str) -> None:
    assert "argument --burn-in: '-5' is not a step; count from 0" in shell.refused(
        f"{command} --burn-in -5"
    )


REGRESSION = """
[data]
place = "cli_test_numbers:numbers"

[model]
name = "linear"

[plan]
epsilon = 8.0
delta = 1e-4
batch_size = 100
steps = 12
population = 400

[optimizer]
name = "SGD"
lr = 0.3

[train]
loss = "mse_loss"
store_every = 2
"""
NUMBERS = """
import torch
from torch.utils.data import TensorDataset


def numbers():
    x = torch.randn(460, 6, generator=torch.Generator().manual_seed(0))
    y = 2 * x[:, 0]
    return TensorDataset(x[:400], y[:400]), TensorDataset(x[400:], y[400:])
"""


def test_a_regression_answers_with_numbers(shell: Shell, project: Path) -> None:
    (project / "cli_test_numbers.py").write_text(NUMBERS)
    (project / "regression.toml").write_text(REGRESSION)
    shell.ok("train regression.toml --run numbers")

    rows = shell.json("average numbers")["table"]
    assert [row["model"].partition("(")[0] for row in rows] == [
        "last stored", "SWA", "EMA", "PolynomialDecay",
    ]  # fmt: skip
    assert shell.refused("average numbers OPA:k=3") == (
        "steppe: error: average='OPA': averages the probabilities of classes, and the run has "
        "none; use averages of weights, such as EMA:decay=0.9.\n"
    )

    out = shell.ok("predict numbers new.npy --out numbers.csv")
    assert out.split()[:4] == ["record", "output", "low", "high"]
    assert ", predictions by EMA(decay=0.33, warmup=1), intervals by 6 checkpoints\n" in out
    lines = (project / "numbers.csv").read_text().splitlines()
    assert lines[0] == "record,output,low,high"
    assert len(lines) == 13
    found = shell.json("predict numbers cli_test_numbers:numbers")
    assert 0 < found["loss"] < 4
    result = json.loads((project / "numbers" / "result.json").read_text())
    assert found["model"] == result["published"] == "EMA(decay=0.33, warmup=1)"
    assert found["loss"] == pytest.approx(result["table"][1]["loss"], rel=1e-4)
    together = shell.json("predict numbers cli_test_numbers:numbers --by checkpoints")
    assert together["model"] == "mean of 6 checkpoints"
    for row in found["predictions"]:
        assert row["low"] <= row["output"] <= row["high"]
    assert "the run has no classes" in shell.refused("predict numbers new.npy --public")


ARRAYS = """
import numpy as np


def arrays():
    with np.load("numbers.npz") as file:
        return tuple(file[name] for name in ("x_train", "y_train", "x_test", "y_test"))
"""


def write_numbers(folder: Path) -> None:
    """Records with real-valued targets, in each form that a configuration reads."""
    x = np.random.default_rng(0).normal(size=(460, 6))
    y = 2 * x[:, 0] + 0.5
    np.savez(
        folder / "numbers.npz", x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:]
    )
    for name, rows in (("train", slice(400)), ("later", slice(400, None))):
        table = np.column_stack([x, y])[rows]
        np.savetxt(
            folder / f"{name}.csv", table, delimiter=",", header="a,b,c,d,e,f,y", comments=""
        )
    (folder / "cli_test_arrays.py").write_text(ARRAYS)


@pytest.mark.parametrize(
    ("place", "more", "other"),
    [
        ("numbers.npz", "", "other.npz"),
        ("train.csv", 'target = "y"\ntest = "later.csv"', "later.csv"),
        ("cli_test_arrays:arrays", "", "cli_test_arrays:arrays"),
    ],
)
def test_a_regression_from_a_file(
    shell: Shell, project: Path, place: str, more: str, other: str
) -> None:
    write_numbers(project)
    with np.load(project / "numbers.npz") as file:
        np.savez(project / "other.npz", x=file["x_test"], y=file["y_test"])
    text = REGRESSION.replace('"cli_test_numbers:numbers"', f'"{place}"\n{more}')
    (project / "regression.toml").write_text(text.replace('name = "linear"', ""))
    result = shell.json("train regression.toml --run numbers")
    assert result["table"][0]["accuracy"] is None
    assert result["table"][0]["loss"] < 4.25  # of an answer of 0 to everything
    assert 'name = "linear"' in (project / "numbers" / "run.toml").read_text()
    found = shell.json(f"predict numbers {other}")
    assert len(found["predictions"]) == 60
    assert 0 < found["loss"] < 4.25
    assert [row["model"].partition("(")[0] for row in shell.json("average numbers")["table"]][
        :2
    ] == ["last stored", "SWA"]


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("predict run new.npy --out labels.csv", "--out='labels.csv'"),
        ("predict run own.npz --public", "run='run'"),
        ("average run SWA", "run='run'"),
        ("report run --out page.html", "--out='page.html'"),
    ],
)
def test_a_disk_that_cannot_be_written_is_said_in_one_line(
    shell: Shell, project: Path, monkeypatch: pytest.MonkeyPatch, line: str, place: str
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), ".writing-x")

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    assert shell.refused(line) == (
        f"steppe: error: {place}: cannot be written (Read-only file system); make room there, or "
        "name a place where you may write.\n"
    )


def test_objects_are_not_unpickled(shell: Shell, project: Path) -> None:
    np.save(project / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    err = shell.refused("predict run objects.npy")
    assert err.startswith("steppe: error: data='objects.npy': must be one plain array (")


@pytest.mark.parametrize("command", ["average run", "predict run new.npy"])
def test_a_store_of_another_model(shell: Shell, project: Path, command: str) -> None:
    toml = project / "run" / "run.toml"
    toml.write_text(toml.read_text().replace("features = 6", "features = 9"))
    assert "another model" in shell.refused(command)


@pytest.mark.parametrize("command", ["average run", "predict run new.npy"])
def test_a_store_that_is_damaged(shell: Shell, project: Path, command: str) -> None:
    path = next((project / "run" / "store").glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])
    assert "is truncated or longer" in shell.refused(command)


def test_a_run_that_has_stored_nothing(shell: Shell, project: Path) -> None:
    (project / "run" / "store").rename(project / "elsewhere")
    assert shell.refused("average run") == (
        "steppe: error: run='run': has stored no checkpoints; train with train.store_every set.\n"
    )


@pytest.mark.parametrize("command", ["average run", "flatness run"])
def test_no_held_out_part(shell: Shell, project: Path, command: str) -> None:
    toml = project / "run" / "run.toml"
    toml.write_text(toml.read_text().replace("own.npz", "untested.npz"))
    assert "data='untested.npz': have no held-out part to measure on" in shell.refused(command)


def test_a_run_that_has_not_ended(shell: Shell, project: Path) -> None:
    (project / "run" / "model.safetensors").unlink()
    assert shell.refused("flatness run") == (
        "steppe: error: run='run': has published no weights yet; name a run that has ended.\n"
    )


@pytest.mark.parametrize("command", ["average run", "predict run new.npy", "flatness run"])
def test_a_run_of_an_earlier_version_had_another_scale(
    shell: Shell, project: Path, command: str
) -> None:
    path = project / "run" / "config.json"
    config = json.loads(path.read_text())
    del config["settings"]["inputs"]
    path.write_text(json.dumps(config))
    message = shell.refused(command)
    assert message.startswith("steppe: error: run='run': was trained on inputs that were scaled")


def test_a_run_that_python_made(shell: Shell, project: Path) -> None:
    (project / "run" / "run.toml").unlink()
    assert shell.refused("average run") == (
        "steppe: error: run='run': was not started from a configuration file, so its model and "
        "data are not known; load its weights in Python, with steppe.load(run, model=…).\n"
    )
