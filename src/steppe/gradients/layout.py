"""Where the records lie in a tensor.

Most tensors have the record axis first. Time-major sequences have it second; code that flattens
`(records, positions)` before a linear layer hides it inside a longer axis. The isolation probe
finds out which case holds for each operation; nothing is guessed from sizes that happen to agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RecordLayout:
    """The record axis of one tensor.

    Args:
        axis: the axis that holds the records.
        interleaved: how a record axis of length k·B is ordered. False: the k rows of a record are
            neighbours (record-major). True: row j belongs to record j mod B (position-major).
        rows: k, how many rows of that axis belong to one record; None where it is not known.
        rest: the sizes of the other axes; None where they are not known. A model that cuts a batch
            to its longest record gives the others another size with it.

    Examples:
        >>> import torch
        >>> time_major = torch.zeros(7, 3, 5)
        >>> RecordLayout(axis=1).records_first(time_major, records=3).shape
        torch.Size([3, 7, 5])
        >>> flattened = torch.zeros(3 * 7, 5)
        >>> RecordLayout().records_first(flattened, records=3).shape
        torch.Size([3, 7, 5])
    """

    axis: int = 0
    interleaved: bool = False
    rows: int | None = None
    rest: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls, shape: tuple[int, ...], records: int, axis: int, interleaved: bool = False
    ) -> RecordLayout:
        """The records on an axis of a tensor of this shape, and its sizes for each of them."""
        rest = shape[:axis] + shape[axis + 1 :]
        return cls(axis, interleaved, shape[axis] // records, rest)

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        """Whether a tensor of this shape is laid out this way, with the same sizes a record."""
        axis = self.axis
        if self.rest is not None and shape[:axis] + shape[axis + 1 :] != self.rest:
            return False
        return self.holds(shape, records)

    def holds(self, shape: tuple[int, ...], records: int) -> bool:
        """Whether the record axis has its rows for every record, whatever the other axes are."""
        if len(shape) <= self.axis or records <= 0:
            return False
        if self.rows is None:
            return shape[self.axis] % records == 0
        return shape[self.axis] == self.rows * records

    def split(self, tensor: Tensor, records: int) -> Tensor:
        """Return `(records, ...)` where every record keeps the tensor's own rank.

        The record axis stays in place with the number of rows that one record owns.
        """
        axis = self.axis
        rows = tensor.shape[axis] // max(records, 1)
        if self.interleaved:
            return tensor.unflatten(axis, (rows, records)).movedim(axis + 1, 0)
        return tensor.unflatten(axis, (records, rows)).movedim(axis, 0)

    def records_first(self, tensor: Tensor, records: int) -> Tensor:
        """Like `split`, without the axis of rows where a record owns just one."""
        if self.axis == 0 and tensor.shape[0] == records:
            return tensor
        rows = tensor.shape[self.axis] // max(records, 1)
        split = self.split(tensor, records)
        return split.squeeze(self.axis + 1) if rows == 1 else split


RECORDS_FIRST = RecordLayout()
