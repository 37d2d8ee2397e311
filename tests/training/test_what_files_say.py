"""Every file of a run says where its noise is known, and none says anything of the records."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import nn
from torch.nn import functional as F
from training_cases import STEPS, pairs, trainer

from steppe import SeededSource
from steppe.ledger import Ledger
from steppe.training import read_log
from steppe.training.groups import PrivateData


def test_a_seeded_run_is_stamped_wherever_it_leaves_something(tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = trainer(run, source=SeededSource(0)).fit()
    reason = SeededSource.not_private_reason
    lines = str(outcome).splitlines()
    assert lines[0] == f"NOT PRIVATE: {reason}"
    assert lines[-2].startswith(f"ε = none at δ = 0.0001, {STEPS} steps")
    assert outcome.epsilon is None
    result, statement, index = (
        json.loads((run / name).read_text())
        for name in ("result.json", "statement.json", "store/index.json")
    )
    for found in (result, statement, index):
        assert found["not_private_reason"] == reason
    assert result["epsilon"] is result["ledger"]["epsilon"] is statement["epsilon"] is None
    assert {entry["epsilon"] for entry in index["entries"]} == {None}
    log = read_log(run / "log.jsonl")
    assert log[0]["text"] == f"NOT PRIVATE: {reason}"
    assert {line["epsilon"] for line in log} == {None}
    for path in (run / "checkpoints").glob("*.json"):
        assert json.loads(path.read_text())["not_private_reason"] == reason
    weights = [run / "model.safetensors", run / "published.safetensors"]
    weights += (run / "averages").iterdir()
    weights += (run / "store").glob("*.safetensors")
    assert len(weights) == 4 + STEPS // 4
    for path in weights:
        with safe_open(path, "pt") as file:
            assert file.metadata()["not_private_reason"] == reason, path
    (known,) = Ledger(run / "ledger.jsonl").runs().values()
    assert known.not_private_reason == reason


def apart_from_weights(run: Path) -> dict[str, Any]:
    """What the files of a run say; of weights, times and ids, and hashes of these, their form."""
    found: dict[str, Any] = {}
    for path in (path for path in run.rglob("*") if path.is_file()):
        name = re.sub(r"-[0-9a-f]{16}\.", ".", path.relative_to(run).as_posix())
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                shapes = {key: file.get_slice(key).get_shape() for key in file.keys()}  # noqa: SIM118
                found[name] = [file.metadata(), shapes]
        elif path.suffix in (".json", ".jsonl"):
            text = path.read_text()
            values = map(json.loads, text.splitlines() if path.suffix == ".jsonl" else [text])
            # How often the log says how fast a run is depends on how fast it is.
            found[name] = [known(value) for value in values if value.get("kind") != "progress"]
        else:
            found[name] = path.read_bytes()
    return found


def known(value: Any) -> Any:
    """JSON with the mere type of what differs between any two runs."""
    varies = ("seconds", "time", "run", "hash", "head", "sha256", "file")
    if isinstance(value, dict):
        return {k: type(v) if k in varies else known(v) for k, v in value.items()}
    return [known(item) for item in value] if isinstance(value, list) else value


def test_nothing_about_private_records_reaches_the_files(tmp_path: Path) -> None:
    """Runs on other records leave the same files, apart from weights; a leak would show there."""

    def constant(_: nn.Module) -> dict[str, float]:
        return {"accuracy": 0.5, "loss": 1.0}  # scores of the weights are public, and would vary

    runs = {tmp_path / "one": pairs(400, seed=2), tmp_path / "two": pairs(400, seed=3)}
    models = {run: trainer(run, data=data, evaluate=constant) for run, data in runs.items()}
    for run, (inputs, _) in runs.items():
        models[run].fit()
        needle = inputs[0, :3].numpy().tobytes()
        assert not any(needle in path.read_bytes() for path in run.rglob("*") if path.is_file())
    one, two = map(apart_from_weights, runs)
    assert len(one) > 20
    assert one == two
    for leak in (  # and the comparison can fail
        lambda model, inputs, labels: labels.tolist(),
        lambda model, inputs, labels: inputs[0].tolist(),
        lambda model, inputs, labels: F.cross_entropy(model(inputs), labels).item(),
    ):
        for run, data in runs.items():
            (run / "plugin.json").write_text(json.dumps({"seen": leak(models[run].model, *data)}))
        one, two = map(apart_from_weights, runs)
        assert one != two


def test_scores_on_private_records_are_named_beside_them(tmp_path: Path) -> None:
    for name, share in (("public", None), ("private", 0.2)):
        data = PrivateData(records=pairs(400), held_out=share)
        trainer(tmp_path / name, data=data, averages=(), store_every=None).fit()
        result = json.loads((tmp_path / name / "result.json").read_text())
        assert result["table"]
        assert result["held_out_share"] == share
