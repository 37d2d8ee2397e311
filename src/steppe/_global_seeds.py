"""The global random generators that user code may draw from: torch's, Python's and NumPy's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Give every global generator the same random numbers again."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # where there is no other device, telling all kinds of them takes longest
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def global_seeds_kept() -> Iterator[None]:
    """Put the state of every global generator back at the end of the block."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
