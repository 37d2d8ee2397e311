"""One private step: the seven places in order.

1 sample     which records take part?             the plan's sampler draws `parts`
2 point      at which weights is the gradient?    plan.point
3 objective  what is a record's gradient?         engine.objective, and λθ
4 clip       how is it bounded?                   engine.clip
5 noise      how much is added?                   plan.noise, added by the mechanism
6 update     how do the weights move?             any torch optimizer
7 keep       which model is published?            steppe.averaging, after the step and at no cost
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.errors import BudgetExhausted, MisuseError
from steppe.gradients import PlainSequential
from steppe.mechanism import Mechanism
from steppe.plan import Plan
from steppe.points import MovableWeights
from steppe.randomness import SecretGenerators, Source, require_noise_std
from steppe.step_state import require_memory, require_state
from steppe.updates import update_of
from steppe.utils import validation


class PrivateStep:
    """Takes the steps of one plan.

    Args:
        plan: every public constant.
        engine: sums clipped gradients; its clip is the plan's.
        optimizer: moves the weights along the private gradient.
        source: where the noise comes from.
        padding: weight name -> padding row; see `Mechanism`.

    Attributes:
        steps_done: steps charged so far, including those that failed.
        mechanism: makes the private gradients.

    Guarantees:
        A step releases (sum of the records' clipped parts + noise of the planned size) / expected
        batch, `point.queries` times, and nothing else. Random numbers that model and loss draw from
        the global generators are secret, whatever their seed. A step is charged before the data is
        read, and rejected once the plan's steps are used up. An empty batch takes the same path as
        any other. A step that fails leaves no gradient behind. If it fails before the optimizer
        runs, weights and clip are restored; what the optimizer changed before an error stays.
    """

    def __init__(
        self,
        plan: Plan,
        engine: ClippedSum,
        optimizer: Optimizer,
        source: Source,
        padding: Mapping[str, int] | None = None,
    ) -> None:
        for name in ("clip", "l2", "padded_to"):
            found, planned = getattr(engine, name), getattr(plan, name)
            if found != planned:
                rule = f"must be the plan's {planned}"
                raise validation.fail(f"engine.{name}", found, rule, "make it from the plan")
        self._plan, self._digest = plan, plan.digest()
        self.engine, self.optimizer = engine, optimizer
        self.mechanism = Mechanism(
            engine,
            plan.begin_noise(),
            sensitivity=plan.sensitivity,
            divisor=plan.divisor,
            source=source,
            padding=padding,
        )
        self.steps_done = 0
        self._update = update_of(optimizer, plan)
        self._generators = SecretGenerators(source, "steps")
        self._weights = MovableWeights(list(engine.parameters.values()))
        self._point = plan.point.begin(self._weights)
        for _, std in plan.noise_levels:  # calibrates, and checks all levels
            require_noise_std(std, self.mechanism.dtype)
        require_noise_std(plan.noise_std, self.mechanism.dtype)
        require_memory(plan.noise_memory, engine.width, self.mechanism.dtype)

    def take(self, parts: Sequence[Any]) -> None:
        """Take one step on a drawn batch.

        Args:
            parts: batches that together contain every drawn record once.
        """
        noise_std = self._charge()  # 1 sample: who takes part is in `parts`
        answers: list[Tensor] = []
        with self.mechanism.undone_on_error():
            for number in range(self._plan.point.queries):
                with self._weights.moved(self._point.offset(answers)):  # 2 point
                    query = self.mechanism.query(noise_std, self.steps_done - 1, number)
                    sequential = self.engine.sequential()
                    with self._hidden_generators(sequential):
                        for part in parts:
                            query.add(part, sequential)  # 3 objective, 4 clip
                    answers.append(query.finish())  # 5 noise
            gradient = self._point.gradient(answers)
        try:
            self.mechanism.hand_over(self.optimizer, gradient)
            self.optimizer.step()  # 6 update; 7 keep is up to the caller
        except BaseException:
            self.mechanism.hand_over(self.optimizer, None)
            raise

    @property
    def plan(self) -> Plan:
        """Every public constant. It cannot be replaced."""
        return self._plan

    def settled_plan(self) -> Plan:
        """The plan. An error if it was changed by `object.__setattr__`."""
        if self._plan.digest() != self._digest:
            raise MisuseError(
                "plan=changed since the loop was made private: must not change, because the cost "
                "of the steps is then unknown; do not publish this model, and make another plan "
                "with dataclasses.replace for another run."
            )
        return self._plan

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on besides model and optimizer: numbers, text and tensors.

        Guarantees:
            All of it is public, computed from what earlier steps released, except `noise`. Of
            independent noise that is empty. Of correlated noise it is SECRET until the run is over:
            later steps contain that noise again, and whoever knows it can subtract it. Write it
            where the run is resumed from, and publish it nowhere.
        """
        self.settled_plan()
        return {
            "plan": self._digest,
            "steps_done": self.steps_done,
            "clip": self.engine.clipper.state(),
            "point": self._point.state(),
            "noise": self.mechanism.noise.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` returned.

        Guarantees:
            Steps that were charged stay charged: an older state is rejected, and so is the state of
            another plan. Correlated noise continues only from the state after the last step that
            was charged: no noise is repeated, and none that was released is dropped.
        """
        require_state(state, self._plan, self.steps_done, self.engine.numel)
        like = torch.empty(self.engine.width, dtype=self.mechanism.dtype, device=self.engine.device)
        self.mechanism.noise.load(state["noise"], state["steps_done"], like)
        self.engine.clipper.load(dict(state["clip"]))
        self._point.load(dict(state["point"]))
        self.steps_done = state["steps_done"]

    def _charge(self) -> float:
        """Count the step before it is taken.

        Returns:
            The standard deviation of its fresh noise.
        """
        if self.steps_done >= self._plan.total_steps:
            raise BudgetExhausted(
                f"steps={self.steps_done + 1}: the plan has {self._plan.total_steps} steps; "
                "publish the model, or make a new plan with more steps before training."
            )
        plan, step = self._plan, self.steps_done
        self._update.at_step(step, plan.noise_std_at(step) / plan.divisor)
        self.steps_done += 1
        # Clear all gradients, so that none is left if this step fails.
        self.mechanism.hand_over(self.optimizer, None)
        return plan.fresh_noise_std_at(step)

    def _hidden_generators(
        self, sequential: PlainSequential | None
    ) -> AbstractContextManager[None]:
        """A block in which random numbers of model and loss are secret.

        Plain sequential models draw none, and hiding the generators takes longer than a small step.
        """
        if sequential is not None:
            return nullcontext()
        return self._generators.hidden(self.engine.runs_users_code)
