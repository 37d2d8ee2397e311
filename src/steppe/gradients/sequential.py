"""Plain sequential models: per-example gradients without a tracer or an autograd graph.

Logistic regression and small perceptrons take less time to compute than to trace. If a model is
only a sequence of torch's own layers, the layers are called in order, then their backward functions
in reverse order, and the linear ones leave the same slots as under a tracer. Other models, and
batches of another form, use the tracer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.gradients.objective import RecordLosses
from steppe.gradients.record_gradients import WeightSlots
from steppe.gradients.rules.linear import dots_by_input, product
from steppe.gradients.slots.outer import Single, Summed
from steppe.gradients.torch_only import hooked, hooked_everywhere

_aten = torch.ops.aten


@dataclass(frozen=True)
class _Weightless:
    """A layer without weights.

    Args:
        forward: from the layer and its input x to its output y.
        backward: from the layer, the gradient of y, x and y to the gradient of x, by the function
            that torch's own graph would call.
    """

    forward: Callable[[Any, Tensor], Tensor]
    backward: Callable[[Any, Tensor, Tensor, Tensor], Tensor]


_WEIGHTLESS: dict[type[nn.Module], _Weightless] = {
    nn.Identity: _Weightless(lambda layer, x: x, lambda layer, g, x, y: g),
    nn.Flatten: _Weightless(
        lambda layer, x: x.flatten(layer.start_dim, layer.end_dim),
        lambda layer, g, x, y: g.reshape(x.shape),
    ),
    nn.ReLU: _Weightless(
        lambda layer, x: x.relu(),
        lambda layer, g, x, y: _aten.threshold_backward.default(g, y, 0),
    ),
    nn.Tanh: _Weightless(
        lambda layer, x: x.tanh(),
        lambda layer, g, x, y: _aten.tanh_backward.default(g, y),
    ),
    nn.Sigmoid: _Weightless(
        lambda layer, x: x.sigmoid(),
        lambda layer, g, x, y: _aten.sigmoid_backward.default(g, y),
    ),
    nn.GELU: _Weightless(
        lambda layer, x: F.gelu(x, approximate=layer.approximate),
        lambda layer, g, x, y: _aten.gelu_backward.default(g, x, approximate=layer.approximate),
    ),
    nn.SiLU: _Weightless(
        lambda layer, x: F.silu(x),
        lambda layer, g, x, y: _aten.silu_backward.default(g, x),
    ),
}
_TYPES = (torch.float32, torch.float64)
_OF_LINEAR, _NONE = frozenset({"weight", "bias"}), frozenset[str]()
# Weights in torch's memory for shapes alone: making them draws no random numbers.
_EXAMPLES = (nn.Sequential(), nn.Linear(1, 1, device="meta"), *(kind() for kind in _WEIGHTLESS))
# What torch wrote, by class: how an instance is called, and the attributes that it has.
_AS_WRITTEN = {
    type(one): (type(one).forward, type(one).__call__, frozenset(vars(one))) for one in _EXAMPLES
}


class PlainSequential:
    """A sequence of layers and a loss, for one step."""

    def __init__(self, layers: list[nn.Module], losses: RecordLosses) -> None:
        self.layers, self._losses = layers, losses

    def slots(self, batch: Any, records: int, want_dots: bool) -> WeightSlots | None:
        """The per-example gradients of a batch; called without autograd.

        Args:
            batch: the records.
            records: how many there are.
            want_dots: whether the λθ term will ask for inner products.

        Returns:
            A slot for each trained weight; None if the batch has another form.

        Guarantees:
            The slots are those of the tracer, up to rounding. No argument is written to.
        """
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            return None
        x, target = batch
        if type(x) is not Tensor or x.dtype not in _TYPES or x.device.type != "cpu":
            return None
        passed = [x]  # what goes into each layer, and what comes out of the last
        for layer in self.layers:
            if type(layer) is nn.Linear:
                if x.ndim != 2 or x.shape[0] != records or x.dtype != layer.weight.dtype:
                    return None
                x = product(x, layer.weight, layer.bias)
                if layer is not self.layers[-1]:
                    # What comes next rounds by how its input lies in memory, and with columns that
                    # depends on the number of records; see `product`.
                    x = x.contiguous()
            else:
                x = _WEIGHTLESS[type(layer)].forward(layer, x)
            passed.append(x)
        g = self._losses.output_gradient(x, target, records)
        return None if g is None else self._backward(passed, g, want_dots)

    def _backward(self, passed: list[Tensor], g: Tensor, want_dots: bool) -> WeightSlots:
        """The backward pass, from the gradient of the last output to the first trained layer."""
        found: WeightSlots = []
        layers = self.layers
        first = next((i for i, layer in enumerate(layers) if _is_trained(layer)), len(layers))
        for i in range(len(layers) - 1, first - 1, -1):
            layer, y, x = layers[i], passed.pop(), passed[-1]
            if type(layer) is not nn.Linear:
                g = _WEIGHTLESS[type(layer)].backward(layer, g, x, y)
                continue
            weight, bias = layer.weight, layer.bias
            grad_x = g @ weight if i > first else None
            dots = dots_by_input(x, grad_x) if want_dots and grad_x is not None else None
            weighed = Single(x, g, dots)
            if bias is not None and bias.requires_grad:
                found.append((bias, Summed(g, weighed)))
            if weight.requires_grad:
                found.append((weight, weighed))
            if grad_x is not None:
                g = grad_x
        found.reverse()
        return found


def _is_trained(layer: nn.Module) -> bool:
    return any(p is not None and p.requires_grad for p in layer._parameters.values())


def plain_sequential(objective: object) -> PlainSequential | None:
    """The model of an objective as a sequence of layers, if it is one in its current state.

    Called in every step, because a model may get a hook or another layer between steps.

    Returns:
        The sequence, which is known to run no Python but torch's own and to draw no random numbers;
        None for any other model.

    Examples:
        >>> from steppe.gradients.objective import objective_of
        >>> losses = objective_of(nn.Sequential(nn.Linear(4, 2), nn.ReLU()), F.cross_entropy)
        >>> plain_sequential(losses).layers
        [Linear(in_features=4, out_features=2, bias=True), ReLU()]
        >>> dropout = nn.Sequential(nn.Linear(4, 2), nn.Dropout())
        >>> plain_sequential(objective_of(dropout, F.cross_entropy))
    """
    if not isinstance(objective, RecordLosses) or not objective.are_of_outputs:
        return None
    if hooked_everywhere():
        return None
    layers: list[nn.Module] = []
    opened: set[int] = set()
    waiting: list[nn.Module | None] = [objective.model]
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in opened or not _is_as_written(module):
            return None
        if type(module) is nn.Sequential:
            opened.add(id(module))  # one inside itself has no end
            waiting.extend(reversed(module._modules.values()))
        else:
            layers.append(module)
    weights = [p for layer in layers for p in layer._parameters.values() if p is not None]
    if len({id(p) for p in weights}) < len(weights):
        return None  # a weight that is used twice
    # One of another class may bring operations of its own, one that is no leaf comes from others.
    plain = all(type(p) is nn.Parameter and p.is_leaf for p in weights)
    return PlainSequential(layers, objective) if plain else None


def _is_as_written(module: nn.Module) -> bool:
    """Whether a module is of a kind known here, and has nothing that torch did not give it.

    An attribute more may be a function, or a weight in another place than among the parameters.
    """
    kind, kept = type(module), vars(module)
    known = _AS_WRITTEN.get(kind)
    return (
        known is not None
        and known[0] is kind.forward
        and known[1] is kind.__call__
        and known[2] >= kept.keys()
        and kept["_parameters"].keys() == (_OF_LINEAR if kind is nn.Linear else _NONE)
        and not kept["_buffers"]
        and not hooked(module)
    )
