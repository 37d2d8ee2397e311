"""What a trainer chooses by rule where it is given no optimizer: it, the averages, the model."""

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
    """What was given, with its gaps filled by rule.

    Args:
        optimizer: given, or SGD at the rate of the rule.
        averages: given, or those of `recipes.averages` where the optimizer is chosen too.
        publish: given, or the EMA where the averages are chosen.
        reasons: why each that was chosen is what it is, by its name.
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
    """Fill the gaps by rule; with an optimizer there are none.

    Args:
        model, plan, objective, optimizer, scheduler, averages, publish: as the trainer was given.
        rows: the private records, of which length and form alone are looked at.
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
            publish = recipes.PUBLISHED.__name__
            reasons["publish"] = f"{publish}, {recipes.BEFOREHAND}"
    return Chosen(made, averages, publish, reasons)
