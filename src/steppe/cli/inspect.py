"""`steppe inspect`: how the per-example gradient of each layer is computed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing
from steppe.cli.model_errors import errors_of_model
from steppe.cli.printing import print_json
from steppe.cli.typed_names import name_other_ways
from steppe.utils import validation

if TYPE_CHECKING:
    from torch import nn

    from steppe.probing import Report

_EXAMPLES = """
steppe inspect cnn-tanh-26k --input-shape 1,28,28
steppe inspect my_project.models:build --input-shape 3,32,32
steppe inspect my_project.models:tagger --input-shape 64 --dtype int64 --json
steppe inspect my_project.models:build --input-shape 3,32,32 --isolation each
"""
_DETAILS = """
The model is one of `steppe.models.names()`, or your own as module:factory, where the factory
takes no arguments and returns an nn.Module; the current folder is searched for the module. The
model goes through the checks of a private run: if records influence each other, or buffers are
written, or weights are used in a way that cannot be traced, the error names the layer. The last
line says how the isolation of records was established.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "inspect",
        run,
        purpose="How the per-example gradient of each layer is computed.",
        details=_DETAILS,
        examples=_EXAMPLES,
    )
    new.add_argument("model", metavar="MODEL", help="a name, or module:factory")
    new.add_argument(
        "--input-shape",
        required=True,
        type=parsing.several(parsing.whole_number),
        metavar="SHAPE",
        help="shape of one record, such as 1,28,28",
    )
    new.add_argument(
        "--dtype",
        choices=("float32", "float64", "int64"),
        default="float32",
        help="type of the input (default: float32)",
    )
    parsing.add_isolation(new)
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Print the layer table."""
    import torch

    from steppe.accounting import caution
    from steppe.probing import inspect

    for size in arguments.input_shape:
        validation.positive_integer("--input-shape", size)
    network = _model(arguments.model)
    example = torch.zeros(1, *arguments.input_shape, dtype=getattr(torch, arguments.dtype))
    shape = ",".join(map(str, arguments.input_shape))
    remedy = "give the shape of one record without the batch, and its --dtype"
    with validation.reworded(name_other_ways), errors_of_model("--input-shape", shape, remedy):
        report = inspect(network, example, isolation=arguments.isolation or "proven")
    weights = sum(p.numel() for p in network.parameters() if p.requires_grad)
    if arguments.json:
        print_json(_result(arguments.model, weights, report))
    else:
        print(report)
        if (said := caution(report.isolation, "record")) is not None:
            print(f"WARNING: {said}")
        print(f"trained weights: {weights:,}")
    return 0


def _model(name: str) -> nn.Module:
    from torch import nn

    from steppe import models
    from steppe.utils.user_code import made_by

    with validation.called({"name": "model"}):
        made = made_by(name, "model") if ":" in name else models.create(name)
    if not isinstance(made, nn.Module):
        raise validation.fail(
            "model", name, f"gave a {type(made).__name__}", "let the factory return an nn.Module"
        )
    return made


def _result(name: str, weights: int, report: Report) -> dict[str, Any]:
    return {
        "model": name,
        "trained_weights": weights,
        "layers": [
            {
                "weights": list(row.weights),
                "operation": row.operation,
                "path": row.path,
                "size": row.numel,
                "why": row.why,
            }
            for row in report.rows
        ],
        "unused": list(report.unused),
        "detached": list(report.detached),
        "bytes_per_record": report.bytes_per_record,
        "isolation": report.isolation,
        "notes": list(report.notes),
    }
