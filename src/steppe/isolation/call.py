"""One operation of a watched pass, as it is given to a rule."""

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
        place: sizes, strides and offset that `self` had before, for operations that change them.
        written: owners of arguments that the operation changes, by name, if they differ from the
            first output's; set by the rule.
        untouched: arguments that the operation could change by its schema and does not change in
            this call; set by the rule.
    """

    watch: Watch
    func: Any
    given: dict[str, Any]
    outputs: Any
    place: tuple[Any, Any, int] | None = None
    written: dict[str, Tensor] = field(default_factory=dict)
    untouched: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name)

    @property
    def name(self) -> str:
        """The operator's name, without overload and without the underscore of in-place ones."""
        return str(self.func.overloadpacket.__name__).rstrip("_")

    def owners(self, tensor: Tensor) -> Tensor:
        """The owners of a tensor's elements, with as many axes as the tensor."""
        return self.watch.owners(tensor)

    def is_free(self, value: Any) -> bool:
        """Whether a value does not depend on any record."""
        return not isinstance(value, Tensor) or not hasattr(value, OWNED)

    def is_known(self, index: Tensor) -> bool:
        """Whether indices do not depend on records and are not random."""
        return self.is_free(index) and not hasattr(index, RANDOM)

    def is_settled(self, index: Tensor) -> bool:
        """Whether an index depends neither on records nor on the random numbers of records."""
        return self.is_free(index) and self.watch.is_settled(index)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors among the arguments, including those in lists."""
        return tensors_among(self.given.values())

    def require_same_for_all(self, value: Tensor, owners: Tensor) -> None:
        """Report a constant with different values for different records, which reveal positions."""
        self.watch.require_same_for_all(self.func, value, owners)

    def require_same_places(self, places: Tensor, owners: Tensor) -> None:
        """Report indices or written positions that differ from record to record."""
        self.watch.require_same_places(self.func, places, owners)

    def numbers_along(self, tensor: Tensor, axis: int) -> Tensor:
        """Which element of a record each position along an axis selects; see `places.along`."""
        owners = None if self.is_free(tensor) else self.owners(tensor)
        return along(tensor, owners, axis)

    def note(self, kind: str, detail: str = "") -> Finding:
        """Report a finding at this operation."""
        return self.watch.note(kind, self.func, detail)


Rule = Callable[[Call], Any]
"""From a call to the owners of its outputs, in the same nest."""
