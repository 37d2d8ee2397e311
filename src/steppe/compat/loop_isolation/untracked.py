"""What Python and NumPy bring into a loop: constants, and writes to memory that torch does not
see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from steppe.compat.loop_isolation.refusals import written_behind
from steppe.isolation import line_of_user

_FEW = 16  # entries that are compared one by one


def numbers_of(value: Any, records: int) -> Iterator[float | None]:
    """A tensor or array of constants as a few numbers, that change if it changes; None if it may
    have an entry for each record."""
    if not isinstance(value, Tensor):
        value = torch.tensor(value) if value.dtype.kind in "iuf" else torch.zeros(0)
    if value.layout is not torch.strided or value.is_complex():
        return
    if value.numel() > 1 and records in value.shape:
        yield None
    elif value.numel() <= _FEW:
        yield from map(float, value.detach().flatten().tolist())
    else:
        yield float(_digest(value))


class Shared:
    """The memory of tensors that NumPy, or another library, may write to."""

    def __init__(self) -> None:
        self._seen: list[tuple[Tensor, int, int, str]] = []

    def note(self, tensor: Tensor) -> None:
        """This tensor is given away."""
        if tensor.layout is torch.strided:
            version = -1 if tensor.is_inference() else tensor._version
            self._seen.append((tensor, version, _digest(tensor), line_of_user() or "torch"))

    def require_unwritten(self) -> None:
        """Refuse writes that were no operation of torch."""
        for tensor, version, digest, line in self._seen:
            now = -1 if tensor.is_inference() else tensor._version
            if now == version and _digest(tensor) != digest:
                raise written_behind(line)

    def forget(self) -> None:
        """The batch was stepped."""
        self._seen = []


def _digest(tensor: Tensor) -> int:
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return hash(plain.flatten().view(torch.uint8).numpy().tobytes())
