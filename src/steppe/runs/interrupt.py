"""Handles Ctrl-C between two steps."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """The run was stopped by Ctrl-C. It is saved, and the message says how to resume it."""


class StopRequest:
    """A block in which the first Ctrl-C is recorded and the second one stops immediately.

    Outside the main thread, where Python delivers no signals, it has no effect.

    Attributes:
        made: whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.made = False

    def __enter__(self) -> StopRequest:
        self._own = threading.current_thread() is threading.main_thread()
        if self._own:
            self._before = signal.signal(signal.SIGINT, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        if self._own:
            signal.signal(signal.SIGINT, self._before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.made:
            raise KeyboardInterrupt
        self.made = True
