"""Does every record stand alone, and where in every tensor does it lie?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steppe.clipping.layout import Layout
from steppe.clipping.probing.sight import Sight
from steppe.clipping.tracing import Layouts, leaf_ids
from steppe.errors import IsolationError, UnsupportedModelError


@dataclass(frozen=True)
class Round:
    """Runs that share their random numbers: as it is, and with one record replaced."""

    base: Sight
    replaced: Sequence[Sight]  # entry i: record i replaced

    @property
    def records(self) -> int:
        return len(self.replaced)


def require_isolation(rounds: Sequence[Round]) -> None:
    """Nothing that belongs to one record may move when another is replaced."""
    for one in rounds:
        for which, sight in enumerate(one.replaced):
            rest = [i for i in range(one.records) if i != which]
            if not _same(sight.losses[rest], one.base.losses[rest]):
                raise IsolationError(
                    f"layer={_first_mixing(one)}: must treat every record alone, and another "
                    "record's output moved when one was replaced; use GroupNorm or LayerNorm in "
                    "place of batch statistics (steppe.fix(model)), and no operation across the "
                    "batch."
                )
            kept = [
                name
                for name, value in sight.buffers.items()
                if not _same(value, one.base.buffers.get(name, value[:0] if value.ndim else value))
            ]
            if kept:
                raise IsolationError(
                    f"buffers={kept[:3]}: must not depend on the records, because they carry one "
                    "record's values to the next without noise; put these layers in eval mode, or "
                    "replace batch normalisation with steppe.fix(model)."
                )


def find_layouts(rounds: Sequence[Round]) -> list[Layouts]:
    """Where the records lie in every input and output of every contact."""
    first = rounds[0].base
    _require_one_path(rounds)
    result = []
    for position, contact in enumerate(first.contacts):
        inputs, outputs = (
            tuple(
                _located(contact.name, [_moved(one, side, position, k) for one in rounds])
                for k in range(len(getattr(first, side)[position]))
            )
            for side in ("inputs", "outputs")
        )
        result.append(Layouts(contact.name, inputs, outputs, leaf_ids(contact.shared)))
    return result


@dataclass(frozen=True)
class _Moved:
    """A tensor, and what became of it with each record replaced."""

    before: Tensor
    after: Sequence[Tensor]

    def fits(self, layout: Layout) -> bool:
        """Whether only rows of the replaced record changed."""
        records = len(self.after)
        for which, after in enumerate(self.after):
            if after.shape != self.before.shape:
                return False
            changed = layout.split(_differs(self.before, after), records)
            if any(bool(changed[i].any()) for i in range(records) if i != which):
                return False
        return True

    def all_moved(self) -> bool:
        return all(
            after.shape == self.before.shape and bool(_differs(self.before, after).any())
            for after in self.after
        )


def _moved(one: Round, side: str, position: int, which: int) -> _Moved:
    def tensor(sight: Sight) -> Tensor:
        found: Tensor = getattr(sight, side)[position][which]
        return found

    return _Moved(tensor(one.base), [tensor(sight) for sight in one.replaced])


def _located(operation: str, seen: Sequence[_Moved]) -> Layout:
    """The arrangement of records that explains all that moved."""
    before, records = seen[0].before, len(seen[0].after)
    if any(moved.before.shape != before.shape for moved in seen):
        raise UnsupportedModelError(
            f"operation={operation!r} on {tuple(before.shape)}: must see the same number of rows "
            "whatever the records hold; do not pick or route rows by their values."
        )
    possible = [
        Layout(axis, interleaved, before.shape[axis] // records)
        for axis in range(before.ndim)
        for interleaved in (False, True)
        if before.shape[axis]
        and before.shape[axis] % records == 0
        and not (interleaved and before.shape[axis] == records)
    ]
    fitting = [layout for layout in possible if all(moved.fits(layout) for moved in seen)]
    if not fitting:
        raise IsolationError(
            f"operation={operation!r} on {tuple(before.shape)}: every row must belong to one "
            "record, and some rows moved with two; keep the records apart until the loss."
        )
    if len(fitting) > 1 and not any(moved.all_moved() for moved in seen):
        raise UnsupportedModelError(
            f"operation={operation!r} on {tuple(before.shape)}: must react to made-up records, or "
            "it cannot be told which rows belong to which record, and it did not; check that the "
            "initial weights let inputs from N(0, 1) through."
        )
    return fitting[0]


def _require_one_path(rounds: Sequence[Round]) -> None:
    """The same operations with the same weights, whatever the records and the random numbers."""
    wanted = [(c.name, leaf_ids(c.shared)) for c in rounds[0].base.contacts]
    for one in rounds:
        for sight in (one.base, *one.replaced):
            if [(c.name, leaf_ids(c.shared)) for c in sight.contacts] != wanted:
                raise UnsupportedModelError(
                    "forward pass=varies: must use the same weights in the same order for all "
                    "records and random numbers; take out layers that are skipped or chosen at "
                    "run time."
                )


def _first_mixing(one: Round) -> str:
    """The first module whose output has no place for the records that fits what moved."""
    for position, (name, before) in enumerate(one.base.modules):
        after = [s.modules[position][1] for s in one.replaced if position < len(s.modules)]
        moved = _Moved(before, after)
        layouts = (
            Layout(axis, interleaved)
            for axis in range(before.ndim)
            for interleaved in (False, True)
            if before.shape[axis] % one.records == 0
        )
        if len(after) == one.records and not any(moved.fits(layout) for layout in layouts):
            return repr(name)
    return "'the loss'"


def _differs(before: Tensor, after: Tensor) -> Tensor:
    return (before != after) & ~(before.isnan() & after.isnan())


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and not bool(_differs(a, b).any())
