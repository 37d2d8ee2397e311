"""What is written at the end of a run: its models, its cost and its result.

Nothing that can fail here may prevent the models from being written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from steppe.ledger import Ledger
from steppe.models import named_in
from steppe.probing import Report
from steppe.training.folder import RunFolder, write_json, write_weights
from steppe.training.ledger_summary import cost_together, without_machine
from steppe.training.outcome import Outcome, numbers
from steppe.training.publishing import LAST
from steppe.training.run_averages import RunAverages
from steppe.utils.user_code import kind_and_line

# Writes a line into the log and above the bar.
Say = Callable[[str], None]


def model_to_publish(chosen: str, averages: RunAverages, say: Say) -> str:
    """The published model: the one fixed before training, or the last weights if it has not begun.

    Args:
        chosen: its name.
        averages: of the run.
        say: reports that the last weights are published instead.
    """
    if chosen == LAST or chosen in averages.averages:
        return chosen
    say(f"{chosen} had not begun when the run ended: the last weights are published")
    return LAST


def write_models(
    folder: RunFolder,
    model: nn.Module,
    whole: nn.Module,
    averages: RunAverages,
    published: str,
    about: Mapping[str, str],
    not_private_reason: str | None,
) -> None:
    """Write the last weights, the averages that have begun, and the published model.

    The last weights and those of the model to use are complete state dicts of the whole model. An
    average has the names of the whole model too, and only the tensors that it averages or copies.

    Args:
        folder: the run's files.
        model: with the last weights.
        whole: the model that it is a part of, or the same.
        averages: of the run.
        published: the name of the published model.
        about: metadata for each file.
        not_private_reason: why the run is not private, or None.
    """

    def write(path: Path, name: str, weights: Mapping[str, Tensor]) -> None:
        write_weights(path, weights, {"model": name, **about}, not_private_reason)

    begun = averages.averages
    write(folder.model, LAST, whole.state_dict())
    for name, average in begun.items():
        write(folder.average(name), name, named_in(whole, average.weights()))
    with begun[published].applied(model) if published != LAST else nullcontext():
        write(folder.published, published, whole.state_dict())


def ledger_facts(
    ledger: Ledger, delta: float, named: Mapping[str, Any], say: Say
) -> dict[str, Any] | None:
    """The total cost of all runs in the ledger; None if it cannot be computed.

    Other runs may have used the ledger since this one began. An error there must not prevent this
    run's result.

    Args:
        ledger: of the run.
        delta: of its plan.
        named: facts about a named ledger.
        say: reports why there is no total.
    """
    try:
        return {**cost_together(ledger, delta), **named}
    except Exception as error:
        say(f"there is no sum of all runs in the ledger: {kind_and_line(error)}")
        return None


def write_result(path: Path, outcome: Outcome, citation: str, report: Report) -> None:
    """Write `result.json`.

    Args:
        path: of the file.
        outcome: the result of the run.
        citation: what to cite.
        report: of the probe, for the table of layers.
    """
    write_json(
        path,
        {
            **numbers(outcome),
            "not_private_reason": outcome.statement.not_private_reason,
            "ledger": outcome.ledger and without_machine(outcome.ledger, outcome.run),
            "citation": citation,
            "layers": [asdict(line) for line in report.rows],
        },
    )
