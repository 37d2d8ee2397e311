"""The privacy statement beside saved weights: as JSON, and in the model card."""

from __future__ import annotations

import re
from pathlib import Path

from steppe.accounting import Statement
from steppe.utils.files import write_atomically
from steppe.utils.formatting import rounded_up

STATEMENT = "privacy_statement.json"
_BEGIN, _END = "<!-- steppe: privacy -->", "<!-- /steppe: privacy -->"
_HEAD = """---
library_name: transformers
tags:
- differential-privacy
- steppe
---

# {name}
"""


def write_statement(folder: Path, statement: Statement) -> None:
    """Write the statement as JSON into a folder with weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / STATEMENT, statement.to_json().encode() + b"\n", mode=0o644)


def write_card(folder: Path, name: str, statement: Statement, steps: int) -> None:
    """Write the statement into the model card, `README.md`, whose other text stays.

    Args:
        folder: with the weights.
        name: of the model, for a card that does not exist yet.
        statement: of the whole plan.
        steps: how many of its steps are charged.
    """
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.exists() else _HEAD.format(name=name)
    section = f"{_BEGIN}\n{section_of(statement, steps)}\n{_END}"
    if _BEGIN in text and _END in text:
        pattern = f"{re.escape(_BEGIN)}.*?{re.escape(_END)}"
        text = re.sub(pattern, lambda _: section, text, flags=re.DOTALL)
    else:
        text = f"{text.rstrip()}\n\n{section}\n"
    write_atomically(path, text.encode(), mode=0o644)


def section_of(statement: Statement, steps: int) -> str:
    """The section of the card."""
    if statement.not_private_reason is not None:
        promise = f"**NOT PRIVATE: {statement.not_private_reason}**"
    else:
        budget = f"(ε, δ) = ({rounded_up(statement.epsilon)}, {statement.delta:g})"
        promise = (
            f"Trained with differential privacy: {budget} for all {statement.steps} steps of the "
            f"plan, of which {steps} are charged."
        )
    caution = [f"**{statement.caution}**"] if statement.caution else []
    items = "\n".join(
        f"- **{title}:** {' '.join(text.split())}" for title, text in statement.items.items()
    )
    return "\n\n".join(["## Privacy", promise, *caution, items])
