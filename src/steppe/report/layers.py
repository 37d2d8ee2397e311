"""What is drawn in a frame: lines with bands, dots, bars, reference lines.

Every mark has three lines of text: its value, its series and its position. Without a script the
browser shows them as they are; the page's script turns them into a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from steppe.report.axes import Frame
from steppe.report.markup import Markup, tag

# With more points, marks appear only under the pointer.
_CROWD = 16
# A line of more points has marks on some of them only; the table has them all.
_MOST_MARKS = 120


@dataclass(frozen=True)
class Mark:
    """A place in the plot with its words.

    Args:
        x: horizontal value.
        y: vertical value.
        where: the horizontal value in words, as the tables' rows are headed.
        value: the vertical value in words.
    """

    x: float
    y: float
    where: str
    value: str


class Layer(Protocol):
    """One series or reference of a figure."""

    @property
    def name(self) -> str:
        """The series in words."""

    @property
    def tone(self) -> int:
        """Which colour; 0 is the neutral one."""

    @property
    def points(self) -> Sequence[Mark]:
        """What the table alternative lists; empty for a reference."""

    @property
    def swatch(self) -> str:
        """How the legend shows it: line, dot, ring, bar, or nothing."""

    def draw(self, frame: Frame) -> Markup:
        """The layer as SVG."""


@dataclass(frozen=True)
class Line:
    """A curve, with an optional band around it.

    Args:
        name: the series.
        tone: its colour.
        points: from left to right, each finite.
        band: (x, low, high) from left to right.
    """

    name: str
    tone: int
    points: Sequence[Mark]
    band: Sequence[tuple[float, float, float]] = ()

    swatch = "line"

    def draw(self, frame: Frame) -> Markup:
        """Band, curve and marks."""
        curve = _path((frame.across(p.x), frame.up(p.y)) for p in self.points)
        quiet = " quiet" if len(self.points) > _CROWD else ""
        return tag(
            "g",
            self._band(frame),
            tag("path", class_="line", d=curve),
            _dots(self, frame, 3.5),
            class_=f"series {tone_class(self.tone)}{quiet}",
        )

    def _band(self, frame: Frame) -> Markup | None:
        if not self.band:
            return None
        there = [(frame.across(x), frame.up(high)) for x, _, high in self.band]
        back = [(frame.across(x), frame.up(low)) for x, low, _ in reversed(self.band)]
        return tag("path", class_="band", d=_path([*there, *back]) + "Z")


@dataclass(frozen=True)
class Dots:
    """Points that no curve joins.

    Args:
        name: the series.
        tone: its colour.
        points: each finite.
        hollow: rings, which recede.
        labels: words beside the points, one for each; those that would cover others are left out.
    """

    name: str
    tone: int
    points: Sequence[Mark]
    hollow: bool = False
    labels: Sequence[str] = ()

    @property
    def swatch(self) -> str:
        """A ring where the dots are hollow."""
        return "ring" if self.hollow else "dot"

    def draw(self, frame: Frame) -> Markup:
        """The marks and their labels."""
        hollow = " hollow" if self.hollow else ""
        dots = _dots(self, frame, 5.0)
        words = tag("g", self._labels(frame), aria_hidden="true") if self.labels else None
        return tag("g", words, dots, class_=f"series {tone_class(self.tone)}{hollow}")

    def _labels(self, frame: Frame) -> Iterator[Markup]:
        taken: list[tuple[float, float, float]] = []
        for point, label in zip(self.points, self.labels, strict=False):
            x, y, width = frame.across(point.x), frame.up(point.y), 10 + 6.6 * len(label)
            before = x + width > frame.right
            left = x - width if before else x
            if left < frame.left or any(
                left < end and start < left + width and abs(y - height) < 15
                for start, end, height in taken
            ):
                continue
            taken.append((left, left + width, y))
            side = "note end" if before else "note"
            yield tag("text", label, class_=side, x=x + (-10 if before else 10), y=y + 4)


@dataclass(frozen=True)
class Bars:
    """Bars from the lower end of the frame, side by side.

    Args:
        name: the series.
        tone: its colour.
        points: `x` is the middle of a bar, `y` its height.
        widths: in the units of the axis, one for each bar.
    """

    name: str
    tone: int
    points: Sequence[Mark]
    widths: Sequence[float]

    swatch = "bar"

    def draw(self, frame: Frame) -> Markup:
        """The bars, each a mark; at least a line high, so that a rare value is seen."""
        bars = []
        for point, width in zip(self.points, self.widths, strict=True):
            left, right = frame.across(point.x - width / 2), frame.across(point.x + width / 2)
            gap = min(2.0, 0.2 * (right - left))
            height = max(frame.bottom - frame.up(point.y), 1.0 if point.y else 0.0)
            place = {"x": left + gap / 2, "width": right - left - gap}
            bars.append(
                tag(
                    "g",
                    tag("rect", y=frame.bottom - height, height=height, rx=min(2.0, gap), **place),
                    _words(point, self.name),
                    class_="mark",
                    tabindex="-1",
                )
            )
        return tag("g", bars, class_=f"series bars {tone_class(self.tone)}")


@dataclass(frozen=True)
class Rule:
    """A straight line between two places that others are compared with, and its name beside it."""

    name: str
    start: tuple[float, float]
    end: tuple[float, float]

    tone = 0
    points = ()
    swatch = ""

    def draw(self, frame: Frame) -> Markup:
        """The line, and its words: at the top of an upright one, under any other."""
        (x1, y1), (x2, y2) = ((frame.across(x), frame.up(y)) for x, y in (self.start, self.end))
        line = tag("line", class_="rule", x1=x1, y1=y1, x2=x2, y2=y2)
        upright = x1 == x2
        words = tag(
            "text",
            self.name,
            class_="note end" if upright and x2 > 0.7 * frame.right else "note",
            x=x2 + math.copysign(8, 0.7 * frame.right - x2) if upright else 0.4 * x1 + 0.6 * x2,
            y=frame.top + 14 if upright else 0.4 * y1 + 0.6 * y2 + 22,
        )
        return tag("g", line, words, aria_hidden="true")


@dataclass(frozen=True)
class Links:
    """Thin lines between pairs of points that belong together."""

    pairs: Sequence[tuple[Mark, Mark]]

    name = ""
    tone = 0
    points = ()
    swatch = ""

    def draw(self, frame: Frame) -> Markup:
        """The lines."""
        return tag(
            "g",
            [
                tag(
                    "line",
                    class_="link",
                    x1=frame.across(a.x),
                    y1=frame.up(a.y),
                    x2=frame.across(b.x),
                    y2=frame.up(b.y),
                )
                for a, b in self.pairs
            ],
            aria_hidden="true",
        )


def tone_class(tone: int) -> str:
    """The style class of a colour; after eight, lines of the same colours are dashed."""
    if tone <= 0:
        return "t0"
    turn, hue = divmod(tone - 1, 8)
    return f"t{hue + 1}" + (" dashed" if turn else "")


def _dots(series: Line | Dots, frame: Frame, radius: float) -> list[Markup]:
    return [
        tag(
            "g",
            tag("circle", cx=frame.across(point.x), cy=frame.up(point.y), r=radius),
            _words(point, series.name),
            class_="mark",
            tabindex="-1",
        )
        for point in _evenly_chosen(series.points)
        if frame.x.holds(point.x) and frame.y.holds(point.y)
    ]


def _evenly_chosen(points: Sequence[Mark]) -> Sequence[Mark]:
    """Evenly chosen points, the last one among them."""
    stride = -(-len(points) // _MOST_MARKS) or 1
    return points[::-1][::stride][::-1]


def _words(point: Mark, series: str) -> Markup:
    # One line each: the script splits them.
    lines = (" ".join(text.split()) for text in (point.value, series, point.where))
    return tag("title", "\n".join(lines))


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
