"""An operation of a weight and a record, and how it is computed.

A *contact* goes through a `ContactOp`: the same output, a backward pass towards the activations
only, and what is needed to know each record's gradient of the weights.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from steppe.errors import UnsupportedModelError
from steppe.gradients.kernel_choice import Kernels
from steppe.gradients.layout import RECORDS_FIRST, RecordLayout
from steppe.gradients.slots.slot import Slot

_IN_PLACE = frozenset(
    ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__")
)

Output = Tensor | tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]


def leaf_ids(shared: Iterable[Tensor]) -> tuple[int | None, ...]:
    """The identities of weights; None for a tensor that was computed from weights."""
    return tuple([id(tensor) if tensor.is_leaf else None for tensor in shared])


@dataclass(frozen=True)
class ContactLayout:
    """The record axes of the inputs and outputs of one contact.

    Attributes:
        operation: the name of the function.
        inputs, outputs: one layout for each tensor.
        weights: the identities of the weights that it uses, as `leaf_ids` gives them; None lets
            any pass.
    """

    operation: str
    inputs: tuple[RecordLayout, ...]
    outputs: tuple[RecordLayout, ...]
    weights: tuple[int | None, ...] | None = None


@dataclass
class Contact:
    """One call in which weights meet records.

    Attributes:
        function: the torch function that the model called.
        args, kwargs: its arguments as the model gave them.
        records: B, the number of records in this physical batch.
        inputs: the arguments made from records, in order.
        shared: the arguments made from weights that need a gradient, in order.
        layouts: the record axes; None before the probe has found them.
        kernels: the algorithm for each layer shape.
        want_dots: whether ⟨Gᵢ, θ⟩ will be needed (for the λθ term).
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    records: int
    inputs: tuple[Tensor, ...]
    shared: tuple[Tensor, ...]
    layouts: ContactLayout | None = None
    kernels: Kernels = field(default_factory=Kernels)
    want_dots: bool = False

    @property
    def name(self) -> str:
        """The operation's name, for tables and errors."""
        return getattr(self.function, "__name__", str(self.function))

    @property
    def in_place(self) -> bool:
        """Whether the call changes its first argument in place."""
        name = self.name
        return name[-1:] == "_" and (name[-2:] != "__" or name in _IN_PLACE)

    def input_layout(self, position: int = 0) -> RecordLayout:
        """The record axis of an input."""
        return self.layouts.inputs[position] if self.layouts else RECORDS_FIRST

    def output_layout(self, position: int = 0) -> RecordLayout:
        """The record axis of an output."""
        return self.layouts.outputs[position] if self.layouts else RECORDS_FIRST


class ContactOp(ABC):
    """Computes one contact: same output, and a backward pass to the activations only.

    Attributes:
        path: how the per-example gradients are computed, for `steppe.inspect`.
        slots: after the backward pass, one (shared tensor, slot) pair for each weight involved.
    """

    path: str
    keeps_arguments = False  # whether the backward pass needs the call's arguments again

    @property
    def why(self) -> str:
        """The reason for this path: the first line of the class's docstring."""
        return (type(self).__doc__ or "").strip().splitlines()[0].rstrip(".")

    def __init__(self, contact: Contact) -> None:
        self.contact = contact
        self.slots: list[tuple[Tensor, Slot]] = []

    @abstractmethod
    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        """Return the output and the tensors to save for the backward pass.

        `inputs` are `contact.inputs`, seen from inside the autograd function.
        """

    @abstractmethod
    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        """Return the gradients of the inputs (None where not needed) and fill `slots`."""


# A scalar that needs a gradient: it makes autograd visit a contact even where no activation before
# it needs one, as in the first layer. Asking for its gradient runs the whole backward pass.
BACKWARD_LEAF = torch.zeros((), requires_grad=True)


def backward_to(leaf: Tensor, losses: Tensor) -> Tensor | None:
    """The gradient of Σᵢ lossᵢ by a leaf; None where they do not depend on it.

    It is `torch.autograd.grad(losses, leaf, ones, allow_unused=True)` without the checks of its
    arguments, which take as long as the backward pass of a small model.
    """
    (gradient,) = torch.autograd.Variable._execution_engine.run_backward(
        (losses,), (torch.ones_like(losses),), False, False, (leaf,), True, accumulate_grad=False
    )
    return gradient


def _same(value: Any) -> Any:
    return value


def saved_as_they_are(twice: bool = False) -> AbstractContextManager[Any]:
    """A block in which the user's saved-tensor hooks are not called.

    Tensors of a step must not pass through user code that sees the whole batch.

    Args:
        twice: whether a second forward pass by `torch.utils.checkpoint` may be left to it.

    Raises:
        UnsupportedModelError: the hooks are those of `torch.utils.checkpoint`, which counts what is
            saved.
    """
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is None:
        return nullcontext()
    if getattr(hooks[0], "__module__", "") == "torch.utils.checkpoint":
        if twice:
            return nullcontext()
        raise checkpointed()
    return torch.autograd.graph.saved_tensors_hooks(_same, _same)


def checkpointed() -> UnsupportedModelError:
    """Activations that are computed twice are captured only once."""
    return UnsupportedModelError(
        "model=checkpointed (torch.utils.checkpoint): must keep its activations, since a second "
        "forward pass is not captured; call gradient_checkpointing_disable(), and lower "
        "physical_batch where memory is short."
    )


class Capture(torch.autograd.Function):
    """The autograd function that runs a `ContactOp`."""

    @staticmethod
    def forward(ctx: Any, use: ContactOp, leaf: Tensor, *inputs: Tensor) -> Output:
        del leaf
        output, saved = use.forward(*inputs)
        ctx.use = use
        ctx.save_for_backward(*saved)
        if isinstance(output, Tensor):
            return _changeable(output, saved)
        return tuple([_changeable(tensor, saved) for tensor in output])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        use: ContactOp = ctx.use
        with torch._C.DisableTorchFunction():  # how gradients are captured is ours
            return (None, None, *use.backward(ctx.saved_tensors, grads, ctx.needs_input_grad[2:]))


def _changeable(output: Tensor, saved: tuple[Tensor | None, ...]) -> Tensor:
    """The same numbers as a tensor that the model may change in place, as it may without a tracer.

    Torch forbids that for views that come out of an autograd function. What the backward pass needs
    is not shared with the model unless torch can see it change.
    """
    if not output._is_view():
        return output
    where = output.untyped_storage().data_ptr()
    shared = any(t is not None and t.untyped_storage().data_ptr() == where for t in saved)
    return output.clone() if shared else torch.ops.aten._unsafe_view(output, output.shape)
