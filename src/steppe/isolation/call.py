"""One operation of a watched pass, as its rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from steppe.isolation.findings import OWNED, RANDOM, Finding
from steppe.isolation.places import along
from steppe.isolation.schemas import tensors_among

if TYPE_CHECKING:
    from steppe.isolation.watch import Watch


@dataclass
class Call:
    """One operation.

    Attributes:
        func: torch's operator.
        given: its arguments by the names of its schema.
        outputs: what it returned.
        written: owners that the rule has found for arguments which the operation writes to, by
            name, where they are not those of the first output.
        untouched: arguments that the schema says are written to, and this call leaves alone.
    """

    watch: Watch
    func: Any
    given: dict[str, Any]
    outputs: Any
    written: dict[str, Tensor] = field(default_factory=dict)
    untouched: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name)

    @property
    def name(self) -> str:
        """Without the overload, and without the underscore of operations in place."""
        return str(self.func.overloadpacket.__name__).rstrip("_")

    def owners(self, tensor: Tensor) -> Tensor:
        """Those of a tensor, one axis for each of its axes."""
        return self.watch.owners(tensor)

    def is_free(self, value: Any) -> bool:
        """Whether a value was made from no record."""
        return not isinstance(value, Tensor) or not hasattr(value, OWNED)

    def is_known(self, index: Tensor) -> bool:
        """Whether numbers of rows come from no record and are not random."""
        return self.is_free(index) and not hasattr(index, RANDOM)

    def is_settled(self, index: Tensor) -> bool:
        """Whether an index is known to come from no record, and from no record's random numbers."""
        return self.is_free(index) and self.watch.is_settled(index)

    def tensors(self) -> Iterator[Tensor]:
        """All arguments that are tensors, those in lists included."""
        return tensors_among(self.given.values())

    def require_same_for_all(self, value: Tensor, owners: Tensor) -> None:
        """Note a constant whose numbers differ from record to record: they say where it lies."""
        self.watch.require_same_for_all(self.func, value, owners)

    def require_same_places(self, places: Tensor, owners: Tensor) -> None:
        """Note places, such as indices or those written to, that differ from record to record."""
        self.watch.require_same_places(self.func, places, owners)

    def numbers_along(self, tensor: Tensor, axis: int) -> Tensor:
        """What a place along an axis picks of a record: see `places.along`."""
        owners = None if self.is_free(tensor) else self.owners(tensor)
        return along(tensor, owners, axis)

    def note(self, kind: str, detail: str = "") -> Finding:
        """Write down a finding at this operation."""
        return self.watch.note(kind, self.func, detail)


Rule = Callable[[Call], Any]
"""From a call to the owners of its outputs, in the same nest."""
