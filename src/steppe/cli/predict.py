"""`steppe predict`: labels by the published model of a run, intervals by its checkpoints."""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing
from steppe.cli.model_errors import errors_of_model
from steppe.cli.printing import print_json
from steppe.utils import validation
from steppe.utils.formatting import table

if TYPE_CHECKING:
    from torch import Tensor

    from steppe.averaging import Prediction, StoredCheckpoints
    from steppe.cli.stored_run import StoredRun

_EXAMPLES = """
steppe predict runs/first new.npy
steppe predict runs/first visits-of-may.csv --out labels.csv
steppe predict runs/first mnist --checkpoints 10 --public
steppe predict runs/first new.npy --by checkpoints
"""
_DETAILS = """
The published model predicts the labels. The newest stored checkpoints show how certain they are:
the mean probability of the label, an interval around it, and the share of checkpoints that agree.
The interval is a lower estimate of the spread caused by the noise of training, because checkpoints
of one run are correlated. With --by checkpoints, and for runs without a published model, the mean
of the checkpoints predicts the labels too.

The data are inputs alone (a .npy file, or a CSV file without the label column), data with labels in
the form that the run was trained on, or the test part of a public data set. They are scaled like
the run's own data. Of the run's own data the test part is used; private records are rejected. With
labels the accuracy is printed; with --public the calibration is shown in the report. For a
regression, outputs with intervals are printed.
"""
_PUBLISHED, _CHECKPOINTS = "published", "checkpoints"
_SHOWN = 10
_FIT = "give records of the shape that the run was trained on"


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "predict",
        run,
        purpose="Labels with intervals for new records.",
        details=_DETAILS,
        examples=_EXAMPLES,
    )
    new.add_argument("folder", type=parsing.path, metavar="RUN", help="folder of the run")
    new.add_argument("data", metavar="DATA", help="a file, a public data set, or module:factory")
    new.add_argument(
        "--by",
        choices=(_PUBLISHED, _CHECKPOINTS),
        default=_PUBLISHED,
        help="predict by the published model or by the checkpoints (default: published)",
    )
    new.add_argument(
        "--checkpoints",
        type=parsing.whole_number,
        metavar="K",
        help="number of checkpoints for the intervals (default: 20, or all if there are fewer)",
    )
    parsing.add_burn_in(new)
    new.add_argument(
        "--interval",
        type=parsing.real_number,
        default=0.95,
        metavar="P",
        help="confidence of the intervals (default: 0.95)",
    )
    new.add_argument("--out", type=parsing.path, metavar="FILE", help="write all rows as CSV")
    new.add_argument(
        "--public",
        action="store_true",
        help="allow calibration and interval widths on these data to be shown in the report",
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Predict, and print or write the rows."""
    from steppe.averaging import OPA
    from steppe.cli.stored_run import StoredRun
    from steppe.report import add_intervals

    if arguments.checkpoints is not None:
        validation.positive_integer("checkpoints", arguments.checkpoints)
    if arguments.out is not None:
        parsing.require_writable("out", arguments.out)
    stored = StoredRun(arguments.folder)
    if arguments.public and not stored.has_classes:
        rule = "needs labels to measure calibration, and the run has no classes"
        raise validation.fail("public", True, rule, "leave it out")
    with errors_of_model("data", arguments.data, _FIT):
        inputs, targets = stored.other(arguments.data)
    if arguments.public and targets is None:
        rule = "needs labels to measure calibration, and the data have none"
        raise validation.fail("public", True, rule, "give data with labels")
    available = len(stored.entries(arguments.burn_in))
    k = min(20, available) if arguments.checkpoints is None else arguments.checkpoints
    with validation.called({"k": "--checkpoints"}):
        checkpoints = stored.store.last(k, arguments.burn_in)
    together = f"OPA(k={k})" if stored.has_classes else f"mean of {k} checkpoints"
    model, weights = _single_model(arguments.by, stored) or (together, None)
    if not stored.has_classes:
        return _outputs(arguments, stored, checkpoints, inputs, targets, model, weights)
    ensemble = OPA(stored.trained, checkpoints)
    with errors_of_model("data", arguments.data, _FIT):
        labels = None if weights is None else OPA(stored.trained, [weights]).labels(inputs)
        with validation.called({"k": "--checkpoints"}):
            found = ensemble.predict(inputs, arguments.interval, labels)
    if arguments.public and targets is not None:
        name = Path(arguments.data).name
        add_intervals(arguments.folder, found, targets, model=together, data=name, public=True)
    accuracy = None if targets is None else _accuracy(found, targets)
    facts = {
        "model": model,
        "checkpoints": found.count,
        "interval": found.interval,
        "accuracy": accuracy,
    }
    said = "" if accuracy is None else f", accuracy {accuracy:.2%}"
    said += _part(stored, arguments.data)
    _print_rows(arguments, _rows(found, stored.classes), _label_cells, facts, said)
    return 0


def _single_model(by: str, stored: StoredRun) -> tuple[str, dict[str, Tensor]] | None:
    """The model that predicts; None if the checkpoints predict together."""
    if by != _PUBLISHED:
        return None
    if not stored.folder.result.exists():
        print(
            "the run has not ended and has published no model yet: its checkpoints are used",
            file=sys.stderr,
        )
    return stored.answering()


def _outputs(
    arguments: argparse.Namespace,
    stored: StoredRun,
    checkpoints: StoredCheckpoints,
    inputs: Tensor,
    targets: Tensor | None,
    model: str,
    weights: dict[str, Tensor] | None,
) -> int:
    """Print the outputs of a regression."""
    from steppe.cli import regression_outputs
    from steppe.trained import output_intervals
    from steppe.trained import outputs as outputs_with

    with errors_of_model("data", arguments.data, _FIT):
        with validation.called({"k": "--checkpoints"}):
            found, half, count = output_intervals(
                stored.trained, checkpoints, inputs, arguments.interval
            )
        if weights is not None:
            found = outputs_with(stored.trained, weights, inputs)
        loss = None if targets is None else float(stored.loss(found, targets.to(found.dtype)))
    facts = {"model": model, "checkpoints": count, "interval": arguments.interval, "loss": loss}
    said = "" if loss is None else f", loss {loss:.4f}"
    said += _part(stored, arguments.data)
    rows = regression_outputs.rows(stored.in_units(found), stored.widths(half))
    _print_rows(arguments, rows, _output_cells, facts, said)
    return 0


def _part(stored: StoredRun, place: str) -> str:
    """Which part of the data was used, if they are the run's own."""
    return f"; the test part of {Path(place).name}" if stored.is_own(place) else ""


def _rows(found: Prediction, classes: Any) -> list[dict[str, Any]]:
    """The row of each record, with the names of labels if they were declared."""
    names = classes if isinstance(classes, list) else range(found.probabilities.shape[-1])
    labels = found.labels.unsqueeze(-1)
    columns = [
        values.gather(-1, labels).squeeze(-1).tolist()
        for values in (found.probabilities, found.low, found.high)
    ]
    return [
        {
            "record": record,
            "label": names[label],
            "probability": round(p, 6),
            "low": round(low, 6),
            "high": round(high, 6),
            "agreement": round(agreement, 6),
        }
        for record, (label, p, low, high, agreement) in enumerate(
            zip(found.labels.tolist(), *columns, found.agreement.tolist(), strict=True)
        )
    ]


def _accuracy(found: Prediction, targets: Tensor) -> float:
    return float((found.labels == targets).double().mean())


def _csv(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _label_cells(row: dict[str, Any], interval: float) -> dict[str, str]:
    return {
        "record": str(row["record"]),
        "label": str(row["label"]),
        "probability": f"{row['probability']:.3f}",
        f"{interval:.0%} interval": f"{row['low']:.3f} – {row['high']:.3f}",
        "agreement": f"{row['agreement']:.0%}",
    }


def _output_cells(row: dict[str, Any], interval: float) -> dict[str, str]:
    del interval  # its ends have columns of their own
    return {name: str(value) if name == "record" else f"{value:.4g}" for name, value in row.items()}


def _print_rows(
    arguments: argparse.Namespace,
    rows: list[dict[str, Any]],
    cells: Callable[[dict[str, Any], float], dict[str, str]],
    facts: dict[str, Any],
    said: str,
) -> None:
    """Write all rows if --out is given, and print the first of them."""
    from steppe.utils.files import write_atomically, writing

    if arguments.out is not None:
        with writing("out", arguments.out):
            write_atomically(arguments.out, _csv(rows).encode())
    if arguments.json:
        print_json({**facts, "predictions": rows})
        return
    shown = [cells(row, facts["interval"]) for row in rows[:_SHOWN]]
    print(table([tuple(shown[0]), *(tuple(row.values()) for row in shown)], left=0))
    if len(rows) > _SHOWN:
        more = f"… and {len(rows) - _SHOWN:,} more"
        print(more if arguments.out is not None else f"{more}; --out FILE writes all of them")
    by = f"predictions by {facts['model']}, intervals by {facts['checkpoints']} checkpoints"
    print(f"\n{len(rows):,} records, {by}{said}")
    if arguments.out is not None:
        print(f"written: {arguments.out}")
