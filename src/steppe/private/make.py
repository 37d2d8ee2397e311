"""A plain PyTorch loop, made private."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.clipping import ClippedSum
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

    The model and the optimizer stay what they are: nothing is wrapped, renamed or hooked.

    Args:
        model: any `nn.Module` in which every record stands alone.
        optimizer: any torch optimizer over exactly the model's trainable weights.
        data: tensors, arrays, a map-style data set or a `DataLoader` (its data set, collate
            function and workers are kept; who takes part is drawn by the plan, and a batch size
            that is not the plan's is named in a warning).
        plan: the public constants. Without a population, the data's length is read once and the
            statement says so.
        loss: a function of (output, target), such as `F.cross_entropy`.
        objective: instead of `loss`, a function of (model, batch) that returns one loss for each
            record.
        augment: with `plan.views` = K, makes one random view of a batch of inputs; the K losses of
            a record are averaged before the clip.
        physical_batch: records that go through the model at once; None lets the engine choose.
        kernels: which way each layer takes; measured on the first batch unless pinned.
        source: where sampling and noise come from; a cryptographic stream unless given. A seeded
            one marks everything NOT PRIVATE.
        classes: the declared number of classes. The labels are then checked before the first step,
            by the data's owner and outside the guarantee, because an error in a step would tell.
        groups: for samplers that treat groups of records differently (`Periodic`): the rows of
            each group, every record in exactly one.
        public: a batch of records that need no protection, for clips that learn from them (`GEP`).
            The statement says how many.
        isolation: how it is known that a record's gradient depends on that record alone, which ε
            rests on. "proven": from the operations of a pass, or the model is refused. "each":
            records go through the model one at a time, by vmap or each in a process of its own,
            which is slower and takes most models.
            "probed": a few made-up values are tried, which proves nothing, and the statement says
            so.

    Returns:
        An object that yields batches and takes steps.

    Guarantees:
        Model, optimizer, loss and plan are checked on made-up records before any budget is spent.
        Trained weights that no record uses, or that no gradient comes back to, are named in a
        warning, since noise alone moves them.
        Private steps must be the only ones: a gradient of your own beside them is refused. So are
        public records in the memory of the private ones; that they are no copies is yours to know.

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
            "must be the data's length where batches are capped, since the cap is drawn from it",
            "declare the true number, or use Poisson()",
        )
    draw_of(plan, len(records), groups)  # refuses groups that do not fit
    parameters = trained_parameters(model, optimizer)
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
