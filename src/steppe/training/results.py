"""What is written when a run is over: its models, its cost and its result.

The steps are paid for: nothing that can fail beside the models may cost them.
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
    """The model to use: as fixed before training, if the run was long enough for it.

    Args:
        chosen: its name.
        averages: of the run.
        say: is told where another model takes its place.
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
    """Write the last weights, the averages that have begun, and the model to use.

    The last weights and those of the model to use are complete state dicts of the whole model. An
    average has the names of the whole model too, and only the tensors that it averages or copies.

    Args:
        folder: the run's files.
        model: with the last weights.
        whole: the model that it is a part of, or the same.
        averages: of the run.
        published: the name of the model to use.
        about: what each file says about its weights.
        not_private_reason: why they protect nothing, or None.
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
    """What all runs in the ledger have cost together; None where that cannot be computed.

    Other runs may have gone on in it since this one began, and this one is paid for: nothing
    about them may cost its result.

    Args:
        ledger: of the run.
        delta: of its plan.
        named: what is said about a ledger that was named.
        say: is told why there is no sum.
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
        outcome: what the run came to.
        citation: what to cite.
        report: what was found about the model, for the table of layers.
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
