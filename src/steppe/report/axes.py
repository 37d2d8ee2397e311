"""The frame of a figure: scales, ticks, grid and the words along the axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from steppe.report.markup import Markup, tag
from steppe.report.numbers import short, tick_step, ticks

# How many ticks are wanted along a vertical axis.
_ROWS = 5
# A range below this is one value; far below, ticks would be smaller than a float can be.
_POINT = 1e-100


@dataclass(frozen=True)
class Axis:
    """One direction of a figure.

    Args:
        title: what is measured, with its unit.
        low: value at the lower end.
        high: value at the upper end, above `low`.
        text: a tick in words.
    """

    title: str
    low: float
    high: float
    text: Callable[[float], str] = short

    @classmethod
    def around(
        cls,
        title: str,
        values: Iterable[float],
        *,
        text: Callable[[float], str] = short,
        within: tuple[float, float] = (-math.inf, math.inf),
        tight: bool = False,
    ) -> Axis:
        """An axis that holds all finite values, with some air unless it is tight.

        Args:
            title: what is measured.
            values: at least one of them finite.
            text: a tick in words.
            within: ends that the air does not pass.
            tight: end at the first and the last value.
        """
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite), max(finite)
        if high - low <= max(1e-9 * max(abs(low), abs(high)), _POINT):
            room = abs(high) * 0.1 or 1.0
            low, high = low - room, high + room
        elif not tight:
            room = 0.06 * (high - low)
            low, high = low - room, high + room
        low, high = max(low, within[0]), min(high, within[1])
        if low < high:
            return cls(title, low, high, text)
        # All values lie on one of the ends: open the axis to the side where there is room.
        open_below = within[1] <= high
        return cls(title, low - open_below, high + (not open_below), text)

    def holds(self, value: float) -> bool:
        """Whether a value lies on the axis."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Frame:
    """Where values land on the paper.

    Args:
        x: the horizontal axis.
        y: the vertical axis.
        width: of the whole picture.
        height: of the whole picture.
        ticks: how many are wanted along the horizontal axis.
    """

    x: Axis
    y: Axis
    width: int
    height: int
    ticks: int

    @property
    def left(self) -> float:
        """Start of the plot; the ticks' words lie before it."""
        longest = max((len(self.y.text(tick)) for tick in self._y_ticks), default=1)
        return 18 + 6.8 * longest

    @property
    def right(self) -> float:
        """End of the plot."""
        return self.width - 16

    @property
    def top(self) -> float:
        """Upper end of the plot; the title of the vertical axis lies above it."""
        return 30

    @property
    def bottom(self) -> float:
        """Lower end of the plot; ticks and title lie below it."""
        return self.height - 46

    def across(self, value: float) -> float:
        """The horizontal place of a value."""
        share = (value - self.x.low) / (self.x.high - self.x.low)
        return self.left + share * (self.right - self.left)

    def up(self, value: float) -> float:
        """The vertical place of a value."""
        share = (value - self.y.low) / (self.y.high - self.y.low)
        return self.bottom - share * (self.bottom - self.top)

    def draw(self) -> Markup:
        """Grid, ticks and titles."""
        rows = [
            (
                tag(
                    "line",
                    class_="grid",
                    x1=self.left,
                    x2=self.right,
                    y1=self.up(value),
                    y2=self.up(value),
                ),
                tag(
                    "text",
                    self.y.text(value),
                    class_="tick end",
                    x=self.left - 8,
                    y=self.up(value) + 4,
                ),
            )
            for value in self._y_ticks
        ]
        columns = [
            tag(
                "text",
                self.x.text(value),
                class_="tick middle",
                x=self.across(value),
                y=self.bottom + 19,
            )
            for value in ticks(self.x.low, self.x.high, self.ticks)
        ]
        base = tag(
            "line", class_="base", x1=self.left, x2=self.right, y1=self.bottom, y2=self.bottom
        )
        titles = (
            tag("text", self.y.title, class_="axis", x=2.0, y=15.0),
            tag("text", self.x.title, class_="axis end", x=self.right, y=self.height - 8.0),
        )
        return tag("g", rows, columns, base, titles, aria_hidden="true")

    @property
    def _y_ticks(self) -> tuple[float, ...]:
        return ticks(self.y.low, self.y.high, _ROWS)


def percent_decimals(low: float, high: float) -> int:
    """Decimals that tell neighbouring ticks in percent apart.

    >>> percent_decimals(0.0, 1.0), percent_decimals(0.951, 0.957)
    (0, 1)
    """
    step = 100 * tick_step(low, high, _ROWS)
    return max(0, -math.floor(math.log10(step) + 1e-9))
