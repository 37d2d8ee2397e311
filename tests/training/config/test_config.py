"""Configuration files: every class by its name, and no key that was not understood."""

from __future__ import annotations

import json
import signal
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steppe import clipping, noise, points, sampling
from steppe.errors import ConfigurationError, DataError, MisuseError, UnsupportedModelError
from steppe.ledger import Ledger
from steppe.runs import write_toml
from steppe.training import Config, Interrupted, Trainer, read, read_log, resume
from steppe.training.config.build import BuiltConfig
from steppe.training.config.registry import _places, averages, optimizers, schedulers

PLAN = {
    "noise_multiplier": 1.0,
    "delta": 1e-4,
    "batch_size": 40,
    "steps": 20,
    "clip": {"name": "Flat", "bound": 0.5},
    "point": "Here",
}

BUDGET = {"plan": {"epsilon": 8.0}}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """400 records of six numbers and two classes, and 60 to test on."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(460, 6)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    path = tmp_path / "table.npz"
    np.savez(path, x_train=x[:400], y_train=y[:400], x_test=x[400:], y_test=y[400:])
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, size=(700, 8, 8), dtype=np.uint8)
    y = generator.integers(0, 3, size=700)
    path = tmp_path / "pictures.npz"
    np.savez(path, x_train=x[:600], y_train=y[:600], x_test=x[600:], y_test=y[600:])
    return path


def config(place: Path, **tables: Any) -> Config:
    whole: dict[str, Any] = {
        "data": {"place": str(place), "classes": 2},
        "model": {"name": "logistic"},
        "plan": PLAN,
        "optimizer": {"name": "SGD", "lr": 0.5},
        "averages": {"EMA": {"decay": 0.9}},
    }
    return Config({**whole, **tables})


def test_a_file_to_a_result(table: Path, tmp_path: Path) -> None:
    text = f"""
    [data]
    place = "{table}"
    classes = 2

    [model]
    name = "logistic"

    [plan]
    noise_multiplier = 1.0
    delta = 1e-4
    batch_size = 40
    steps = 20
    point = {{ name = "SAT", radius = 0.03 }}
    [plan.clip]
    name = "Flat"
    bound = 0.5

    [optimizer]
    name = "SGD"
    lr = 0.5

    [scheduler]
    name = "CosineAnnealingLR"

    [averages]
    EMA = [{{ decay = 0.9 }}, {{ decay = 0.5 }}]
    SWA = {{ warmup = 0.5 }}
    OPA = {{ k = 5 }}
    PowerAverages = {{ every = 5 }}

    [train]
    store_every = 2
    progress = false
    """
    (tmp_path / "run.toml").write_text(text)
    outcome = read(tmp_path / "run.toml").trainer(tmp_path / "run").fit()
    assert [row["model"] for row in outcome.table] == [
        "last",
        "EMA(decay=0.9, warmup=1)",
        "EMA(decay=0.5, warmup=1)",
        "SWA(cycle=1, warmup=10)",
        "OPA(k=5)",
    ]
    resolved = tomllib.loads((tmp_path / "run" / "run.toml").read_text())
    assert resolved["scheduler"] == {"name": "CosineAnnealingLR", "T_max": 20}
    assert resolved["model"] == {"name": "logistic", "features": 6, "classes": 2}
    # What was written describes the very same run.
    again = read(tmp_path / "run" / "run.toml").trainer(tmp_path / "again")
    assert again.plan.digest() == outcome.statement.digest


def test_nothing_but_data_and_epsilon(pictures: Path) -> None:
    tables = {"data": {"place": str(pictures), "classes": 3}, "plan": {"epsilon": 3.0}}
    made = Config(tables).assemble()
    assert set(made.reasons) == {
        "model", "delta", "batch_size", "steps", "clip", "point", "lr", "averages", "publish",
    }  # fmt: skip
    assert made.resolved["model"]["name"] == "scattering-linear"
    assert made.resolved["model"]["side"] == 8
    assert isinstance(made.trained, torch.nn.Linear)
    assert made.plan.epsilon == 3.0
    assert made.plan.population is None  # the length of private data is read by make_private
    assert made.optimizer.param_groups[0]["lr"] == made.resolved["optimizer"]["lr"]
    # All choices made, nothing is open any more.
    settled = Config(made.resolved).assemble()
    assert settled.resolved == made.resolved
    assert settled.plan == made.plan
    assert "lr" not in settled.reasons


def test_a_run_can_be_resumed_from_its_folder(table: Path, tmp_path: Path) -> None:
    def stop(moment: Any) -> None:
        if moment.step == 7:
            signal.raise_signal(signal.SIGINT)

    own = config(table, train={"progress": False}).trainer(tmp_path / "run", callbacks=[stop])
    with pytest.raises(Interrupted, match="resume with: steppe resume"):
        own.fit()
    outcome = resume(tmp_path / "run")
    assert outcome.steps == 20
    notes = [x["text"] for x in read_log(tmp_path / "run" / "log.jsonl") if x["kind"] == "note"]
    assert notes[-1] == "resumed from the checkpoint after step 7"


def test_a_run_with_what_no_file_holds_is_resumed_in_python(table: Path, tmp_path: Path) -> None:
    def stop(moment: Any) -> None:
        if moment.step == 7:
            signal.raise_signal(signal.SIGINT)

    def views(x: torch.Tensor) -> torch.Tensor:
        return x + 0.1

    run, shared = tmp_path / "run", Ledger(tmp_path / "people.jsonl")
    options = {"augment": views, "ledger": shared, "progress": False}
    own = config(table, plan={**PLAN, "views": 2})
    with pytest.raises(Interrupted) as stopped:
        own.trainer(run, callbacks=[stop], **options).fit()
    how = f"steppe.training.read('{run}/run.toml').trainer('{run}', augment=…, ledger=…).resume()"
    assert str(stopped.value).endswith(f"resume with: {how}")
    with pytest.raises(MisuseError) as held:
        config(table).trainer(run, progress=False).fit()
    assert str(held.value) == (
        f"run={str(run)!r}: contains a run already; resume it with `{how}`, or name another folder."
    )
    with pytest.raises(ConfigurationError) as refused:
        resume(run, progress=False)
    assert str(refused.value) == (
        f"run={str(run)!r}: was given augment=, ledger= in Python, which a file cannot contain; "
        f"resume it with `{how}`."
    )
    assert read(run / "run.toml").trainer(run, **options).resume().steps == 20


def test_what_to_type_is_quoted_for_the_shell(table: Path, tmp_path: Path) -> None:
    run = tmp_path / "my run"
    config(table).trainer(run, progress=False).fit()
    with pytest.raises(MisuseError, match=r"resume it with `steppe resume '/.*/my run'`, or name"):
        config(table).trainer(run, progress=False).fit()


def test_a_run_without_a_file_says_how_to_resume(tmp_path: Path) -> None:
    from training_cases import trainer

    trainer(tmp_path / "run").fit()
    with pytest.raises(ConfigurationError, match="was not started from a configuration file"):
        resume(tmp_path / "run")
    with pytest.raises(DataError, match="contains no run"):
        resume(tmp_path / "nothing")
    (tmp_path / "d.csv").write_text("age,ill\n")
    with pytest.raises(DataError, match=r"^run='.*d\.csv': contains no run; give the folder that"):
        resume(tmp_path / "d.csv")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"modle": {}}, r"modle='dict': is not known here.*did you mean 'model'\?"),
        ({"plan": {**PLAN, "epsilom": 2}}, r"plan\.epsilom=2: .*did you mean 'epsilon'\?"),
        ({"data": {"nmae": "mnist"}}, r"data\.nmae='mnist': .*did you mean 'name'\?"),
        ({"data": {}}, "must be the name of a public data set"),
        ({"train": {"store_evry": 3}}, r"train\.store_evry=3: .*did you mean 'store_every'"),
        ({"train": {"loss": "crossentropy"}}, r"train\.loss=.*did you mean 'cross_entropy'"),
        ({"train": {"keep": {"lst": 3}}}, r"train\.keep\.lst=3: .*did you mean 'last'"),
        ({"train": {"keep": 5}}, r"train\.keep=5: must be a table; for example, write keep = "),
        ({"train": {"loss": []}}, r"train\.loss=\[\]: must be text"),
        ({"train": {"ledger": 5}}, r"train\.ledger=5: must be text"),
        ({"averages": {"name": "EMA"}}, r"averages\.name='EMA': is not a key of .*write EMA = \{"),
        ({"train": {"run": 5}}, r"train\.run=5: must be text"),
        ({"train": {"seed": "a"}}, r"train\.seed='a': must be a whole number from 0"),
        ({"train": {"seed": 1.5}}, r"train\.seed=1\.5: must be a whole number from 0"),
        ({"train": {"seed": -1}}, r"train\.seed=-1: must be a whole number from 0"),
        ({"train": {"isolation": "probe"}}, r"train\.isolation='probe': must be one of 'proven', "),
        ({"train": {"isolation": []}}, r"train\.isolation=\[\]: must be one of 'proven', 'each'"),
        ({"train": {"progress": "no"}}, r"train\.progress='no': must be true or false"),
        ({"train": {"store_every": 2.5}}, r"train\.store_every=2\.5: must be a whole number"),
        ({"train": {"physical_batch": "x"}}, r"train\.physical_batch='x': must be a whole number"),
        ({"model": {"name": 5}}, r"model\.name=5: must be text"),
        ({"model": {"factory": 5}}, r"model\.factory=5: must be text"),
        ({"averages": {"EMMA": {}}}, r"averages\.EMMA='dict'.*did you mean 'EMA'"),
        ({"plan": {**PLAN, "clip": "Flatt"}}, r"plan\.clip\.name='Flatt'.*mean 'Flat'"),
        ({"plan": {**PLAN, "clip": {"bound": 1}}}, r"plan\.clip\.name=None: must name a class"),
        ({"plan": {**PLAN, "clip": 3}}, r"plan\.clip=3: must be a name or a table"),
        (
            {"plan": {**PLAN, "point": {"name": "SAT", "radios": 0.1}}},
            r"plan\.point\.radios=0\.1: .*did you mean 'radius'",
        ),
        ({"plan": {**PLAN, "point": "SAT"}}, r"`plan\.point\.radius` is needed by SAT"),
        (
            {"plan": {**PLAN, "point": {"name": "SAT", "radius": -1}}},
            "plan.point.radius=-1: must be finite and above 0",
        ),
        ({"plan": 3}, "plan=3: must be a table"),
    ],
)
def test_what_is_not_understood_is_refused_at_once(
    tmp_path: Path, tables: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config(tmp_path / "nothing is read yet", **tables)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"optimizer": {"name": "SDG", "lr": 1}}, r"optimizer\.name='SDG'.*mean 'SGD'"),
        ({"optimizer": {"name": "SGD", "lr": 1, "momentun": 1}}, r"did you mean 'momentum'"),
        ({"optimizer": {"name": "SGD", "lr": -1.0}}, "optimizer={'lr': -1.0}: is refused by SGD"),
        ({"scheduler": {"name": "CosinLR"}}, r"scheduler\.name='CosinLR'.*did you mean"),
        ({"scheduler": {"name": "StepLR"}}, r"`scheduler\.step_size` is needed by StepLR"),
        ({"averages": {"EMA": {"decoy": 1}}}, r"averages\.EMA\.decoy=1: .*mean 'decay'"),
        ({"averages": {"EMA": 0.9}}, r"averages\.EMA=0\.9: must be a table"),
        ({"averages": {"OPA": {}}}, r"`averages\.OPA\.k` is needed by OPA; add k = 20"),
        ({"model": {"name": "logistik"}}, "did you mean 'logistic'"),
        ({"model": {"factory": "nothing:here"}}, r"model\.factory='nothing:here': cannot be imp"),
        ({"model": {"factory": "math:sqrt", "side": 3}}, r"model\.side=3: is not known here"),
        ({"optimizer": {"name": "SGD"}}, r"`plan\.epsilon` is needed to choose optimizer"),
        ({"optimizer": {"name": "SparseAdam", "lr": 1}}, r"optimizer\.name='SparseAdam': is not"),
        (BUDGET | {"optimizer": {"momentum": 1.0}}, r"momentum=1\.0: must lie in \[0, 1\)"),
        (BUDGET | {"optimizer": {"momentum": "x"}}, "momentum='x': must be a real number"),
        ({"averages": {"PowerAverages": {"every": 2, "gammas": 5}}}, "gammas=5: must be a list"),
        ({"averages": {"PowerAverages": {"every": 2, "gammas": "ab"}}}, "gammas='ab': must be a"),
        ({"averages": {"PowerAverages": {"every": 2, "gammas": [2.0]}}}, "two different powers"),
        ({"averages": {"EMA": {"decay": 2.0}}}, r"^averages\.EMA\.decay=2\.0: must lie in"),
        ({"averages": {"OPA": {"k": 0}}}, r"^averages\.OPA\.k=0: must be a whole number"),
        ({"train": {"keep": {"last": 0}}}, r"^train\.keep\.last=0: must be a whole number"),
        ({"train": {"ledger": ""}}, r"^train\.ledger='': must name a file"),
        ({"model": {"name": "logistic", "depth": 3}}, r"^model\.depth=3: is not an option of"),
        ({"plan": {**PLAN, "batch_size": 0}}, r"^plan\.batch_size=0: must be finite and above 0"),
        ({"plan": {**PLAN, "batch_size": 3000}}, r"^plan\.batch_size=3000\.0: must not exceed"),
        ({"plan": {**PLAN, "l2": {"1": -1.0}}}, r"^plan\.l2\['1'\]=-1\.0: must be finite"),
        (BUDGET | {"optimizer": {"lr": -1.0}}, r"^optimizer\.lr=-1\.0: must be finite and above 0"),
        (
            {"optimizer": {"name": "DPAdam", "lr": 1.0, "betas": [2.0, 0.9]}},
            r"^optimizer\.betas=\(2\.0, 0\.9\): must lie in \[0, 1\)",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(table: Path, tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        config(table, **tables).assemble()


def test_what_a_ledger_refuses_is_called_as_in_the_file(table: Path, tmp_path: Path) -> None:
    train = {"ledger": str(tmp_path / "people.jsonl"), "progress": False}
    plan = {**PLAN, "steps": 2, "population": 400}
    config(table, plan=plan, train=train).trainer(tmp_path / "one").fit()
    for changes, message in (
        ({"plan": {**plan, "adjacency": "zero-out"}}, r"^plan\.adjacency='zero-out': must be that"),
        (
            {"data": {"place": str(table), "classes": 2, "called": "x"}},
            r"^data\.called='x': must be",
        ),
    ):
        trainer = config(table, **{"plan": plan, "train": train, **changes}).trainer(tmp_path / "x")
        with pytest.raises(ConfigurationError, match=message):
            trainer.fit()


PICKY = """
from torch import nn

class Picky(nn.Linear):
    def __init__(self):
        super().__init__(6, 2)

    def forward(self, x):
        if not x.any():
            raise RuntimeError("nothing there")
        return super().forward(x)
"""


def test_a_model_that_takes_no_zeros_is_told_of_the_key(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "picky_model.py").write_text(PICKY)
    sampling = {"name": "CappedPoisson", "fixed_shapes": True}
    plan = {**PLAN, "adjacency": "zero-out", "sampling": sampling}
    with pytest.raises(UnsupportedModelError, match=r"^plan\.sampling\.fixed_shapes=True: model"):
        config(
            table,
            plan=plan,
            model={"factory": "picky_model:Picky"},
            train={"isolation": "probed"},  # to see its zeros, it reads what must not be read
        ).trainer(tmp_path / "run")


def test_several_views_need_the_function_that_makes_them(table: Path, tmp_path: Path) -> None:
    several = config(table, plan={**PLAN, "views": 2})
    with pytest.raises(ConfigurationError, match=r"^plan\.views=2: needs a function that makes"):
        config(tmp_path / "nothing is read yet", plan={**PLAN, "views": 2}).trainer()
    with pytest.raises(ConfigurationError, match=r"^plan\.views=1: must be above 1 if augment="):
        config(tmp_path / "nothing is read yet").trainer(augment=torch.neg)
    outcome = several.trainer(tmp_path / "run", augment=lambda x: x + 0.1).fit()
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["views"] == 2
    assert outcome.steps == several.assemble().plan.total_steps


REGRESSION = """
import torch
from torch.utils.data import TensorDataset


def numbers():
    x = torch.randn(460, 6, generator=torch.Generator().manual_seed(0))
    y = 2 * x[:, 0]
    return TensorDataset(x[:400], y[:400]), TensorDataset(x[400:], y[400:])
"""


def test_a_regression_keeps_no_averages_of_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "regressed.py").write_text(REGRESSION)
    monkeypatch.syspath_prepend(tmp_path)
    tables: dict[str, Any] = {
        "data": {"place": "regressed:numbers"},
        "model": {"name": "linear"},
        "plan": PLAN,
        "optimizer": {"name": "SGD", "lr": 0.5},
        "train": {"loss": "mse_loss", "progress": False},
    }
    outcome = Config(tables).trainer(tmp_path / "run").fit()
    assert [row["model"].partition("(")[0] for row in outcome.table] == [
        "last", "EMA", "SWA", "Window", "PolynomialDecay",
    ]  # fmt: skip
    assert all(row["accuracy"] is None and row["loss"] < 4 for row in outcome.table)
    with pytest.raises(ConfigurationError, match="averages the probabilities of classes"):
        Config({**tables, "averages": {"OPA": {"k": 5}}}).trainer(tmp_path / "other")
    # Numbers that happen to be whole are no labels either.
    whole = {**tables, "train": {"loss": "l1_loss"}}
    assert list(Config(whole).assemble().resolved["averages"]) == [
        "EMA", "SWA", "Window", "PolynomialDecay",
    ]  # fmt: skip


def test_no_more_checkpoints_answer_together_than_are_kept(table: Path) -> None:
    whole = dict(config(table, train={"keep": {"last": 3}, "store_every": 2}).tables)
    del whole["averages"]
    assert Config(whole).assemble().resolved["averages"]["OPA"] == {"k": 3}


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("[plan\nepsilon = 2")
    with pytest.raises(DataError, match="is not TOML"):
        read(tmp_path / "bad.toml")
    (tmp_path / "big.toml").write_text("#" * 2**25)
    with pytest.raises(DataError, match="is too large for a configuration"):
        read(tmp_path / "big.toml")


def test_every_choice_of_every_place_has_its_name() -> None:
    found = _places()
    assert {"Flat", "Quantile", "Automatic", "PerLayer", "GEP"} <= found["clip"].keys()
    assert {"Here", "SAM", "SAT", "SATMomentum"} == found["point"].keys()
    assert {"Gaussian", "StepSchedule", "TimeSchedule", "BLT", "Dense"} <= found["noise"].keys()
    samplers = {"Poisson", "CappedPoisson", "Periodic", "FixedOrder", "CyclicPoisson"}
    assert samplers == found["sampling"].keys()
    for place, room in (
        ("clip", clipping),
        ("point", points),
        ("noise", noise),
        ("sampling", sampling),
    ):
        assert all(getattr(room, name) is kind for name, kind in found[place].items())
    assert {"SGD", "Adam", "AdamW", "DPAdam"} <= optimizers().keys()
    assert not {"LBFGS", "SparseAdam"} & optimizers().keys()
    assert {"CosineAnnealingLR", "LinearLR", "OneCycleLR"} <= schedulers().keys()
    assert set(averages()) == {
        "SWA",
        "EMA",
        "Window",
        "PolynomialDecay",
        "OPA",
        "OMV",
        "PowerAverages",
    }


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        ({"clip": {"name": "Quantile"}}, {"name": "AdamW", "lr": 0.01}),
        ({"clip": {"name": "PerLayer", "bound": 0.5}}, {"name": "Adam", "betas": [0.9, 0.99]}),
        ({"noise": {"name": "StepSchedule", "drop": 0.8, "every": 5}}, {"name": "DPAdam"}),
        ({"sampling": {"name": "Periodic", "period": 4}}, {"name": "SGD", "lr": 0.1}),
        ({"point": {"name": "SAM", "radius": 0.1}}, {"name": "RMSprop", "lr": 0.01}),
    ],
)
def test_methods_by_name_train(
    table: Path, tmp_path: Path, plan: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    data = {"place": str(table), "classes": 2}
    if "sampling" in plan:
        data["groups"] = "parity"
    own = config(
        table,
        data=data,
        plan={**PLAN, "steps": 6, **plan},
        optimizer={"lr": 0.01, **optimizer},
        train={"progress": False, "seed": 3},
    )
    assert own.trainer(tmp_path / "run").fit().steps == 6


def test_fixed_shapes_by_name_train(table: Path, tmp_path: Path) -> None:
    sampling = {"name": "CappedPoisson", "cap": 60, "fixed_shapes": True}
    plan = {**PLAN, "steps": 3, "adjacency": "zero-out", "sampling": sampling}
    outcome = config(table, plan=plan, train={"progress": False}).trainer(tmp_path / "run").fit()
    assert outcome.statement.fixed_shapes
    written = tmp_path / "run" / "run.toml"
    assert tomllib.loads(written.read_text())["plan"]["sampling"] == sampling
    again = read(written).trainer(tmp_path / "again")
    assert again.plan.padded_to == 60
    assert again.plan.digest() == outcome.statement.digest


def test_public_records_serve_as_anchors_and_are_not_evaluated_on(table: Path) -> None:
    made = config(table, data={"place": str(table), "classes": 2, "public": 20}).assemble()
    given = made.options
    assert (len(given["public"][0]), len(given["evaluate"])) == (20, 40)
    assert torch.equal(given["public"][0], given["evaluate"].dataset.tensors[0][:20])
    with pytest.raises(ConfigurationError, match=r"data\.public=60: must leave records"):
        config(table, data={"place": str(table), "classes": 2, "public": 60}).assemble()


def test_a_seed_is_for_the_first_weights_alone(table: Path) -> None:
    before = torch.random.get_rng_state()
    one, two = (config(table, train={"seed": 3}).assemble() for _ in range(2))
    assert torch.equal(one.model[-1].weight, two.model[-1].weight)  # type: ignore[index]
    assert torch.equal(before, torch.random.get_rng_state())


def test_epochs_are_kept(table: Path) -> None:
    plan = {"epsilon": 3.0, "epochs": 5, "batch_size": 40}
    made = config(table, plan=plan, optimizer={}).assemble()
    assert made.plan.epochs == 5
    assert made.plan.steps is None
    assert BuiltConfig(made.resolved).plan == made.plan


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"plan": {}},
        {"a": {"b": {"c": 1, "d": {"e": 'ε " \\ \n'}}, "f": [1, 2.5, "x"], "g": True}},
        {"averages": {"EMA": [{"decay": 0.9}, {"decay": 0.99, "warmup": False}]}},
        {"a": {"strange key": 1, "x": float("inf"), "small": 1e-12}},
    ],
)
def test_what_is_written_reads_back(tables: dict[str, Any]) -> None:
    assert tomllib.loads(write_toml(tables)) == tables


def _visits(folder: Path) -> Path:
    """A table whose columns differ by a factor of a thousand."""
    generator = np.random.default_rng(0)
    income, age = generator.uniform(1e4, 9e4, 600), generator.uniform(18, 90, 600)
    ill = (income / 9e4 + age / 90 > 1.15).astype(int)
    rows = [f"{a:.1f},{b:.1f},{c}" for a, b, c in zip(income, age, ill, strict=True)]
    path = folder / "visits.csv"
    path.write_text("\n".join(["income,age,ill", *rows]))
    return path


def test_bounds_that_nobody_declared_are_read_and_said(tmp_path: Path) -> None:
    data = {"place": str(_visits(tmp_path)), "classes": 2, "target": "ill"}
    trainer = Config({"data": data, "plan": {"epsilon": 8.0}}).trainer()
    assert "declare data.bounds" in trainer.reasons["bounds"]
    said = " ".join(str(trainer.statement).split())
    assert "the mean and the standard deviation of each column were read once" in said
    resolved = tomllib.loads(trainer.parts.origin.toml or "")["data"]
    assert resolved["bounds_from"] == "records"
    assert resolved["bounds"]["age"][0] < 54 < resolved["bounds"]["age"][1]
    assert resolved["columns"] == ["income", "age"]
    # What was resolved says the same when it is read again.
    again = Config(tomllib.loads(trainer.parts.origin.toml or "")).trainer()
    assert again.statement == trainer.statement


def test_a_resumed_run_keeps_its_scale_and_its_statement(tmp_path: Path) -> None:
    path = _visits(tmp_path)
    run, plan = tmp_path / "run", {**PLAN, "population": 600}

    def trainer(**declared: Any) -> Trainer:
        data = {"place": str(path), "classes": 2, "target": "ill", **declared}
        made = config(path, data=data, plan=plan)
        return made.trainer(run, progress=False, callbacks=[lambda moment: moment.step == 3])

    trainer().fit()
    stored = json.loads((run / "config.json").read_text())["settings"]
    assert stored["inputs"]["columns"] == ["income", "age"]
    with pytest.raises(
        ConfigurationError, match=r"also_read=\[\]: differs from the value that the run began with"
    ):
        trainer(bounds={"income": [0, 1e5], "age": [0, 120]}).resume()
    path.write_text(path.read_text() + "\n1e6,90,1")  # bounds are read anew
    with pytest.raises(ConfigurationError, match=r"inputs.bounds.income=.*that the run began with"):
        trainer().resume()


def test_a_factory_may_scale_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(_visits(tmp_path))
    (tmp_path / "scaled_visits.py").write_text(
        "from steppe import data\n\n\ndef make():\n"
        f"    return data.read({place!r}, target='ill', classes=2, bounds='records')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    trainer = Config({"data": {"place": "scaled_visits:make"}, **BUDGET}).trainer()
    assert "the mean and the standard deviation" in str(trainer.statement)
    again = Config(tomllib.loads(trainer.parts.origin.toml or "")).trainer()
    assert again.statement == trainer.statement


def test_declared_bounds_leave_the_records_unread(tmp_path: Path) -> None:
    data = {"place": str(_visits(tmp_path)), "classes": 2, "target": "ill"}
    bounds = {"income": (0, 1e5), "age": (0, 120)}
    trainer = Config({"data": {**data, "bounds": bounds}, "plan": {"epsilon": 8.0}}).trainer()
    assert "bounds" not in trainer.reasons
    assert trainer.statement.also_read == ()


MAPPED = """
import torch

class Mapped:
    def __len__(self): return 40
    def __getitem__(self, row): return torch.zeros(3), 0
"""


def test_a_network_by_name_needs_the_number_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config_test_records.py").write_text(MAPPED)
    monkeypatch.syspath_prepend(str(tmp_path))
    data = {"place": "config_test_records:Mapped"}
    with pytest.raises(ConfigurationError, match=r"`data\.classes` is needed by logistic"):
        BuiltConfig({"data": data, **BUDGET})
    assembly = BuiltConfig({"data": {**data, "classes": 3}, **BUDGET})
    assert assembly.resolved["model"]["classes"] == 3


def test_a_table_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, opened = str(_visits(tmp_path)), []
    usual = Path.open

    def counted(path: Path, *words: Any, **options: Any) -> Any:
        opened.append(path.name)
        return usual(path, *words, **options)

    monkeypatch.setattr(Path, "open", counted)
    BuiltConfig({"data": {"place": place, "classes": 2, "target": "ill"}, **BUDGET})
    assert opened.count("visits.csv") == 1


@pytest.mark.parametrize(
    ("shape", "words", "extent"),
    [
        ((40, 3), "the mean and the standard deviation of each column were read once", 3),
        ((40, 4, 4), "the smallest and the largest of all values were read once", 2),
    ],
)
def test_arrays_in_files_are_scaled_and_it_is_said(
    tmp_path: Path, shape: tuple[int, ...], words: str, extent: int
) -> None:
    x = np.random.default_rng(0).normal(1e4, 1e3, shape)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(40) % 2)
    assembly = BuiltConfig({"data": {"place": str(tmp_path / "own.npz"), "classes": 2}, **BUDGET})
    assert assembly.loaded.train.tensors[0].abs().max() <= 1
    assert words in assembly.loaded.also_read[0]
    assert len(assembly.resolved["data"]["bounds"]) == extent
    again = BuiltConfig(tomllib.loads(write_toml(assembly.resolved)))
    assert torch.equal(again.loaded.train.tensors[0], assembly.loaded.train.tensors[0])
    assert again.loaded.also_read == assembly.loaded.also_read


def test_pictures_of_bytes_are_scaled_by_constants(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((40, 8, 8), np.uint8), y=np.arange(40) % 2)
    assembly = BuiltConfig({"data": {"place": str(tmp_path / "own.npz"), "classes": 2}, **BUDGET})
    assert assembly.loaded.also_read == ()
    assert "bounds" not in assembly.resolved["data"]


@pytest.mark.slow
def test_a_table_without_bounds_gives_a_useful_model(tmp_path: Path) -> None:
    data = {"place": str(_visits(tmp_path)), "classes": 2, "target": "ill"}
    train = {"run": str(tmp_path / "run"), "progress": False}
    trainer = Config({"data": data, "plan": {"epsilon": 8.0}, "train": train}).trainer()
    trainer.fit()
    inputs, labels = BuiltConfig({"data": data, "plan": {"epsilon": 8.0}}).loaded.train.tensors
    found = trainer.model(inputs).argmax(1)
    assert (found == labels).float().mean() > 0.85
