"""The page on isolation lists the rules as they are. Run this file to write its table anew."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from steppe.isolation import rules

PAGE = Path(__file__).parents[2] / "docs" / "isolation.md"
START = "<!-- The table: python tests/isolation/test_isolation_page.py -->\n"
END = "\n## Limits"


def table() -> str:
    """One row for each rule: what it says of itself, and its operations."""
    lines = ["| family | owners of the result | operations |", "|---|---|---|"]
    named: dict[object, list[str]] = {}
    for packet, rule in rules.RULES.items():
        named.setdefault(rule, []).append(packet.__name__)
    for rule, names in named.items():
        family = rule.__module__.rpartition(".")[2]
        says = (inspect.getdoc(rule) or "").split("\n\n")[0].replace("\n", " ")
        listed = ", ".join(f"`{name}`" for name in sorted(set(names)))
        lines.append(f"| {family} | {says} | {listed} |")
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """The page with the table of now."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n{table()}{END}{rest.partition(END)[2]}"


def test_the_table_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page


def test_every_rule_says_what_it_does() -> None:
    for rule in rules.RULES.values():
        assert re.match(r"[`A-Z].*\.", inspect.getdoc(rule) or ""), rule


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
