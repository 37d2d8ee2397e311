"""One private run inside a user's own loop: draw, forward, backward, step.

Module and optimizer stay the user's own objects. Hooks on them do the work of the seven places: the
loader draws (1), the forward pass is traced so that the user's own backward pass leaves per-example
gradients (3). Just before the optimizer moves the weights (6), the gradients are clipped (4),
noised (5) and written to `.grad`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.clipping import ClippedSum, State
from steppe.compat.accountant import Accountant
from steppe.compat.arguments import RecordAxis, placeholder_losses
from steppe.compat.constants import Constants
from steppe.compat.gradient_in_use import GradientInUse
from steppe.compat.loop_isolation.watched import Watched
from steppe.compat.traced_forward import TracedForward
from steppe.compat.uncopied_hook import nothing
from steppe.errors import MisuseError
from steppe.gradients import Slot
from steppe.mechanism import Mechanism, Query
from steppe.noise import Gaussian
from steppe.private import refuse_coarse_products, require_movement
from steppe.randomness import SecretGenerators, SecureSource


def signal_skip_step(do_skip: bool = True) -> None:
    """As in Opacus, where the next step only adds to the gradient. Here the loader says so."""
    if do_skip:
        raise MisuseError(
            "signal_skip_step(True): must be left out, because two drawn batches in one step are "
            "another mechanism than the account's; take physical batches from BatchMemoryManager, "
            "which knows the last part of a drawn batch."
        )


@dataclass(frozen=True)
class DrawnPart:
    """A physical batch: a drawn batch, or a part of one.

    Attributes:
        records: how many it has.
        first, last: whether it is the first or the last part of the drawn batch.
        rows: the rows of the whole drawn batch.
        draw: identifies the drawn batch within one pass.
    """

    records: int
    first: bool
    last: bool
    rows: Tensor
    draw: object


class HookedRun:
    """Follows one module and one optimizer through a private run.

    Args:
        module, optimizer: the user's; hooks are registered on both.
        parameters: the weights to train, by name.
        constants: the public constants.
        axis: where the module expects the records.
        accountant: counts every step before its result is released.
        isolation: "proven", so that module and loop are followed, or "probed".

    Attributes:
        watched: follows the loop.
        unstepped: the rows of the last batch that was yielded, until its step is charged.
        again: whether the last physical batch must be yielded again.

    Guarantees:
        `.grad` is only ever set to (clipped sum + noise of std σC) / expected batch. A traced pass
        computes no other gradient of a trained weight, so another optimizer finds none. A drawn
        batch is stepped once or rejected, and parts of different batches are never added. A weight
        that does not move in the first step is an error.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        parameters: dict[str, Tensor],
        constants: Constants,
        axis: RecordAxis,
        accountant: Accountant,
        isolation: str = "proven",
    ) -> None:
        self.module, self.optimizer, self.constants = module, optimizer, constants
        self.source = SecureSource()
        self.steps_done = 0
        self.unstepped: Tensor | None = None
        self.again = False
        clip = constants.bounds.clip(parameters, optimizer, constants.noise_multiplier)
        self._engine = ClippedSum(parameters, placeholder_losses(module, axis), clip)
        self._mechanism = Mechanism(
            self._engine,
            Gaussian(),
            sensitivity=clip.sensitivity,
            divisor=constants.expected_batch_size,
            source=self.source,
        )
        self._accountant = accountant
        self.generators = SecretGenerators(self.source, "passes")
        self.watched = Watched(module, constants.averaged, isolation)
        self._forward = TracedForward(
            module,
            self._engine,
            axis,
            self.generators,
            constants.expected_batch_size,
            self.watched,
        )
        self._model_weights = {id(p) for p in module.parameters()}
        self.trained_parameters = {id(p) for p in parameters.values()}
        self._part: DrawnPart | None = None
        self._query: Query | None = None
        self._draw: object = None  # the drawn batch that the parts in `_query` belong to
        self._gradient_in_use = GradientInUse(optimizer)
        self._before: dict[str, Tensor] = {}  # the weights before the first step
        first = optimizer.register_step_pre_hook(self._before_step)
        # First, because other hooks may read `.grad`, which ours sets.
        optimizer._optimizer_step_pre_hooks.move_to_end(first.id, last=False)  # type: ignore[attr-defined]
        self._handles = (first, optimizer.register_step_post_hook(self._after_step))
        self._visible: dict[str, Any] = {
            **constants.visible(),
            "attach_step_hook": self.attach_step_hook,
            "signal_skip_step": signal_skip_step,
        }
        vars(optimizer).update(self._visible)
        self._step_hook: Callable[[Optimizer], object] = nothing
        self._detached = False

    def detach(self) -> None:
        """End the run: remove all hooks and attributes from module and optimizer.

        A batch that was not released is dropped. A second call has no effect.
        """
        if self._detached:
            return
        self._detached = True
        self.abandon()
        self.watched.detach()
        self._forward.detach()
        for handle in self._handles:
            handle.remove()
        for name in self._visible:
            vars(self.optimizer).pop(name, None)

    def attach_step_hook(self, fn: Callable[[Optimizer], object]) -> None:
        """Call a function with the optimizer in every step, when `.grad` is the private gradient
        and the weights have not moved. The account counts steps by itself."""
        self._step_hook = fn

    def clip_state(self) -> State:
        """What an adaptive clip has learned; public."""
        return self._engine.clipper.state()

    def load_clip_state(self, state: State) -> None:
        """Go on from what `clip_state` returned."""
        self._engine.clipper.load(state)
        if self.constants.adapts:
            self._visible["max_grad_norm"] = state["bound"]
            vars(self.optimizer)["max_grad_norm"] = state["bound"]

    def offer(self, part: DrawnPart) -> None:
        """Prepare for a drawn batch that is about to be yielded to the user."""
        if self._detached:
            raise MisuseError(
                f"step={self.steps_done + 1}: the run was detached, so a step would have neither "
                "clip nor noise; make the loop private again for more private steps."
            )
        self.require_stepped()
        if not part.first and part.draw is not self._draw:
            raise MisuseError(
                f"step={self.steps_done + 1}: the parts of a drawn batch must follow one another, "
                "and since its last part another pass over the loader began or the block was left; "
                "take one pass at a time, and begin a new one."
            )
        budget = self.constants.budget
        if part.first and budget is not None:
            budget.require_another(self._accountant)
        if part.first:
            self.unstepped = part.rows
        self._part, self._draw = part, part.draw
        self.again = False
        self._gradient_in_use.forget()
        self._forward.expect(part.records)

    def require_stepped(self) -> None:
        """Refuse to skip a batch, also an empty one: the account assumes that all are stepped."""
        if self._part is not None:
            raise MisuseError(
                f"step={self.steps_done + 1}: a batch was drawn and not stepped; call "
                "optimizer.step() of the optimizer that make_private returned for every batch, "
                "also for an empty one; to accumulate gradients, take a larger batch_size and "
                "BatchMemoryManager."
            )

    def abandon(self) -> None:
        """Drop a batch that was processed in part and not released."""
        self._part = self._query = self._draw = None
        self.again = False
        self._forward.expect(None)
        self.watched.end()

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if self._gradient_in_use.is_in_use and not self._forward.saw_raw:
            return None
        self._gradient_in_use.forget()
        _, *rest = args
        named = dict(kwargs)
        closure = rest.pop(0) if rest else named.pop("closure", None)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._take()
        self._gradient_in_use.note(self._engine.parameters.values())
        # The optimizer gets the loss. A second pass would replace the private gradient.
        return None if closure is None else ((optimizer, lambda: loss, *rest), named)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del optimizer, args, kwargs
        if not self._gradient_in_use.is_inside(sys._getframe()):
            self._gradient_in_use.forget()
            before, self._before = self._before, {}
            require_movement(before, self._engine.parameters, self.optimizer)

    @torch.no_grad()
    def _take(self) -> None:
        """Turn what the backward pass left into the private gradient."""
        self._require_unchanged()
        refuse_coarse_products(self._engine)
        part, found = self._captured()
        self.again = not self.watched.accepts(part.records)
        self.watched.end()
        if self.again:  # nothing was added or charged, so the captured gradients are dropped
            self._part = None
            self._forward.expect(None)
            self._mechanism.hand_over(self.optimizer, None)
            return
        if part.first or self._query is None:
            self._query = self._mechanism.query(
                self.constants.noise_multiplier * self._mechanism.sensitivity
            )
        scale = part.records if self.constants.averaged else 1
        # Reset first: if adding is interrupted, the same gradients must not be added again.
        self._part = None
        self._forward.expect(None)
        self._query.add_captured(found, part.records, scale)
        if not part.last:
            # Without gradients the optimizer moves nothing.
            self._mechanism.hand_over(self.optimizer, None)
            return
        if self.steps_done == 0:
            self._before = {n: p.detach().clone() for n, p in self._engine.parameters.items()}
        self.steps_done += 1
        self.unstepped = None
        self._accountant.step(
            noise_multiplier=self.constants.noise_multiplier,
            sample_rate=self.constants.sample_rate,
        )
        query, self._query = self._query, None
        self._mechanism.hand_over(self.optimizer, query.finish())
        if self.constants.adapts:
            self._visible["max_grad_norm"] = self._engine.clipper.state()["bound"]
            self.optimizer.max_grad_norm = self._visible["max_grad_norm"]  # type: ignore[attr-defined]
        self._step_hook(self.optimizer)

    def _captured(self) -> tuple[DrawnPart, list[tuple[Tensor, Slot]]]:
        """The batch that waits for its step, with its per-example gradients."""
        step = self.steps_done + 1
        if self._part is None:
            raise MisuseError(
                f"step={step}: no drawn batch waits for a step, and each may be used once; take "
                "every batch from the loader that make_private returned, and step once for each."
            )
        if self._part.records == 0:
            return self._part, []
        if not self._forward.tracers:
            raise MisuseError(
                f"step={step}: the module did not run on this batch in train mode; call "
                "module.train(), and use the very module that was given to make_private, not a "
                "copy of it."
            )
        uses = [use for tracer in self._forward.tracers for use in tracer.uses]
        found = self._engine.passes.collected(uses)
        if not found:
            raise MisuseError(
                f"step={step}: no gradient reached the module's weights; call loss.backward() "
                "before optimizer.step(), on a loss computed from the module's output."
            )
        return self._part, found

    def _require_unchanged(self) -> None:
        """Require that the public constants and the set of weights have not changed."""
        for name in self.constants.visible():
            value = self._visible[name]
            if vars(self.optimizer).get(name) != value:
                raise MisuseError(
                    f"optimizer.{name}={vars(self.optimizer).get(name)!r}: must stay {value!r}, "
                    "the value in the account; use steppe.Plan for schedules."
                )
        held = {id(p): p for group in self.optimizer.param_groups for p in group["params"]}
        self.watched.require_unread(self.optimizer.param_groups)
        unknown = held.keys() - self._model_weights
        unfrozen = [
            name
            for name, p in self.module.named_parameters()
            if p.requires_grad and id(p) not in self.trained_parameters
        ]
        if unknown or unfrozen:
            raise MisuseError(
                f"new weights={unfrozen[:3] or len(unknown)}: must be known when make_private is "
                "called, because later ones get no private gradient; add and unfreeze weights "
                "before the call."
            )
