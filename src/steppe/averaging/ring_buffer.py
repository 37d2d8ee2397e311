"""A ring of flat weight vectors, in memory or in a scratch file."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from steppe.utils.validation import fail

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Ring:
    """`slots` vectors of one length; writing to a full ring replaces the oldest.

    Args:
        slots: how many vectors it holds.
        length: numbers in a vector.
        dtype: how they are stored.
        folder: where the scratch file lives; None keeps the ring in memory. The file is mapped,
            readable by its owner only, and has no name: it vanishes with the process, so nothing
            is left behind and nothing can be mixed up.
        device: where an in-memory ring lives.
    """

    @torch.inference_mode(False)  # as in `Layout.zeros`
    def __init__(
        self,
        slots: int,
        length: int,
        dtype: torch.dtype,
        folder: Path | None,
        device: torch.device,
    ) -> None:
        if dtype not in DTYPES:
            raise fail("dtype", dtype, "must be a floating-point dtype", "use torch.bfloat16")
        if folder is None:
            self.rows = torch.zeros(slots, length, dtype=dtype, device=device)
        else:
            self.rows = _mapped(slots * length, dtype, folder).view(slots, length)

    @property
    def rounding(self) -> float:
        """The largest relative error of a stored number: half a unit in its last place.

        For numbers of the usual size: below 6e-5 float16 is off by up to 3e-8 instead.
        """
        return torch.finfo(self.rows.dtype).eps / 2

    def write(self, slot: int, values: Sequence[Tensor]) -> None:
        """Store tensors one after another in a slot, or leave it as it is where they do not fit."""
        row = self.rows[slot]
        # float16 ends at 65504; the other dtypes reach as far as the accumulator.
        if row.dtype == torch.float16:
            values = [value.to(row.dtype) for value in values]
            if not all(bool(value.isfinite().all()) for value in values):
                rule = "cannot hold the weights, which are not finite or beyond 65504"
                raise fail("dtype", row.dtype, rule, "use torch.bfloat16")
        parts = row.split([value.numel() for value in values])
        torch._foreach_copy_(list(parts), [value.flatten() for value in values])

    def mean(self, slots: int) -> Tensor:
        """The mean of the first slots in float64: reading is rare, so it may be slow and accurate.

        A running mean, not a sum: equal vectors have exactly themselves as their mean.
        """
        mean = torch.zeros(self.rows.shape[1], dtype=torch.float64, device=self.rows.device)
        wide = torch.empty_like(mean)
        for number, row in enumerate(self.rows[:slots], start=1):
            mean.lerp_(wide.copy_(row), 1 / number)
        return mean


def _mapped(numel: int, dtype: torch.dtype, folder: Path) -> Tensor:
    size = numel * dtype.itemsize
    try:
        descriptor, name = tempfile.mkstemp(prefix=".window-", dir=folder)
        try:
            if hasattr(os, "posix_fallocate"):  # not on macOS
                # Without room set aside, a full disk would end the process at some later write.
                os.posix_fallocate(descriptor, 0, size)
            return torch.from_file(name, shared=True, size=numel, dtype=dtype)
        finally:
            os.close(descriptor)
            os.unlink(name)
    except OSError as error:
        rule = f"cannot hold a scratch file of {size / 1e9:.3g} GB ({error.strerror})"
        raise fail("folder", folder, rule, "give a folder with room, or a larger block") from None
