"""Files that are whole or not there; locks that have one holder, and none after its end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from steppe.errors import MisuseError
from steppe.utils import files as files_module
from steppe.utils.files import Lock, in_turn, single_writer, write_atomically


def hold_and_fork(folder: Path, worker: Any, ready: Any, release: Any) -> None:
    """Hold a folder and have a worker, as a run with a loader does."""
    with single_writer(folder):
        if os.fork() == 0:
            worker.value = os.getpid()
            ready.set()
        release.wait(30)
        os._exit(0)


def test_a_lock_does_not_outlive_a_killed_process_in_its_workers(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    worker, ready, release = context.Value("i", 0), context.Event(), context.Event()
    run = context.Process(target=hold_and_fork, args=(tmp_path, worker, ready, release))
    run.start()
    assert ready.wait(30)
    with (
        pytest.raises(MisuseError, match="another process writes to it"),
        single_writer(tmp_path),
    ):
        pass
    run.kill()
    run.join()
    os.kill(worker.value, 0)  # it is still there
    try:
        with single_writer(tmp_path):
            pass
    finally:
        os.kill(worker.value, signal.SIGKILL)


def test_a_lock_has_one_holder_and_is_given_back_once(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "lock")
    with pytest.raises(BlockingIOError):
        Lock(tmp_path / "lock")
    assert lock.held
    lock.release()
    assert not lock.held
    other = Lock(tmp_path / "lock")
    lock.release()  # again, which is nothing to the other
    with pytest.raises(BlockingIOError):
        Lock(tmp_path / "lock")
    other.release()


def test_data_reach_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        whole = os.fstat(descriptor)
        folder = stat.S_ISDIR(whole.st_mode)
        told.append("folder synced" if folder else f"{whole.st_size} bytes synced")
        fsync(descriptor)

    def renamed(old: Any, new: Any) -> None:
        told.append("renamed")
        replace(old, new)

    monkeypatch.setattr(files_module.os, "fsync", synced)
    monkeypatch.setattr(files_module.os, "replace", renamed)
    write_atomically(tmp_path / "file", b"12345")
    assert told == ["5 bytes synced", "renamed", "folder synced"]


def test_a_file_is_for_its_owner_only_unless_it_is_said(tmp_path: Path) -> None:
    for options, mode in (({}, 0o600), ({"mode": 0o644}, 0o644)):
        write_atomically(tmp_path / "file", b"data", **options)
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_a_file_that_is_being_written_is_no_leftover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".writing-of-a-killed-process").touch()
    replace = os.replace

    def replace_while_a_run_begins(old: Any, new: Any) -> None:
        with single_writer(tmp_path):
            assert [path.name for path in tmp_path.glob(".writing-*")] == [Path(old).name]
        replace(old, new)

    monkeypatch.setattr(files_module.os, "replace", replace_while_a_run_begins)
    write_atomically(tmp_path / "figures.json", b"whole")
    assert (tmp_path / "figures.json").read_bytes() == b"whole"
    assert not list(tmp_path.glob(".writing-*"))


def test_a_file_removed_before_its_writer_could_lock_it_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = tempfile.mkstemp, []

    def make_while_a_run_begins(**options: Any) -> tuple[int, str]:
        made.append(make(**options))
        if len(made) == 1:
            with single_writer(tmp_path):
                pass
        return made[-1]

    monkeypatch.setattr(files_module.tempfile, "mkstemp", make_while_a_run_begins)
    write_atomically(tmp_path / "file", b"whole")
    assert len(made) == 2
    assert (tmp_path / "file").read_bytes() == b"whole"


def test_who_changes_a_file_waits_for_who_is_changing_it(tmp_path: Path) -> None:
    number = tmp_path / "number"
    number.write_text("0")

    def count() -> None:
        for _ in range(10):
            with in_turn(tmp_path):
                found = int(number.read_text())
                time.sleep(0.001)
                number.write_text(str(found + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    with single_writer(tmp_path):  # a run that trains keeps nobody waiting
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert number.read_text() == "40"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "number"]


def test_an_error_gives_the_turn_back(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="inside"), in_turn(tmp_path):
        raise ValueError("inside")
    Lock(tmp_path).release()
