"""Checkpoints and the states in them: what comes back, and what is refused."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from steppe.errors import ConfigurationError, DataError
from steppe.ledger import Anchor
from steppe.training.resume_checkpoints import Checkpoint, ResumeCheckpoints, _digest
from steppe.utils.state_format import pack, unpack


def through(value: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    packed = json.loads(json.dumps(pack("state", value, tensors), allow_nan=False))
    return unpack(packed, {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize(
    "value",
    [
        {"a": 1, "b": [1.5, None, True], "c": ("x", (1, 2))},
        {0: {"nested": {1: "one"}}, "text": "ε"},
        {"best": float("inf"), "worst": float("-inf")},
        {"$tensor": "a key that looks like ours"},
        {"a.b": 1, "a": {"b": 2}},
        {0: 1, "0": 2},
        [],
        {},
    ],
)
def test_states_come_back(value: Any) -> None:
    assert through(value) == value


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
        lambda p: torch.optim.Adagrad(p, lr=0.1),
    ],
)
def test_optimizers_go_on_as_if_nothing_had_happened(make: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    first, second = (make(model.parameters()) for model in models)

    def step(model: nn.Module, optimizer: Any, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()

    for seed in range(3):
        step(models[0], first, seed)
    models[1].load_state_dict(through(models[0].state_dict()))
    second.load_state_dict(through(first.state_dict()))
    step(models[0], first, 9)
    step(models[1], second, 9)
    assert torch.equal(models[0].weight, models[1].weight)


def test_the_file_is_the_only_copy_of_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed_over: dict[str, torch.Tensor] = {}
    save = safetensors.torch.save

    def spied(tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
        handed_over.update(tensors)
        return save(tensors, metadata)

    monkeypatch.setattr(safetensors.torch, "save", spied)
    whole = torch.arange(6.0)
    state = {"a": whole, "tied": whole, "part": whole[2:4], "crossed": torch.ones(2, 3).T}
    ResumeCheckpoints(tmp_path).save(replace(checkpoint(1), state=state))
    assert handed_over["state.a"].data_ptr() == whole.data_ptr()
    for name in ("tied", "part"):  # which safetensors refuses
        shared = handed_over[f"state.{name}"].untyped_storage()
        assert shared.data_ptr() != whole.untyped_storage().data_ptr()
    newest, _ = ResumeCheckpoints(tmp_path).newest()
    assert newest is not None
    for name, tensor in state.items():
        assert torch.equal(newest.state[name], tensor)


def test_what_is_neither_number_nor_tensor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"state\.a='object': cannot be written into a ch"):
        pack("state", {"a": object()}, {})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}}, r"state\.a\.b"),
        ({0: torch.zeros(2), "0": torch.ones(2)}, r"state\.0"),
        ({"a": [torch.zeros(2)], "a.0": torch.ones(2)}, r"state\.a\.0"),
    ],
)
def test_two_tensors_of_one_name_are_refused(value: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{name}=\(2,\): would be the name of two"):
        pack("state", value, {})


def checkpoint(step: int, value: float = 0.0) -> Checkpoint:
    state = {"weight": torch.full((3,), value), "steps": step}
    return Checkpoint(step, "run", "digest", Anchor(2, "h"), 1.5, 0, state)


def test_the_newest_of_two_comes_back(tmp_path: Path) -> None:
    kept = ResumeCheckpoints(tmp_path)
    assert kept.newest() == (None, ())
    for step in (2, 4, 6, 8):
        kept.save(checkpoint(step, value=step))
    found, complaints = kept.newest()
    assert found is not None
    assert complaints == ()
    assert (found.step, found.anchor, found.seconds) == (8, Anchor(2, "h"), 1.5)
    assert torch.equal(found.state["weight"], torch.full((3,), 8.0))
    names = sorted(path.name[:9] for path in tmp_path.iterdir() if path.name[0] != ".")
    assert names == ["000000006", "000000006", "000000008", "000000008"]


def test_a_checkpoint_says_why_it_protects_nothing(tmp_path: Path) -> None:
    kept = ResumeCheckpoints(tmp_path)
    kept.save(replace(checkpoint(2), not_private_reason="a seed"))
    found, _ = kept.newest()
    assert found is not None
    assert found.not_private_reason == "a seed"
    assert json.loads((tmp_path / "000000002.json").read_text())["not_private_reason"] == "a seed"


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    kept = ResumeCheckpoints(tmp_path)
    kept.save(checkpoint(2, value=1))
    kept.save(checkpoint(2, value=5))
    found, _ = kept.newest()
    assert found is not None
    assert torch.equal(found.state["weight"], torch.full((3,), 5.0))
    assert len(list(tmp_path.glob("*.safetensors"))) == 1


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("damage", [lambda data: data[:-4], lambda data: data[:-9] + b"123456789"])
def test_a_damaged_file_is_passed_over_and_named(
    tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    kept = ResumeCheckpoints(tmp_path)
    for step in (2, 4):
        kept.save(checkpoint(step, value=step))
    path = max(tmp_path.glob(f"*.{suffix}"))
    path.write_bytes(damage(path.read_bytes()))
    found, (complaint,) = kept.newest()
    assert found is not None
    assert found.step == 2
    assert path.name in complaint


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
def test_damaged_checkpoints_take_no_place_of_whole_ones(tmp_path: Path, suffix: str) -> None:
    kept = ResumeCheckpoints(tmp_path)
    for step in (2, 4):
        kept.save(checkpoint(step, value=step))
    path = max(tmp_path.glob(f"*.{suffix}"))
    path.write_bytes(path.read_bytes()[:-4])
    kept.save(checkpoint(6, value=6))
    newest = max(tmp_path.glob("*.json"))
    newest.unlink()
    found, complaints = kept.newest()
    assert found is not None
    assert found.step == 2
    assert len(complaints) == 1
    for step in (6, 8):
        kept.save(checkpoint(step, value=step))
    names = sorted(path.name[:9] for path in tmp_path.iterdir() if path.name[0] != ".")
    assert names == ["000000006", "000000006", "000000008", "000000008"]


def test_a_missing_file_of_tensors_is_named(tmp_path: Path) -> None:
    kept = ResumeCheckpoints(tmp_path)
    kept.save(checkpoint(2))
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(DataError, match=r"all are damaged: file='000000002-.*cannot be read"):
        kept.newest()


def test_an_edited_fact_is_noticed(tmp_path: Path) -> None:
    kept = ResumeCheckpoints(tmp_path)
    kept.save(checkpoint(2))
    path = tmp_path / "000000002.json"
    path.write_text(path.read_text().replace('"lost": 0', '"lost": 1'))
    with pytest.raises(DataError, match="does not have its hash: it was changed"):
        kept.newest()


def test_leftovers_of_a_killed_writer_go(tmp_path: Path) -> None:
    (tmp_path / ".writing-abc").write_text("half")
    (tmp_path / "000000001-0123456789abcdef.safetensors").write_text("no one vouches for this")
    ResumeCheckpoints(tmp_path).save(checkpoint(2))
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.name[0] != ".") == [
        ".json",
        ".safetensors",
    ]
    assert not (tmp_path / ".writing-abc").exists()


class _Payload:
    """Makes a file where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.trace,)


def _zipped(payload: _Payload) -> bytes:
    file = io.BytesIO()
    torch.save(payload, file)
    return file.getvalue()


def _vouch_for(manifest: Path, data: bytes) -> None:
    """Rewrite a manifest, its own hash too, so that it names these bytes as the tensors."""
    facts = json.loads(manifest.read_text())
    del facts["sha256"]
    facts["tensors"] |= {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    manifest.write_text(json.dumps({**facts, "sha256": _digest(facts)}))


@pytest.mark.parametrize("written", [pickle.dumps, _zipped], ids=["pickle", "torch.save"])
@pytest.mark.parametrize("place", ["json", "safetensors", "safetensors and its hashes"])
def test_a_pickle_in_the_place_of_a_checkpoint_is_refused_and_not_run(
    tmp_path: Path, place: str, written: Callable[[_Payload], bytes]
) -> None:
    kept, trace = ResumeCheckpoints(tmp_path / "kept"), tmp_path / "trace"
    kept.save(checkpoint(2))
    data = written(_Payload(trace))
    suffix, *hashes = place.split(maxsplit=1)
    next(kept.folder.glob(f"*.{suffix}")).write_bytes(data)
    if hashes:
        _vouch_for(next(kept.folder.glob("*.json")), data)
    with pytest.raises(DataError, match=rf"all are damaged: file='000000002.*\.{suffix}': .*; use"):
        kept.newest()
    assert not trace.exists(), "the payload was run"
    if written is pickle.dumps:
        pickle.loads(data)  # noqa: S301  # the test's own
    else:
        torch.load(io.BytesIO(data), weights_only=False)
    assert trace.exists(), "the payload cannot run at all"
