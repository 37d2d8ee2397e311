"""How far the global random generators have come, for tests of who may move them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def states() -> tuple[Any, ...]:
    """The states of torch's, Python's and NumPy's generator, to be compared."""
    _, key, place, *_ = np.random.get_state(legacy=True)
    return torch.get_rng_state().tolist(), random.getstate(), key.tolist(), place
