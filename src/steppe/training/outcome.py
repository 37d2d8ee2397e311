"""The result of a run: its table, its folder and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steppe.accounting import Statement
from steppe.training.comparison import HeldOutScore
from steppe.training.evaluation import Scores
from steppe.training.ledger_summary import ledger_line
from steppe.utils.formatting import rounded_up
from steppe.utils.formatting import table as columns

_HEADS = {"seconds": "time"}


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Args:
        table: one row for each model of the run: `model`, its scores on the evaluation data, and
            the `seconds` it took: the training, which all rows share, plus making and scoring this
            model.
        published: the name of the published model, which was fixed before training.
        epsilon: ε at the plan's δ of all steps that were charged; None if the run is not private.
            If a callback ended the run, it is valid only if the decision did not depend on what the
            callback saw. Otherwise the plan's ε is valid, which is in the statement.
        delta: δ.
        steps: steps that contribute to the weights.
        lost: steps that were charged and lost by interruptions.
        seconds: time spent training, over all parts of the run.
        run: the folder.
        statement: the privacy statement.
        ledger: the number of `runs` in the ledger, their total `epsilon` at `delta`, and the
            `not_private_reason` if that is infinite; for a named ledger also its `path` and how
            many runs were charged `before` this one. None if this could not be computed.
        scoring_error: the type of the error that ended the last evaluation, if any.
        comparison: of the published model with a constant answer, on the held-out records; in no
            file of the run.
    """

    table: tuple[Mapping[str, Any], ...]
    published: str
    epsilon: float | None
    delta: float
    steps: int
    lost: int
    seconds: float
    run: Path
    statement: Statement
    ledger: Mapping[str, Any] | None = None
    scoring_error: str | None = None
    comparison: HeldOutScore | None = None

    def __str__(self) -> str:
        head = f"ε = {rounded_up(self.epsilon, 4)} at δ = {self.delta:g}, {self.steps} steps"
        if self.lost:
            head += f" and {self.lost} lost to interruptions"
        lines = [
            *as_lines(self.table, self.published),
            *(self.comparison.lines() if self.comparison is not None else ()),
            f"{head}, {self.seconds:.1f} s",
            f"run: {self.run}",
        ]
        if self.ledger is not None and self.ledger["runs"] > 1:
            runs, epsilon = self.ledger["runs"], rounded_up(self.ledger["epsilon"], 4)
            total = f"all {runs} runs of the ledger together: ε = {epsilon} at δ = {self.delta:g}"
            reason = self.ledger["not_private_reason"]
            lines.insert(-1, total if reason is None else f"{total}, since {reason}")
        if self.ledger is not None and "path" in self.ledger:
            lines.insert(-1, ledger_line(self.ledger["path"], self.ledger["before"]))
        if not self.table:
            lines.insert(0, f"no scores: {self._why_no_scores}")
        if self.statement.not_private_reason is not None:
            lines.insert(0, f"NOT PRIVATE: {self.statement.not_private_reason}")
        elif self.statement.caution is not None:
            lines.insert(0, f"WARNING: {self.statement.caution}")
        return "\n".join(lines)

    @property
    def _why_no_scores(self) -> str:
        if self.scoring_error is not None:
            return f"the evaluation failed ({self.scoring_error}), see log.jsonl"
        return "no held-out records were given (--test, x_test, evaluate=)"


def numbers(outcome: Outcome) -> dict[str, Any]:
    """The scores and the cost of a run, as JSON."""
    return {
        "table": list(outcome.table),
        "published": outcome.published,
        "epsilon": outcome.epsilon,
        "delta": outcome.delta,
        "steps": outcome.steps,
        "lost": outcome.lost,
        "seconds": outcome.seconds,
        "isolation": outcome.statement.isolation,
        # Of private records, on which the scores are not covered by ε; None without them.
        "held_out_share": outcome.statement.held_out,
    }


def promised(epsilon: float, not_private_reason: str | None) -> float | None:
    """The ε that files and output of a run may show: None if the run is not private.

    Examples:
        >>> promised(2.0, None), promised(2.0, "the noise is known")
        (2.0, None)
    """
    return epsilon if not_private_reason is None else None


def row(model: str, scores: Scores) -> dict[str, Any]:
    """One row of the table; `accuracy` and `loss` are None if there are none."""
    return {"model": model, "accuracy": None, "loss": None, **scores}


def as_lines(table: Sequence[Mapping[str, Any]], published: str | None = None) -> list[str]:
    """The table as lines of text.

    Args:
        table: one row for each model.
        published: the model to mark, if there are several.

    Examples:
        >>> print(*as_lines([{"model": "last", "accuracy": 0.91, "loss": 0.25}]), sep="\\n")
        model  accuracy    loss
        last    91.00 %  0.2500
    """
    if not table:
        return []
    names = [name for name in table[0] if any(line.get(name) is not None for line in table)]
    if len(table) > 1:
        table = [
            {**line, "model": f"{line['model']}, published"} if line["model"] == published else line
            for line in table
        ]
    heads = [_HEADS.get(name, name) for name in names]
    cells = [heads, *([_cell(name, line.get(name)) for name in names] for line in table)]
    return columns(cells).split("\n")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if name == "accuracy":
        return f"{100 * value:.2f} %"
    return f"{value:.1f} s" if name == "seconds" else f"{value:.4f}"
