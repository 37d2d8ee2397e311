"""Parameter groups: other options of the optimizer for parts of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from steppe.finetuning.patterns import chosen
from steppe.utils import validation


def parameter_groups(
    model: nn.Module, options: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The trained weights in groups, as torch optimizers take them.

    Args:
        model: whose trained weights are grouped.
        options: by pattern, options of the optimizer such as `{"head": {"lr": 1.0}}`. A weight that
            several patterns cover belongs to the last of them. Weights without a pattern have the
            optimizer's own options. λ by group is `Plan.l2`, also by name.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
        >>> optimizer = torch.optim.SGD(parameter_groups(model, {"1": {"lr": 1.0}}), lr=0.1)
        >>> [(len(group["params"]), group["lr"]) for group in optimizer.param_groups]
        [(2, 0.1), (2, 1.0)]
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    group_of: dict[str, str | None] = dict.fromkeys(trained)
    for pattern, own in options.items():
        if not isinstance(own, Mapping) or "params" in own:
            rule = "must be a table of the optimizer's options"
            raise validation.fail(f"groups.{pattern}", own, rule, "write head = { lr = 1.0 }")
        for name in chosen("groups", pattern, trained):
            group_of[name] = pattern
    idle = [pattern for pattern in options if pattern not in group_of.values()]
    if idle:
        rule = "covers only weights that a later pattern covers too"
        raise validation.fail("groups", idle[0], rule, "write it last, or leave it out")
    groups: list[dict[str, Any]] = []
    for pattern_or_none in (None, *options):
        members = [trained[name] for name, own in group_of.items() if own == pattern_or_none]
        if members:
            extra = {} if pattern_or_none is None else dict(options[pattern_or_none])
            groups.append({"params": members, **extra})
    return groups
