"""What a trainer without an optimizer chooses by rule: optimizer, averages, published model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from steppe.plan import Plan
from steppe.records import Records
from steppe.training import recipes
from steppe.training.groups import Objective
from steppe.training.losses import curvature
from steppe.training.run_averages import Keepable
from steppe.utils import validation


@dataclass(frozen=True)
class Chosen:
    """The arguments, completed by rule.

    Args:
        optimizer: given, or SGD with a learning rate by rule.
        averages: given, or those of `recipes.averages` if the optimizer is chosen too.
        publish: given, or that of the recipe if the averages are chosen.
        reasons: the reason for each choice, by name.
    """

    optimizer: Optimizer
    averages: Sequence[Keepable] | None
    publish: str | None
    reasons: dict[str, str] = field(default_factory=dict)


def choose(
    model: nn.Module,
    plan: Plan,
    rows: Records,
    objective: Objective,
    *,
    optimizer: Optimizer | None,
    scheduler: LRScheduler | None,
    averages: Sequence[Keepable] | None,
    publish: str | None,
) -> Chosen:
    """Complete the arguments by rule. If an optimizer was given, nothing is chosen.

    Args:
        model, plan, objective, optimizer, scheduler, averages, publish: as given to the trainer.
        rows: the private records; only their number and form are used.
    """
    if optimizer is not None:
        return Chosen(optimizer, averages, publish)
    if scheduler is not None:
        remedy = "pass that optimizer too, as optimizer="
        raise validation.fail("scheduler", scheduler, "belongs to an optimizer", remedy)
    known = plan if plan.population else plan.for_population(len(rows))
    highest = curvature(objective.loss, model, rows)
    made, why = recipes.optimizer_for(model, known, highest)
    reasons = {"optimizer": why}
    if averages is None:
        averages = recipes.averages(model, known.total_steps)
        reasons["averages"] = f"EMA, SWA, UPA, PDA, {recipes.FREE}"
        if publish is None:
            publish = recipes.publishes(model)
            reasons["publish"] = f"{publish}, {recipes.BEFOREHAND}"
    return Chosen(made, averages, publish, reasons)
