"""What is written when a run is over: its models, its cost and its result.

The steps are paid for: nothing that can fail beside the models may cost them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from steppe.citations import bibtex
from steppe.probing import Report
from steppe.training.folder import write_json, write_weights
from steppe.training.ledger_summary import cost_together, without_machine
from steppe.training.outcome import Outcome, numbers
from steppe.training.publishing import LAST
from steppe.utils.user_code import kind_and_line

if TYPE_CHECKING:
    from steppe.training.trainer import Trainer

Say = Callable[[str], None]


def write_models(trainer: Trainer, steps_done: int, say: Say) -> str:
    """Write the last weights, the averages that have begun, and the model to use.

    Args:
        trainer: of the run.
        steps_done: the plan's steps that are gone.
        say: writes a line into the log and above the bar.

    Returns:
        The name of the model to use.
    """
    folder, averages = trainer.folder, trainer.kept.averages
    reason = trainer.statement.not_private_reason
    about = {"plan": trainer.plan.digest(), "step": str(steps_done)}
    published = _published(trainer, say)
    for name in (LAST, *averages):
        found = averages[name].weights() if name != LAST else trainer.model.state_dict()
        own = {"model": name, **about}
        path = folder.average(name) if name != LAST else folder.model
        write_weights(path, found, own, reason)
        if name == published:
            write_weights(folder.published, found, own, reason)
    return published


def _published(trainer: Trainer, say: Say) -> str:
    """The model to use: as fixed before training, if the run was long enough for it."""
    chosen = trainer.publish
    if chosen == LAST or chosen in trainer.kept.averages:
        return chosen
    say(f"{chosen} had not begun when the run ended: the last weights are published")
    return LAST


def ledger_facts(trainer: Trainer, say: Say) -> dict[str, Any] | None:
    """What all runs in the ledger have cost together; None where that cannot be had.

    Other runs may have gone on in it since this one began, and this one is paid for: nothing
    about them may cost its result.

    Args:
        trainer: of the run.
        say: writes a line into the log and above the bar.
    """
    try:
        return {**cost_together(trainer.ledger, trainer.plan.delta), **trainer.named_ledger}
    except Exception as error:
        say(f"there is no sum of all runs in the ledger: {kind_and_line(error)}")
        return None


def write_result(trainer: Trainer, outcome: Outcome, report: Report) -> None:
    """Write `result.json`.

    Args:
        trainer: of the run.
        outcome: what it came to.
        report: what was found about the model, for the table of layers.
    """
    write_json(
        trainer.folder.result,
        {
            **numbers(outcome),
            "not_private_reason": outcome.statement.not_private_reason,
            "ledger": outcome.ledger and without_machine(outcome.ledger, outcome.run),
            "citation": bibtex(trainer.plan, trainer.optimizer, *trainer.kept.methods),
            "layers": [asdict(line) for line in report.rows],
        },
    )
