"""Checks of the arguments of `pretrain`, before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, ReduceLROnPlateau

from steppe.errors import ConfigurationError
from steppe.pretraining.augment import crop_and_flip
from steppe.pretraining.data import PublicData
from steppe.pretraining.method import Method
from steppe.pretraining.objectives import PublicObjective
from steppe.utils import validation

AUGMENTS = {"crop-flip": crop_and_flip}
MakeOptimizer = Callable[[Sequence[Tensor]], Optimizer]
MakeScheduler = Callable[[Optimizer], LRScheduler]
# The published recipe: a tenth of the rate at half and at three quarters of the run.
_RATE, _MOMENTUM, _DECAY, _DROPS, _FACTOR = 0.1, 0.9, 1e-4, (0.5, 0.75), 0.1


def check_sizes(data: PublicData, method: Method, objective: PublicObjective, batch: int) -> None:
    """Check the batches against the number of public records, and that there are labels."""
    records = len(data.inputs)
    for name, size in (("batch_size", batch), ("perturbation_batch", method.perturbation_batch)):
        if size > records:
            rule = f"must be at most the number of public records, {records}"
            raise validation.fail(name, size, rule, "give a smaller batch, or more public records")
    if objective.needs_targets and data.targets is None:
        remedy = "give (inputs, targets), or objective=Contrastive()"
        raise validation.missing("data.targets", remedy, "are needed by this loss")


def check_method(method: Any) -> Method:
    """Require an object of a method, not its class."""
    if isinstance(method, type) or not hasattr(method, "begin"):
        shown = method.__name__ if isinstance(method, type) else type(method).__name__
        rule = "must be a method of pre-training"
        raise validation.fail("method", shown, rule, "give Standard(), DPAdapter() or another")
    found: Method = method
    return found


def number_of_steps(steps: int | None, epochs: float | None, per_epoch: int) -> int:
    """The length of the run."""
    validation.exactly_one("the other follows", steps=steps, epochs=epochs)
    if steps is not None:
        return validation.positive_integer("steps", steps)
    return max(1, round(validation.positive("epochs", epochs) * per_epoch))


def augment_of(given: Any) -> Callable[[Tensor], Tensor] | None:
    """A function that makes a random variant of inputs, by its name or as it is."""
    if given is None or callable(given):
        return given
    return AUGMENTS[validation.one_of("augment", given, tuple(AUGMENTS), "or give a function")]


def optimizer_for(
    model: nn.Module, given: Optimizer | MakeOptimizer | None, own_layers: bool
) -> Optimizer:
    """The optimizer over the trained weights.

    Args:
        model: with the layers that are trained.
        given: an optimizer; a function that makes one of weights; None for the published recipe.
        own_layers: whether the objective has layers of its own, which a given optimizer lacks.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not weights:
        raise validation.missing("model", "set requires_grad on what to train", "has no weights")
    if given is None:
        return torch.optim.SGD(weights, lr=_RATE, momentum=_MOMENTUM, weight_decay=_DECAY)
    if own_layers and isinstance(given, Optimizer):
        rule = "lacks the layers that this objective trains beside the model"
        remedy = "give a function of the weights, such as partial(torch.optim.AdamW, lr=1e-3)"
        raise validation.fail("optimizer", type(given).__name__, rule, remedy)
    made = given if isinstance(given, Optimizer) else given(weights)
    if not isinstance(made, Optimizer) or isinstance(made, torch.optim.LBFGS):
        rule = "must be a torch optimizer that steps without a closure"
        raise validation.fail("optimizer", type(made).__name__, rule, "use SGD or AdamW")
    held = {id(weight) for group in made.param_groups for weight in group["params"]}
    lacking = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if lacking:
        raise ConfigurationError(
            f"optimizer lacks {lacking[:3]}: must hold every trainable weight; build it from "
            "model.parameters() after the last change to the model, or freeze these weights."
        )
    return made


def scheduler_for(
    optimizer: Optimizer, given: LRScheduler | MakeScheduler | None, by_rule: bool, steps: int
) -> LRScheduler | None:
    """The scheduler, which takes one step per step.

    Args:
        optimizer: of the run.
        given: a scheduler over it; a function that makes one of it; None for none.
        by_rule: whether the optimizer is the published recipe's, which brings its schedule.
        steps: of the run.
    """
    if given is None:
        if not by_rule:
            return None
        return MultiStepLR(optimizer, [max(1, int(part * steps)) for part in _DROPS], _FACTOR)
    made = given if isinstance(given, LRScheduler) else given(optimizer)
    if not isinstance(made, LRScheduler) or isinstance(made, ReduceLROnPlateau):
        rule = "must be a torch scheduler that follows the steps"
        raise validation.fail("scheduler", type(made).__name__, rule, "use CosineAnnealingLR")
    if made.optimizer is not optimizer:
        rule = "belongs to another optimizer, so it would not change the run's learning rate"
        remedy = "create it with the optimizer that you pass as optimizer="
        raise validation.fail("scheduler", type(made).__name__, rule, remedy)
    return made
