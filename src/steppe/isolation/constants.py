"""The constants of an operation: its tensor arguments that do not depend on any record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from steppe.isolation.findings import OWNED, RANDOM
from steppe.isolation.operation_notes import INDICES, Constant, kept
from steppe.isolation.operators import OVER
from steppe.isolation.places import holds_records
from steppe.isolation.schemas import tensors_among, written_by

if TYPE_CHECKING:
    from steppe.isolation.watch import Watch


def constants_of(watch: Watch, func: Any, given: dict[str, Any]) -> tuple[Constant, ...]:
    """The constants that an operation is about to use."""
    over = written_by(func) if func.overloadpacket in OVER else ()
    found = []
    for name, argument in given.items():
        if name in over:
            continue
        for number, tensor in enumerate(tensors_among((argument,))):
            if hasattr(tensor, OWNED) or not tensor.numel():
                continue
            value = tensor if watch.is_settled(tensor) else None
            if value is not None and watch.is_new(tensor):
                value = kept(tensor)
            random, by_record = hasattr(tensor, RANDOM), _by_record(watch, given, name, number)
            found.append(Constant(name, number, tuple(tensor.shape), value, random, by_record))
    return tuple(found)


def _by_record(watch: Watch, given: dict[str, Any], name: str, number: int) -> bool:
    """Whether a constant is an index along the record axis."""
    if name == "offsets":
        return True
    if name not in INDICES:
        return False
    target, axis = given.get("self"), given.get("dim")
    if isinstance(given[name], (list, tuple)):
        places = [i for i, index in enumerate(given[name]) if isinstance(index, Tensor)]
        axis = places[number]
    elif axis is None:
        target, axis = given.get("weight", target), 0
    if not isinstance(target, Tensor) or not target.ndim:
        return False
    owners = watch.owners(target) if hasattr(target, OWNED) else None
    return holds_records(target, owners, axis % target.ndim)
