"""Locks: one holder, and none after the end of the process that held it."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from steppe._files import Lock, single_writer
from steppe.errors import MisuseError


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
        pytest.raises(MisuseError, match="another writer is at work here"),
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
