"""`steppe export`: each format answers as the original does, to 1e-5, and says what it promises."""

from __future__ import annotations

import hashlib
import io
import json
import pickletools
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import trained_runs
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import steppe
from steppe import models
from steppe.cli import main
from steppe.errors import ConfigurationError, PrivacyWarning, UnsupportedModelError
from steppe.trained import TrainedModel, export

Runs = Callable[[str], Path]
KINDS = pytest.mark.parametrize("kind", list(trained_runs.KINDS))
ONNX = pytest.mark.skipif(
    not (find_spec("onnx") and find_spec("onnxscript")),
    reason='the extra is not installed: pip install "steppe[onnx]"',
)


def made_up(model: TrainedModel, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, *model.inputs.shape, generator=generator)


def require_same(model: TrainedModel, answer: Callable[[Tensor], Tensor]) -> None:
    """The answers to one record and to several."""
    for count in (1, 7):
        records = made_up(model, count)
        with torch.no_grad():
            wanted = model.module(records)
            torch.testing.assert_close(answer(records), wanted, atol=1e-5, rtol=1e-5)


@KINDS
def test_safetensors_load_as_the_card_says(runs: Runs, tmp_path: Path, kind: str) -> None:
    model = steppe.load(runs(kind))
    file = export(model, tmp_path / "out")
    page = (tmp_path / "out" / "README.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0].replace(file.name, str(file))
    names: dict[str, nn.Module] = {}
    exec(code, names)  # noqa: S102 - what the page tells its reader to run
    require_same(model, names["model"].eval())


@KINDS
def test_a_program_of_torch_answers_alike(runs: Runs, tmp_path: Path, kind: str) -> None:
    model = steppe.load(runs(kind))
    file = export(model, tmp_path / "out", "torch")
    require_same(model, torch.export.load(file).module())


@ONNX
@KINDS
def test_a_program_in_onnx_answers_alike(runs: Runs, tmp_path: Path, kind: str) -> None:
    from onnx.reference import ReferenceEvaluator

    model = steppe.load(runs(kind))
    file = export(model, tmp_path / "out", "onnx")
    program = ReferenceEvaluator(str(file))
    require_same(
        model, lambda records: torch.from_numpy(program.run(None, {"records": records.numpy()})[0])
    )
    if find_spec("onnxruntime"):
        from onnxruntime import InferenceSession

        session = InferenceSession(file)
        require_same(
            model,
            lambda records: torch.from_numpy(session.run(None, {"records": records.numpy()})[0]),
        )


def pickles_in(data: bytes) -> list[str]:
    """The files of an archive, and of archives in it, that can be read as pickles."""
    found = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            inside = archive.read(name)
            if zipfile.is_zipfile(io.BytesIO(inside)):
                found += pickles_in(inside)
            elif inside[:1] == b"\x80":
                with suppress(ValueError):  # numbers may begin like one
                    list(pickletools.genops(inside))
                    found.append(name)
    return found


def test_no_file_holds_a_pickle_or_a_path(runs: Runs, tmp_path: Path) -> None:
    model = steppe.load(runs("scattering"))
    file = export(model, tmp_path / "out", "torch")
    assert pickles_in(file.read_bytes()) == []
    torch.save({"a": 1}, tmp_path / "pickled.pt")
    assert pickles_in((tmp_path / "pickled.pt").read_bytes()) != []
    with zipfile.ZipFile(file) as archive:
        parts = [archive.read(name) for name in archive.namelist()]
    parts += [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    for part in parts:
        assert str(Path(steppe.__file__).parent).encode() not in part
        assert str(runs("scattering").parent).encode() not in part


def test_the_card_says_what_the_model_takes_and_promises(runs: Runs, tmp_path: Path) -> None:
    model = steppe.load(runs("table"))
    file = export(model, tmp_path / "out")
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["privacy"] == model.privacy
    assert (card["weights"], card["data"]) == (model.name, "patients.csv")
    assert card["classes"] == ["no", "yes"]
    assert card["inputs"] == {
        "type": "float32",
        "shape": ["records", 4],
        "bytes": False,
        "columns": ["age", "visits", "sex"],
        "bounds": {"age": [20.0, 80.0], "visits": [0.0, 10.0]},
        "categories": {"sex": ["f", "m"]},
        "missing": "middle",
    }
    assert card["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    page = (tmp_path / "out" / "README.md").read_text()
    assert "Trained with differential privacy: (ε, δ) = (19.9" in page
    assert "- `sex`: an input of 0 or 1 for each of f, m" in page
    for text in model.privacy["items"].values():
        assert text in page


def test_scores_are_shown_where_they_may_be(runs: Runs, tmp_path: Path) -> None:
    model = steppe.load(runs("cnn"))
    for public in (False, True):
        folder = tmp_path / str(public)
        export(model, folder, public=public)
        scores = json.loads((folder / "card.json").read_text())["scores"]
        assert ("## Scores" in (folder / "README.md").read_text()) is public
        assert (scores is not None) is public
    (row,) = (row for row in model.run.result["table"] if row["model"] == model.name)
    assert scores == {"accuracy": row["accuracy"], "loss": row["loss"]}


@pytest.mark.parametrize("format", ["safetensors", "torch", pytest.param("onnx", marks=ONNX)])
def test_every_file_of_a_seeded_run_says_not_private(tmp_path: Path, format: str) -> None:
    run = trained_runs.train("regression", tmp_path, source=steppe.SeededSource(0))
    with pytest.warns(PrivacyWarning, match=r"^NOT PRIVATE: "):
        model = steppe.load(run)
    file = export(model, tmp_path / "out", format)
    assert "**NOT PRIVATE: " in (tmp_path / "out" / "README.md").read_text()
    assert json.loads((tmp_path / "out" / "card.json").read_text())["privacy"]["private"] is False
    if format == "safetensors":
        with safe_open(file, "pt") as opened:
            assert opened.metadata()["not_private_reason"] == model.privacy["not_private_reason"]
    elif format == "torch":
        told = {"card.json": ""}
        torch.export.load(file, extra_files=told)
        assert "NOT PRIVATE: " in told["card.json"]
    else:
        assert b"NOT PRIVATE: " in file.read_bytes()


def test_the_command_exports_the_model_that_is_named(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(runs("scattering"), tmp_path / "run"))
    assert main(["export", str(run)]) == 0
    assert capsys.readouterr().out.endswith("model.safetensors, with card.json and README.md\n")
    network = models.create("scattering-linear", side=8, classes=3)
    network.load_state_dict(load_file(run / "export" / "safetensors" / "model.safetensors"))
    out = tmp_path / "out"
    assert main(["export", str(run), "--model", "last", "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "last"
    last = load_file(run / "model.safetensors")["head.weight"]
    assert torch.equal(load_file(out / "model.safetensors")["head.weight"], last)
    assert main(["export", str(run), "--out", str(out)]) == 2
    assert capsys.readouterr().err == (
        f"steppe: error: --out={str(out)!r}: is there already; name a new folder.\n"
    )
    assert main(["export", str(run), "--model", "EMAA"]) == 2
    assert "--model='EMAA': is not a model of weights that this run" in capsys.readouterr().err
    (run / "run.toml").unlink()
    assert main(["export", str(run)]) == 2
    assert "was made in Python, so that its network is not known" in capsys.readouterr().err


def test_without_the_extra_a_program_in_onnx_is_refused(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steppe.trained.exported._FOR_ONNX", ("not_there_at_all",))
    with pytest.raises(ConfigurationError) as refused:
        export(steppe.load(runs("table")), tmp_path / "out", "onnx")
    assert str(refused.value) == (
        "format='onnx': needs not_there_at_all; install the extra: pip install \"steppe[onnx]\"."
    )
    assert not (tmp_path / "out").exists()


class Deciding(nn.Linear):
    """Does what no graph can."""

    def forward(self, records: Tensor) -> Tensor:
        return super().forward(records) if float(records.sum()) >= 0 else records[:, :2]


def test_a_network_that_is_no_graph_says_so(tmp_path: Path) -> None:
    x = torch.randn(100, 6)
    plan = steppe.Plan(**trained_runs.PLAN, population=100)
    trainer = steppe.Trainer(
        nn.Linear(6, 2), (x, (x[:, 0] > 0).long()), plan, run=tmp_path / "run", progress=False
    )
    trainer.fit()
    model = steppe.load(tmp_path / "run", model=Deciding(6, 2))
    np.testing.assert_equal(model.predict(x.numpy()).shape, (100,))
    with pytest.raises(UnsupportedModelError, match=r"cannot be exported: .*; export safe"):
        export(model, tmp_path / "out", "torch")
