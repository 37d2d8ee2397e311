"""The store: whole files, true hashes, and clear words about damage."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from averaging_cases import Tied, bits, same_bits, walk
from safetensors import safe_open
from torch import nn

from steppe.averaging import CheckpointAverage, CheckpointStore, Keep
from steppe.errors import ConfigurationError, DataError, MisuseError, StorageError
from steppe.utils import files as files_module
from steppe.utils.files import single_writer


def filled(folder: Path, steps: range, keep: Keep | None = None) -> CheckpointStore:
    store = CheckpointStore(folder, plan="plan-a", keep=keep)
    model = Tied()
    for step in steps:
        walk(model, step)
        store.append(model, step=step, epsilon=0.1 * step)
    return store


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_goes_in_comes_out_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    model, other = Tied(dtype), Tied(dtype)
    walk(model, 3)
    entry = CheckpointStore(tmp_path).append(model, step=3, epsilon=0.5)
    reader = CheckpointStore(tmp_path)
    assert reader.entries() == [entry]
    assert (entry.step, entry.epsilon, entry.kind) == (3, 0.5, "model")
    assert reader.restore(other) == entry
    assert same_bits(bits(other), bits(model))


def test_two_names_for_one_piece_of_memory(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("first_row", model.weight.detach()[0])
    store = CheckpointStore(tmp_path)
    entry = store.append(model, step=1)
    found = store.load(entry)
    assert torch.equal(found["first_row"], model.weight.detach()[0])
    assert torch.equal(found["weight"], model.weight.detach())


def test_files_are_for_their_owner_only_and_none_is_left_over(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    filled(folder, range(1, 6), Keep(last=2))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # Beside the two, what the last append dropped: a reader may be about to open it.
    assert [int(p.name[:9]) for p in sorted(folder.glob("*.safetensors"))] == [3, 4, 5]
    assert sorted(p.name for p in folder.iterdir() if p.suffix != ".safetensors") == [
        ".lock",
        "index.json",
    ]


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        (Keep(), list(range(1, 11))),
        (Keep(last=3), [8, 9, 10]),
        (Keep(every=4), [4, 8]),
        (Keep(last=1, every=4), [4, 8, 10]),
    ],
)
def test_keep_rules(keep: Keep, steps: list[int], tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 11), keep)
    assert [entry.step for entry in store.entries()] == steps
    CheckpointStore(tmp_path, plan="plan-a").append(Tied(), step=11)
    assert len(list(tmp_path.glob("*.safetensors"))) == len(steps) + 1


def test_last_obeys_burn_in_and_spacing(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 11))
    assert [e.step for e in store.last(3).entries] == [8, 9, 10]
    assert [e.step for e in store.last(3, spacing=3).entries] == [4, 7, 10]
    assert [e.step for e in store.last(3, burn_in=7).entries] == [8, 9, 10]
    with pytest.raises(ConfigurationError, match=r"k=3: is more than the 2 .* burn_in=8"):
        store.last(3, burn_in=8)  # steps up to this one, and it is one of them
    with pytest.raises(ConfigurationError, match=r"k=11: is more than the 10 checkpoints stored"):
        store.last(11)
    with pytest.raises(
        ConfigurationError, match=r"k=3: is more than the 2 .* burn_in=6, spacing=3"
    ):
        store.last(3, burn_in=6, spacing=3)


def test_the_mean_of_stored_checkpoints(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 6))
    model = Tied()
    expected = torch.stack([c["embed.weight"] for c in store.last(3)]).double().mean(0).float()
    found = CheckpointAverage(model, store.last(3))
    torch.testing.assert_close(found.weights()["embed.weight"], expected)
    assert found.covers == 3
    assert found.weights()["seen"] == 5
    with found.applied(model):
        torch.testing.assert_close(model.embed.weight.detach(), expected)


def test_another_plan_or_model_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 3))
    with pytest.raises(
        ConfigurationError, match=r"plan='plan-b': the store belongs to the plan pl"
    ):
        CheckpointStore(tmp_path, plan="plan-b")
    with pytest.raises(
        ConfigurationError, match=r"`plan` is required, since the store belongs to the plan plan-a"
    ):
        CheckpointStore(tmp_path).append(Tied(), step=3)
    with pytest.raises(
        ConfigurationError, match=r"weights='bias': is \['float32', 1\] here and abs"
    ):
        store.append(nn.Linear(1, 1), step=3)
    with pytest.raises(
        ConfigurationError, match=r"'embed.weight': is \['float64', 3, 2\] here and"
    ):
        store.append(Tied(torch.float64), step=3)
    with pytest.raises(ConfigurationError, match=r"checkpoints='embed.weight': is in a checkp"):
        store.restore(nn.Linear(1, 1))
    assert len(list(CheckpointStore(tmp_path).last(2))) == 2


def test_steps_grow_until_the_store_is_rewound(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 6))
    for step in (4, 5):
        with pytest.raises(
            ConfigurationError, match=rf"step={step}: must come after step 5, .*; call rewind"
        ):
            store.append(Tied(), step=step)
    store.append(Tied(), step=5, kind="other")  # each kind has steps of its own
    store.rewind(3)
    assert [entry.step for entry in store.entries("other")] == [5]
    store.append(Tied(), step=4)
    assert [entry.step for entry in store.entries()] == [1, 2, 3, 4]
    with pytest.raises(ConfigurationError, match=r"step=9: is not among the 4 stored checkpoints"):
        store.restore(Tied(), step=9)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-7], r"is truncated or longer: \d+ bytes, not \d+"),
        (lambda data: data[:-1] + b"x", r"does not have the hash of the index"),
        (lambda data: None, r"is gone, perhaps by the keep rule"),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_stays_readable(  # type: ignore[no-untyped-def]
    damage, message: str, tmp_path: Path
) -> None:
    store = filled(tmp_path, range(1, 5))
    victim = tmp_path / store.entries()[1].file
    changed = damage(victim.read_bytes())
    victim.unlink() if changed is None else victim.write_bytes(changed)
    with pytest.raises(DataError, match=rf"file='{victim.name}': {message}"):
        list(store.last(4))
    with pytest.warns(RuntimeWarning, match=rf"skipped: file='{victim.name}'"):
        assert len(list(store.last(4, damaged="skip"))) == 3
    assert len(list(store.last(2))) == 2
    store.append(Tied(), step=5)


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    filled(tmp_path, range(1, 3))
    (tmp_path / "index.json").write_text('{"format": 1, "entr')
    with pytest.raises(DataError, match=r"file='index.json': cannot be read as an index"):
        CheckpointStore(tmp_path)
    (tmp_path / "index.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(DataError, match=r"file='index.json': is not an index of format 1"):
        CheckpointStore(tmp_path)


ENTRY = {
    "step": 1,
    "epsilon": None,
    "kind": "model",
    "file": "000000001-aaaaaaaaaaaaaaaa.safetensors",
    "sha256": "a" * 64,
    "size": 9,
}
INDEX = {"format": 1, "plan": None, "shapes": {}, "entries": [ENTRY], "not_private_reason": None}
FIELDS = "has an entry with other fields than those of a checkpoint"
SENSE = "has an invalid entry, that of step"


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"format": 1}, "has other fields than an index"),
        ({**INDEX, "more": 1}, "has other fields than an index: entries, more, not_"),
        ({**INDEX, "plan": 7}, "must have text or null as its plan"),
        ({**INDEX, "not_private_reason": []}, "must have text or null as its not_private_reason"),
        ({**INDEX, "entries": 7}, "must have a list of entries"),
        ({**INDEX, "entries": [ENTRY, ENTRY]}, "has a checkpoint twice"),
        ({**INDEX, "shapes": []}, "must have the shapes of tensors by kind and by name"),
        ({**INDEX, "shapes": {"model": 1}}, "must have the shapes of tensors"),
        ({**INDEX, "shapes": {"model": {"weight": "float32"}}}, "must have the shapes of tensors"),
        ([INDEX], "is not an index of format 1"),
    ],
)
@pytest.mark.parametrize("plan", [None, "plan-a"])
def test_an_index_that_no_store_wrote_is_damaged(
    index: object, message: str, plan: str | None, tmp_path: Path
) -> None:
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=rf"file='index.json': {message}.*; restore it from a copy"):
        CheckpointStore(tmp_path, plan)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"x": 1}, FIELDS),
        (7, FIELDS),
        ({**ENTRY, "more": 1}, FIELDS),
        ({name: value for name, value in ENTRY.items() if name != "size"}, FIELDS),
        ({**ENTRY, "step": 0}, SENSE),
        ({**ENTRY, "step": True}, SENSE),
        ({**ENTRY, "step": "1"}, SENSE),
        ({**ENTRY, "size": -1}, SENSE),
        ({**ENTRY, "kind": None}, SENSE),
        ({**ENTRY, "epsilon": math.nan}, SENSE),
        ({**ENTRY, "epsilon": -1}, SENSE),
        ({**ENTRY, "epsilon": "1"}, SENSE),
        ({**ENTRY, "sha256": None}, SENSE),
        ({**ENTRY, "sha256": "../victim/../" + "a" * 51}, SENSE),
        ({**ENTRY, "file": None}, "names the file None, as no store does"),
        ({**ENTRY, "file": "../victim.txt"}, "names the file '../victim.txt', as no store does"),
        ({**ENTRY, "file": "/etc/passwd"}, "names the file '/etc/passwd'"),
        ({**ENTRY, "file": "index.json"}, "names the file 'index.json'"),
        ({**ENTRY, "file": "000000002-aaaaaaaaaaaaaaaa.safetensors"}, "names the file '000000002-"),
    ],
)
def test_an_entry_that_no_store_wrote_is_damage(
    entry: object, message: str, tmp_path: Path
) -> None:
    (tmp_path / "index.json").write_text(json.dumps({**INDEX, "entries": [entry]}))
    with pytest.raises(DataError, match=rf"file='index.json': {message}.*; restore it from a copy"):
        CheckpointStore(tmp_path)


@pytest.mark.parametrize(
    "touch",
    [
        lambda store: store.rewind(1),
        lambda store: store.append(Tied(), step=3),
        lambda store: store.restore(Tied()),
        lambda store: list(store.last(2)),
    ],
)
def test_an_index_cannot_name_a_file_elsewhere(touch: Any, tmp_path: Path) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    store = filled(tmp_path / "store", range(1, 3), Keep(last=1, every=1))
    index = json.loads((store.folder / "index.json").read_text())
    index["entries"][1]["file"] = "../victim.txt"
    (store.folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=r"names the file '../victim.txt', as no store does"):
        touch(store)
    assert victim.read_text() == "precious"


def test_an_indented_index_as_it_once_was_can_be_read_and_added_to(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 3))
    index = tmp_path / "index.json"
    index.write_text(json.dumps(json.loads(index.read_text()), indent=1))
    assert len(list(store.last(2))) == 2
    store.append(Tied(), step=3)
    assert len(index.read_text().splitlines()) == 1  # indented, it takes several times as long


def test_checkpoints_without_their_index_are_not_taken_for_leftovers(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 4))
    (tmp_path / "index.json").unlink()
    with pytest.raises(
        DataError, match=r"file='index.json': is missing, although there are checkpoints"
    ):
        store.append(Tied(), step=4)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3


@pytest.mark.parametrize("stored", [0, 2])
def test_what_a_killed_writer_left_is_removed_by_the_next_append(
    stored: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, range(1, stored + 1))
    other = tmp_path / "mine.safetensors"
    other.touch()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(CheckpointStore, "_write_index", killed)
        with pytest.raises(KeyboardInterrupt):
            store.append(Tied(), step=stored + 1)
    assert len(list(tmp_path.glob("0*.safetensors"))) == stored + 1
    changed = Tied()
    walk(changed, 9)
    store.append(changed, step=stored + 1)
    found = {path.name for path in tmp_path.glob("0*.safetensors")}
    assert found == {entry.file for entry in store.entries()}
    assert other.exists()  # not a name that a store gives


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        StorageError, match=r"^folder='.*/store': cannot be written \(Not a dir.*; "
    ):
        CheckpointStore(tmp_path / "file" / "store")


def test_a_crash_while_writing_leaves_the_old_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, range(1, 3))

    def crash(*_: object) -> None:
        raise OSError("no space left")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patched:
            patched.setattr(files_module.os, function, crash)
            with pytest.raises(OSError, match="no space left"):
                store.append(Tied(), step=3)
        assert [entry.step for entry in store.entries()] == [1, 2]
        assert not list(tmp_path.glob(".writing-*"))
    (tmp_path / ".writing-of-a-killed-process").touch()
    store.append(Tied(), step=3)
    assert not list(tmp_path.glob(".writing-*"))
    assert len(list(store.last(3))) == 3


def test_two_writers_are_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 2))
    with (
        single_writer(tmp_path),
        pytest.raises(MisuseError, match=r"another process writes to it"),
    ):
        store.append(Tied(), step=2)


def test_a_reader_in_another_process_never_sees_half_a_store(tmp_path: Path) -> None:
    store = filled(tmp_path, range(1, 2))
    reader = (
        "import sys, time, pathlib\n"
        "from steppe.averaging import CheckpointStore\n"
        "store, reads = CheckpointStore(sys.argv[1]), 0\n"
        "pathlib.Path(sys.argv[1], 'ready').touch()\n"
        "while (newest := store.entries()[-1]).step < 60:\n"
        "    assert store.load(newest)['seen'] == newest.step\n"
        "    reads += 1\n"
        "print(reads)\n"
    )
    command = [sys.executable, "-c", reader, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        model = Tied()
        for step in range(2, 61):
            walk(model, step)
            store.append(model, step=step)
        out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    assert int(out) > 0


def test_a_reader_has_an_append_of_time_before_the_keep_rule_reaches_it(tmp_path: Path) -> None:
    writer = filled(tmp_path, range(1, 4), Keep(last=2))
    told = CheckpointStore(tmp_path).last(2)
    writer.append(Tied(), step=4)
    assert [e.step for e in writer.entries()] == [3, 4]
    assert [int(tensors["seen"]) for tensors in told] == [2, 3]
    writer.append(Tied(), step=5)
    with pytest.raises(DataError, match=r"file='000000002-.*': is gone, perhaps by the keep rule"):
        list(told)


def test_no_pickle_and_no_environment_reach_the_files(tmp_path: Path) -> None:
    filled(tmp_path, range(1, 3))
    for path in tmp_path.glob("*.safetensors"):
        header = int.from_bytes(path.read_bytes()[:8], "little")
        described = json.loads(path.read_bytes()[8 : 8 + header])
        assert described["__metadata__"] == {
            "kind": "model",
            "plan": "plan-a",
            "step": described["__metadata__"]["step"],
        }
        assert os.fspath(tmp_path) not in json.dumps(described)


def test_a_store_says_why_it_protects_nothing(tmp_path: Path) -> None:
    filled(tmp_path, range(1, 3))
    assert CheckpointStore(tmp_path).not_private_reason is None
    seeded = CheckpointStore(tmp_path, "plan-a", not_private_reason="a seed")
    entry = seeded.append(Tied(), step=3)
    assert entry.epsilon is None
    # From then on, also where a later part of the run has noise that nobody knows.
    later = CheckpointStore(tmp_path, "plan-a")
    assert later.not_private_reason == "a seed"
    for one in (entry, later.append(Tied(), step=4)):
        with safe_open(tmp_path / one.file, "pt") as file:
            assert file.metadata()["not_private_reason"] == "a seed"
    later.rewind(1)
    assert CheckpointStore(tmp_path).not_private_reason == "a seed"
