"""The second opinion: ε by Rényi differential privacy (RDP), as a rule looser than the PLD value.

Both are upper bounds; a PLD's is rounded up, by more than RDP gives away where ε is tiny.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from steppe.accounting.pld import check_delta
from steppe.accounting.segment import Segment, Segments, event, merged, relation, within_range
from steppe.utils import validation

# dp-accounting's own orders without those below 1.5: these converge slowly or not at all, and are
# the best order only where ε is too large to mean anything. Fewer orders can only raise ε.
_ORDERS = (*(order / 10 for order in range(15, 110)), *range(11, 64), 128, 256, 512, 1024)


def rdp_epsilon(segments: Iterable[Segment], delta: float, adjacency: str = "add-remove") -> float:
    """The ε of a run by Rényi differential privacy.

    Args:
        segments: the run.
        delta: the δ of (ε, δ)-differential privacy.
        adjacency: `add-remove` or `zero-out`. `replace-one` is refused, because dp-accounting's
            RDP does not double the sensitivity there and reports less than half of the true ε.

    Returns:
        ε ≥ 0; 0 for a run without steps; infinity without noise.

    Guarantees:
        An upper bound on ε, by a route that shares no code with `epsilon`.

    Examples:
        >>> round(rdp_epsilon([Segment(0.01, 1.1, 2000)], delta=1e-5), 2)
        2.38
    """
    check_delta(delta)
    relation(adjacency)
    if adjacency == "replace-one":
        raise validation.fail(
            "adjacency",
            adjacency,
            "is not covered by the RDP accountant",
            "use steppe.accounting.epsilon, which does",
        )
    run = within_range(merged(segments))
    if any(segment.cap is not None for segment in run):
        raise validation.fail(
            "cap",
            next(segment.cap for segment in run if segment.cap is not None),
            "is not covered by the RDP accountant",
            "use steppe.accounting.epsilon, which does",
        )
    return _rdp_epsilon(run, delta, adjacency)


@lru_cache(maxsize=256)
def _rdp_epsilon(run: Segments, delta: float, adjacency: str) -> float:
    from dp_accounting import rdp

    if not run:
        return 0.0
    accountant = rdp.RdpAccountant(orders=_ORDERS, neighboring_relation=relation(adjacency))
    with _warnings_hidden():
        return max(0.0, float(accountant.compose(event(run)).get_epsilon(delta)))


@contextmanager
def _warnings_hidden() -> Iterator[None]:
    """Without the library's warnings about orders that it leaves out, which can only raise ε."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
