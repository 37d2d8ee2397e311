"""Place 3: what a record's gradient contains.

Turns a model and a usual loss into one loss per record.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.errors import DataError, UnsupportedModelError
from steppe.gradients.contact import backward_to
from steppe.gradients.marks import is_marked, mark, pass_of
from steppe.gradients.torch_losses import gradient_by_output, one_label_each
from steppe.gradients.torch_only import is_torch_only
from steppe.utils import validation
from steppe.utils.batches import count, each

Loss = Callable[..., Tensor]


def per_record(loss: Loss) -> Loss:
    """The loss with one value for each record in place of a mean over the batch.

    Losses of torch (`F.cross_entropy`, `nn.MSELoss()`, …) are called with `reduction="none"`; their
    values for one record (tokens, outputs) are averaged, or added up if their own reduction is
    "sum" or "batchmean". Other functions must return one value for each record themselves.

    Args:
        loss: a function or module of (output, target).

    Examples:
        >>> from torch.nn import functional as F
        >>> per_record(F.mse_loss)(torch.ones(2, 3), torch.zeros(2, 3))
        tensor([1., 1.])
        >>> per_record(nn.MSELoss(reduction="sum"))(torch.ones(2, 3), torch.zeros(2, 3))
        tensor([3., 3.])
    """
    if not callable(loss):
        raise validation.fail(
            "loss", loss, "must be a function of (output, target)", "pass F.cross_entropy, say"
        )
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        single = copy.copy(loss)
        single.__dict__["reduction"] = "none"  # a copy: the caller's loss stays as it is
        return _reduced(single, loss.reduction)
    if not isinstance(loss, nn.Module) and "reduction" in _argument_names(loss):
        given = loss.keywords if isinstance(loss, functools.partial) else {}
        return _reduced(functools.partial(loss, reduction="none"), given.get("reduction"))
    return loss


def objective_of(
    model: nn.Module,
    loss: Loss,
    views: int = 1,
    augment: Callable[[Tensor], Tensor] | None = None,
) -> RecordLosses:
    """One loss for each record of a batch `(*inputs, target)`.

    Args:
        model: called with the inputs.
        loss: as for `per_record`.
        views: K, how many augmented views of a record are averaged.
        augment: makes one random view of every record of the first input.
    """
    if (views > 1) != (augment is not None):
        raise validation.fail(
            "views", views, "must be above 1 exactly when `augment` is given", "give both or none"
        )
    return RecordLosses(model, loss, views, augment)


class RecordLosses:
    """A function from a batch to the loss of each of its records. Made by `objective_of`.

    Guarantees:
        The K views of a record are averaged before the clip, so K does not enter the sensitivity.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, views: int, augment: Callable[[Tensor], Tensor] | None
    ) -> None:
        loss = _function_in(loss)
        self.model, self._loss, self._views, self._augment = model, loss, views, augment
        self._single = per_record(loss)
        self._meets_no_weight = _meets_no_weight(loss)
        self._draws_nothing = self._meets_no_weight and _function_of(loss) in _STILL
        self._is_plain_cross_entropy = _is_plain_cross_entropy(loss)

    def __call__(self, batch: Any) -> Tensor:
        """The losses."""
        if not isinstance(batch, tuple | list) or len(batch) < 2:
            raise DataError(
                f"batch={type(batch).__name__}: must be (inputs, target) for a loss of "
                "(output, target); for any other form pass `objective=`, a function of "
                "(model, batch) that returns one loss for each record."
            )
        *inputs, target = batch
        if self._augment is None:
            return self._of_outputs(self.model(*inputs), target)
        if not isinstance(inputs[0], Tensor):
            raise DataError(
                f"batch[0]={type(inputs[0]).__name__}: must be a tensor for `augment`; average the "
                "views inside an `objective=` of your own."
            )
        views, records = self._views, count(batch)
        first = torch.cat([self._augment(inputs[0]) for _ in range(views)])
        repeated = functools.partial(_repeated, views=views)
        rest = [each(repeated, part) for part in inputs[1:]]
        values = self._of_outputs(self.model(first, *rest), each(repeated, target))
        return values.view(views, records).mean(0)

    def _of_outputs(self, output: Any, target: Any) -> Tensor:
        # Others may bring operations of their own.
        plain = _is_plain(output) and _is_plain(target)
        if not (plain and self._meets_no_weight and is_marked(output)):
            return self._single(output, target)
        # A tracer would find nothing there, and takes longer than the loss itself.
        with torch._C.DisableTorchFunction():
            values = self._single(output, target)
        mark(values, pass_of(output))
        return values

    @property
    def are_of_outputs(self) -> bool:
        """Whether the losses are known to depend on the model's outputs and the target alone.

        They then use no weights and no random numbers.
        """
        return self._augment is None and self._draws_nothing

    def output_gradient(self, output: Tensor, target: Any, records: int) -> Tensor | None:
        """The gradient of each record's loss with respect to its output, if `are_of_outputs`.

        Args:
            output: of the model; autograd does not follow it.
            target: the last part of the batch.
            records: how many there are.

        Returns:
            None if there is not one loss for each record; a call of the objective then raises the
            error.
        """
        if type(target) is not Tensor:
            return None
        if self._is_plain_cross_entropy and one_label_each(output, target, records):
            with suppress(RuntimeError):  # a label that is no class: torch raises the error below
                return gradient_by_output(output, target)
        leaf = output.detach().requires_grad_()
        with torch.enable_grad():
            losses = self._single(leaf, target)
        if losses.shape != (records,) or not losses.requires_grad:
            return None
        return backward_to(leaf, losses)

    @property
    def runs_users_code(self) -> bool:
        """Whether a pass may run Python code other than torch's, with the model's current state."""
        return self._augment is not None or not (
            is_torch_only(self.model) and is_torch_only(self._loss)
        )

    @property
    def depends_on_no_size(self) -> bool:
        """Whether no code runs that could depend on the number of records.

        Torch's layers do not, nor do the networks of this library, which
        `tests/models/test_catalogue.py` proves with as many numbers of records as other code.
        """
        return self._augment is None and (
            is_torch_only(self.model, or_ours=True) and is_torch_only(self._loss)
        )


def _is_plain(value: Any) -> bool:
    """Whether it is a plain tensor of torch, or the fake tensor that replaces it in a proof."""
    kind = type(value)
    return kind is Tensor or (
        kind.__name__ == "FakeTensor" and kind.__module__.startswith("torch.")
    )


def _repeated(tensor: Tensor, views: int) -> Tensor:
    return tensor.repeat(views, *[1] * (tensor.ndim - 1))


def _reduced(loss: Loss, reduction: Any) -> Loss:
    """Average or add up the values of one record; the divisor is its public shape."""
    combine = torch.sum if reduction in ("sum", "batchmean") else torch.mean
    of_classes = _is_cross_entropy(loss)

    def single(output: Tensor, target: Tensor) -> Tensor:
        nonlocal of_classes
        values = loss(output, target)
        axes = values.ndim  # asked once: under a tracer a question takes as long as a small layer
        if axes == 0:
            raise UnsupportedModelError(
                f"loss={getattr(loss, '__name__', loss)!r}: must give one value for each record "
                "with reduction='none'; write it as a function that returns shape (records,)."
            )
        if of_classes:
            _require_classes(output)
            of_classes = False  # a model's first pass decides
        return values if axes == 1 else combine(values.flatten(1), 1)

    return single


def _meets_no_weight(loss: Loss) -> bool:
    """Whether a loss is a function of torch with no arguments that could be trained."""
    if isinstance(loss, nn.Module) or not is_torch_only(loss):
        return False
    given = (*loss.args, *loss.keywords.values()) if isinstance(loss, functools.partial) else ()
    return not any(isinstance(value, Tensor) for value in given)


def _function_in(loss: Loss) -> Loss:
    """The function that a loss class of torch calls, if it has no weights, options or hooks.

    Examples:
        >>> _function_in(nn.MSELoss(reduction="sum")).keywords
        {'reduction': 'sum'}
    """
    if not isinstance(loss, nn.Module) or type(loss) not in _FUNCTIONS or not is_torch_only(loss):
        return loss
    function, forward = _FUNCTIONS[type(loss)]
    if type(loss).forward is not forward:
        return loss
    # Of what it keeps, how records are averaged is passed on, and a mode has no effect.
    kept, usual = vars(loss), {**vars(type(loss)()), "training": loss.training}
    if kept != {**usual, "reduction": loss.reduction}:
        return loss
    return functools.partial(function, reduction=loss.reduction)


# By class: the function, and how an instance calls it as torch wrote it.
_FUNCTIONS: dict[type[nn.Module], tuple[Loss, Callable[..., Any]]] = {
    kind: (function, kind.forward)
    for kind, function in (
        (nn.CrossEntropyLoss, F.cross_entropy),
        (nn.NLLLoss, F.nll_loss),
        (nn.MSELoss, F.mse_loss),
        (nn.L1Loss, F.l1_loss),
        (nn.HuberLoss, F.huber_loss),
        (nn.SmoothL1Loss, F.smooth_l1_loss),
        (nn.BCELoss, F.binary_cross_entropy),
        (nn.BCEWithLogitsLoss, F.binary_cross_entropy_with_logits),
    )
}


def _function_of(loss: Loss) -> Any:
    return loss.func if isinstance(loss, functools.partial) else loss


# Losses of torch that draw no random numbers.
_STILL: frozenset[Any] = frozenset(function for function, _ in _FUNCTIONS.values())


def _is_plain_cross_entropy(loss: Loss) -> bool:
    """Whether it is cross-entropy with none of its options, but for how records are averaged."""
    if isinstance(loss, functools.partial):
        return loss.func is F.cross_entropy and not loss.args and {*loss.keywords} <= {"reduction"}
    return loss is F.cross_entropy


def _require_classes(output: Tensor) -> None:
    if output.ndim > 1 and output.shape[1] == 1:
        raise UnsupportedModelError(
            "output=1 class: cross-entropy needs two or more, of one it is always zero and "
            "teaches nothing; use loss=F.mse_loss for a regression, or "
            "F.binary_cross_entropy_with_logits for one probability."
        )


def _is_cross_entropy(loss: Loss) -> bool:
    return _function_of(loss) is F.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)


def _argument_names(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # builtins without a signature
        return set()
