"""Rules of pointwise operations: an element is computed from those at the same position."""

from __future__ import annotations

import torch
from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import FREE
from steppe.isolation.rules.arguments import aligned, broadcast, outputs_of


def pointwise(call: Call) -> list[Tensor]:
    """Those of all inputs at the same position, by broadcasting."""
    outputs = outputs_of(call)
    found = broadcast(call, list(call.tensors()), max(out.ndim for out in outputs))
    return [found for _ in outputs]


def copied(call: Call) -> list[Tensor]:
    """Those of the source; where the source is free, those of the target before."""
    target, source = call["self"], call["src"]
    found = aligned(call.owners(source), target.ndim)
    if call.is_free(source):
        call.require_same_for_all(source, call.owners(target))
    return [torch.where(found == FREE, call.owners(target), found)]


def filled(call: Call) -> list[Tensor]:
    """Those of the value; where the value is free, those of the tensor before."""
    value = call["value"]
    target = call["self"]
    if isinstance(value, Tensor):
        found = aligned(call.owners(value), target.ndim)
        return [torch.where(found == FREE, call.owners(target), found)]
    return [call.owners(target)]


def cut_off(call: Call) -> list[Tensor]:
    """Those of the input; the zeros must be at the same positions for all records."""
    tensor = call["self"]
    kept = torch.ones(tensor.shape[-2:], dtype=torch.bool, device="cpu")
    call.require_same_places(call.func(kept, call["diagonal"] or 0), call.owners(tensor))
    return [call.owners(tensor)]


def checked(call: Call) -> list[Tensor]:
    """There is no result."""
    del call
    return []


def drawn(call: Call) -> list[Tensor]:
    """Those of the distribution's parameters."""
    target = call["self"]
    others = [tensor for tensor in call.tensors() if tensor is not target]
    return [broadcast(call, others, target.ndim)]


RULES = (
    (copied, packets("copy_")),
    (cut_off, packets("tril triu")),
    (filled, packets("fill fill_ zero zero_")),
    (
        drawn,
        packets("normal_ uniform_ exponential_ random_ bernoulli_ log_normal_ geometric_ cauchy_"),
    ),
    (checked, packets("_assert_async _assert_tensor_metadata _assert_scalar")),
    (
        # Those that torch marks as pointwise need no mention.
        pointwise,
        packets(
            "_to_copy native_dropout bernoulli normal poisson softplus_backward "
            "hardtanh_backward log_sigmoid_forward log_sigmoid_backward prelu _prelu_kernel "
            "_prelu_kernel_backward rrelu_with_noise rrelu_with_noise_backward floor_divide "
            "mish_backward elu_backward complex polar leaky_relu_backward hardswish_backward "
            "hardsigmoid_backward special_erf _conj conj resolve_conj resolve_neg _neg_view "
            "isclose dropout hardshrink_backward softshrink_backward detach detach_ alias "
            "lift_fresh lift_fresh_copy isreal hardswish _masked_scale normal_functional "
            "special_xlogy _standard_gamma _standard_gamma_grad binomial contiguous "
            "log_normal _dirichlet_grad"
        ),
    ),
)
