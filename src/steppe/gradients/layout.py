"""The record axis of a tensor.

In most tensors it is the first axis. In time-major sequences it is the second; code that flattens
`(records, positions)` before a linear layer makes it a part of a longer axis. The probe finds out
which case applies to each operation; nothing is guessed from sizes that happen to be equal.
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
        rows: k, how many rows of that axis belong to one record; None if it is not known.
        rest: the sizes of the other axes; None if they are not known. They are compared, because a
            model that cuts a batch to its longest record changes the size of the others.

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
        """The layout of a tensor of this shape with records on the given axis."""
        rest = shape[:axis] + shape[axis + 1 :]
        return cls(axis, interleaved, shape[axis] // records, rest)

    def fits(self, shape: tuple[int, ...], records: int) -> bool:
        """Whether a tensor of this shape has this layout, with the same sizes per record."""
        axis = self.axis
        if self.rest is not None and shape[:axis] + shape[axis + 1 :] != self.rest:
            return False
        return self.holds(shape, records)

    def holds(self, shape: tuple[int, ...], records: int) -> bool:
        """Whether the record axis has the right length, whatever the other axes are."""
        if len(shape) <= self.axis or records <= 0:
            return False
        if self.rows is None:
            return shape[self.axis] % records == 0
        return shape[self.axis] == self.rows * records

    def split(self, tensor: Tensor, records: int) -> Tensor:
        """Return `(records, ...)`, where every record has as many axes as the tensor.

        The record axis remains, with the number of rows of one record.
        """
        axis = self.axis
        rows = tensor.shape[axis] // max(records, 1)
        if self.interleaved:
            return tensor.unflatten(axis, (rows, records)).movedim(axis + 1, 0)
        return tensor.unflatten(axis, (records, rows)).movedim(axis, 0)

    def records_first(self, tensor: Tensor, records: int) -> Tensor:
        """Like `split`, without the axis of rows if a record has only one."""
        if self.axis == 0 and tensor.shape[0] == records:
            return tensor
        rows = tensor.shape[self.axis] // max(records, 1)
        split = self.split(tensor, records)
        return split.squeeze(self.axis + 1) if rows == 1 else split


RECORDS_FIRST = RecordLayout()
