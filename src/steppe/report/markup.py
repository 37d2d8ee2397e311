"""HTML and SVG that are escaped by construction.

Every string that enters an element is escaped unless it is `Markup`, and only `tag` makes `Markup`.
Joining or formatting `Markup` gives a plain string, which is escaped again: a slip shows as broken
text, never as a script.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable
from typing import TypeAlias


class Markup(str):
    """Text that is safe to put into a page as it is."""

    __slots__ = ()


Child: TypeAlias = "str | float | Iterable[Child] | None"
Attribute: TypeAlias = str | float | bool | None

_EMPTY = frozenset({"meta", "link", "br", "circle", "line", "path", "rect"})
# A name that an attribute cannot have in Python.
_RENAMED = {"class_": "class", "for_": "for", "view_box": "viewBox", "http_equiv": "http-equiv"}
# Text that turns the direction of what follows can make a page say what it does not.
_TURNING = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def plain(text: str) -> str:
    """The text without characters that are invisible, change its direction or cannot be stored.

    >>> plain("a\\x00b\\u202ec\\ud800")
    'a�b�c�'
    """
    return "".join("\N{REPLACEMENT CHARACTER}" if _hidden(char) else char for char in text)


def escape(value: str | float) -> Markup:
    """A value as text of a page; numbers in at most two decimals, as coordinates need.

    >>> escape("<b> & 'c'"), escape(2.0), escape(1 / 3)
    ('&lt;b&gt; &amp; &#x27;c&#x27;', '2', '0.33')
    """
    if isinstance(value, Markup):
        return value
    if isinstance(value, float):
        value = f"{value:.2f}".rstrip("0").rstrip(".")
    return Markup(html.escape(plain(str(value)), quote=True))


def joined(children: Child) -> Markup:
    """The children one after the other, each escaped unless it is markup; None is nothing."""
    if children is None:
        return Markup()
    if isinstance(children, str | int | float):
        return escape(children)
    return Markup("".join(joined(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element.

    Args:
        name: of the element, a constant of the code.
        *children: text, numbers, elements, or iterables of them.
        **attributes: underscores stand for hyphens, `class_` for class; None and False leave an
            attribute out, True writes its name alone.

    Returns:
        The element.

    Guarantees:
        Text and attribute values are escaped, so they cannot contain markup.

    Examples:
        >>> tag("p", "1 < 2 ", tag("b", "<script>"), class_="a", hidden=False)
        '<p class="a">1 &lt; 2 <b>&lt;script&gt;</b></p>'
        >>> tag("rect", width=3.0, aria_label='"')
        '<rect width="3" aria-label="&quot;"/>'
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = _RENAMED.get(key) or key.replace("_", "-")
        words.append(written if value is True else f'{written}="{escape(value)}"')
    opening = " ".join(words)
    if name in _EMPTY:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{joined(children)}</{name}>")


def _hidden(char: str) -> bool:
    category = unicodedata.category(char)
    return category in ("Cs", "Co") or (category == "Cc" and char not in "\n\t") or char in _TURNING
