"""`steppe noise`: error, memory and ε of every noise for a run, and which one to take."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing
from steppe.cli.printing import paragraph, print_json
from steppe.utils import validation

_EXAMPLES = """
steppe noise --population 60000 --batch-size 500 --epochs 4 --epsilon 2 --delta 1e-5
steppe noise --population 204800 --batch-size 100 --epochs 1 --noise-multiplier 0.682 --delta 1e-6
steppe noise --population 60000 --batch-size 500 --epochs 4 --epsilon 2 --delta 1e-5 \\
  --momentum 0.9 --weights 550570 --figure noise.svg
"""
_DETAILS = """
Compares independent and correlated noise for records that take part once in each epoch, in a fixed
order, with Poisson sampling. The error is the noise in the iterates of SGD: the root of its mean
square over all steps, for a clip of 1 and before the division by the batch. All have the same ε:
that of --epsilon, or that of correlated noise with --noise-multiplier. No data are read.
"""


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "noise",
        run,
        purpose="Which noise suits a run: error, memory and ε of each.",
        details=_DETAILS,
        examples=_EXAMPLES,
    )
    number, whole = parsing.real_number, parsing.whole_number
    new.add_argument(
        "--population", type=whole, metavar="N", required=True, help="number of records"
    )
    new.add_argument(
        "--batch-size", type=number, metavar="B", required=True, help="records in a step"
    )
    new.add_argument(
        "--epochs", type=whole, metavar="E", default=1, help="whole passes (default: 1)"
    )
    noise = new.add_mutually_exclusive_group(required=True)
    noise.add_argument("--epsilon", type=number, metavar="ε", help="the budget")
    noise.add_argument("--noise-multiplier", type=number, metavar="σ", help="of correlated noise")
    new.add_argument(
        "--delta", type=number, metavar="δ", required=True, help="well below 1/population"
    )
    new.add_argument(
        "--momentum",
        type=number,
        metavar="β",
        default=0.0,
        help="of the optimizer, for which the noise is made (default: 0)",
    )
    new.add_argument(
        "--vectors",
        type=whole,
        metavar="M",
        default=8,
        help="recommend noise that keeps at most M copies of the model (default: 8)",
    )
    new.add_argument(
        "--weights", type=whole, metavar="D", help="trained weights of the model, to show memory"
    )
    new.add_argument(
        "--dense",
        action="store_true",
        help="also for more than 512 steps, where the best noise takes minutes to find",
    )
    new.add_argument(
        "--figure",
        type=parsing.path,
        metavar="FILE",
        help="save a plot of the noise by step: .png, .svg or .pdf",
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Compare, recommend, print."""
    from steppe.cli import budget_figure
    from steppe.cli.noise_rows import compare, recommended

    if arguments.figure is not None:
        budget_figure.check(arguments.figure)
    if arguments.weights is not None:
        validation.positive_integer("weights", arguments.weights)
    constants = {
        name: getattr(arguments, name)
        for name in ("population", "batch_size", "delta", "epsilon", "noise_multiplier")
        if getattr(arguments, name) is not None
    }
    rows = compare(constants, arguments.epochs, arguments.momentum, arguments.dense)
    best = recommended(rows, arguments.vectors)
    if arguments.figure is not None:
        from steppe.cli.noise_figure import draw

        draw(rows, arguments.figure)
    if arguments.json:
        print_json({"mechanisms": [row.to_dict() for row in rows], "recommended": best.to_dict()})
        return 0
    width = max(len(row.name) for row in rows)
    print(f"{rows[0].steps} steps, at most {arguments.epochs} a record")
    print(f"{'noise':{width}}  {'error':>9}  {'σ':>8}  {'ε':>8}  memory")
    for row in rows:
        size = (
            "" if arguments.weights is None else f", {row.memory * arguments.weights * 4e-6:.1f} MB"
        )
        kept = f"{row.memory} vectors{size}" if row.memory else "none"
        print(f"{row.name:{width}}  {row.error:9.4g}  {row.sigma:8.4g}  {row.epsilon:8.4g}  {kept}")
    share = best.error / rows[0].error
    text = f"recommended: {best.code}. Its error is {share:.2f} of that of {rows[0].name}."
    print(f"\n{paragraph(text)}")
    if arguments.figure is not None:
        print(f"figure: {arguments.figure}")
    return 0
