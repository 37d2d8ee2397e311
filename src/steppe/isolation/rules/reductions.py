"""Rules of reductions, such as sums and maxima."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import join, joined_over
from steppe.isolation.rules.arguments import axes_of, of_all, outputs_of, owned_tensors, without
from steppe.isolation.rules.pointwise import pointwise


def reduced(call: Call) -> list[Tensor]:
    """Those of all elements along `dim`, by default along all axes."""
    tensor = call["self"]
    if call["other"] is not None:  # the larger of two tensors
        return pointwise(call)
    owners = call.owners(tensor)
    dim = call["dim"]
    if dim is None and call.name in ("mode", "kthvalue"):
        dim = -1
    axes = axes_of(dim, tensor.ndim)
    over = joined_over(owners, axes)
    return [over if out.ndim == tensor.ndim else without(over, axes) for out in outputs_of(call)]


def matched(call: Call) -> list[Tensor]:
    """Those of both vectors."""
    whole = [of_all(call, t, 0) for t in owned_tensors(call)]
    return [join(whole)]


RULES = (
    (
        reduced,
        packets(
            "sum mean amax amin prod any all argmax argmin var std var_mean std_mean logsumexp "
            "linalg_vector_norm norm nansum max min median nanmedian mode kthvalue count_nonzero "
            "aminmax _aminmax trace"
        ),
    ),
    (matched, packets("dot vdot")),
)
