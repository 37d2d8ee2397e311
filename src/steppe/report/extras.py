"""Measurements that other commands add to a run folder, in `figures.json`.

Each has the name of its data. Without `public` or `accounted` the page leaves it out, because a
measurement on private records is not covered by the guarantee of the training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from steppe.report.calibration import calibration
from steppe.report.run import EXTRAS, read_extras, require_run
from steppe.training import write_json
from steppe.utils.files import in_turn, writing
from steppe.utils.validation import fail

if TYPE_CHECKING:
    from steppe.averaging import Prediction
    from steppe.flatness import (
        Eigenvalues,
        GradientNorms,
        HessianTrace,
        LossLine,
        Rays,
        RobustAccuracy,
        SpectralDensity,
    )

    Measure = Eigenvalues | LossLine | Rays | RobustAccuracy | SpectralDensity | HessianTrace

# Measures that the page can draw, by class, and their names in the file.
MEASURES = {
    "Eigenvalues": "eigenvalues",
    "LossLine": "line",
    "Rays": "rays",
    "RobustAccuracy": "robustness",
    "SpectralDensity": "density",
    "HessianTrace": "trace",
}
_WIDTH_BINS = 20


def add_flatness(
    run: Path, results: Mapping[str, Iterable[Measure]], *, data: str, public: bool
) -> None:
    """Keep measures of flatness with the run; they replace earlier ones.

    Args:
        run: the run folder.
        results: for each model by name, what was measured.
        data: the name of the data it was measured on.
        public: whether that data is public, or held out and free to be published about.

    Guarantees:
        A measurement on data that is not public is never shown by the report.
    """
    models: dict[str, dict[str, Any]] = {}
    for model, measures in results.items():
        models[model] = {}
        for measure in measures:
            kind = MEASURES.get(type(measure).__name__)
            if kind is None:
                known = ", ".join(MEASURES)
                raise fail("results", measure, f"must be one of {known}", "leave it out")
            models[model][kind] = asdict(measure)
            # A line may leave the range of numbers far out; the page draws the rest of it.
            if kind != "line" and not _finite(models[model][kind]):
                rule = f"of {model!r} must be finite numbers, and the loss or its slope is not"
                raise fail("results", type(measure).__name__, rule, "look at the weights")
    _add(run, "flatness", {"data": data, "public": public, "accounted": False, "models": models})


def add_intervals(
    run: Path, prediction: Prediction, targets: Tensor, *, model: str, data: str, public: bool
) -> None:
    """Keep calibration and the widths of prediction intervals with the run.

    Args:
        run: the run folder.
        prediction: from an ensemble of checkpoints, `OPA(...).predict(...)`.
        targets: the right classes.
        model: the ensemble's name.
        data: the name of the data.
        public: whether that data is public, or held out and free to be published about.

    Guarantees:
        A measurement on data that is not public is never shown by the report.
    """
    found = calibration(prediction.probabilities, targets)
    labels = prediction.labels.unsqueeze(-1)
    widths = (prediction.high - prediction.low).gather(-1, labels).squeeze(-1).double().cpu()
    largest = float(widths.max()) or 1.0
    facts = {
        "data": data,
        "public": public,
        "accounted": False,
        "model": model,
        "interval": prediction.interval,
        "count": prediction.count,
        "records": len(targets),
        "calibration": asdict(found),
        "median_width": float(widths.median()),
        "edges": [largest * i / _WIDTH_BINS for i in range(_WIDTH_BINS + 1)],
        "counts": [int(count) for count in widths.histc(_WIDTH_BINS, 0.0, largest)],
    }
    _add(run, "intervals", facts)


def add_gradient_norms(
    run: Path, norms: GradientNorms, *, data: str, public: bool = False, accounted: bool = False
) -> None:
    """Keep the histogram of gradient norms with the run.

    Args:
        run: the run folder.
        norms: the histogram.
        data: the name of the data.
        public: whether that data is public.
        accounted: whether the histogram was released by a mechanism that the account includes.

    Guarantees:
        A histogram that is neither is never shown by the report.
    """
    facts = {"data": data, "public": public, "accounted": accounted, **asdict(norms)}
    _add(run, "gradient_norms", facts)


def _finite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    if isinstance(value, tuple | list):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _add(run: Path, part: str, facts: Mapping[str, Any]) -> None:
    """Add a part to those that other processes have added or are adding."""
    require_run(run)
    with writing("run", run), in_turn(run):
        write_json(run / EXTRAS, {**read_extras(run), part: facts})
