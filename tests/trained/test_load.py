"""`steppe.load`: a run's models, without the data, wherever the folder lies now."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trained_runs
from safetensors.torch import load_file, save_file
from torch import nn

import steppe
from steppe import models
from steppe.averaging import CheckpointStore
from steppe.errors import ConfigurationError, DataError, DataWarning, PrivacyWarning
from steppe.training import Config, Interrupted, StepInfo, Trainer, resume

Runs = Callable[[str], Path]
NEW = trained_runs.patients(12, seed=1)


@pytest.fixture
def copied(runs: Runs, tmp_path: Path) -> Path:
    """A copy of the run on a table, to be damaged."""
    return Path(shutil.copytree(runs("table"), tmp_path / "copy"))


def test_a_run_on_a_table_says_labels_and_probabilities(runs: Runs) -> None:
    model = steppe.load(runs("table"))
    assert model.name.startswith("EMA(")
    assert model.classes == ["no", "yes"]
    chances = model.predict_proba(NEW)
    assert chances.shape == (12, 2)
    np.testing.assert_allclose(chances.sum(1), 1)
    assert model.predict(NEW).tolist() == [["no", "yes"][at] for at in chances.argmax(1)]
    prepared = model.inputs(NEW)
    assert torch.allclose(model.module(prepared).softmax(-1).double(), torch.from_numpy(chances))


def test_the_module_has_the_published_weights_and_is_plain(runs: Runs) -> None:
    model = steppe.load(runs("table"))
    assert type(model.module) is nn.Sequential
    assert not model.module.training
    stored = load_file(runs("table") / "published.safetensors")
    for name, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, stored[name])


def test_the_statement_comes_along_as_data(runs: Runs) -> None:
    model = steppe.load(runs("table"))
    assert model.privacy == json.loads((runs("table") / "statement.json").read_text())
    assert model.privacy["epsilon"] <= 20
    assert repr(model).startswith("<EMA(decay=")
    assert " of patients.csv: ε = 19.9" in repr(model)
    assert repr(model).endswith(" at δ = 0.001>")


@pytest.mark.parametrize("name", ["last", "SWA", "PolynomialDecay(gamma=4)"])
def test_any_model_of_weights_can_be_chosen(runs: Runs, name: str) -> None:
    model = steppe.load(runs("table"), average=name)
    assert model.name.startswith(name)
    file = "model.safetensors" if name == "last" else f"averages/{name[:3]}*"
    (path,) = runs("table").glob(file)
    for key, tensor in load_file(path).items():
        assert torch.equal(tensor, model.module.state_dict()[key])


def test_an_unknown_average_is_refused(runs: Runs) -> None:
    with pytest.raises(ConfigurationError) as refused:
        steppe.load(runs("table"), average="OPA")
    assert str(refused.value).startswith(
        "average='OPA': is not a model of weights that this run kept; choose last or EMA("
    )


def test_intervals_are_those_of_the_stored_checkpoints(runs: Runs) -> None:
    model = steppe.load(runs("table"))
    found = model.intervals(NEW)
    assert found.checkpoints == 4
    assert found.predictions.tolist() == model.predict(NEW).tolist()
    assert found.probability is not None
    assert (found.low <= found.probability).all()
    assert (found.probability <= found.high).all()
    store, each = CheckpointStore(runs("table") / "store"), []
    for entry in store.entries():
        logits = torch.func.functional_call(model.module, store.load(entry), (model.inputs(NEW),))
        each.append(logits.detach().double().softmax(-1).numpy())
    at = model.predict_proba(NEW).argmax(1)
    np.testing.assert_allclose(found.probability, np.mean(each, 0)[range(12), at], rtol=1e-6)
    assert model.intervals(NEW, checkpoints=2, burn_in=2).checkpoints == 2
    with pytest.raises(ConfigurationError, match=r"^checkpoints=9: is more than the 4"):
        model.intervals(NEW, checkpoints=9)
    with pytest.raises(ConfigurationError, match=r"^confidence=2: must lie strictly between"):
        model.intervals(NEW, confidence=2)


def test_a_regression_answers_with_numbers(runs: Runs) -> None:
    model = steppe.load(runs("regression"))
    rows = np.random.default_rng(1).normal(size=(7, 5))
    numbers = model.predict(rows)
    assert numbers.shape == (7,)
    found = model.intervals(rows)
    assert found.agreement is None
    np.testing.assert_array_equal(found.predictions, numbers)
    assert (found.low < numbers).all()
    assert (numbers < found.high).all()
    assert model.classes is None
    with pytest.raises(ConfigurationError, match="has no classes to give probabilities of"):
        model.predict_proba(rows)


def test_scattering_features_are_part_of_the_module(runs: Runs) -> None:
    model = steppe.load(runs("scattering"))
    x, _ = trained_runs.pictures(8, 5)
    floats = torch.from_numpy(x)[:, None] / 255
    chances = model.predict_proba(x)
    np.testing.assert_allclose(model.predict_proba(floats), chances, atol=1e-6)
    np.testing.assert_allclose(model.module(floats).detach().softmax(-1), chances, atol=1e-6)
    assert model.intervals(x).predictions.tolist() == model.predict(x).tolist()


def test_published_weights_load_plainly_into_the_named_network(runs: Runs) -> None:
    network = models.create("scattering-linear", side=8, classes=3)
    network.load_state_dict(load_file(runs("scattering") / "published.safetensors"))
    model = steppe.load(runs("scattering"))
    pictures = torch.rand(4, 1, 8, 8)
    assert torch.equal(network(pictures), model.module(pictures))


def test_a_run_whose_files_have_the_names_of_the_head_alone_still_loads(
    runs: Runs, tmp_path: Path
) -> None:
    old = Path(shutil.copytree(runs("scattering"), tmp_path / "old"))
    for path in [*old.glob("*.safetensors"), *(old / "averages").iterdir()]:
        save_file({"weight": load_file(path)["head.weight"]}, path, {"model": path.stem})
    pictures, _ = trained_runs.pictures(8, 5)
    before, after = (steppe.load(run).predict_proba(pictures) for run in (runs("scattering"), old))
    np.testing.assert_array_equal(before, after)


def constants(folder: Path) -> Config:
    x = torch.randn(100, 6)
    np.savez(folder / "rows.npz", x=x.numpy(), y=(x[:, 0] > 0).long().numpy())
    tables = {
        "data": {"place": str(folder / "rows.npz"), "classes": 2, "bounds": [-3.0, 3.0]},
        "model": {"factory": "trained_runs:turned"},
        "plan": trained_runs.PLAN,
        "train": trained_runs.TRAIN,
    }
    return Config(tables)


def constants_run(folder: Path) -> Path:
    constants(folder).trainer(folder / "run").fit()
    return folder / "run"


def stopped(folder: Path) -> Path:
    def stop(moment: StepInfo) -> None:
        if moment.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        constants(folder).trainer(folder / "run", callbacks=[stop]).fit()
    return folder / "run"


def test_a_run_is_resumed_with_the_constants_that_it_began_with(tmp_path: Path) -> None:
    run = stopped(tmp_path)  # the constructor would draw others
    resume(run)
    begun = load_file(run / "front-end.safetensors")["filters"]
    assert torch.equal(steppe.load(run).module.get_buffer("front.filters"), begun)


def test_a_run_is_not_resumed_on_other_features(tmp_path: Path) -> None:
    path = stopped(tmp_path) / "front-end.safetensors"
    save_file({"filters": torch.zeros(6, 4)}, path)
    with (
        pytest.warns(DataWarning, match="the same in every record"),  # features that are all zero
        pytest.raises(ConfigurationError, match=r"^front_end=.* the run began with"),
    ):
        resume(path.parent)
    path.write_bytes(b"?")
    with pytest.raises(DataError, match=r"cannot be read as safetensors; it is damaged"):
        resume(path.parent)


def test_constants_of_a_front_end_travel_with_the_model(tmp_path: Path) -> None:
    run = constants_run(tmp_path)
    rows = np.random.default_rng(0).normal(size=(9, 6))
    first = steppe.load(run)
    assert torch.equal(
        first.module.get_buffer("front.filters"),
        load_file(run / "published.safetensors")["front.filters"],
    )
    np.testing.assert_array_equal(first.predict_proba(rows), steppe.load(run).predict_proba(rows))
    last = steppe.load(run, average="SWA")
    assert torch.equal(
        last.module.get_buffer("front.filters"), first.module.get_buffer("front.filters")
    )
    assert first.intervals(rows).checkpoints == 4


def python_run(folder: Path, model: nn.Module, **options: Any) -> Path:
    x = torch.randn(100, 6)
    plan = steppe.Plan(**trained_runs.PLAN, population=100)
    data = (x, (x[:, 0] > 0).long())
    Trainer(model, data, plan, run=folder / "run", progress=False, **options).fit()
    return folder / "run"


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def test_a_run_that_python_made_needs_its_network(tmp_path: Path) -> None:
    run = python_run(tmp_path, network())
    with pytest.raises(ConfigurationError) as refused:
        steppe.load(run)
    assert str(refused.value) == (
        f"`model` is required, since the run in {str(run)!r} was made in Python; pass the network "
        "that was trained, as model=."
    )
    own = network()
    before = own[0].weight.clone()
    model = steppe.load(run, model=own)
    assert torch.equal(own[0].weight, before)  # a copy has the weights
    rows = torch.randn(5, 6)
    assert torch.allclose(
        model.module(rows).softmax(-1).double(), torch.from_numpy(model.predict_proba(rows))
    )
    assert model.classes == [0, 1]
    with pytest.raises(ConfigurationError, match=r"^model='Linear': does not fit the weights"):
        steppe.load(run, model=nn.Linear(6, 2))
    with pytest.raises(DataError, match="has stored no checkpoints"):
        model.intervals(rows)


def test_frozen_weights_are_in_the_published_file(tmp_path: Path) -> None:
    frozen = network()
    frozen[0].requires_grad_(False)
    run = python_run(tmp_path, frozen)
    found = steppe.load(run, model=network())
    assert found.name.startswith("EMA")
    assert torch.equal(found.module[0].weight, frozen[0].weight)
    again = steppe.load(run, model=network(), average="SWA")
    assert torch.equal(again.module[0].weight, frozen[0].weight)


def test_a_factory_that_is_gone_says_what_to_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = constants_run(tmp_path)
    toml = (run / "run.toml").read_text().replace("trained_runs:", "not_there_any_more:")
    (run / "run.toml").write_text(toml)
    with pytest.raises(ConfigurationError) as refused:
        steppe.load(run)
    assert "model.factory='not_there_any_more:turned': cannot be imported" in str(refused.value)
    assert str(refused.value).endswith("Or pass the network that was trained, as model=.")
    assert steppe.load(run, model=trained_runs.turned()).classes == [0, 1]


def test_a_run_of_seeded_noise_is_not_private_wherever_it_shows(tmp_path: Path) -> None:
    run = trained_runs.train("table", tmp_path, source=steppe.SeededSource(0))
    with pytest.warns(PrivacyWarning, match=r"^NOT PRIVATE: "):
        model = steppe.load(run)
    assert "NOT PRIVATE: " in repr(model)
    assert model.privacy["private"] is False
    assert model.privacy["epsilon"] is None
    statement = json.loads((run / "statement.json").read_text())
    (run / "statement.json").write_text(
        json.dumps({**statement, "private": True, "epsilon": 1.0, "not_private_reason": None})
    )
    with pytest.warns(PrivacyWarning, match=r"^NOT PRIVATE: "):  # the weights say so themselves
        assert steppe.load(run).privacy["epsilon"] is None


def test_a_run_that_has_not_ended_is_refused(copied: Path) -> None:
    (copied / "published.safetensors").unlink()
    with pytest.raises(DataError) as refused:
        steppe.load(copied)
    assert str(refused.value) == (
        f"run={str(copied)!r}: has not ended and has published no model; resume it with `steppe "
        f"resume {copied}`."
    )


def test_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="contains no run"):
        steppe.load(tmp_path)


@pytest.mark.parametrize("name", ["published.safetensors", "statement.json", "config.json"])
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"\0" * 99])
def test_damaged_files_are_refused(copied: Path, name: str, damage: Any) -> None:
    path = copied / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"^file='.*restore it from a copy\.$"):
        steppe.load(copied)


def test_the_weights_of_another_run_are_refused(copied: Path) -> None:
    path = copied / "published.safetensors"
    save_file(load_file(path), path, {"model": "EMA", "plan": "0" * 64})
    with pytest.raises(DataError, match="holds the weights of another run"):
        steppe.load(copied)


def test_weights_that_are_not_finite_are_not_answered_with(copied: Path) -> None:
    path = copied / "published.safetensors"
    save_file({n: t * float("nan") for n, t in load_file(path).items()}, path, {"model": "EMA"})
    with pytest.raises(ConfigurationError, match="answers with numbers that are not finite"):
        steppe.load(copied).predict(NEW)


def test_loading_draws_no_random_number_of_the_user(runs: Runs) -> None:
    torch.manual_seed(0)
    steppe.load(runs("table")).predict(NEW)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(3), drawn)
