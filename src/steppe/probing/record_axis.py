"""Finds the record axis of every tensor from the elements that change with one record."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients import ContactLayout, RecordLayout, differs, leaf_ids, same
from steppe.probing.observed_pass import ObservedPass


@dataclass
class RecordPlace:
    """The record layouts that are still possible for one tensor."""

    tensor: Tensor
    records: int
    possible: list[RecordLayout] = field(init=False)
    moved: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        shape = self.shape = tuple(self.tensor.shape)
        self.possible = [
            RecordLayout.of(shape, self.records, axis, interleaved)
            for axis in range(len(shape))
            for interleaved in (False, True)
            if shape[axis]
            and shape[axis] % self.records == 0
            and not (interleaved and shape[axis] == self.records)
        ]
        del self.tensor

    def narrow(self, before: Tensor, after: Tensor, which: int) -> None:
        """Keep the layouts in which only rows of record `which` changed."""
        shapes = {tuple(before.shape), tuple(after.shape)} - {self.shape}
        if shapes:
            raise UnsupportedModelError(
                f"rows={shapes.pop()}: must be {self.shape} whatever the records hold; do "
                "not pick or route rows by their values."
            )
        if same(before, after):
            return
        changed = differs(before, after)
        self.moved.add(which)
        others = [i for i in range(self.records) if i != which]
        self.possible = [
            layout
            for layout in self.possible
            if not bool(layout.split(changed, self.records)[others].any())
        ]

    @property
    def ambiguous(self) -> bool:
        """Whether more than one layout is still possible."""
        return len(self.possible) > 1 and len(self.moved) < self.records

    def recount(self, shape: tuple[int, ...], records: int) -> None:
        """Keep the layouts that match the tensor's shape for another number of records."""
        if self.ambiguous:
            self.possible = [layout for layout in self.possible if layout.fits(shape, records)]


class Locator:
    """Finds the record axis of every input and output of every contact.

    Args:
        base: any pass; all others must take the same path.
    """

    def __init__(self, base: ObservedPass) -> None:
        self.records = len(base.losses)
        self._path = _path(base)
        self._places = [
            tuple([RecordPlace(t, self.records) for t in tensors] for tensors in pair)
            for pair in zip(base.inputs, base.outputs, strict=True)
        ]

    def narrow(self, base: ObservedPass, replaced: ObservedPass, which: int) -> None:
        """Use a pass in which record `which` was replaced."""
        self._require_path(base, replaced)
        for position, sides in enumerate(self._places):
            for side, places in zip(("inputs", "outputs"), sides, strict=True):
                before, after = getattr(base, side)[position], getattr(replaced, side)[position]
                for place, a, b in zip(places, before, after, strict=True):
                    place.narrow(a, b, which)

    def knows(self, observed: ObservedPass) -> bool:
        """Whether a pass took the path of the first one."""
        return _path(observed) == self._path

    @property
    def ambiguous(self) -> bool:
        """Whether the record axis of some tensor is not yet known.

        Learned queries, and zeros that a sequence starts from, never change.
        """
        places = (place for pair in self._places for places in pair for place in places)
        return any(place.ambiguous for place in places)

    def recount(self, observed: ObservedPass) -> None:
        """Use the shapes of a pass with another number of records.

        The axis that grew is the record axis.
        """
        self._require_path(observed)
        for position, sides in enumerate(self._places):
            for side, places in zip(("inputs", "outputs"), sides, strict=True):
                for place, tensor in zip(places, getattr(observed, side)[position], strict=True):
                    place.recount(tuple(tensor.shape), len(observed.losses))

    def _require_path(self, *passes: ObservedPass) -> None:
        if not all(map(self.knows, passes)):
            raise UnsupportedModelError(
                "forward pass=varies: must use the same weights in the same order for all records "
                "and random numbers; take out layers that are skipped or chosen at run time."
            )

    def layouts(self) -> list[ContactLayout]:
        """One entry for each contact."""
        return [
            ContactLayout(
                operation,
                tuple(self._settled(operation, place) for place in inputs),
                tuple(self._settled(operation, place) for place in outputs),
                weights,
            )
            for (operation, weights), (inputs, outputs) in zip(
                self._path, self._places, strict=True
            )
        ]

    def _settled(self, operation: str, place: RecordPlace) -> RecordLayout:
        where = f"operation={operation!r} on {place.shape}"
        if not place.possible and len(place.moved) > 1:
            raise IsolationError(
                f"{where}: every row must belong to one record, and some rows moved with two; keep "
                "the records apart until the loss."
            )
        if not place.possible:
            raise UnsupportedModelError(
                f"{where}: must have an axis with rows of every record of the batch, and has none; "
                "give the model all records at once in place of a loop over them, and make "
                "constants with torch.zeros, not x.new_zeros."
            )
        if place.ambiguous:
            raise UnsupportedModelError(
                f"{where}: must change with synthetic records, or its rows cannot be assigned to "
                "records, and did not; check that inputs from N(0, 1) have an effect with the "
                "initial weights."
            )
        return place.possible[0]


def _path(observed: ObservedPass) -> list[tuple[str, tuple[int | None, ...]]]:
    return [(contact.name, leaf_ids(contact.shared)) for contact in observed.contacts]
