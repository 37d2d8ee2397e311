"""`steppe average`: averages that were not kept, computed from stored checkpoints."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import print_json

_EXAMPLES = """
steppe average runs/first
steppe average runs/first EMA:decay=0.9 PolynomialDecay:gamma=2 OPA:k=10
steppe average runs/first SWA --burn-in 600
"""
_DETAILS = """
Averages of weights (SWA, EMA:decay=…, Window:k=…, PolynomialDecay:gamma=…) and of outputs (OPA:k=…,
OMV:k=…) are computed from the stored checkpoints. If the run stored power averages (PowerAverages
in [averages]), EMA and PolynomialDecay of any horizon are reconstructed from them over all steps;
the residual is the error of the reconstruction. Averages cost no privacy, and neither does
comparing them on public test data. Scores on private test data are private.
Averages of weights are written into the run's folder.
"""
_DEFAULT = ("SWA", "EMA:decay=0.9", "PolynomialDecay:gamma=2", "OPA", "OMV")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "average",
        run,
        purpose="Averages of a run, from its stored checkpoints.",
        details=_DETAILS,
        examples=_EXAMPLES,
    )
    new.add_argument("folder", type=parsing.path, metavar="RUN", help="folder of the run")
    new.add_argument(
        "averages",
        nargs="*",
        metavar="AVERAGE",
        help="NAME:KEY=VALUE,… (default: one of each kind)",
    )
    parsing.add_burn_in(new)
    parsing.add_test(new)
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Compute, score and write the averages."""
    from steppe.cli.later_averages import OUTPUTS, LaterAverages
    from steppe.cli.stored_run import StoredRun
    from steppe.training import Evaluation, as_lines

    stored = StoredRun(arguments.folder)
    default = [name for name in _DEFAULT if stored.has_classes or name not in OUTPUTS]
    wanted = [parsing.named(text) for text in arguments.averages or default]
    averages = LaterAverages(stored, wanted, arguments.burn_in)
    rows = averages.rows(Evaluation(stored.held_out(test=arguments.test), stored.loss, None))
    count = len(stored.entries(arguments.burn_in))
    if arguments.json:
        print_json({"checkpoints": count, "table": rows})
    else:
        where = "its held-out data" if arguments.test is None else arguments.test
        print(f"{count} checkpoints of {arguments.folder}, scored on {where}\n")
        print(*as_lines(rows), sep="\n")
    return 0
