"""Rules of operations that move elements: owners move with them.

Where possible, the operation itself is applied to the owners.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import (
    FREE,
    MIXED,
    TYPE,
    everywhere,
    joined_over,
    narrowed,
    squeezed,
    viewed,
)
from steppe.isolation.places import spread
from steppe.isolation.rules.arguments import aligned, axes_of, outputs_of, without


def viewed_as(call: Call) -> list[Tensor]:
    """Those of the same elements, in the new shape."""
    tensor, (out,) = call["self"], outputs_of(call)
    owners = call.owners(tensor)
    if tensor.element_size() != out.element_size():  # a view as another type
        return [joined_over(owners, range(tensor.ndim)).reshape((1,) * out.ndim)]
    made = viewed(owners, tuple(tensor.shape), tuple(out.shape))
    return [squeezed(made) if made.numel() > call.watch.records else made]


def expanded(call: Call) -> list[Tensor]:
    """Those of the input, repeated along axes of size 1."""
    (out,) = outputs_of(call)
    return [aligned(call.owners(call["self"]), out.ndim)]


def turned(call: Call) -> list[Tensor]:
    """Those of the input, with the axes in the new order."""
    return [_again(call, call.owners(call["self"]))]


def turned_in_place(call: Call) -> list[Tensor]:
    """Those of the tensor before, in its new shape."""
    tensor, given = call["self"], dict(call.given)
    owners = call.owners(tensor)
    dropped = owners.ndim - tensor.ndim
    if call.name != "squeeze":
        return [getattr(torch.ops.aten, call.name)(**{**given, "self": owners})]
    if dropped == 0:
        return [owners]
    asked = range(owners.ndim) if given.get("dim") is None else axes_of(given["dim"], owners.ndim)
    alike = [axis for axis in asked if owners.shape[axis] == 1]
    ways = [without(owners, axes) for axes in itertools.combinations(alike, dropped)]
    made = [
        whose
        for whose in ways
        if all(a in (1, b) for a, b in zip(whose.shape, tensor.shape, strict=True))
    ]
    same = made and all(torch.equal(whose, made[0]) for whose in made)
    return [made[0] if same else everywhere(tensor.ndim, MIXED)]


def moved(call: Call) -> list[Tensor]:
    """The same operation on the owners."""
    tensor = call["self"]
    made = _again(call, call.owners(tensor).expand(tensor.shape))
    if call.name.startswith("diagonal"):
        _require_same_diagonals(call, made)
    elif call.name not in ("select", "unbind"):
        _require_same_parts(call, made)
    return [narrowed(part) for part in ([made] if isinstance(made, Tensor) else made)]


def _require_same_diagonals(call: Call, made: Tensor) -> None:
    """Require that a diagonal takes the same elements of every record."""
    tensor, offset = call["self"], call["offset"] or 0
    first, second = (
        0 if call["dim1"] is None else call["dim1"],
        1 if call["dim2"] is None else call["dim2"],
    )
    along = torch.arange(made.shape[-1], device="cpu")
    for axis, start in ((first, max(0, -offset)), (second, max(0, offset))):
        call.require_same_places(
            call.numbers_along(tensor, axis % tensor.ndim)[along + start], made
        )


def _require_same_parts(call: Call, made: Any) -> None:
    """Require that a part has the same elements of every record."""
    tensor = call["self"]
    if not tensor.ndim or not tensor.numel():
        return
    axis = (0 if call["dimension"] is None else call["dimension"]) + (call["dim"] or 0)
    places = call.numbers_along(tensor, axis % tensor.ndim)
    if call.owners(tensor).shape[axis % tensor.ndim] == 1 or not bool(places.any()):
        return
    places = spread(places, [axis % tensor.ndim], tensor.ndim).expand(tensor.shape)
    parts, made = ([p] if isinstance(p, Tensor) else p for p in (_again(call, places), made))
    for part, owners in zip(parts, made, strict=True):
        call.require_same_places(squeezed(part), squeezed(owners))


def moved_about(call: Call) -> list[Tensor]:
    """The same operation on the owners, expanded to the full shape."""
    tensor = call["self"]
    made = _again(call, call.owners(tensor).expand(tensor.shape).contiguous())
    return [squeezed(part) for part in ([made] if isinstance(made, Tensor) else made)]


def padded(call: Call) -> list[Tensor]:
    """The same operation on the owners, as floating-point numbers, which torch requires."""
    tensor = call["self"]
    made = _again(call, call.owners(tensor).expand(tensor.shape).double())
    return [squeezed(made.to(TYPE))]


def among_zeros(call: Call) -> list[Tensor]:
    """Those of the elements, and none for the zeros around them."""
    name = "grad_output" if call["grad_output"] is not None else "self"
    tensor = call[name]
    whose = call.owners(tensor).expand(tensor.shape) - FREE  # 0 where it is free
    given = {**call.given, name: whose}
    if "value" in given:
        given["value"] = 0
    return [squeezed(call.func(**given) + FREE)]


def put_into(call: Call) -> list[Tensor]:
    """Those of the source where it is written, and elsewhere those of the tensor."""
    tensor, source = call["self"], call["src"]
    axes = range(tensor.ndim)
    across = [(call["dim"] or 0) % tensor.ndim] if tensor.ndim == source.ndim else axes
    for one, other in ((tensor, source), (source, tensor)):
        if call.is_free(one):
            whose = joined_over(call.owners(other), [axis for axis in across if axis < other.ndim])
            call.require_same_for_all(one, whose)
    places = {
        "self": call.owners(tensor).expand(tensor.shape),
        "src": call.owners(source).expand(source.shape),
    }
    made = squeezed(call.func(**{**call.given, **places}))
    there = {
        "self": torch.zeros(tensor.shape, dtype=torch.bool, device="cpu"),
        "src": torch.ones(source.shape, dtype=torch.bool, device="cpu"),
    }
    before = call.owners(tensor)
    call.require_same_places(
        squeezed(call.func(**{**call.given, **there})), torch.where(before == FREE, made, before)
    )
    return [made]


def joined_up(call: Call) -> list[Tensor]:
    """Those of the inputs, concatenated."""
    (out,) = outputs_of(call)
    dim = (call["dim"] or 0) % out.ndim
    parts = [part for part in call["tensors"] if part.ndim == out.ndim]
    whose = [call.owners(part) for part in parts]
    sizes = [max(one.shape[axis] for one in whose) for axis in range(out.ndim)]
    for part in parts:
        if call.is_free(part):
            for other, owners in zip(parts, whose, strict=True):
                if not call.is_free(other):
                    call.require_same_for_all(part, joined_over(owners, [dim]))
    written = []
    for part, owners in zip(parts, whose, strict=True):
        sizes[dim] = part.shape[dim]
        written.append(owners.expand(sizes))
    return [torch.cat(written, dim)]


def stacked(call: Call) -> list[Tensor]:
    """Those of the inputs, stacked."""
    (out,) = outputs_of(call)
    dim = (call["dim"] or 0) % out.ndim
    whose = [call.owners(part) for part in call["tensors"]]
    sizes = [max(one.shape[axis] for one in whose) for axis in range(out.ndim - 1)]
    for part in call["tensors"]:
        if call.is_free(part):
            for owners in whose:
                call.require_same_for_all(part, owners)
    return [torch.stack([owners.expand(sizes) for owners in whose], dim)]


def strided_anew(call: Call) -> list[Tensor]:
    """Those of the memory, read with the given strides."""
    tensor, (out,) = call["self"], outputs_of(call)
    memory = call.watch.memory(tensor)
    offset = out.storage_offset()
    made = squeezed(memory.as_strided(out.shape, out.stride(), offset))
    if made.numel() > 1 and tensor.numel():
        for axis in range(tensor.ndim):
            places = spread(call.numbers_along(tensor, axis), [axis], tensor.ndim)
            lie = torch.full(memory.shape, -1, device="cpu")
            lie.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(
                places.expand(tensor.shape)
            )
            there = lie.as_strided(out.shape, out.stride(), offset)
            call.require_same_places(squeezed(there), made)
    return [made]


def laid_anew(call: Call) -> list[Tensor]:
    """The same elements in the same places: only axes of size 1 get other strides."""
    tensor = call["self"]
    now = tensor.shape, tensor.stride(), tensor.storage_offset()
    sizes, strides, offset = call.place or now
    apart = [axis for axis, size in enumerate(sizes) if size > 1]
    same = sizes == now[0] and offset == now[2]
    if same and all(strides[axis] == now[1][axis] for axis in apart):
        return [call.owners(tensor)]
    return [everywhere(tensor.ndim, MIXED)]


def as_real(call: Call) -> list[Tensor]:
    """Those of the complex number, for both of its parts."""
    return [call.owners(call["self"]).unsqueeze(-1)]


def as_complex(call: Call) -> list[Tensor]:
    """Those of the real and the imaginary part together."""
    owners = call.owners(call["self"])
    last = owners.ndim - 1
    return [without(joined_over(owners, [last]), [last])]


def windows_back(call: Call) -> list[Tensor]:
    """Those of all windows along the axis."""
    owners = call.owners(call["grad_in"])
    dim, last = call["dim"] % (owners.ndim - 1), owners.ndim - 1
    return [without(joined_over(owners, [dim, last]), [last])]


def _again(call: Call, owners: Tensor) -> Any:
    return call.func(**{**call.given, "self": owners})


RULES = (
    (
        viewed_as,
        packets("view _unsafe_view reshape unsqueeze squeeze _reshape_alias"),
    ),
    (expanded, packets("expand")),
    (turned_in_place, packets("squeeze_ unsqueeze_ t_ transpose_ swapaxes_ swapdims_")),
    (turned, packets("permute transpose t movedim")),
    (
        moved,
        packets(
            "slice select split split_with_sizes unsafe_split unsafe_split_with_sizes chunk "
            "unsafe_chunk unbind narrow diagonal diagonal_copy unfold tensor_split"
        ),
    ),
    (
        moved_about,
        packets(
            "flip roll repeat rot90 pixel_shuffle pixel_unshuffle channel_shuffle "
            "native_channel_shuffle tile repeat_interleave diag"
        ),
    ),
    (
        padded,
        packets(
            "reflection_pad1d reflection_pad2d reflection_pad3d "
            "replication_pad1d replication_pad2d replication_pad3d"
        ),
    ),
    (
        among_zeros,
        packets("slice_backward select_backward diagonal_backward constant_pad_nd diag_embed"),
    ),
    (put_into, packets("slice_scatter select_scatter diagonal_scatter")),
    (joined_up, packets("cat")),
    (stacked, packets("stack")),
    (strided_anew, packets("as_strided")),
    (laid_anew, packets("as_strided_")),
    (as_real, packets("view_as_real")),
    (as_complex, packets("view_as_complex")),
    (windows_back, packets("unfold_backward")),
)
