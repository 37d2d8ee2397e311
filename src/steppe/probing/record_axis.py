"""Does every record stand alone, and where in every tensor does it lie?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients import ContactLayout, RecordLayout, differs, leaf_ids, same
from steppe.probing.observed_pass import BEFORE, ObservedPass


def require_isolation(
    base: ObservedPass, replaced: ObservedPass, which: int, culprit: Callable[[], str | None]
) -> None:
    """Nothing that belongs to one record may move when another is replaced.

    Args:
        base: the run as it is.
        replaced: the run with record `which` replaced, on the same random numbers.
        which: the record.
        culprit: finds the layer to name, or None for the loss; runs the model again, so it is
            asked only in need.
    """
    rest = [i for i in range(len(base.losses)) if i != which]
    if not same(replaced.losses[rest], base.losses[rest]):
        raise _mixing(culprit())
    kept = [
        name
        for name, value in replaced.buffers.items()
        if name not in base.buffers or not same(value, base.buffers[name])
    ]
    if kept:
        raise IsolationError(
            f"buffers={kept[:3]}: must not depend on the records, because they carry one record's "
            "values to the next without noise; put these layers in eval mode, or replace batch "
            "normalisation with steppe.fix(model)."
        )


def _mixing(layer: str | None) -> IsolationError:
    if layer is None:
        return IsolationError(
            "loss=mixes records: must compare every record's output with its own target alone, and "
            "another record's loss moved when one was replaced; give output and target one shape, "
            "since (records, 1) beside (records,) makes all pairs of records, and take no mean or "
            "maximum over the records."
        )
    remedy = (
        "call eval() on it after model.train() to keep the statistics that it has learnt, or put "
        "GroupNorm in its place with steppe.fix(model)"
        if "BatchNorm" in layer.split(BEFORE)[0]
        else "use GroupNorm or LayerNorm in place of batch statistics (steppe.fix(model)), and no "
        "operation across the batch"
    )
    return IsolationError(
        f"layer={layer!r}: must treat every record alone, and another record's output moved "
        f"when one was replaced; {remedy}."
    )


def require_repeatable(base: ObservedPass, again: ObservedPass) -> None:
    """The same records and the same seeds must give the same losses, or nothing can be told."""
    if not same(again.losses, base.losses):
        raise IsolationError(
            "losses=not repeatable: must be the same for the same records and seeds; keep nothing "
            "from earlier records in the model, and take random numbers from the global generators "
            "of torch, NumPy or Python."
        )


def first_mixing(base: ObservedPass, replaced: ObservedPass, which: int) -> str | None:
    """The first module whose output has no place for the records that fits what moved.

    Returns:
        Its name, and where it is its own code that mixes them, the module in it that comes next;
        None where the outputs of all modules keep the records apart.
    """
    records = len(base.losses)
    for (name, before), (_, after) in zip(base.modules, replaced.modules, strict=False):
        place = _Place(before, records)
        place.narrow(before, after, which)
        if place.moved and not place.possible:
            return name
    return None


@dataclass
class _Place:
    """The arrangements of records that are still possible for one tensor."""

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
        """Keep what explains that only record `which` was replaced."""
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
        """Whether what moved leaves more than one possibility."""
        return len(self.possible) > 1 and len(self.moved) < self.records

    def recount(self, shape: tuple[int, ...], records: int) -> None:
        """Keep what explains the form of the same tensor for another number of records."""
        if self.ambiguous:
            self.possible = [layout for layout in self.possible if layout.fits(shape, records)]


class Locator:
    """Finds where the records lie in every input and output of every contact.

    Args:
        base: any run; all others must take the same path.
    """

    def __init__(self, base: ObservedPass) -> None:
        self.records = len(base.losses)
        self._path = _path(base)
        self._places = [
            tuple([_Place(t, self.records) for t in tensors] for tensors in pair)
            for pair in zip(base.inputs, base.outputs, strict=True)
        ]

    def narrow(self, base: ObservedPass, replaced: ObservedPass, which: int) -> None:
        """Take note of what moved when record `which` was replaced."""
        self._require_path(base, replaced)
        for position, sides in enumerate(self._places):
            for side, places in zip(("inputs", "outputs"), sides, strict=True):
                before, after = getattr(base, side)[position], getattr(replaced, side)[position]
                for place, a, b in zip(places, before, after, strict=True):
                    place.narrow(a, b, which)

    def knows(self, sight: ObservedPass) -> bool:
        """Whether a run took the path of the first one."""
        return _path(sight) == self._path

    @property
    def ambiguous(self) -> bool:
        """Whether some tensor did not move enough to tell where its records lie.

        Learned queries and the zeros that a sequence starts from never move.
        """
        places = (place for pair in self._places for places in pair for place in places)
        return any(place.ambiguous for place in places)

    def recount(self, sight: ObservedPass) -> None:
        """Take note of the forms in a run with another number of records.

        The axis that grew with it is the one that holds the records.
        """
        self._require_path(sight)
        for position, sides in enumerate(self._places):
            for side, places in zip(("inputs", "outputs"), sides, strict=True):
                for place, tensor in zip(places, getattr(sight, side)[position], strict=True):
                    place.recount(tuple(tensor.shape), len(sight.losses))

    def _require_path(self, *sights: ObservedPass) -> None:
        if not all(map(self.knows, sights)):
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

    def _settled(self, operation: str, place: _Place) -> RecordLayout:
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
                f"{where}: must react to made-up records, or it cannot be told which rows belong "
                "to which record, and it did not; check that the initial weights let inputs from "
                "N(0, 1) through."
            )
        return place.possible[0]


def _path(sight: ObservedPass) -> list[tuple[str, tuple[int | None, ...]]]:
    return [(contact.name, leaf_ids(contact.shared)) for contact in sight.contacts]
