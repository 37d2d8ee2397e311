"""`steppe flatness`: how flat the solutions of a run are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import print_json
from steppe.utils import validation
from steppe.utils.formatting import table

_DETAILS = """
Prints loss, accuracy, the largest eigenvalues and the trace of the Hessian on the run's held-out
data, for the last weights and every average. The report shows them if the data are a public data
set or --public is given.
"""
_SEED = 0
_AT_ONCE = 250


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "flatness",
        run,
        purpose="How flat the solutions of a run are.",
        details=_DETAILS,
        examples="steppe flatness runs/first\nsteppe flatness runs/first --records 500 --public",
    )
    new.add_argument("folder", type=parsing.path, metavar="RUN", help="folder of the run")
    new.add_argument(
        "--records",
        type=parsing.whole_number,
        default=1000,
        metavar="N",
        help="how many held-out records to measure on (default: 1000)",
    )
    new.add_argument(
        "--eigenvalues",
        type=parsing.whole_number,
        default=5,
        metavar="N",
        help="how many of the largest (default: 5)",
    )
    new.add_argument(
        "--public",
        action="store_true",
        help="allow results on the held-out data to be shown in the report",
    )
    parsing.add_test(new)
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Measure every published model, and keep the numbers with the run."""
    import torch

    from steppe.cli.stored_run import StoredRun
    from steppe.flatness import Surface, hessian_trace, top_eigenvalues
    from steppe.report import add_flatness

    validation.positive_integer("records", arguments.records)
    validation.positive_integer("eigenvalues", arguments.eigenvalues)
    stored = StoredRun(arguments.folder)
    inputs, targets = stored.held_out(arguments.records, arguments.test)
    batches = list(zip(inputs.split(_AT_ONCE), targets.split(_AT_ONCE), strict=True))
    results: dict[str, Any] = {}
    rows = []
    for name in stored.each_model():
        surface = Surface(stored.trained, stored.loss, batches)
        generator = torch.Generator().manual_seed(_SEED)  # the same directions for every model
        measured = surface.at(surface.weights)
        eigenvalues = top_eigenvalues(surface, generator, arguments.eigenvalues)
        trace = hessian_trace(surface, generator)
        results[name] = [eigenvalues, trace]
        rows.append(
            {
                "model": name,
                "loss": measured.loss,
                "accuracy": measured.accuracy,
                "sharpness": eigenvalues.sharpness,
                "eigenvalues": list(eigenvalues.values),
                "trace": trace.estimate,
                "trace_error": trace.standard_error,
            }
        )
    public = arguments.public or stored.is_public
    shown_name = stored.data_name if arguments.test is None else Path(arguments.test).name
    add_flatness(arguments.folder, results, data=f"{shown_name}, held out", public=public)
    if arguments.json:
        print_json({"records": len(targets), "public": public, "models": rows})
        return 0
    head = ("model", "loss", "largest eigenvalue", "trace")
    lines = [
        (
            str(row["model"]),
            f"{row['loss']:.4f}",
            f"{row['sharpness']:.4g}",
            f"{row['trace']:.4g} ± {row['trace_error']:.2g}",
        )
        for row in rows
    ]
    print(table([head, *lines]))
    shown = "shown in the report" if public else "kept out of the report without --public"
    print(f"\n{len(targets):,} held-out records of {shown_name}; {shown}")
    return 0
