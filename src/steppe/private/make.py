"""A plain PyTorch loop, made private."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
from steppe.finetuning import require_live_lora
from steppe.gradients import EachRecord, Kernels
from steppe.plan import Plan
from steppe.private.private import Private, draw_of
from steppe.private.setup_checks import (
    losses_of,
    refuse_private_as_public,
    require_kinds,
    require_one_process,
    require_plain_steps,
    trained_parameters,
    warn_of_other_batches,
)
from steppe.private.step_checks import refuse_modes
from steppe.probing import KINDS, require_uncompiled
from steppe.randomness import Source, as_source
from steppe.records import as_records, check_labels
from steppe.utils import validation


def make_private(
    model: nn.Module,
    optimizer: Optimizer,
    data: Any,
    plan: Plan,
    *,
    loss: Callable[..., Tensor] | None = None,
    objective: Callable[[nn.Module, Any], Tensor] | None = None,
    augment: Callable[[Tensor], Tensor] | None = None,
    physical_batch: int | None = None,
    kernels: Kernels | None = None,
    source: Source | None = None,
    classes: int | None = None,
    groups: Sequence[Any] | None = None,
    public: Any = None,
    isolation: str = "proven",
) -> Private:
    """Make a plain PyTorch loop private.

    The model and the optimizer are not wrapped, renamed or hooked.

    Args:
        model: any `nn.Module` that processes every record independently.
        optimizer: any torch optimizer over exactly the model's trainable weights.
        data: tensors, arrays, a map-style data set or a `DataLoader`. A loader's data set, collate
            function and workers are kept, its order is replaced by the plan's sampling, and a batch
            size other than the plan's gives a warning.
        plan: the public constants. Without a population, the data's length is read once and the
            statement says so.
        loss: a function of (output, target), such as `F.cross_entropy`.
        objective: instead of `loss`, a function of (model, batch) that returns one loss for each
            record.
        augment: with `plan.views` = K, makes one random view of a batch of inputs; the K losses of
            a record are averaged before the clip.
        physical_batch: records that pass through the model at once; None lets the engine choose.
        kernels: the algorithm for each layer; timed on the first batch unless pinned.
        source: random numbers for sampling and noise; by default a cryptographic stream. A seeded
            source marks everything NOT PRIVATE.
        classes: the declared number of classes. If given, labels are checked before the first step,
            outside the guarantee, because an error in a step would reveal something about a record.
        groups: for samplers that treat groups of records differently (`Periodic`): the rows of
            each group, every record in exactly one.
        public: a batch of records that need no protection, for clips that learn from them (`GEP`).
            The statement contains their number.
        isolation: how it is known that a record's gradient depends on that record alone, which ε
            requires. "proven": from the operations of a pass; a model that cannot be proven is
            rejected. "each": the model processes one record at a time, by vmap or in a process per
            record, which is slower and accepts most models. "probed": a few synthetic values are
            tried, which proves nothing, and the statement says so.

    Returns:
        An object that yields batches and takes steps.

    Guarantees:
        Model, optimizer, loss and plan are checked on synthetic records before any budget is spent.
        A warning names trained weights that get no gradient, because only noise moves them; for a
        model that begins with a start it is an error, and so is a LoRA that cannot learn. Private
        steps must be the only ones: other gradients of trained weights are errors. Public records
        in the memory of the private ones are rejected; copies of them are not detected.

    Examples:
        >>> import torch
        >>> from torch.nn import functional as F
        >>> model = nn.Linear(4, 2)
        >>> data = (torch.randn(100, 4), torch.randint(2, (100,)))
        >>> plan = Plan(epsilon=3.0, delta=1e-3, population=100, batch_size=20, steps=5)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> private = make_private(model, optimizer, data, plan, loss=F.cross_entropy)
        >>> for batch in private:
        ...     private.step(batch)
        >>> private.epsilon() <= 3.0
        True
    """
    require_kinds(model=model, plan=plan, kernels=kernels)
    require_one_process(model)
    require_uncompiled(model)
    noise = as_source(source)
    records = as_records(data)
    warn_of_other_batches(records.given, plan.batch_size)
    if classes is not None:
        check_labels(records, classes)
    if plan.population is None:
        plan = plan.for_population(len(records))
    if plan.cap is not None and len(records) != plan.population:
        raise validation.fail(
            "population",
            plan.population,
            "must be the length of the data if batches are capped, because the cap depends on it",
            "declare the true number, or use Poisson()",
        )
    if plan.sampling.public_population and len(records) != plan.population:
        raise validation.fail(
            "population",
            plan.population,
            f"must be the length of the data, {len(records)}, because "
            f"{type(plan.sampling).__name__} divides the records into batches or parts",
            "declare the true number, or use Poisson()",
        )
    draw_of(plan, len(records), groups)  # checks the groups
    parameters = trained_parameters(model, optimizer)
    require_live_lora(model)
    require_plain_steps(optimizer)
    losses = losses_of(model, plan, loss, objective, augment)
    if physical_batch is not None:
        validation.positive_integer("physical_batch", physical_batch)
    validation.one_of("isolation", isolation, KINDS)
    engine = ClippedSum(
        parameters,
        losses,
        plan.clip,
        l2=plan.l2,
        physical_batch=physical_batch,
        kernels=kernels,
        public=public,
        padded_to=plan.padded_to,
        one_at_a_time=EachRecord(parameters, model) if isolation == "each" else None,
    )
    refuse_private_as_public(records, public)
    refuse_modes(engine)
    return Private(model, optimizer, records, plan, engine, noise, groups, isolation)
