"""`steppe demo`: the first private model, in minutes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from steppe.cli import parsing
from steppe.cli.printing import paragraph, print_json
from steppe.utils import validation
from steppe.utils.formatting import rounded_up, table

if TYPE_CHECKING:
    from steppe.demo import DemoResult, Task


def add(commands: Any) -> None:
    """Add the command to the parser."""
    new = parsing.new_command(
        commands,
        "demo",
        run,
        purpose="Train a private model of handwritten digits, in minutes.",
        details="MNIST with ε = 2 and δ = 1e-5: every average of one run, and its report. If "
        "MNIST\ncannot be downloaded, synthetic pictures are used, and the output says so.",
        examples="steppe demo\nsteppe demo --epsilon 1 --run runs/demo",
    )
    new.add_argument(
        "--epsilon", type=parsing.real_number, default=2.0, metavar="ε", help="(default: 2)"
    )
    parsing.add_run_folder(new)
    parsing.add_json(new)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo and print its table."""
    from steppe import demo
    from steppe.cli.outcomes import is_terminal

    task = demo.digits()
    if not arguments.json:
        print(paragraph(task.about), flush=True)
    with validation.called({"plan.epsilon": "--epsilon"}):
        result = demo.run(task, arguments.epsilon, arguments.folder, progress=is_terminal())
    if arguments.json:
        print_json(_result(task, result))
    else:
        _print(result)
    return 0


def _result(task: Task, result: DemoResult) -> dict[str, Any]:
    from steppe.cli.outcomes import chosen_for

    outcome = result.outcome
    return {
        "data": task.about,
        "synthetic": task.synthetic,
        "models": result.rows(),
        "epsilon": outcome.epsilon,
        "delta": outcome.delta,
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "preparation_seconds": result.preparation,
        "chosen": chosen_for(result.trainer),
        "run": str(outcome.run),
        "report": str(result.report),
    }


def _print(result: DemoResult) -> None:
    from steppe.cli.outcomes import chosen_for, chosen_text

    outcome = result.outcome
    print(f"\n{chosen_text(chosen_for(result.trainer))}")
    rows = [
        (
            row["name"],
            _constants(row, outcome.published),
            f"{100 * row['accuracy']:.2f} %",
            rounded_up(outcome.epsilon),
            f"{row['seconds']:.1f} s",
        )
        for row in result.rows()
    ]
    print("\n" + table([("model", "", "accuracy", "ε", "time"), *rows], left=2))
    print(
        "\n"
        + paragraph(
            f"Accuracy on held-out pictures. All of these models together cost ε = "
            f"{rounded_up(outcome.epsilon)} at δ = {outcome.delta:g}: averages are computed from "
            f"weights that are released already. Each time includes the training ({outcome.steps} "
            f"steps in {outcome.seconds:.1f} s) and making and scoring the model. Loading data, "
            f"computing features and calibrating noise took {result.preparation:.0f} s before."
        )
    )
    print(f"\nrun:    {outcome.run}\nreport: {result.report}")


def _constants(row: dict[str, Any], published: str) -> str:
    """The second column of the table: constants, and whether the model is published."""
    text = "" if row["model"] == row["name"] else row["model"]
    return ", ".join(filter(None, (text, "published" if row["model"] == published else "")))
