"""Whose records the results of each operation are made from: one rule an operation.

Families have a file each. Where none has a rule, the pass is not proven and the operation is named.
"""

from __future__ import annotations

from typing import Any

import torch

from steppe.isolation.call import Rule
from steppe.isolation.rules import (
    along,
    attention,
    indexing,
    losses,
    matrices,
    movement,
    normalisation,
    pointwise,
    products,
    reductions,
    windows,
)

RULES: dict[Any, Rule] = {
    packet: rule
    for family in (
        pointwise,
        movement,
        reductions,
        along,
        products,
        normalisation,
        losses,
        windows,
        attention,
        indexing,
        matrices,
    )
    for rule, packets in family.RULES
    for packet in packets
}
_POINTWISE: dict[Any, bool] = {}


def rule_of(func: Any) -> Rule | None:
    """The rule of an operator; None where there is none.

    Operators that torch itself marks as pointwise have the rule of those.
    """
    packet = func.overloadpacket
    rule = RULES.get(packet)
    if rule is not None:
        return rule
    if func.namespace != "aten":  # what others call by the same name may do anything
        return None
    if torch.Tag.inplace_view in func.tags:  # of what a tensor looks at, not of its numbers
        return None
    plain = getattr(torch.ops.aten, packet.__name__.rstrip("_"), None)
    rule = RULES.get(plain)
    if rule is not None:
        return rule
    known = _POINTWISE.get(packet)
    if known is None:
        known = _POINTWISE[packet] = any(
            torch.Tag.pointwise in getattr(one, name).tags
            for one in (packet, plain)
            if one is not None and str(one).startswith("aten.")
            for name in one.overloads()
        )
    return pointwise.pointwise if known else None
