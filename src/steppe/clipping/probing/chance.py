"""Mixing that happens in some passes only: the same question on many other random numbers."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import torch

from steppe._global_seeds import seed_everything
from steppe.clipping.probing.sight import Subject, losses_of, same, unchanged
from steppe.errors import IsolationError

_PAIRS = 20  # of passes


def require_no_mixing_by_chance(subject: Subject, batch: Any, others: list[Any], seed: int) -> None:
    """Other records' losses must stay when one is replaced, whatever numbers the model draws.

    Args:
        subject: what is probed; one that draws no numbers is let through after a pass.
        batch: made-up records.
        others: the batch with one record replaced, for each record.
        seed: of the first numbers.
    """
    with unchanged(subject.model):
        if not draws(subject, batch, seed):
            return
        for number in range(_PAIRS):
            which = number % len(others)
            before, after = (
                losses_of(subject, some, seed + number) for some in (batch, others[which])
            )
            rest = [i for i in range(len(before)) if i != which]
            if not same(before[rest], after[rest]):
                raise IsolationError(
                    "loss=mixes records by chance: must leave every record alone in every pass, "
                    "and another record's loss moved in some when one was replaced; mix no records "
                    "of a batch (mixup, cutmix), however seldom."
                )


def draws(subject: Subject, batch: Any, seed: int) -> bool:
    """Whether a pass takes random numbers; `unchanged` is up to the caller.

    Equal losses would not tell: a coin that mixes records once in twenty passes seldom shows.
    """
    losses_of(subject, batch, seed)
    after = _state(subject.device)
    seed_everything(seed)
    return after != _state(subject.device)


def _state(device: torch.device) -> tuple[object, ...]:
    """What tells how far the global generators have come."""
    of_torch = [float(torch.rand((), device=place)) for place in ("cpu", device)]
    return (*of_torch, pickle.dumps((random.getstate(), np.random.get_state())))
