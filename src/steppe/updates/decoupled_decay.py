"""Place 6: weight decay that stays out of the gradient, for any optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer

from steppe.utils.validation import fail, non_negative


class DecoupledDecay:
    """Shrink the weights by 1 − lr · strength before every step of an optimizer.

    `weight_decay` of `torch.optim.SGD` joins the gradient and so the momentum, which goes on
    pulling long after. This is what `torch.optim.AdamW` does, for the others. A weight without a
    gradient is left alone. Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019.

    Args:
        optimizer: any torch optimizer whose own `weight_decay` is 0; each group's current `lr` is
            used, so schedulers reach the decay.
        strength: the decay in units of the learning rate.

    Guarantees:
        Post-processing of public weights by public constants: no privacy cost.

    Examples:
        >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        >>> decay = DecoupledDecay(optimizer, strength=0.5)
        >>> weight.grad = torch.tensor([2.0])
        >>> optimizer.step()
        >>> weight.detach()
        tensor([0.7500])
    """

    def __init__(self, optimizer: Optimizer, strength: float) -> None:
        self.strength = non_negative("strength", strength)
        for group in optimizer.param_groups:
            if group.get("weight_decay"):
                raise fail(
                    "weight_decay",
                    group["weight_decay"],
                    "must be 0 in the optimizer, or the weights decay twice",
                    "use one of the two",
                )
        self._handle = optimizer.register_step_pre_hook(self._shrink)

    def remove(self) -> None:
        """Stop shrinking."""
        self._handle.remove()

    @torch.no_grad()
    def _shrink(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        for group in optimizer.param_groups:
            keep = 1 - float(group["lr"]) * self.strength
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(keep)
