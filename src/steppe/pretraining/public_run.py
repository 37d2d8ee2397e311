"""Pre-training on public data: the whole run, from its arguments to the start file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from steppe.errors import DataError
from steppe.pretraining.batches import Batches
from steppe.pretraining.checks import (
    MakeOptimizer,
    MakeScheduler,
    augment_of,
    check_method,
    check_sizes,
    number_of_steps,
    optimizer_for,
    scheduler_for,
)
from steppe.pretraining.data import PublicData, public_data
from steppe.pretraining.loop import Callback, PretrainingLoop, PretrainingParts
from steppe.pretraining.method import Method
from steppe.pretraining.objectives import Labels, PublicObjective
from steppe.pretraining.outcome import PretrainingFolder, PretrainingOutcome
from steppe.pretraining.standard import Standard
from steppe.pretraining.step import PublicStep
from steppe.runs import digest, name_of, of_model, of_optimizer, of_scheduler, require_same
from steppe.starts import Card, begins_with, read_start, starts_of, write_start
from steppe.utils import validation
from steppe.utils.files import single_writer, write_atomically, write_json, writing

_CHECKPOINTS, _EVALUATIONS = 20, 10
_LARGEST_SEED = 2**63 - 1


def pretrain(
    model: nn.Module,
    data: PublicData | str | Sequence[Any],
    method: Method | None = None,
    *,
    batch_size: int = 50,
    steps: int | None = None,
    epochs: float | None = None,
    objective: PublicObjective | None = None,
    optimizer: Optimizer | MakeOptimizer | None = None,
    scheduler: LRScheduler | MakeScheduler | None = None,
    augment: str | Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
    run: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: int | None = None,
    evaluate_every: int | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    toml: str | None = None,
) -> PretrainingOutcome:
    """Train a model on public data, and write it as a start for private training.

    This is training without privacy: no noise, no clip, no account.

    Args:
        model: is trained in place. With `Contrastive` its head keeps its initial weights.
        data: public records: (inputs, targets), the name of an included data set, "procedural", or
            `PublicData`.
        method: `Standard` (by default), `SAM`, `ASAM`, `AMP`, `DPAdapter`, `KeptPerturbation` or
            `MeanPerturbation`.
        batch_size: records of an update, m₂.
        steps, epochs: the length, one of the two.
        objective: `Labels` (by default) or `Contrastive`.
        optimizer: any torch optimizer over the model's weights, or a function that makes one; None
            for the published recipe, SGD(lr=0.1, momentum=0.9, weight_decay=1e-4) with a tenth of
            the rate at half and at three quarters of the run.
        scheduler: any torch scheduler over that optimizer, or a function that makes one; it takes
            one step per step.
        augment: "crop-flip", or a function that makes a random variant of a batch of inputs.
        seed: of the batches, the augmentation and dropout. The same seed gives the same weights.
        run: the folder of the run; None for a new one under `runs/`.
        resume: continue the run in this folder from its last checkpoint.
        checkpoint_every, evaluate_every: steps; None for a twentieth and a tenth of the run.
        callbacks: called after each step with the number of steps taken and the model; one that
            returns True ends the run.
        progress: whether to show a bar.
        toml: the text of the configuration file, which the folder keeps.

    Returns:
        The start file, its card, scores on held-out public records, and the cost.

    Guarantees:
        No privacy: whoever sees the start may learn everything about these records. Give public
        records alone. The card names them, with those of the starts that the model had before, and
        the privacy statement of a run that begins with this start repeats it. A run that was
        resumed gives the weights of one that was not, bit by bit, on the same machine.

    Examples:
        >>> import tempfile, torch
        >>> x = torch.randn(200, 4)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> outcome = pretrain(
        ...     model, (x, (x[:, 0] > 0).long()), epochs=2, run=tempfile.mkdtemp(), progress=False
        ... )
        >>> outcome.steps, outcome.start.name
        (8, 'start.safetensors')
    """
    method = check_method(Standard() if method is None else method)
    objective = Labels() if objective is None else objective
    found = public_data(data)
    batch_size = validation.positive_integer("batch_size", batch_size)
    check_sizes(found, method, objective, batch_size)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= _LARGEST_SEED:
        raise validation.fail("seed", seed, "must be a whole number from 0 to 2⁶³ − 1")
    for name, every in (("checkpoint_every", checkpoint_every), ("evaluate_every", evaluate_every)):
        if every is not None:
            validation.positive_integer(name, every)
    batches = Batches(len(found.inputs), batch_size, seed)
    length = number_of_steps(steps, epochs, batches.steps_per_epoch)
    changed = augment_of(augment)
    folder = PretrainingFolder(run)
    if not resume:
        folder.require_free()
    model.train()
    with objective.prepared(model):
        own_layers = not objective.needs_targets
        chosen = optimizer_for(model, optimizer, own_layers)
        schedule = scheduler_for(chosen, scheduler, optimizer is None, length)
        constants = {
            "batch_size": batch_size,
            "steps": length,
            "seed": seed,
            "objective": described(objective),
            "optimizer": of_optimizer(chosen),
            "scheduler": of_scheduler(schedule),
            "augment": None if changed is None else name_of(changed),
        }
        settings = {
            "data": vars(found.facts),
            "method": described(method),
            "model": of_model(model),
            "earlier": [sentence for sentence, _ in starts_of(model)],
            **constants,
        }
        step = PublicStep(model, chosen, found, batches, objective, changed, batch_size)
        parts = PretrainingParts(
            model=model,
            optimizer=chosen,
            scheduler=schedule,
            data=found,
            objective=objective,
            method=method.begin(step.weights),
            step=step,
            steps=length,
            folder=folder,
            settings=digest(settings),
            checkpoint_every=checkpoint_every or max(1, length // _CHECKPOINTS),
            evaluate_every=evaluate_every or max(1, length // _EVALUATIONS),
            callbacks=callbacks,
            progress=progress,
        )
        return _run(parts, settings, constants, resume, toml)


def _run(
    parts: PretrainingParts,
    settings: Mapping[str, Any],
    constants: Mapping[str, Any],
    resume: bool,
    toml: str | None,
) -> PretrainingOutcome:
    """Train, and write the start and the result."""
    folder, loop = parts.folder, PretrainingLoop(parts)
    with writing("run", folder.path):
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with single_writer(folder.path):
        note = None
        if resume:
            require_same(settings, _settings_in(folder))
            note = loop.restore()
        else:
            if toml is not None:
                write_atomically(folder.toml, toml.encode())
            write_json(folder.config, {"format": 1, "settings": settings})
        scores = loop.run(note)
        batch = int(constants["batch_size"])
        taken = {**constants, "steps": loop.done, "gradients": parts.step.gradients}
        card = Card(
            data=parts.data.facts,
            method=settings["method"],
            constants=taken,
            model=settings["model"],
            scores=scores,
            earlier=settings["earlier"],
        )
        write_start(folder.start, parts.objective.of_start(parts.model), card)
        begins_with(parts.model, read_start(folder.start))
        outcome = PretrainingOutcome(
            start=folder.start,
            card=card,
            scores=scores,
            steps=loop.done,
            seconds=loop.seconds,
            gradients=parts.step.gradients,
            times_standard=parts.step.gradients / (batch * loop.done),
            run=folder.path,
        )
        write_json(folder.result, outcome.to_dict())
        return outcome


def described(choice: Any) -> dict[str, Any]:
    """A frozen choice as JSON: its class and its constants."""
    found: dict[str, Any] = {"kind": type(choice).__name__}
    if is_dataclass(choice):
        for field in fields(choice):
            value = getattr(choice, field.name)
            found[field.name] = name_of(value) if callable(value) else value
    return found


def _settings_in(folder: PretrainingFolder) -> Mapping[str, Any]:
    try:
        settings: Mapping[str, Any] = json.loads(folder.config.read_bytes())["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        rule = "contains no pre-training to resume"
        raise DataError.about("run", str(folder.path), rule, "give its folder") from None
    return settings
