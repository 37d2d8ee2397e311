"""`steppe demo`: the first private model, in minutes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing
from steppe.cli.printing import paragraph, print_json, rounded_up, table

if TYPE_CHECKING:
    from steppe.demo import Result


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "demo",
        run,
        purpose="Train a private model of handwritten digits, in minutes.",
        details="MNIST with ε = 2 and δ = 1e-5: every average of one run, and its report. Where "
        "MNIST\ncannot be downloaded, made-up pictures take its place, and the output says so.",
        examples="steppe demo\nsteppe demo --epsilon 1 --run runs/demo",
    )
    new.add_argument(
        "--epsilon", type=parsing.real_number, default=2.0, metavar="ε", help="(default: 2)"
    )
    new.add_argument(
        "--run",
        dest="folder",
        type=Path,
        metavar="FOLDER",
        help="where the run is kept (default: a new folder under runs/)",
    )
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print its table."""
    from steppe import demo

    task = demo.digits()
    if not arguments.json:
        print(paragraph(task.about), flush=True)
    result = demo.run(arguments.epsilon, arguments.folder, task=task)
    if arguments.json:
        print_json(_result(result))
    else:
        _print(result)
    return 0


def _result(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    return {
        "data": result.task.name,
        "synthetic": result.task.made_up,
        "models": result.rows(),
        "epsilon": outcome.epsilon,
        "delta": outcome.delta,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "feature_seconds": result.feature_seconds,
        "recipe": result.recipe.reasons,
        "run": str(outcome.run),
        "report": str(result.report),
    }


def _print(result: Result) -> None:
    outcome = result.outcome
    print(f"\nWhat was chosen, and why:\n{result.recipe}")
    rows = [
        (
            row["name"],
            f"{100 * row['accuracy']:.2f} %",
            rounded_up(outcome.epsilon),
            row["model"],
        )
        for row in result.rows()
    ]
    print("\n" + table([("model", "accuracy", "ε", ""), *rows]))
    print(
        "\n"
        + paragraph(
            f"Accuracy on held-out pictures. All of these models together cost ε = "
            f"{rounded_up(outcome.epsilon)} at δ = {outcome.delta:g}: averages are made from "
            f"weights that are released already. {outcome.steps} steps in {outcome.seconds:.0f} s, "
            f"after {result.feature_seconds:.0f} s for the features."
        )
    )
    print(f"\nrun:    {outcome.run}\nreport: {result.report}")
