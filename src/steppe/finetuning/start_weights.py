"""Gives a model the weights of a start, and a new head where that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from steppe.errors import DataError
from steppe.finetuning.named_starts import find_start
from steppe.finetuning.patterns import listed
from steppe.models import head_name, head_of, set_module
from steppe.starts import Start, begins_with
from steppe.utils import validation

# Counted during pre-training, and of no use to a model whose statistics are fixed.
_COUNTERS = "num_batches_tracked"


def load_start(
    model: nn.Module, start: Start | str | Path, *, head: int | None = None
) -> nn.Module:
    """Give a model the weights of a start.

    Args:
        model: of the network that the start was trained with; changed in place. Make the optimizer
            afterwards.
        start: a file of `steppe.pretrain` or `steppe.starts.write_start`, or what `read_start`
            returned; or the name of published weights, "efficientnet-lite0".
        head: the number of outputs of a new head, with fresh weights, in the place of the last
            linear layer; None keeps the start's head.

    Returns:
        The model. The privacy statement of its private training says which public records the
        start saw.

    Raises:
        DataError: the names or the shapes of the weights do not match; they are listed.

    Examples:
        >>> import tempfile, steppe, torch
        >>> def network(classes):
        ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, classes))
        >>> x = torch.randn(100, 4)
        >>> public = (x, (x[:, 0] > 0).long())
        >>> outcome = steppe.pretrain(
        ...     network(2), public, steps=4, run=tempfile.mkdtemp(), progress=False
        ... )
        >>> model = load_start(network(2), outcome.start, head=10)
        >>> model[2].out_features
        10
    """
    found = start if isinstance(start, Start) else find_start(start)
    weights = dict(found.weights)
    shown = "a Start" if isinstance(start, Start) else str(start)
    if head is not None:
        name = replace_head(model, head)
        weights = {key: one for key, one in weights.items() if not key.startswith(f"{name}.")}
        own = model.state_dict()
        weights |= {key: one for key, one in own.items() if key.startswith(f"{name}.")}
    _require_fit(shown, found, weights, model.state_dict(), head)
    model.load_state_dict({**model.state_dict(), **weights})
    begins_with(model, found)
    return model


def replace_head(model: nn.Module, outputs: int) -> str:
    """Put a fresh linear layer in the place of a model's head.

    Args:
        model: whose last layer with weights is linear; changed in place.
        outputs: of the new head.

    Returns:
        The name of the head.
    """
    outputs = validation.positive_integer("head", outputs, "give the number of classes")
    name, old = head_name(model), head_of(model)
    new = nn.Linear(old.in_features, outputs, bias=old.bias is not None).to(old.weight)
    set_module(model, name, new)
    return name


def _require_fit(
    shown: str,
    start: Start,
    weights: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    head: int | None,
) -> None:
    """Require the same names and shapes, and list what differs."""
    missing = [name for name in own if name not in weights and not name.endswith(_COUNTERS)]
    foreign = [name for name in weights if name not in own]
    shapes = [
        f"{name} {tuple(weights[name].shape)} in the start, {tuple(own[name].shape)} in the model"
        for name in own
        if name in weights and weights[name].shape != own[name].shape
    ]
    parts = [
        f"{rule}: {listed(names)}"
        for rule, names in (
            ("not in the start", missing),
            ("not in the model", foreign),
            ("of other shapes", shapes),
        )
        if names
    ]
    if not parts:
        return
    network = str(start.card.model.get("class", "the network that it was trained with"))
    remedy = f"use its network, {network}, with the same sizes"
    if head is None:
        remedy += ", or give head= with the number of classes if the head alone differs"
    raise DataError.about("start", shown, f"does not fit the model; {'; '.join(parts)}", remedy)
