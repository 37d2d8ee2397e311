"""Traces the user's own forward pass, so that the backward pass leaves per-example gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from steppe.clipping import ClippedSum
from steppe.compat.arguments import Arguments, RecordAxis
from steppe.compat.loop_isolation.watched import Watched
from steppe.compat.uncopied_hook import Hook, nothing
from steppe.errors import MisuseError
from steppe.gradients import Tracer
from steppe.private import refuse_modes, warn_of_unused
from steppe.probing import LOOK_AGAIN, ProbeCache
from steppe.randomness import SecretGenerators


class TracedForward:
    """Traces the forward passes in train mode on a drawn batch.

    Other passes (eval mode, `torch.no_grad`, no batch drawn) are not affected.

    Args:
        module: the user's; two hooks are registered on it and one on each trained weight.
        engine: makes the tracers, and receives the layouts that the probe finds.
        axis: where the module expects the records.
        generators: hides the state of the global generators during a traced pass.
        batch_size: the expected number of records in a step.
        watched: follows the loop around the module.

    Attributes:
        tracers: of the current batch, one for each time that the module has run on it. All of them
            together make a record's gradient, which is clipped once.
        saw_raw: whether a raw gradient has reached a trained weight since `expect`.

    Guarantees:
        The module is probed on synthetic records before it is first traced in a setting, and a
        warning names trained weights that only noise would move. While a traced batch waits for its
        step, a gradient that reaches a weight untraced is an error.
    """

    def __init__(
        self,
        module: nn.Module,
        engine: ClippedSum,
        axis: RecordAxis,
        generators: SecretGenerators,
        batch_size: float,
        watched: Watched,
    ) -> None:
        self.tracers: list[Tracer] = []
        self.saw_raw = False
        self._module, self._engine, self._axis, self._generators = module, engine, axis, generators
        self._watched = watched
        self._made: Callable[[Any], None] = nothing
        self._records: int | None = None
        self._probes = ProbeCache(
            module,
            engine,
            batch_size,
            watched.report.isolation,
            most_forms=None,
            alternatives=False,
        )
        self._forms: set[object] = set()  # of arguments
        self._warned: set[str] = set()  # weights that only noise moves, each named once
        self._probing, self._passes = False, 0
        self._running: ExitStack | None = None
        self._handles: list[RemovableHandle] = [
            module.register_forward_pre_hook(Hook(self._before), with_kwargs=True),
            module.register_forward_hook(Hook(self._after), always_call=True),
        ]
        for name, parameter in engine.parameters.items():
            refusal = self._refusal(name)
            self._handles.append(parameter.register_post_accumulate_grad_hook(refusal))

    def expect(self, records: int | None) -> None:
        """Forget the last batch. The next one has this many records; None for no batch."""
        self._leave()  # after Ctrl-C in a pass, its forward hooks are not called
        self._records, self.tracers, self.saw_raw = records, [], False

    def detach(self) -> None:
        """Remove all hooks."""
        self.expect(None)
        for handle in self._handles:
            handle.remove()
        for parameter in self._engine.parameters.values():
            if not parameter._post_accumulate_grad_hooks:
                # As on a weight that never had a hook.
                parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]

    def _before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        training = module.training and torch.is_grad_enabled()
        if self._probing or self._records is None or not training:
            return None
        refuse_modes(self._engine)
        arguments = (args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():  # these checks are not part of the loop
            self._axis.require(arguments, self._records)
            known, arguments = self._watched.arguments(arguments, self._axis.of)
        self._expect(arguments)
        if self._records:
            self._made = self._outputs_of(arguments, known)
        self._running = ExitStack()
        self._running.enter_context(self._generators.hidden())
        if self._records == 0:
            # Few modules accept an empty batch, so one synthetic record replaces it.
            return self._axis.synthetic_record(arguments)
        tracer = self._engine.passes.tracer(self._records)
        self.tracers.append(tracer)
        arguments = self._axis.followed(arguments, tracer.number)
        self._running.enter_context(tracer)
        return arguments

    def _after(self, module: nn.Module, args: Any, output: Any) -> Any:
        del module, args
        if self._probing or self._running is None:
            return None
        self._leave()
        if not self._records:
            return self._axis.without_records(output)
        if output is None:  # the pass failed and may be repeated
            self.tracers.pop()
        else:
            self._made(output)
        return None

    def _outputs_of(self, arguments: Arguments, known: list[Tensor]) -> Callable[[Any], None]:
        with self._unhooked():
            return self._watched.outputs_of(arguments, known, self._axis.of)

    def _leave(self) -> None:
        """Leave the contexts of a traced pass."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _expect(self, arguments: Arguments) -> None:
        """Probe the module once for each setting and form of its arguments, and repeat this from
        time to time."""
        example = self._axis.swapped(arguments)
        known = self._probes.knows(example)
        if not known:
            if self._probes.is_new_form(example):
                self._watched.require_known_shapes()
            self._watched.look_again()
        with self._unhooked():
            found = self._probes.expect([example])
            if known and self._passes in LOOK_AGAIN:
                self._probes.look_again()
        if not known:
            unused, detached = (
                [name for name in names if name not in self._warned]
                for names in (found.unused, found.detached)
            )
            self._warned.update(unused, detached)
            warn_of_unused(unused, detached, level=8)  # where the module was called
        self._passes += 1

    @contextmanager
    def _unhooked(self) -> Iterator[None]:
        """A block in which the module runs untraced."""
        self._probing = True
        try:
            yield
        finally:
            self._probing = False

    def _refusal(self, name: str) -> Callable[[Tensor], None]:
        def refuse(parameter: Tensor) -> None:
            if self.tracers:
                parameter.grad = None
                raise MisuseError(
                    f"parameter={name!r}: must reach the loss through the module's forward pass "
                    "alone, because other gradients are not clipped; move that computation into "
                    "the module, and write penalties as weight_decay of the optimizer."
                )
            self.saw_raw = True

        return refuse
