"""How often, and how far apart, a record takes part in the steps of a run.

A sampler says it of what it draws, a correlated noise needs it for its sensitivity.
"""

from __future__ import annotations

from dataclasses import dataclass

from steppe.utils.validation import fail, positive_integer


@dataclass(frozen=True)
class Participation:
    """In which steps one record can take part.

    Args:
        times: k, the largest number of steps that a record takes part in.
        separation: b, the distance of two consecutive steps of a record. With `times=1` it does not
            matter.
        exact: True: consecutive steps of a record are exactly b apart, as in a fixed order over
            several epochs. False: they are at least b apart.

    Examples:
        >>> Participation(times=4, separation=25).within(30)
        Participation(times=2, separation=25, exact=True)
    """

    times: int = 1
    separation: int = 1
    exact: bool = True

    def __post_init__(self) -> None:
        for name in ("times", "separation"):
            number = positive_integer(f"Participation.{name}", getattr(self, name))
            object.__setattr__(self, name, number)
        if not isinstance(self.exact, bool):
            raise fail("Participation.exact", self.exact, "must be True or False")

    def within(self, steps: int) -> Participation:
        """The same in a run of so many steps, in which a record may have fewer turns."""
        possible = -(-steps // self.separation)
        return Participation(max(1, min(self.times, possible)), self.separation, self.exact)
