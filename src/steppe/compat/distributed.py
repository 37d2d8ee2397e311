"""Several processes, by the names that Opacus has for them."""

from __future__ import annotations

from torch import nn

from steppe.private import require_one_process


def DifferentiallyPrivateDistributedDataParallel(model: nn.Module) -> nn.Module:
    """The model itself, in a single process. More than one process is rejected.

    Examples:
        >>> model = nn.Linear(2, 2)
        >>> DifferentiallyPrivateDistributedDataParallel(model) is model
        True
    """
    require_one_process(model)
    return model
