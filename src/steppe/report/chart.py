"""A figure of the page: legend, drawing for wide and for narrow screens, the numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steppe.report.axes import Axis, Frame
from steppe.report.layers import Layer, tone_class
from steppe.report.markup import Child, Markup, tag

# Two drawings instead of one that shrinks: letters stay legible on a phone, without a script.
_SIZES = {"wide": (760, 330, 8), "narrow": (400, 290, 4)}


@dataclass(frozen=True)
class Chart:
    """A figure.

    Args:
        key: its identifier in the page.
        title: what it shows.
        words: one or two sentences under the title.
        x: the horizontal axis.
        y: the vertical axis.
        layers: from back to front.
        first_column: what the rows of the table alternative are.
    """

    key: str
    title: str
    words: str
    x: Axis
    y: Axis
    layers: Sequence[Layer]
    first_column: str

    def html(self) -> Markup:
        """The figure, ready for the page."""
        return tag(
            "figure",
            tag("figcaption", tag("h3", self.title), tag("p", self.words)),
            self._legend(),
            [self._drawing(size) for size in _SIZES],
            tag("details", tag("summary", "The numbers as a table"), self._table()),
            class_="plot",
            id=self.key,
        )

    def svg(self, width: int, height: int, ticks: int) -> Markup:
        """The drawing alone, without an element around it."""
        frame = Frame(self.x, self.y, width, height, ticks)
        clip = f"{self.key}-{width}"
        inside = tag(
            "clipPath",
            tag(
                "rect",
                x=frame.left - 6,
                y=frame.top - 6,
                width=frame.right - frame.left + 12,
                height=frame.bottom - frame.top + 6.5,
            ),
            id=clip,
        )
        drawn = tag("g", [layer.draw(frame) for layer in self.layers], clip_path=f"url(#{clip})")
        return Markup(frame.draw() + inside + drawn)

    def _drawing(self, size: str) -> Markup:
        width, height, ticks = _SIZES[size]
        return tag(
            "svg",
            self.svg(width, height, ticks),
            class_=size,
            view_box=f"0 0 {width} {height}",
            role="group",
            aria_label=f"{self.title}. Arrow keys move between the values.",
        )

    def _legend(self) -> Markup | None:
        series = [layer for layer in self.layers if layer.swatch]
        if len(series) < 2:
            return None
        return tag(
            "ul",
            [_entry(layer) for layer in series],
            class_="legend",
        )

    def _table(self) -> Markup:
        series = [layer for layer in self.layers if layer.points]
        places = sorted({(p.x, p.where) for layer in series for p in layer.points})
        values = [{(p.x, p.where): p.value for p in layer.points} for layer in series]
        rows = [[where, *(column.get((x, where), "") for column in values)] for x, where in places]
        return table([self.first_column, *(layer.name for layer in series)], rows)


def table(
    head: Sequence[str], rows: Sequence[Sequence[Child]], caption: str | None = None
) -> Markup:
    """A table that scrolls by itself when it is wider than the screen.

    Args:
        head: titles of the columns; the first column heads the rows.
        rows: their cells.
        caption: what the table is.
    """
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", tag("tr", [tag("th", title, scope="col") for title in head])),
            tag(
                "tbody",
                [
                    tag("tr", tag("th", row[0], scope="row"), [tag("td", cell) for cell in row[1:]])
                    for row in rows
                ],
            ),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or head[0],
    )


def _entry(layer: Layer) -> Markup:
    return tag(
        "li", tag("i", class_=f"swatch {layer.swatch}"), layer.name, class_=tone_class(layer.tone)
    )
