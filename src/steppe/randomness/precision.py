"""Which floating-point types can represent noise, and of which size."""

from __future__ import annotations

import numpy as np
import torch

from steppe.utils.validation import fail, positive


def require_noise_dtype(dtype: torch.dtype) -> None:
    """Refuse to draw or add noise in a precision that cannot hold it."""
    if dtype not in (torch.float32, torch.float64):
        raise fail(
            "dtype",
            dtype,
            "noise must be drawn and added in float32 or float64, half precision has only a few "
            "thousand distinct values",
            "keep the accumulator in float32 and convert the released vector",
        )


def require_noise_std(std: float, dtype: torch.dtype) -> float:
    """The standard deviation in a floating-point type, rounded up, so noise is never too small.

    Refuses noise that a precision cannot hold. A process may be told to take numbers below `tiny`
    for 0 (`torch.set_flush_denormal`), and noise of about that size would then be 0 for the most
    part. From tiny/eps on, such a number is less than the rounding of the noise.
    """
    std = positive("std", std)
    limits = torch.finfo(dtype)
    if not limits.tiny / limits.eps <= std <= limits.max / 16:
        remedy = "use float64" if dtype == torch.float32 else "choose a clip nearer to 1"
        raise fail("std", std, f"must lie in the range of {dtype}", remedy)
    held = np.float32(std) if dtype == torch.float32 else np.float64(std)
    return float(held if float(held) >= std else np.nextafter(held, type(held)(np.inf)))
