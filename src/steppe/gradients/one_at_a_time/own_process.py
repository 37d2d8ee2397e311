"""Runs code in its own process, which ends with everything that the code stored."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import warnings
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

import torch

from steppe.errors import UnsupportedModelError
from steppe.utils.formatting import first_line

T = TypeVar("T")
HERE = hasattr(os, "fork")
"""Whether this system can fork a process."""


class OwnProcess(Generic[T]):
    """Runs a function in a forked process.

    Args:
        run: the function. Its result or error is pickled.

    Guarantees:
        No change that the function makes in memory, of Python, torch or an extension, is visible
        here, except in memory that processes share.

    Examples:
        >>> kept = []
        >>> OwnProcess(lambda: kept.append(1) or len(kept)).result()
        1
        >>> kept
        []
    """

    def __init__(self, run: Callable[[], T]) -> None:
        self._reader, writer = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of other threads. As in a loader's worker, none is waited for.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process: int | None = os.fork()
        if self._process == 0:
            _answer(run, self._reader, writer)
        os.close(writer)

    def result(self) -> T:
        """The result of the function; its error is raised here."""
        try:
            with os.fdopen(self._reader, "rb", closefd=False) as stream:
                answer = stream.read()
        except BaseException:
            self.end()
            raise
        code = self._left()
        if code or not answer:
            raise UnsupportedModelError(
                f"process of a record=ended with code {code}: must return a gradient; look for "
                "what ends a process (memory, a crash in an extension, os._exit)."
            )
        done, value = pickle.loads(answer)  # noqa: S301 - from this program itself
        if not done:
            raise value
        return cast(T, value)

    def end(self) -> None:
        """Stop the process if its result is no longer needed."""
        if self._process is not None:
            os.kill(self._process, signal.SIGKILL)
            self._left()

    def _left(self) -> int:
        """Wait until the process ends; return its exit code."""
        process, self._process = self._process, None
        os.close(self._reader)
        return 0 if process is None else os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def _answer(run: Callable[[], Any], reader: int, writer: int) -> None:
    """The work of the new process."""
    code = 1
    try:
        os.close(reader)
        torch.set_num_threads(1)  # it must not wait for threads that it did not inherit
        gc.freeze()  # what a collection only looks at would be copied, since it counts there
        try:
            answer = pickle.dumps((True, run()))
        except BaseException as error:  # whatever the user's code raises, also to leave
            answer = pickle.dumps((False, _as_sent(error)))
        with os.fdopen(writer, "wb") as stream:
            stream.write(answer)
        code = 0
    finally:
        os._exit(code)


def _as_sent(error: BaseException) -> BaseException:
    """The error, in a form that can be pickled."""
    if not isinstance(error, Exception):  # one that ends a program
        return RuntimeError(f"{type(error).__name__} in the process of a record")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - from this program itself
        return error
    except Exception:  # whatever an error's own __reduce__ does
        return RuntimeError(f"{type(error).__name__}: {first_line(error)}")
