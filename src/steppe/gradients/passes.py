"""Runs the forward and backward pass of a physical batch, which leave per-example gradients."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from steppe.errors import IsolationError, MisuseError, UnsupportedModelError
from steppe.gradients.contact import BACKWARD_LEAF, ContactLayout, ContactOp, backward_to
from steppe.gradients.flat_weights import FlatWeights
from steppe.gradients.kernel_choice import Kernels
from steppe.gradients.marks import is_marked, mark
from steppe.gradients.paths import Path, name_of, path_of
from steppe.gradients.pullback import pulled_back, shortened
from steppe.gradients.record_gradients import WeightSlots
from steppe.gradients.rules import RULES
from steppe.gradients.slots.tied import sum_of_uses
from steppe.gradients.tracing import BackwardCalls, Tracer
from steppe.gradients.value_free import value_free
from steppe.utils.batches import each, tensors_in, version

Objective = Callable[[Any], Tensor]
"""Maps a batch to one loss for each record."""


class TracedPasses:
    """Forward passes under a tracer, and backward passes that stop at the activations.

    Args:
        weights: the trained ones.
        kernels: the algorithm for each layer shape.
        layouts: the record axes of each operation, as the probe found them; None means the first
            axis everywhere.

    Attributes:
        layouts: as given, or as last set by `expect`.
        paths: the functions that passes call on records, in order, as proven; None allows any.
    """

    def __init__(
        self, weights: FlatWeights, kernels: Kernels, layouts: list[ContactLayout] | None = None
    ) -> None:
        self._weights, self._kernels, self.layouts = weights, kernels, layouts
        self._writes_batch: bool | None = None
        self.paths: frozenset[Path] | None = None
        self._look_again: Callable[[], None] | None = None

    def expect(
        self,
        layouts: list[ContactLayout] | None,
        paths: frozenset[Path] | None = None,
        look_again: Callable[[], None] | None = None,
    ) -> None:
        """Set what was proven for the current model.

        Args:
            layouts: where the records lie in each operation.
            paths: see `Attributes`.
            look_again: repeats the proof and calls `expect` with its result; called if a pass takes
                none of the paths.
        """
        if layouts is not self.layouts:
            self.layouts, self._writes_batch = layouts, None
        self.paths, self._look_again = paths, look_again

    @property
    def convolve(self) -> bool:
        """Whether the probe found trained weights in convolutions."""
        return any(known.operation.startswith("conv") for known in self.layouts or ())

    def slots(self, objective: Objective, batch: Any, records: int) -> WeightSlots:
        """One slot for each trained weight that a physical batch used."""
        return self.collected(self.trace(objective, batch, records).uses)

    def collected(self, uses: Sequence[ContactOp]) -> WeightSlots:
        """The slots that backward passes have left since the last call, by trained weight."""
        found: dict[int, WeightSlots] = defaultdict(list)
        for use in uses:
            for pair in use.slots:
                shared, slot = shortened(*pair)
                found[id(shared)].append((shared, slot))
            use.slots = []
        plain: WeightSlots = []
        derived: WeightSlots = []
        for pairs in found.values():
            shared = pairs[0][0]
            slot = pairs[0][1] if len(pairs) == 1 else sum_of_uses([s for _, s in pairs])
            (plain if shared.is_leaf else derived).append((shared, slot))
        if derived:
            trained = (p for p in self._weights.parameters.values() if p.requires_grad)
            plain = pulled_back(plain, derived, trained)
        self.require_known(plain)
        return plain

    def require_known(self, found: WeightSlots) -> None:
        """Reject weights that need a gradient and are not trained."""
        strangers = [tuple(leaf.shape) for leaf, _ in found if id(leaf) not in self._weights.slices]
        if strangers:
            raise MisuseError(
                f"weights of shapes={strangers[:3]}: must be among the trained ones, since they "
                "require a gradient; freeze them with requires_grad_(False), or make the loop "
                "private after the model has its final weights."
            )

    def tracer(self, records: int) -> Tracer:
        """A tracer for one forward pass of so many records."""
        return Tracer(
            records, RULES, self.layouts, self._kernels, want_dots=bool(self._weights.pulls)
        )

    def trace(self, objective: Objective, batch: Any, records: int) -> Tracer:
        """Run the objective on one physical batch, and the backward pass to the activations."""
        tracer = self.tracer(records)
        alias = self._for_model(batch, tracer.number)
        tensors = list(tensors_in(alias))
        before = [version(tensor) for tensor in tensors]
        backward_calls: list[Any] = []
        with torch.enable_grad():
            with tracer, value_free():
                losses = objective(alias)
            check_losses(losses, records)
            tracer.require_whole()
            self._note_writes([version(tensor) for tensor in tensors] != before)
            if tracer.uses:
                for use in tracer.uses:
                    use.slots = []  # left by a gradient that the objective took inside
                with BackwardCalls(backward_calls, tracer.number), value_free():
                    backward_to(BACKWARD_LEAF, losses)  # and so to every contact
            self._require_known_path(path_of(tracer.calls, backward_calls))
        return tracer

    def _require_known_path(self, path: Path) -> None:
        """Require that the pass calls the proven functions, because code may have changed since."""
        if self.paths is None:
            return
        if path not in self.paths and self._look_again is not None:
            self._look_again()
        if path not in self.paths:
            raise _unknown_path(path, self.paths)

    def _for_model(self, batch: Any, number: int) -> Any:
        """The batch as new tensor objects, marked as records; the caller's tensors stay unmarked.

        A model that changes its input in place gets a copy, because a step may use the same batch
        again. The first pass shows whether a model does.
        """
        copies = self._writes_batch is not False

        def alias(tensor: Tensor) -> Tensor:
            # Tensors made in inference mode cannot enter a graph; copies can.
            copied = copies or tensor.is_inference()
            found = tensor.detach().clone() if copied else tensor.detach()
            mark(found, number)
            return found

        return each(alias, batch)

    def _note_writes(self, written: bool) -> None:
        """Remember whether the objective writes to its batch, and reject one that begins to."""
        if written and self._writes_batch is False:
            raise UnsupportedModelError(
                "batch=written: must be changed in place in every forward pass or in none, and was "
                "for the first time after others; work on a copy (x = x.clone())."
            )
        self._writes_batch = written or bool(self._writes_batch)


def _unknown_path(path: Path, known: frozenset[Path]) -> IsolationError:
    calls, backward_calls = path
    other, others = min(known, key=lambda one: abs(len(one[0]) - len(calls)))
    pairs = itertools.zip_longest(calls, other)
    found = next((pair[0] or pair[1] for pair in pairs if pair[0] != pair[1]), None)
    if found is None:
        found = next(iter(backward_calls ^ others), None)
    return IsolationError(
        f"forward pass=other operations than proven, from {name_of(found)!r} on: must call the "
        "same functions of torch for all records and all batches; take out what looks at values, "
        "at the number of records, or at whether it is being traced."
    )


def check_losses(losses: Any, records: int) -> None:
    """Require one loss for each record, computed from the records."""
    if not isinstance(losses, Tensor) or losses.shape != (records,):
        raise UnsupportedModelError(
            f"loss={_form(losses)}: must be one loss for each record, a tensor of shape "
            "(records,); use reduction='none' and average over everything but the records."
        )
    if not is_marked(losses):
        raise UnsupportedModelError(
            "loss=constant: must be computed from the records by torch operations; check that the "
            "objective uses the batch it is given."
        )


def _form(losses: Any) -> str:
    """The form of a loss as text, without lengths, because the batch size is private."""
    if not isinstance(losses, Tensor):
        return type(losses).__name__
    if losses.ndim == 0:
        return "one number for the whole batch"
    return "a tensor of another length" if losses.ndim == 1 else f"a tensor of {losses.ndim} axes"
