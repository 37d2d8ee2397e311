"""The hash chain: what is found, what is let through, and who may write."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest
from synced import contents_when_synced

from steppe.errors import DataError, MisuseError, StorageError
from steppe.ledger import chain
from steppe.ledger.chain import Anchor, Writer, read


@pytest.fixture
def path(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "chain.jsonl")
    for value in range(4):
        writer.append({"kind": "test", "value": value})
    writer.close()
    return tmp_path / "chain.jsonl"


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_what_was_written_is_read(path: Path) -> None:
    found = read(path)
    assert [record["value"] for record in found.records] == [0, 1, 2, 3]
    assert [record["seq"] for record in found.records] == [1, 2, 3, 4]
    assert found.torn == b""
    assert found.anchor.length == 4
    assert json.loads(lines(path)[-1])["hash"] == found.anchor.head


def test_a_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    found = read(tmp_path / "nothing")
    assert found.anchor == Anchor()
    assert found.contains(Anchor())


def test_writing_goes_on_where_it_ended(path: Path) -> None:
    writer = Writer(path)
    writer.append({"kind": "test", "value": 4})
    writer.close()
    assert [record["value"] for record in read(path).records] == [0, 1, 2, 3, 4]


def test_a_line_is_on_the_disk_before_the_call_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = contents_when_synced(path, monkeypatch)
    writer = Writer(path)
    for value in (4, 5):
        writer.append({"kind": "test", "value": value})
        assert synced[-1] == path.read_bytes()  # all of it, not what was there before the line
    writer.close()
    assert len(synced) == 2


def test_files_are_closed_to_others(path: Path) -> None:
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_every_edited_line_is_named(path: Path, number: int) -> None:
    whole = lines(path)
    whole[number - 1] = whole[number - 1].replace(b'"value":', b'"value":1')
    path.write_bytes(b"".join(whole))
    with pytest.raises(DataError, match=f"line {number} does not have the hash it must have"):
        read(path)


def test_every_single_changed_byte_is_noticed(path: Path) -> None:
    before = path.read_bytes()
    for place in range(len(before) - 1):  # the last newline alone makes a torn end
        changed = bytearray(before)
        changed[place] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(DataError, match=r"line \d"):
            read(path)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_missing_line_is_named(path: Path, number: int) -> None:
    whole = lines(path)
    del whole[number - 1]
    path.write_bytes(b"".join(whole))
    with pytest.raises(DataError, match=f"line {number} says it is record {number + 1}"):
        read(path)


def test_lines_that_change_places_are_noticed(path: Path) -> None:
    whole = lines(path)
    whole[1], whole[2] = whole[2], whole[1]
    path.write_bytes(b"".join(whole))
    with pytest.raises(DataError, match="line 2 says it is record 3"):
        read(path)


def test_a_line_of_another_chain_is_noticed(path: Path, tmp_path: Path) -> None:
    other = Writer(tmp_path / "other.jsonl")
    for value in (0, 7, 2):
        other.append({"kind": "test", "value": value})
    other.close()
    whole = lines(path)
    whole[2] = lines(tmp_path / "other.jsonl")[2]
    path.write_bytes(b"".join(whole))
    with pytest.raises(DataError, match="line 3"):
        read(path)


def test_lines_cut_from_the_end_are_found_by_an_anchor(path: Path) -> None:
    anchor = read(path).anchor
    path.write_bytes(b"".join(lines(path)[:-1]))
    found = read(path)
    assert found.anchor.length == 3
    assert not found.contains(anchor)


def test_an_anchor_of_another_chain_is_not_contained(path: Path) -> None:
    assert not read(path).contains(Anchor(2, "f" * 64))


def test_every_torn_end_is_told_from_damage(path: Path) -> None:
    whole = path.read_bytes()
    last = len(lines(path)[-1])
    for cut in range(1, last):
        path.write_bytes(whole[:-cut])
        found = read(path)
        assert len(found.records) == 3
        assert found.torn == whole[-last:-cut]
    path.write_bytes(whole[:-last] + b"\0" * 20 + b'"}\n')
    assert read(path).torn


def test_a_torn_end_is_mended_in_one_step(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])
    writer = Writer(path)
    writer.mend({"kind": "repair"})
    writer.append({"kind": "test", "value": 9})
    writer.close()
    found = read(path)
    assert [record["kind"] for record in found.records] == ["test"] * 3 + ["repair", "test"]
    assert not found.torn


def test_one_writer_at_a_time(path: Path) -> None:
    first = Writer(path)
    with pytest.raises(MisuseError, match="another run writes to it; wait until it ends"):
        Writer(path)
    first.close()
    Writer(path).close()


def test_a_closed_writer_leaves_no_lock_with_processes_that_were_forked(path: Path) -> None:
    writer = Writer(path)
    context = multiprocessing.get_context("fork")
    release = context.Event()
    child = context.Process(target=release.wait, args=(30,))  # as the worker of a loader does
    child.start()
    writer.close()
    Writer(path).close()
    release.set()
    child.join()


def test_a_forked_process_has_no_lock_and_does_not_write(path: Path) -> None:
    writer = Writer(path)
    context = multiprocessing.get_context("fork")
    said = context.SimpleQueue()

    def child() -> None:
        try:
            writer.append({"kind": "child"})
            said.put("written")
        except MisuseError as error:
            said.put(str(error))
        writer.close()  # which is not its to give back

    process = context.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    assert "was closed; open the run again" in said.get()
    with pytest.raises(MisuseError, match="another run writes to it"):
        Writer(path)
    writer.append({"kind": "test", "value": 4})
    writer.close()
    assert len(read(path).records) == 5


def _hold(path: Path, ready: object, release: object) -> None:
    writer = Writer(path)
    writer.append({"kind": "child"})
    ready.set()  # type: ignore[attr-defined]
    release.wait(30)  # type: ignore[attr-defined]


def test_one_writer_among_processes_and_none_after_a_kill(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready, release = context.Event(), context.Event()
    child = context.Process(target=_hold, args=(path, ready, release))
    child.start()
    assert ready.wait(30)
    with pytest.raises(MisuseError, match="another run writes"):
        Writer(path)
    child.kill()
    child.join()
    Writer(path).close()  # the lock went with the process


def test_a_closed_writer_writes_nothing(path: Path) -> None:
    writer = Writer(path)
    writer.close()
    with pytest.raises(MisuseError, match="was closed"):
        writer.append({"kind": "test"})


def test_a_file_changed_under_the_writer_is_noticed(path: Path) -> None:
    writer = Writer(path)
    writer.append({"kind": "test"})
    with path.open("ab") as file:
        file.write(b"x")
    with pytest.raises(MisuseError, match="was changed by something else"):
        writer.append({"kind": "test"})
    writer.close()


def test_a_file_replaced_under_the_writer_is_noticed(path: Path) -> None:
    writer = Writer(path)
    writer.append({"kind": "test"})
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    os.replace(copy, path)
    with pytest.raises(MisuseError, match="was moved or replaced"):
        writer.append({"kind": "test"})
    writer.close()


@pytest.mark.parametrize("kept", [0, 1, 30])
def test_a_full_disk_leaves_the_chain_as_it_was(
    path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    writer = Writer(path)
    before, real = path.read_bytes(), os.write

    def full(descriptor: int, data: bytes) -> int:
        if kept == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[:kept])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(StorageError, match=r"could not be written \(No space left"):
            writer.append({"kind": "test"})
    assert path.read_bytes() == before
    writer.append({"kind": "test"})  # after room was made
    writer.close()
    assert len(read(path).records) == 5


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "ledger.jsonl"
    with pytest.raises(
        StorageError, match=rf"^ledger='{path}': cannot be written \(\w.*; make room"
    ):
        Writer(path)
    with pytest.raises(DataError, match=rf"^ledger='{path}': cannot be read \(Not a dir.*; name a"):
        read(path)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_lock_that_cannot_be_made_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "ledger.jsonl"

    def refused(place: Path, *_: object) -> int:
        raise OSError(number, os.strerror(number), str(place))

    monkeypatch.setattr(os, "open", refused)
    message = (
        rf"^ledger='{path}': cannot be written \({os.strerror(number)}\); make room there, or name "
        r"a place where you may write\.$"
    )
    with pytest.raises(StorageError, match=message):
        Writer(path)


def test_two_names_of_one_file_have_one_lock(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other name.jsonl"
    other.symlink_to(path)
    first = Writer(path)
    with pytest.raises(MisuseError, match="another run writes to it"):
        Writer(other)
    first.close()
    Writer(other).close()


def test_an_interrupt_while_a_line_is_written_closes_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the line is there is for the next reader to see, not for this one to guess."""
    before, writer = len(read(path).records), Writer(path)
    writer.append({"kind": "test", "value": 1})

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(chain.os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.append({"kind": "test", "value": 2})
    with pytest.raises(MisuseError, match="was closed; open the run again"):
        writer.append({"kind": "test", "value": 3})
    again = Writer(path)
    again.append({"kind": "test", "value": 4})
    again.close()
    assert [record["value"] for record in read(path).records[before:]] == [1, 2, 4]


@pytest.mark.parametrize("text", ["notes", "notes\n", '{"age": 3}\n'])
def test_another_file_is_no_ledger_and_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    for opened in (read, Writer):
        with pytest.raises(DataError, match=r"is not a ledger: line 1 is not a record; name"):
            opened(path)
    assert path.read_text() == text


def test_a_folder_is_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder, not a ledger; name a file in it"):
        read(tmp_path)
