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

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.errors import BudgetExhausted, MisuseError
from steppe.gradients import PlainSequential
from steppe.plan import Plan
from steppe.points import MovableWeights, Point, Remembering
from steppe.randomness import AS_THEY_ARE, SecretGenerators, Source, require_noise_std
from steppe.updates import DPAdam
from steppe.utils import validation


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
        A step releases (sum of the records' clipped parts + noise of the planned size) / expected
        batch, `point.queries` times, and nothing else. What model and loss draw from the global
        generators is secret, whatever their seed. A step is charged before the data is touched, and
        refused once the plan's steps are used up. An empty batch takes the same path as any other.
        A step that fails leaves no gradient behind. Until its gradient is known, weights and clip
        are as they were; an error of the optimizer leaves the weights where it left them.
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
        if isinstance(optimizer, DPAdam):
            optimizer.require_noise_of(plan)
        self._plan, self.engine, self.optimizer = plan, engine, optimizer
        self.steps_done = 0
        self._source, self._dice = source, SecretGenerators(source, "steps")
        self._parameters = list(engine.parameters.values())
        self._padding = dict(padding or {})
        # The grid needs float64, in which the clipped sum itself is exact enough.
        double = plan.noise.grid or all(p.dtype == torch.float64 for p in self._parameters)
        self._dtype = torch.float64 if double else torch.float32
        # As a tensor of its type: torch would make one of a Python float in every step.
        self._divisor = torch.tensor(plan.divisor, dtype=self._dtype, device="cpu")
        self._walk = plan.point.begin(MovableWeights(self._parameters))
        start = 0
        for steps, _ in plan.noise.relative(plan.total_steps):  # calibrates and refuses beforehand
            require_noise_std(plan.noise_std_at(start), self._dtype)
            start += steps
        self._digest = plan.digest()

    @property
    def plan(self) -> Plan:
        """Every public constant; another plan takes another `PrivateStep`."""
        return self._plan

    def settled_plan(self) -> Plan:
        """The plan, if its constants are those that the run began with.

        A frozen plan can be written to by `object.__setattr__`. Steps would go by some of the new
        numbers, and sampler and clip by the old ones, so that no account holds for both.
        """
        if self._plan.digest() != self._digest:
            raise MisuseError(
                "plan=changed since the loop was made private: must stay as it was, what is spent "
                "is not known otherwise; do not publish this model, and make another plan with "
                "dataclasses.replace for another run."
            )
        return self._plan

    def take(self, parts: Sequence[Any]) -> None:
        """Take one step on a drawn batch, given whole or in parts.

        Args:
            parts: batches of records that together are the drawn batch, each record once.
        """
        std = self._charge()
        plan, noise, source, engine = self.plan, self.plan.noise, self._source, self.engine
        questions = iter(range(plan.point.queries))

        def ask() -> Tensor:
            if next(questions, None) is None:
                raise _too_many_questions(plan.point)
            engine.prepare()
            total = _Sum(lambda: noise.start_(self._buffer(), std, source))  # 5
            row = engine.row()
            with self._secret_numbers(row):  # dropout and random views
                for part in parts:
                    engine.add_(total, part, row)  # 3 and 4
            answer = noise.finish_(total(), std, plan.sensitivity, source).div_(self._divisor)
            return self._without_padding(engine.decode(answer))

        before = engine.clipper.state()
        try:
            gradient = self._walk(ask)  # 2
        except BaseException:
            engine.clipper.load(before)
            raise
        try:
            self._hand_over(gradient)
            self.optimizer.step()  # 6
        except BaseException:
            self._clear()
            raise

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on besides model and optimizer: numbers, text and tensors.

        Guarantees:
            All of it is public, made from what earlier steps released.
        """
        self.settled_plan()
        memory = _memory(self._walk)
        return {
            "plan": self._digest,
            "steps_done": self.steps_done,
            "clip": self.engine.clipper.state(),
            "walk": {} if memory is None else memory.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned.

        Guarantees:
            Steps that were charged stay charged: a state from before them is refused, and so is
            that of another plan, whose steps cost something else.
        """
        _require_form(state)
        if state.get("plan") != self.plan.digest():
            raise validation.fail(
                "state['plan']",
                state.get("plan"),
                f"must be {self.plan.digest()}, the digest of this run's plan",
                "load it into a run of the plan that made it",
            )
        done = state["steps_done"]
        if type(done) is not int or not self.steps_done <= done <= self.plan.total_steps:
            raise validation.fail(
                "steps_done",
                done,
                f"must be a number of steps from {self.steps_done}, which are spent, to "
                f"{self.plan.total_steps}, which are paid for",
                "load the newest state of a run of this plan",
            )
        for name, vector in state["walk"].items():
            if not isinstance(vector, Tensor) or vector.shape != (self.engine.numel,):
                raise validation.fail(
                    f"state['walk'][{name!r}]",
                    tuple(vector.shape) if isinstance(vector, Tensor) else vector,
                    f"must be a vector of the model's {self.engine.numel} trained weights",
                    "load it into a run with the same model",
                )
        self.engine.clipper.load(dict(state["clip"]))
        if (memory := _memory(self._walk)) is not None:
            memory.load(dict(state["walk"]))
        self.steps_done = done

    def _charge(self) -> float:
        """Count the step before it is taken; the standard deviation of its noise."""
        if self.steps_done >= self.plan.total_steps:
            raise BudgetExhausted(
                f"steps={self.steps_done + 1}: the plan pays for {self.plan.total_steps} steps; "
                "publish the model, or make a new plan with more steps before training."
            )
        std = self.plan.noise_std_at(self.steps_done)
        if isinstance(self.optimizer, DPAdam):
            self.optimizer.stand_at(self.steps_done, std / self.plan.divisor)
        self.steps_done += 1
        self._clear()
        return std

    def _secret_numbers(self, row: PlainSequential | None) -> AbstractContextManager[None]:
        """Where model and loss may draw random numbers, those are secret."""
        if row is not None:
            return AS_THEY_ARE
        return self._dice.hidden(self.engine.runs_users_code)

    def _clear(self) -> None:
        """Leave nothing half made to be used, and nothing that others put where noise belongs."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def _buffer(self) -> Tensor:
        """Fresh memory: earlier answers and gradients stay what they were."""
        device = self._parameters[0].device
        return torch.empty(self.engine.width, dtype=self._dtype, device=device)

    def _without_padding(self, gradient: Tensor) -> Tensor:
        for name, row in self._padding.items():
            self.engine.part_of(gradient, name)[row] = 0.0
        return gradient

    def _hand_over(self, gradient: Tensor) -> None:
        """Give every weight its piece of the private gradient."""
        for parameter, piece in self.engine.packing.split(gradient):
            parameter.grad = piece.to(parameter.dtype) if parameter.requires_grad else None


def _require_form(state: Any) -> None:
    """Refuse anything but what `state_dict` returns."""
    parts: dict[str, type] = {"plan": str, "steps_done": int, "clip": Mapping, "walk": Mapping}
    if not isinstance(state, Mapping):
        shown = type(state).__name__
    else:
        wrong = [name for name, kind in parts.items() if not isinstance(state.get(name), kind)]
        if not wrong:
            return
        shown = f"without {', '.join(wrong)}"
    rule = f"must hold {', '.join(parts)}"
    raise validation.fail("state", shown, rule, "load what state_dict() returned")


class _Sum:
    """The sum, which starts as its noise when the first part has gone through the model."""

    def __init__(self, start: Callable[[], Tensor]) -> None:
        self._start = start
        self._made: Tensor | None = None

    def __call__(self) -> Tensor:
        if self._made is None:
            self._made = self._start()
        return self._made


def _memory(walk: object) -> Remembering | None:
    """The walk, if it remembers something from step to step."""
    return walk if isinstance(walk, Remembering) else None


def _too_many_questions(point: Point) -> MisuseError:
    return MisuseError(
        f"point={point}: must ask the batch at most queries={point.queries} times a step, which is "
        "what the account pays for; correct its `queries`."
    )
