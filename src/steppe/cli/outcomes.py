"""Prints the result of a run and the constants that were chosen by rule."""

from __future__ import annotations

import shlex
import sys
import tomllib
from collections.abc import Mapping
from typing import Any

from steppe.cli.printing import print_json
from steppe.training import Outcome, Trainer, numbers
from steppe.utils.formatting import table


def is_terminal() -> bool:
    """Whether standard error is a terminal, so that a progress bar is useful."""
    return sys.stderr.isatty()


def chosen(tables: Mapping[str, Any], reasons: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The constants that were chosen by rule: value and reason by name.

    Args:
        tables: the configuration with every choice made.
        reasons: the reason for each choice.
    """
    known = {
        **tables.get("plan", {}),
        "lr": tables.get("optimizer", {}).get("lr"),
        "model": tables.get("model", {}).get("name"),
        "mirror": tables.get("model", {}).get("mirror"),
        "train": tables.get("model", {}).get("train"),
        "bounds": _extent(tables.get("data", {}).get("bounds", ())),
        "averages": list(tables.get("averages", {})),
        "publish": tables.get("train", {}).get("publish"),
        "normalisation": "GroupNorm",
    }
    return {name: {"value": known.get(name), "reason": reason} for name, reason in reasons.items()}


def chosen_for(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """`chosen` for a trainer that was made from a configuration."""
    return chosen(tomllib.loads(trainer.parts.origin.toml or ""), trainer.reasons)


def chosen_text(choices: dict[str, dict[str, Any]]) -> str:
    """The choices as a table of text."""
    rows = [(name, _in_words(made["value"]), made["reason"]) for name, made in choices.items()]
    return table([("chosen", "value", "why"), *rows], left=3)


def print_outcome(
    outcome: Outcome,
    as_json: bool,
    choices: dict[str, dict[str, Any]] | None = None,
    ceiling: dict[str, float] | None = None,
) -> None:
    """Print the table of a run, its cost and its folder.

    Args:
        outcome: of the run.
        as_json: whether to print JSON.
        choices: the constants that were chosen by rule.
        ceiling: the scores of the network without privacy, if they were asked for.
    """
    if not as_json:
        print(outcome)
        if ceiling is not None:
            name, value = next(iter(ceiling.items()))
            shown = f"{100 * value:.2f} %" if name == "accuracy" else f"{value:.4f}"
            print(f"without privacy: {name} {shown}; not covered by ε, keep it with the data")
        print(f"report: steppe report {shlex.quote(str(outcome.run))}")
        return
    print_json(
        {
            **numbers(outcome),
            "private": outcome.statement.not_private_reason is None,
            "ledger": outcome.ledger,
            "run": str(outcome.run),
            "held_out": outcome.comparison and outcome.comparison.to_dict(),
            **({"without_privacy": ceiling} if ceiling is not None else {}),
            **({"chosen": choices} if choices is not None else {}),
        }
    )


def _extent(bounds: Any) -> str:
    """How many bounds there are; the numbers are in the run's folder."""
    if len(bounds) and not isinstance(bounds, dict) and not isinstance(bounds[0], list | tuple):
        return "of all values"
    return "of one column" if len(bounds) == 1 else f"of {len(bounds)} columns"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{key}={item}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')}({inside})"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
