"""Which model of a run is published. It is fixed before the first step, because choosing by scores
on private data would cost privacy."""

from __future__ import annotations

from collections.abc import Sequence

from steppe.utils import validation

LAST = "last"


def find(given: str | None, kept: Sequence[str]) -> str:
    """The full name of the model to publish.

    Args:
        given: `last`, or the name of an average of weights, which may be shortened if it is
            unambiguous: `EMA` if there is one, `EMA(decay=0.99)` if there are two. None for `last`.
        kept: the names of the averages of weights that the run keeps.

    Examples:
        >>> find("EMA(decay=0.99)", ["EMA(decay=0.9, warmup=1)", "EMA(decay=0.99, warmup=1)"])
        'EMA(decay=0.99, warmup=1)'
        >>> find("SWA", ["EMA(decay=0.9, warmup=1)"])
        Traceback (most recent call last):
            ...
        steppe.errors.ConfigurationError: publish='SWA': is not a model of weights that this run
        keeps; publish last or EMA(decay=0.9, warmup=1), or keep it under averages.
    """
    if given is None or given == LAST:
        return LAST
    if not isinstance(given, str):
        raise validation.fail(
            "publish", given, "must be the name of a model", 'for example, write "last"'
        )
    found = meant(given, kept)
    if len(found) == 1:
        return found[0]
    if found:
        rule = f"is ambiguous between {', '.join(found)}"
        raise validation.fail("publish", given, rule, "write more of the name")
    rule = "is not a model of weights that this run keeps"
    remedy = f"publish {' or '.join((LAST, *kept))}, or keep it under averages"
    raise validation.fail("publish", given, rule, remedy)


def meant(given: str, names: Sequence[str]) -> list[str]:
    """The names that a shortened name may stand for; the name itself where it is one of them.

    Examples:
        >>> meant("EMA", ["SWA(cycle=1)", "EMA(decay=0.9, warmup=1)"])
        ['EMA(decay=0.9, warmup=1)']
    """
    if given in names:
        return [given]
    beginnings = f"{given}(", f"{given.removesuffix(')')},"
    return [name for name in names if name.startswith(beginnings)]
