"""Proves that fixed features of a record depend on that record alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from steppe.models import FrontEnd

_OWN = "steppe.models."


def prove_features(front: FrontEnd, network: nn.Module | None = None) -> None:
    """Prove that a front-end of the user's describes every record by itself.

    Features are computed once, before the steps, so no step would see that they mix records.

    Args:
        front: maps records to features.
        network: what decides whether this is needed; None for the front-end itself. Networks and
            front-ends of `steppe.models` have tests of their own.

    Raises:
        IsolationError: it is not proven. The error names the operation, the layer and the line.
    """
    if f"{type(front if network is None else network).__module__}.".startswith(_OWN):
        return
    from steppe.isolation import prove

    whole = nn.Sequential(front, nn.Linear(front.features, 1))

    def losses(batch: Any) -> Tensor:
        found: Tensor = whole(batch[0])
        return found[:, 0]

    prove(whole, losses, (torch.zeros(1, *front.shape),))
