"""One private step: the seven places in order.

1 sample     who takes part?             drawn by the plan's sampler, given as `parts`
2 point      at which weights?           plan.point
3 objective  what does a record say?     engine.objective, λθ included
4 clip       how much may it say?        engine.clip
5 noise      what hides it?              plan.noise
6 update     how do the weights move?    any torch optimizer
7 keep       which model is published?   averaging: after the step, at no cost
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.errors import BudgetExhausted
from steppe.noise import Source
from steppe.plan import Plan
from steppe.points import Weights


class PrivateStep:
    """Takes the steps of one plan.

    Args:
        plan: every public constant.
        engine: sums clipped gradients; its clip is the plan's.
        optimizer: moves the weights along the private gradient.
        source: where the noise comes from.
        padding: weight name -> row that stands for padding. It has no gradient whatever the data
            says, so it needs no noise and stays as it is.

    Attributes:
        steps_done: steps charged so far, including one that failed half way.

    Guarantees:
        A step releases (clipped sum + noise of the planned size) / expected batch, `point.queries`
        times, and nothing else. It is charged before the data is touched, and refused once the
        plan's steps are used up. An empty batch takes the same path as any other.
    """

    def __init__(
        self,
        plan: Plan,
        engine: ClippedSum,
        optimizer: Optimizer,
        source: Source,
        padding: Mapping[str, int] | None = None,
    ) -> None:
        self.plan, self.engine, self.optimizer = plan, engine, optimizer
        self.steps_done = 0
        self._source = source
        self._parameters = list(engine.parameters.values())
        self._padding = {id(engine.parameters[n]): row for n, row in (padding or {}).items()}
        self._walk = plan.point.begin(Weights(self._parameters))
        self._total = torch.empty(
            engine.numel,
            dtype=torch.float64 if self._all_double() else torch.float32,
            device=self._parameters[0].device,
        )

    def take(self, parts: Sequence[Any]) -> None:
        """Take one step on a drawn batch, given whole or in parts.

        Args:
            parts: batches of records that together are the drawn batch, each record once.
        """
        std = self._charge()
        plan, noise = self.plan, self.plan.noise

        def ask() -> Tensor:
            total = noise.start_(self._total, std, self._source)  # 5: the sum starts as its noise
            for part in parts:
                self.engine.add_(total, part)  # 3 and 4
            return noise.finish_(total, std, plan.sensitivity, self._source).div_(plan.divisor)

        self._hand_over(self._walk(ask))  # 2
        self.optimizer.step()  # 6

    def _charge(self) -> float:
        """Count the step before it is taken; the standard deviation of its noise."""
        if self.steps_done >= self.plan.total_steps:
            raise BudgetExhausted(
                f"steps={self.steps_done + 1}: the plan pays for {self.plan.total_steps} steps; "
                "publish the model, or make a new plan with more steps before training."
            )
        std = self.plan.noise_std_at(self.steps_done)
        self.steps_done += 1
        return std

    def _hand_over(self, gradient: Tensor) -> None:
        """Give every weight its piece of the private gradient."""
        start = 0
        for parameter in self._parameters:
            piece = gradient[start : start + parameter.numel()].view_as(parameter)
            if id(parameter) in self._padding:
                piece[self._padding[id(parameter)]] = 0.0
            parameter.grad = piece.to(parameter.dtype) if parameter.requires_grad else None
            start += parameter.numel()

    def _all_double(self) -> bool:
        return all(parameter.dtype == torch.float64 for parameter in self._parameters)
