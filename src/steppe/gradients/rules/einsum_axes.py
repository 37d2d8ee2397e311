"""Which axes of an einsum's operands line up: those with the same letter."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from steppe.gradients.layout import RecordLayout


def lined_up(
    arguments: tuple[Any, ...], shared: Tensor, output: RecordLayout, records: int
) -> RecordLayout | None:
    """Where an operand holds the records that lie in the output as given.

    Args:
        arguments: of `torch.einsum`.
        shared: the operand.
        output: where the records lie in the result.
        records: how many there are.

    Returns:
        None where the operand has no such axis, or where the call is not written with letters.

    Examples:
        >>> import torch
        >>> query, key = torch.zeros(2, 3, 5), torch.zeros(3, 4, 5)
        >>> lined_up(("qbd,bkd->bqk", query, key), query, RecordLayout(0), 3)
        RecordLayout(axis=1, interleaved=False, rows=None, rest=None)
    """
    if not isinstance(arguments[0], str):
        return None
    operands = arguments[1] if isinstance(arguments[1], tuple | list) else arguments[1:]
    left, arrow, right = arguments[0].replace(" ", "").partition("->")
    terms = left.split(",")
    most = max(
        tensor.ndim - len(term.replace("...", ""))
        for term, tensor in zip(terms, operands, strict=True)
    )
    if not arrow:
        letters = left.replace(",", "").replace(".", "")
        right = "..." + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    letter = _axes(right, most)[output.axis]
    for term, tensor in zip(terms, operands, strict=True):
        if tensor is not shared:
            continue
        axes = _axes(term, tensor.ndim - len(term.replace("...", "")))
        if axes.count(letter) == 1:
            layout = RecordLayout(axes.index(letter), output.interleaved, output.rows)
            # One row for all is broadcast along "...": it belongs to every record.
            return layout if layout.holds(tuple(tensor.shape), records) else None
    return None


def _axes(term: str, hidden: int) -> list[str]:
    """A name for each axis; those behind "..." are counted from the right, as they broadcast."""
    before, dots, after = term.partition("...")
    middle = [str(place) for place in range(hidden, 0, -1)] if dots else []
    return [*before, *middle, *after]
