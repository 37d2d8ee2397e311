"""Reads a run folder for the report; missing parts are None.

The folder is written by the trainer and may have been edited, so the type of every value is checked
before it is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steppe.accounting import caution
from steppe.errors import DataError
from steppe.utils.validation import fail

# Larger than any log of a run; a file beyond it is not one of ours.
_LARGEST = 256 * 2**20
_VAST = 1e300
_NOT_SCORES = frozenset({"kind", "step", "epsilon", "seconds", "model"})
EXTRAS = "figures.json"
_ANY_OF = ("statement.json", "result.json", "log.jsonl")


@dataclass(frozen=True)
class LoggedScores:
    """One line of the log: a model measured on the data for evaluation.

    Args:
        model: "last" or the name of an average.
        step: steps taken.
        epsilon: ε spent by then, if the log says so.
        scores: what was measured, by name: accuracy, loss, or the user's own.
    """

    model: str
    step: int
    epsilon: float | None
    scores: Mapping[str, float]


@dataclass(frozen=True)
class ReportedRun:
    """The contents of a run folder.

    Args:
        name: the folder's name, without its path.
        statement: the privacy statement.
        plan: the plan's constants and digest.
        config: the configuration as resolved.
        result: the final table; None for a run that has not finished.
        evaluations: from the log, in order.
        notes: from the log, in order.
        extras: series that other commands added.
        torn: lines of the log that could not be read, such as the last one after a crash.
    """

    name: str
    statement: Mapping[str, Any] | None
    plan: Mapping[str, Any] | None
    config: Mapping[str, Any] | None
    result: Mapping[str, Any] | None
    evaluations: tuple[LoggedScores, ...]
    notes: tuple[str, ...]
    extras: Mapping[str, Any]
    torn: int

    @property
    def models(self) -> tuple[str, ...]:
        """Every model that was measured, the last iterate first."""
        named = [row["model"] for row in self.rows] + [e.model for e in self.evaluations]
        return tuple(sorted(dict.fromkeys(named), key=lambda name: name != "last"))

    @property
    def rows(self) -> tuple[Mapping[str, Any], ...]:
        """The final table: `model` and its scores."""
        return tuple((self.result or {}).get("table", ()))

    @property
    def published(self) -> str | None:
        """The published model, which was fixed before training, if the result names it."""
        name = (self.result or {}).get("published")
        return name if isinstance(name, str) else None

    @property
    def void_reason(self) -> str | None:
        """The run's own reason why it is not private; None if there is none."""
        found = [part.get("not_private_reason") for part in (self.statement, self.result) if part]
        given = next((str(reason) for reason in found if reason), None)
        if given is None and self.statement is not None and not self.statement["private"]:
            return "no reason was kept"
        return given

    @property
    def epsilon(self) -> float | None:
        """ε of the whole run: that of the statement, or of the result if that is larger."""
        if self.statement is None or self.void_reason is not None:
            return None
        promised = number(self.statement, "epsilon")
        spent = number(self.result or {}, "epsilon")
        if promised is None or spent is None:
            return promised
        return max(promised, spent)

    @property
    def caution(self) -> str | None:
        """A warning about the guarantee, or None."""
        if self.statement is None or self.epsilon is None:
            return None
        unit = str(self.statement.get("unit", "record"))
        return caution(self.statement.get("isolation"), unit)

    @property
    def measure(self) -> str:
        """The score to show: accuracy, or the loss if no accuracy was measured."""
        scored = any(number(row, "accuracy") is not None for row in self.rows)
        return "accuracy" if scored or not self.rows else "loss"

    @property
    def best(self) -> Mapping[str, Any] | None:
        """The row of the average with the highest accuracy, or with the lowest loss."""
        measure = self.measure
        averages = {
            score: row
            for row in reversed(self.rows)
            if row["model"] != "last"
            and (score := number(row, measure)) is not None
            and math.isfinite(score)
        }
        if not averages:
            return None
        return averages[max(averages) if measure == "accuracy" else min(averages)]

    @property
    def scoring_failed(self) -> bool:
        """Whether the models of the final table could not be scored."""
        return any(note.startswith("there is no table of scores") for note in self.notes)

    def row(self, model: str) -> Mapping[str, Any] | None:
        """The final row of one model."""
        return next((row for row in self.rows if row["model"] == model), None)


def read_run(folder: Path) -> ReportedRun:
    """Read a run folder.

    Args:
        folder: written by the trainer, finished or not.

    Returns:
        Its parts.

    Raises:
        ConfigurationError: there is no run in it.
        DataError: a file has another content than its name says; the message names file and line.
    """
    require_run(folder)
    statement, plan = _object(folder / "statement.json"), _object(folder / "plan.json")
    _check_statement(folder / "statement.json", statement)
    if statement and plan and statement.get("digest") != plan.get("digest"):
        raise _damaged(folder / "statement.json", "is the statement of another plan")
    result = _object(folder / "result.json")
    _check_table(folder / "result.json", result)
    lines, torn = _log(folder / "log.jsonl")
    run = ReportedRun(
        name=folder.resolve().name,
        statement=statement,
        plan=plan,
        config=_object(folder / "config.json"),
        result=result,
        evaluations=tuple(_evaluations(lines)),
        notes=tuple(str(line.get("text", "")) for line in lines if line.get("kind") == "note"),
        extras=read_extras(folder),
        torn=torn,
    )
    if run.epsilon is not None:
        return run
    # Where nothing is promised, the ε of the log or of the plan is a number without a meaning.
    evaluations = tuple(replace(e, epsilon=None) for e in run.evaluations)
    return replace(run, evaluations=evaluations, plan=_without_budget(plan))


def _without_budget(plan: dict[str, Any] | None) -> dict[str, Any] | None:
    """The plan without the ε that was asked for."""
    if plan is None or not isinstance(asked := plan.get("asked"), dict):
        return plan
    return {**plan, "asked": {name: value for name, value in asked.items() if name != "epsilon"}}


def require_run(folder: Path) -> None:
    """Refuse a folder that training has not written to."""
    if not any((folder / name).is_file() for name in _ANY_OF):
        raise fail("run", folder, "has no run in it", "give the folder that training wrote")


def read_extras(folder: Path) -> dict[str, Any]:
    """The series that other commands added to a run folder, by their names."""
    return _object(folder / EXTRAS) or {}


def number(mapping: Mapping[str, Any], key: str) -> float | None:
    """A number, or None if it is missing or not a number."""
    value = mapping.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Numbers that are too large to draw count as infinite, also integers of any length.
    if -_VAST < value < _VAST or value != value:
        return float(value)
    return math.inf if value > 0 else -math.inf


def _object(path: Path) -> dict[str, Any] | None:
    text = _text(path)
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise _damaged(path, "is not JSON") from None
    if not isinstance(found, dict):
        raise _damaged(path, "must hold a JSON object")
    return found


def _log(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The lines of a log, and how many were passed over: a killed run leaves half a line."""
    found: list[dict[str, Any]] = []
    torn = 0
    for line in (_text(path) or "").split("\n"):
        try:
            entry = json.loads(line) if line.strip() else None
        except (ValueError, RecursionError):
            torn += 1
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found, torn


def _evaluations(lines: list[dict[str, Any]]) -> Iterator[LoggedScores]:
    """The evaluations, one for each model and step: of two the later, as after a resume."""
    found: dict[tuple[str, int], LoggedScores] = {}
    for line in lines:
        step = number(line, "step")
        if line.get("kind") != "evaluation" or step is None or not math.isfinite(step):
            continue
        model = str(line.get("model", "last"))
        scores = {
            str(name): value
            for name in line
            if name not in _NOT_SCORES and (value := number(line, name)) is not None
        }
        found[model, int(step)] = LoggedScores(model, int(step), number(line, "epsilon"), scores)
    yield from found.values()


def _check_statement(path: Path, statement: dict[str, Any] | None) -> None:
    if statement is None:
        return
    items = statement.get("items")
    if not isinstance(items, dict) or not all(isinstance(text, str) for text in items.values()):
        raise _damaged(path, "must have its items in words")
    if not isinstance(statement.get("private"), bool):
        raise _damaged(path, "must say whether the run is private")


def _check_table(path: Path, result: dict[str, Any] | None) -> None:
    table = (result or {}).get("table", [])
    well_formed = isinstance(table, list) and all(
        isinstance(row, dict) and isinstance(row.get("model"), str) for row in table
    )
    if not well_formed:
        raise _damaged(path, "must have a table of rows that name their model")


def _text(path: Path) -> str | None:
    try:
        if path.stat().st_size > _LARGEST:
            raise _damaged(path, f"is larger than {_LARGEST >> 20} MB")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise _damaged(path, "is not text in UTF-8") from None
    except OSError as error:
        raise _damaged(path, f"cannot be read: {error.strerror}") from None


def _damaged(path: Path, rule: str) -> DataError:
    return DataError.about("file", path, rule, "restore it, or remove it to do without")
