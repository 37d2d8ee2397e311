"""`steppe budget`: computes one of ε, noise, length, batch and population from the other four."""

from __future__ import annotations

import argparse
from typing import Any

from steppe.cli import parsing, places
from steppe.cli.printing import print_json
from steppe.errors import ConfigurationError

_EXAMPLES = """
steppe budget --population 60000 --batch-size 2048 --steps 585 --noise-multiplier 1.0 --delta 1e-5
steppe budget --population 60000 --batch-size 2048 --epochs 20 --epsilon 2 --delta 1e-5
steppe budget --population 60000 --batch-size 2048 --epsilon 2 --noise-multiplier 2 --delta 1e-5
steppe budget --population 60000 --batch-size 2048 --epochs 20 --epsilon 2 --delta 1e-5 \\
  --point SAM --noise ExponentialSchedule:decay=0.01,every=29 --figure budget.svg
"""
_DETAILS = """
Leave out one of --epsilon, --noise-multiplier, --steps (or --epochs), --batch-size and
--population, and it is computed: the ε of a run, the noise for a budget, or the most steps, the
largest batch or the smallest population within a budget. Give all five to check them; the exit code
is 1 if the run costs more than --epsilon.
"""
_UNKNOWNS = ("epsilon", "noise_multiplier", "steps", "batch_size", "population")


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "budget",
        run,
        purpose="What a private run costs, or what a budget allows.",
        details=_DETAILS,
        examples=_EXAMPLES,
    )
    number, whole = parsing.real_number, parsing.whole_number
    new.add_argument("--epsilon", type=number, metavar="ε", help="the budget")
    new.add_argument(
        "--noise-multiplier",
        type=number,
        metavar="σ",
        help="standard deviation of the noise divided by the clipping norm",
    )
    length = new.add_mutually_exclusive_group()
    length.add_argument("--steps", type=whole, metavar="T", help="number of steps")
    length.add_argument(
        "--epochs", type=number, metavar="E", help="passes over the data, instead of --steps"
    )
    new.add_argument(
        "--batch-size", type=number, metavar="B", help="expected number of records in a step"
    )
    new.add_argument("--population", type=whole, metavar="N", help="number of records")
    new.add_argument(
        "--delta", type=number, metavar="δ", required=True, help="well below 1/population"
    )
    places.add_options(new)
    new.add_argument(
        "--figure",
        type=parsing.path,
        metavar="FILE",
        help="save a plot of ε by step: .png, .svg or .pdf",
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Find the missing constant, print what the run costs."""
    from steppe.cli.budget_text import Answer
    from steppe.cli.solve_budget import complete

    if arguments.figure is not None:
        from steppe.cli import budget_figure

        budget_figure.check(arguments.figure)
    known = _known(arguments)
    missing = _missing(known)
    asked = known.get("epsilon")
    if missing is None:
        del known["epsilon"]
    plan = complete(known, missing or "epsilon")
    answer = Answer.of(plan, missing, asked)
    if arguments.figure is not None:
        budget_figure.draw(plan, arguments.figure)
    if arguments.json:
        print_json(answer.to_dict())
    else:
        print(answer)
        if arguments.figure is not None:
            print(f"\nfigure: {arguments.figure}")
    return 0 if answer.within else 1


def _known(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `Plan` that were given."""
    values = {name: getattr(arguments, name) for name in (*_UNKNOWNS, "epochs", "delta")}
    return {name: value for name, value in values.items() if value is not None} | places.chosen(
        arguments
    )


def _missing(known: dict[str, Any]) -> str | None:
    absent = [
        name
        for name in _UNKNOWNS
        if name not in known and not (name == "steps" and "epochs" in known)
    ]
    if len(absent) > 1:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in absent)
        raise ConfigurationError(
            f"{options} are missing, and only one constant can be found from the others; give "
            f"{len(absent) - 1} more."
        )
    return absent[0] if absent else None
