"""Proves on fake tensors that a collate function makes every row from one record alone.

A collate function gets a list of records. Each of their tensors is replaced by a fake one that
belongs to its record, and every operation of torch is followed from there to the rows of the batch.
Arrays, numbers, texts and values that Python reads are not followed.
"""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from steppe.errors import DataError
from steppe.isolation.findings import Finding, Owned
from steppe.isolation.kept_attributes import attributes_kept
from steppe.isolation.operation_notes import OperationNote
from steppe.isolation.owners import FREE, TYPE, everywhere, on_axis
from steppe.isolation.pipeline_watch import Leaving, RecordsWatch
from steppe.isolation.trace import quiet
from steppe.randomness import global_generators_kept, global_state, seed_global_generators
from steppe.utils.record_form import form_of

Collate = Callable[[list[Any]], Any]
Way = frozenset[tuple[Any, ...]]

_COUNTS = (1, 2, 3, 5, 17, 64)  # copies of one record, collated by the same operations
_OTHERS = 5  # records with their own shapes and, if necessary, values
_REMEDY = "work on each record by itself, or use constants that are fixed beforehand"


def follow_collate(collate: Collate, records: Sequence[Any]) -> bool:
    """Follow a collate function from records to the batch.

    Args:
        collate: makes a batch from a list of records.
        records: a few; their structure, shapes and types are used, and values only if they are not
            tensors or if Python reads them.

    Returns:
        Whether it is proven that every row is made from its record alone, for all records of this
        form. False if something could not be followed.

    Raises:
        DataError: the function mixes records. The error names operation and line.

    Guarantees:
        Random generators, and attributes of `collate`, are restored.

    Examples:
        >>> from torch.utils.data import default_collate
        >>> follow_collate(default_collate, [(torch.zeros(3), torch.zeros(()))] * 2)
        True
    """
    forms = [form_of(record) for record in records]
    proven = forms[0] is not None and forms.count(forms[0]) == len(forms)
    few = list(records[:_OTHERS])
    if not any(isinstance(leaf, Tensor) for leaf in tree_leaves(few)):
        return False
    with global_generators_kept(), attributes_kept(_objects_of(collate)):
        ways: list[Way] = []
        for count in _COUNTS if proven else _COUNTS[:4]:
            way = _follow(collate, [records[0]] * count, equal=True)
            if way is None:
                proven = False
                break
            if count > 1:  # for one record torch makes other views
                ways.append(way)
        if len(set(ways)) > 1:
            raise _count_decides(ways)
        if not proven and _follow(collate, few) is None:
            _follow(collate, few, real=True)
    return proven


# One call ------------------------------------------------------------------------------------


def _follow(
    collate: Collate, records: list[Any], equal: bool = False, real: bool = False
) -> Way | None:
    """The operations of one call with their numeric arguments; None if it cannot be followed.

    Args:
        collate: makes a batch.
        records: their tensors are replaced.
        equal: whether they are copies of one record, so that only their positions differ.
        real: whether to compute with their values.
    """
    fake = None if real else FakeTensorMode(allow_non_fake_inputs=True)
    watch = RecordsWatch(len(records), fake)

    def own(tensor: Tensor, record: int) -> Tensor:
        if fake is None:
            made = tensor.detach().clone()
        else:
            with fake:
                made = torch.empty_like(tensor, requires_grad=False)
        watch.adopt(made, everywhere(made.ndim, record))
        return made

    given = [_replaced(record, own, i) for i, record in enumerate(records)]
    seed_global_generators(0)
    before, whole = global_state(), True
    batch: Any = None
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        try:
            with watch, Leaving(watch) if fake is not None else nullcontext():
                batch = collate(given)
        except Exception:  # errors of user code for fake tensors, which it will not get later
            whole = False
    _require_apart(watch)
    drawn = watch.reads_random or global_state() != before
    if not whole or watch.stopped:
        return None
    rows_known = _require_own_rows(watch, batch, len(records), equal)
    found = {finding.kind: finding for finding in watch.findings}
    if equal and "place" in found:
        raise _place_decides(found["place"])
    if drawn or not rows_known or watch.findings or watch.reads:
        return None
    return frozenset(watch.way | {_rounded(_numbers(note)) for note in watch.operations})


def _replaced(value: Any, own: Callable[[Tensor, int], Tensor], record: int) -> Any:
    """A copy of a record with its tensors replaced."""
    if isinstance(value, Tensor):
        return own(value, record)
    if isinstance(value, Mapping):
        parts = {key: _replaced(part, own, record) for key, part in value.items()}
        if type(value) is dict:
            return parts
        again: Any = copy.copy(value)
        for key, part in parts.items():
            again[key] = part
        return again
    if isinstance(value, (tuple, list)):
        inside = [_replaced(part, own, record) for part in value]
        return type(value)(*inside) if hasattr(value, "_fields") else type(value)(inside)
    return copy.deepcopy(value)


def _require_apart(watch: RecordsWatch) -> None:
    """Reject findings that are wrong for every batch."""
    if watch.met is not None:
        raise _refused(
            f"reads in {_at(watch.met)} what several records have made",
            "must not read it, because one record could change what happens to all",
            "decide record by record, or with torch.where",
        )
    for finding in watch.findings:
        if finding.kind == "carries" or (finding.kind == "writes" and finding.detail):
            raise _refused(
                f"keeps records in {_at(finding)}",
                "must not carry records from one batch to another",
                "keep nothing from records between two calls",
            )


def _require_own_rows(watch: RecordsWatch, batch: Any, records: int, equal: bool) -> bool:
    """Whether every row is known to be made from its record alone."""
    known = True
    for leaf in tree_leaves(batch):
        if not isinstance(leaf, Tensor) or leaf.ndim == 0 or len(leaf) != records:
            known = False  # which the form of a batch has words for
            continue
        owned: Owned | None = watch.owned(leaf)
        if owned is None:
            if equal:
                watch.require_same_for_all(None, leaf, on_axis(leaf.ndim, 0, records))
            continue
        if owned.origin is not None and owned.origin.kind in ("no rule", "carries"):
            known = False
        elif owned.origin is not None:
            raise _refused(
                f"mixes records in {_at(owned.origin)}",
                "must make every row of the batch from one record",
                _REMEDY,
            )
        elif not _in_order(owned.owners, records):
            raise _refused(
                "gives rows of other records",
                "must make row i of the batch from record i",
                "keep the records in the order given, and do not sort them",
            )
    return known


def _in_order(owners: Tensor, records: int) -> bool:
    wanted = torch.arange(records, dtype=TYPE, device="cpu")
    wanted = wanted.reshape((-1,) + (1,) * (owners.ndim - 1))
    return bool(((owners == wanted) | (owners == FREE)).all())


def _numbers(note: OperationNote) -> tuple[Any, ...]:
    """An operation with its numeric arguments, without sizes and axes."""
    one = getattr(note.operation, note.operation.overloads()[0])
    kinds = (float, int) if torch.Tag.pointwise in one.tags else (float,)
    found = [float(v) for _, values in note.numbers for v in values if type(v) in kinds]
    for constant in note.constants:
        value = constant.value
        if value is not None and value.is_floating_point():
            found += [float(value.amin()), float(value.amax())]
    return (note.operation, *found)


def _rounded(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """A constant rounded, since one computed for another number of rows may differ slightly."""
    packet, *values = numbers
    return (packet, *(f"{value:.4g}" for value in values))


def _objects_of(collate: Any) -> list[Any]:
    """The objects that may store state between calls: the function and its object."""
    objects = (collate, getattr(collate, "__self__", None))
    apart = (type, types.ModuleType)
    return [one for one in objects if hasattr(one, "__dict__") and not isinstance(one, apart)]


# What is said --------------------------------------------------------------------------------


def _refused(found: str, rule: str, remedy: str) -> DataError:
    return DataError(f"collate_fn={found}: {rule}; {remedy}.")


def _at(finding: Finding) -> str:
    return f"{finding.operation} ({finding.line})" if finding.line else finding.operation


def _place_decides(finding: Finding) -> DataError:
    return _refused(
        f"counts places in {_at(finding)}",
        "must not give a record other numbers for its place among the others",
        "leave the place out",
    )


def _count_decides(ways: list[Way]) -> DataError:
    others = next(way for way in ways if way != ways[0])
    names = sorted({operation[0].__name__ for operation in ways[0] ^ others})
    return _refused(
        f"uses the number of records in {', '.join(names)}",
        "must make a row in one way however many records there are",
        "do not divide by the number of records or choose by it",
    )
