"""The global random generators that user code may draw from: torch's, Python's and NumPy's."""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_global_generators(seed: int) -> None:
    """Give every global generator the same random numbers again."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # without other devices, this is faster than torch.manual_seed
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def global_generators_kept() -> Iterator[None]:
    """Put the state of every global generator back at the end of the block."""
    with one_at_a_time():
        of_python, of_numpy = random.getstate(), np.random.get_state(legacy=False)
        try:
            with torch.random.fork_rng():
                yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)


def one_at_a_time() -> threading.RLock:
    """The lock to hold while the global generators are in other states.

    Otherwise a run in another thread would save and restore the wrong states.
    """
    return _turn


_turn = threading.RLock()


def _after_fork_in_child() -> None:
    global _turn
    _turn = threading.RLock()  # a thread that did not survive the fork may hold the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def global_state() -> bytes:
    """The states of the global generators of the CPU."""
    states = (random.getstate(), np.random.get_state())
    return pickle.dumps(states) + torch.default_generator.get_state().numpy().tobytes()
