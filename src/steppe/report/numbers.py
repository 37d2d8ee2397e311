"""Numbers as people read them, and the round numbers along an axis."""

from __future__ import annotations

import math

from steppe.utils.formatting import rounded_up

_THIN = "\N{NARROW NO-BREAK SPACE}"


def percent(share: float, digits: int = 1) -> str:
    """A share of one in percent.

    >>> percent(0.9534).replace("\\u202f", " ")
    '95.3 %'
    """
    return f"{100 * share:.{digits}f}{_THIN}%" if math.isfinite(share) else "not finite"


def short(value: float, digits: int = 4) -> str:
    """A number with few digits; large whole ones in full.

    >>> short(0.123456), short(1234567.0), short(1e-05), short(float("nan"))
    ('0.1235', '1,234,567', '1e-5', 'not finite')
    """
    if not math.isfinite(value):
        return "not finite"
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    return f"{value:.{digits}g}".replace("e-0", "e-").replace("e+0", "e+")


def bound(epsilon: float, digits: int = 2) -> str:
    """ε rounded up, so that the printed number is a bound too.

    >>> bound(1.9912), bound(2.0), bound(float("inf"))
    ('2.00', '2.00', '∞')
    """
    return rounded_up(epsilon, digits)


def duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> duration(3.21), duration(110), duration(7322)
    ('3.2 s', '1 min 50 s', '2 h 2 min')
    """
    if not math.isfinite(seconds):
        return "not finite"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def ticks(low: float, high: float, about: int) -> tuple[float, ...]:
    """Round numbers in [low, high], spaced by 1, 2 or 5 times a power of ten.

    Args:
        low: lower end.
        high: upper end, above it.
        about: how many are wanted.

    Examples:
        >>> ticks(0.0, 585.0, 5)
        (0.0, 100.0, 200.0, 300.0, 400.0, 500.0)
        >>> ticks(0.912, 0.968, 4)
        (0.92, 0.94, 0.96)
    """
    step = tick_step(low, high, about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    decimals = max(0, 1 - math.floor(math.log10(step)))
    return tuple(round(i * step, decimals) + 0.0 for i in range(first, last + 1))


def tick_step(low: float, high: float, about: int) -> float:
    """The round spacing that gives closest to the wanted number of ticks."""
    power = 10.0 ** math.floor(math.log10((high - low) / about))
    return min(
        (multiple * power for multiple in (1, 2, 5, 10)),
        key=lambda step: abs((high - low) / step - about),
    )
