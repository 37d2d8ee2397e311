"""Rules of matrix products and convolutions."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import join, joined_over
from steppe.isolation.rules.arguments import aligned, of_all, outputs_of, with_all_of, without


def multiplied(call: Call, left: Tensor, right: Tensor) -> Tensor:
    """The owners of `left @ right`, both with two axes or more and as many."""
    rows = joined_over(call.owners(left), [left.ndim - 1])
    columns = joined_over(call.owners(right), [right.ndim - 2])
    for one, other in ((left, columns), (right, rows)):
        if call.is_free(one) and one.ndim > 2:
            call.require_same_for_all(one, joined_over(other, [one.ndim - 2, one.ndim - 1]))
    return join([rows, columns])


def product(call: Call) -> list[Tensor]:
    """Those of a row of the first and a column of the second matrix."""
    return [multiplied(call, call["self"], call["mat2"])]


def product_plus(call: Call) -> list[Tensor]:
    """As for the product, and those of the added matrix."""
    names = ("mat1", "mat2") if call["mat1"] is not None else ("batch1", "batch2")
    made = multiplied(call, *[call[name] for name in names])
    added = call["self"]
    if call.is_free(added):
        call.require_same_for_all(added, made)
        return [made]
    return [join([made, aligned(call.owners(added), made.ndim)])]


def by_vector(call: Call) -> list[Tensor]:
    """Those of a row of the matrix and of the vector, and of the added vector."""
    matrix = call["mat"] if call["mat"] is not None else call["self"]
    vector = call["vec"]
    over = without(joined_over(call.owners(matrix), [1]), [1])
    whole = joined_over(call.owners(vector), [0])
    parts = [over, whole]
    if call["mat"] is not None:
        parts.append(aligned(call.owners(call["self"]), 1))
    return [join(parts)]


def convolution(call: Call) -> list[Tensor]:
    """Those of the whole row of the input, or of its group of channels."""
    x = call["input"] if call["input"] is not None else call["self"]
    weight, bias = call["weight"], call["bias"]
    (out,) = outputs_of(call)
    groups = call["groups"] or 1
    parts = [_by_group(call.owners(x), 1, groups, out.shape[1])]
    if isinstance(weight, Tensor) and not call.is_free(weight):
        owners = call.owners(weight)
        if call["transposed"] and groups > 1:  # the first axis holds the groups
            rows = joined_over(owners, range(1, owners.ndim))
            owners = _by_group(rows, 0, groups, out.shape[1])
        else:
            channel = 1 if call["transposed"] else 0
            owners = joined_over(owners, [i for i in range(owners.ndim) if i != channel])
        parts.append(owners.reshape((1, -1) + (1,) * (out.ndim - 2)))
    if isinstance(bias, Tensor) and not call.is_free(bias):
        parts.append(call.owners(bias).reshape((1, -1) + (1,) * (out.ndim - 2)))
    return [join(parts)]


def _by_group(owners: Tensor, axis: int, groups: int, outputs: int) -> Tensor:
    """Joined over all but the rows, or over each group of channels where records lie in those."""
    behind = range(axis + 1, owners.ndim)
    over = joined_over(owners, behind)
    if groups == 1 or over.shape[axis] == 1:
        return joined_over(over, [axis])
    split = over.unflatten(axis, (groups, -1))
    split = joined_over(split, [axis + 1]).squeeze(axis + 1)
    return split.repeat_interleave(outputs // groups, axis)


def convolution_back(call: Call) -> list[Tensor]:
    """Of an input: those of its row. Of a weight or bias: those of all rows."""
    grad, x, weight = call["grad_output"], call["input"], call["weight"]
    groups = call["groups"] or 1
    whole = of_all(call, weight, x.ndim)
    rows = join([_by_group(call.owners(grad), 1, groups, x.shape[1]), whole])
    if groups > 1 and not call.is_free(weight) and not call["transposed"]:
        own = joined_over(call.owners(weight), range(1, weight.ndim))
        own = _by_group(own, 0, groups, x.shape[1]).reshape((1, -1) + (1,) * (x.ndim - 2))
        rows = join([_by_group(call.owners(grad), 1, groups, x.shape[1]), own])
    every = join([of_all(call, t, 0) for t in (grad, x, weight)])
    weights = every.reshape((1,) * weight.ndim)
    if groups > 1 and not call["transposed"]:
        # A filter of a group meets that group alone.
        both = [_by_group(call.owners(t), 1, groups, weight.shape[0]) for t in (grad, x)]
        weights = joined_over(join(both), [0]).reshape((-1,) + (1,) * (weight.ndim - 1))
    made = (rows, weights, every.reshape(1))
    mask = call["output_mask"]
    return [owners for wanted, owners in zip(mask, made, strict=True) if wanted]


def of_three(call: Call) -> list[Tensor]:
    """Those of all three inputs, over the axes that are summed."""
    parts = []
    for number in "123":
        tensor = call[f"i{number}"]
        owners = call.owners(tensor)
        for axis in sorted(call[f"expand{number}"]):
            owners = owners.unsqueeze(axis)
        parts.append(owners)
    axes = call["sumdim"]
    return [without(joined_over(join(parts), axes), axes)]


def distances(call: Call) -> list[Tensor]:
    """Those of a row of each input."""
    one, other = call["x1"], call["x2"]
    ndim = outputs_of(call)[0].ndim
    rows = aligned(joined_over(call.owners(one), [one.ndim - 1]), ndim)
    columns = joined_over(call.owners(other), [other.ndim - 1]).transpose(-1, -2)
    return [join([rows, aligned(columns, ndim)])]


def distances_back(call: Call) -> list[Tensor]:
    """Those of the row, and of all rows of the other input."""
    grad, one, other, found = (call[name] for name in ("grad", "x1", "x2", "cdist"))
    ndim = outputs_of(call)[0].ndim
    rows = [joined_over(call.owners(t), [t.ndim - 1]) for t in (grad, one, found)]
    whole = joined_over(call.owners(other), [other.ndim - 2, other.ndim - 1])
    return [join([aligned(part, ndim) for part in (*rows, whole)])]


def applied(call: Call) -> list[Tensor]:
    """Those of the whole row of the input, and of the weights."""
    x = call["input"] if call["input"] is not None else call["self"]
    rows = joined_over(call.owners(x), [x.ndim - 1])
    return [with_all_of(call, rows, "weight", "bias")]


RULES = (
    (product, packets("mm bmm")),
    (product_plus, packets("addmm baddbmm")),
    (by_vector, packets("mv addmv")),
    (convolution, packets("convolution _convolution mkldnn_convolution cudnn_convolution")),
    (convolution_back, packets("convolution_backward")),
    (of_three, packets("_trilinear")),
    (distances, packets("_cdist_forward _euclidean_dist")),
    (distances_back, packets("_cdist_backward")),
    (applied, packets("linear mkldnn_linear")),
)
