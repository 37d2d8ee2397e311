"""The fallback: any operation, by `torch.func`, for that operation alone.

The operation runs once, as the model wrote it. In the backward pass its per-example gradients of
the weights come from `vmap` over records of a vector-Jacobian product. Bare parameters that records
are multiplied by, einsums and whatever a custom layer does with torch take this way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import Contact, ContactOp, Gradients, Output
from steppe.gradients.layout import RecordLayout
from steppe.gradients.marks import is_marked
from steppe.gradients.rules.einsum_axes import lined_up
from steppe.gradients.slots.slot import Materialised, OwnRows, Slot

# Operations whose arguments line up axis by axis. A shared tensor with B rows in the record axis,
# such as a class token expanded to the batch, then gives row i to record i. Products of matrices
# are not among them, since a weight may happen to have B rows; with three axes or more the first
# ones line up again. In an einsum the letters say what lines up.
_ALIGNED_TEXT = """
    add sub rsub mul div true_divide cat concat concatenate hstack
    column_stack stack where maximum minimum lerp
"""
_ALIGNED = frozenset(_ALIGNED_TEXT.split())
# Of these the axes before the last two line up.
_BATCHED = frozenset({"bmm", "baddbmm", "matmul", "scaled_dot_product_attention"})


def _substitute(value: Any, table: dict[int, Tensor]) -> Any:
    """Replace tensors by identity inside nested arguments."""
    if isinstance(value, Tensor):
        return table.get(id(value), value)
    if isinstance(value, tuple | list):
        return type(value)(_substitute(item, table) for item in value)
    if isinstance(value, dict):
        return {key: _substitute(item, table) for key, item in value.items()}
    return value


def out_of_place(contact: Contact) -> Callable[..., Any]:
    """The same operation, leaving its first argument alone."""
    if not contact.in_place:
        return contact.function
    name = contact.name
    if name == "__setitem__":
        return _set_item
    plain = name[3:-2] if name.startswith("__") else name.rstrip("_")
    operation: Callable[..., Any] = getattr(Tensor, plain)
    return operation


def _set_item(target: Tensor, index: Any, value: Any) -> Tensor:
    result = target.clone()
    result[index] = value
    return result


class Fallback(ContactOp):
    """No rule of its own, so vmap over the records of its vector-Jacobian product."""

    path = "torch.func"
    keeps_arguments = True

    def __init__(self, contact: Contact) -> None:
        super().__init__(contact)
        self._operation = out_of_place(contact)
        self._name = getattr(self._operation, "__name__", "").strip("_")
        self._refuse_dropout()
        # One entry for each distinct tensor: the same one may appear twice in a call.
        self._shared = list({id(t): t for t in contact.shared}.values())
        self._inside: tuple[list[Tensor], list[Tensor]] = ([], [])

    def _refuse_dropout(self) -> None:
        """The operation is computed again in the backward pass, where it would drop others."""
        if self._name != "scaled_dot_product_attention":
            return
        dropout = dict(enumerate(self.contact.args)).get(4, 0.0)
        if self.contact.kwargs.get("dropout_p", dropout) > 0:
            raise UnsupportedModelError(
                "scaled_dot_product_attention=with dropout and a trained weight as an argument, "
                "such as a learned query: can have one of both; set the dropout of attention to 0, "
                'or write it as matmul and softmax (attn_implementation="eager" of transformers).'
            )

    def _call(self, table: dict[int, Tensor]) -> Any:
        args = _substitute(self.contact.args, table)
        kwargs = _substitute(self.contact.kwargs, table)
        return self._operation(*args, **kwargs)

    def forward(self, *inputs: Tensor) -> tuple[Output, tuple[Tensor | None, ...]]:
        table = {id(shared): shared.detach() for shared in self._shared}
        leaves = []
        for original, seen in zip(self.contact.inputs, inputs, strict=True):
            # An in-place call is about to overwrite what its backward pass still needs.
            leaf = seen.detach().clone() if self.contact.in_place else seen.detach()
            if original.requires_grad:
                leaf.requires_grad_()
            table[id(original)] = leaf
            leaves.append(leaf)
        with torch.enable_grad():
            output = self._call(table)
        outputs = [output] if isinstance(output, Tensor) else list(output)
        self._inside = (leaves, outputs)
        detached = tuple(out.detach() for out in outputs)
        return (detached[0] if isinstance(output, Tensor) else detached), ()

    def backward(
        self, saved: tuple[Tensor, ...], grads: Gradients, needs: tuple[bool, ...]
    ) -> Gradients:
        leaves, outputs = self._inside
        filled = [
            torch.zeros_like(out) if grad is None else grad
            for out, grad in zip(outputs, grads, strict=True)
        ]
        per_record = self._per_record(leaves, filled)
        self.slots += zip(self._shared, per_record, strict=True)
        wanted = [leaf for leaf, need in zip(leaves, needs, strict=True) if need]
        live = [(o, g) for o, g in zip(outputs, filled, strict=True) if o.requires_grad]
        found: Sequence[Tensor | None] = ()
        if wanted and live:
            found = torch.autograd.grad(
                [o for o, _ in live],
                wanted,
                [g for _, g in live],
                allow_unused=True,
                retain_graph=True,  # a second loss may come back for more
            )
        answers = iter(found)
        return tuple(next(answers, None) if need else None for need in needs)

    def _per_record(self, leaves: list[Tensor], grads: list[Tensor]) -> list[Slot]:
        contact, records = self.contact, self.contact.records
        rows = [
            contact.input_layout(i).split(leaf.detach(), records) for i, leaf in enumerate(leaves)
        ]
        pulled = [contact.output_layout(i).split(grad, records) for i, grad in enumerate(grads)]
        own = [self._own_rows(shared) for shared in self._shared]
        weights = [
            shared.detach() if layout is None else layout.split(shared.detach(), records)
            for shared, layout in zip(self._shared, own, strict=True)
        ]

        def one(weights: list[Tensor], rows: list[Tensor], pulled: list[Tensor]) -> Any:
            def operation(*weights: Tensor) -> Any:
                table = {id(s): w for s, w in zip(self._shared, weights, strict=True)}
                table |= {id(o): r for o, r in zip(contact.inputs, rows, strict=True)}
                out = self._call(table)
                return (out,) if isinstance(out, Tensor) else tuple(out)

            return vjp(operation, *weights)[1](tuple(pulled))

        dims = ([None if layout is None else 0 for layout in own], 0, 0)
        with warnings.catch_warnings():
            # A slow operation is what `steppe.inspect` tells of, by the path that it shows.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            found = vmap(one, in_dims=dims, randomness="different")(weights, rows, pulled)
        return [
            Materialised(gradient)
            if layout is None
            else OwnRows(layout, gradient, tuple(shared.shape))
            for gradient, shared, layout in zip(found, self._shared, own, strict=True)
        ]

    def _own_rows(self, shared: Tensor) -> RecordLayout | None:
        """Where the shared tensor has its row for each record, such as a class token that was
        expanded to the batch; None where all records meet all of it."""
        records, layout = self.contact.records, self.contact.output_layout()
        if self._name == "einsum":
            return lined_up(self.contact.args, shared, layout, records)
        like = max((t for t in self.contact.inputs), key=lambda t: t.ndim)
        batched = self._name in _BATCHED and layout.axis < shared.ndim - 2
        fits = (
            (batched or self._name in _ALIGNED)
            and shared.ndim == like.ndim
            and layout.holds(tuple(shared.shape), records)
            and shared.shape[layout.axis] == like.shape[layout.axis]
            and not is_marked(shared)
        )
        return layout if fits else None
