"""No text becomes markup, whatever it holds."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from steppe.report.markup import Markup, escape, joined, plain, tag

ANY_TEXT = st.text(st.characters(codec=None), max_size=40)


class Seen(HTMLParser):
    """Which elements and which text a parser finds."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@given(text=ANY_TEXT, value=ANY_TEXT)
def test_any_text_stays_where_it_is_put(text: str, value: str) -> None:
    seen = Seen(tag("p", text, title=value))
    assert seen.elements == [("p", {"title": plain(value)})]
    assert seen.text == plain(text)


@given(text=ANY_TEXT)
def test_a_page_can_always_be_stored(text: str) -> None:
    assert tag("p", text).encode()


def test_formatting_markup_makes_text_of_it_again() -> None:
    inner = tag("b", "x")
    assert isinstance(inner, Markup)
    assert tag("p", f"{inner}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"
    assert tag("p", inner + "") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"


def test_children_nest_and_none_is_nothing() -> None:
    assert joined(["a", None, [tag("i"), ["<", 3, 2.5]]]) == "a<i></i>&lt;32.5"


def test_text_cannot_turn_its_direction() -> None:
    assert "\u202e" not in escape("abc\u202edef")
