"""Private selection in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from steppe.randomness import Source


def permute_and_flip(gaps: Sequence[Fraction], source: Source) -> int:
    """A position: candidates are tried in random order, each accepted with probability e^(−gap).

    The law is that of report-noisy-max with exponential noise of scale one on the negative gaps.

    Args:
        gaps: how far each candidate is behind the best, 0 or more; at least one is 0.
        source: of randomness.

    Returns:
        The first position that is accepted; one with gap 0 always is.

    Guarantees:
        The probabilities are those of the mechanism exactly: every coin is a comparison of whole
        numbers.
    """
    positions = list(range(len(gaps)))
    while True:
        chosen = positions.pop(_below(len(positions), source))
        if exponential_coin(gaps[chosen], source):
            return chosen


def exponential_coin(gap: Fraction, source: Source) -> bool:
    """Heads with probability e^(−gap) (Canonne, Kamath and Steinke, 2020, Algorithm 1)."""
    for _ in range(gap.numerator // gap.denominator):
        # e^(−1) for each whole one; the loop ends at the first tails, after 1.6 on average.
        if not _small_coin(Fraction(1), source):
            return False
    return _small_coin(gap % 1, source)


def _small_coin(gap: Fraction, source: Source) -> bool:
    """Heads with probability e^(−gap) for a gap in [0, 1].

    Coins of probability gap/1, gap/2, gap/3, … are flipped until the first tails; the number of
    heads before it is even with probability 1 − gap + gap²/2 − … = e^(−gap).
    """
    flips = 1
    while _below(gap.denominator * flips, source) < gap.numerator:
        flips += 1
    return flips % 2 == 1


def _below(bound: int, source: Source) -> int:
    """A whole number, uniform on 0 … bound − 1, for a bound of any size."""
    words = max(1, -(-bound.bit_length() // 64))
    usable = (1 << 64 * words) // bound * bound
    while True:
        drawn = int.from_bytes(source.words(words).tobytes(), "little")
        if drawn < usable:
            return drawn % bound
