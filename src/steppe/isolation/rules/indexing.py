"""Rules of indexing.

Indices that no record determines are known, so it is known which elements they select. Indices that
a record determines may select any element along their axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import FREE, MIXED, TYPE, join, joined_over, squeezed
from steppe.isolation.places import spread
from steppe.isolation.rules.arguments import aligned, of_all, outputs_of, owned_tensors, with_all_of


def joined_into(base: Tensor, places: Tensor, owners: Tensor) -> Tensor:
    """Owners joined to those at flat positions of a tensor; a position may occur several times."""
    flat, places = base.contiguous().flatten(), places.flatten()
    owners = owners.expand(places.shape) if owners.numel() == 1 else owners.flatten()
    highest = flat.scatter_reduce(0, places, owners, "amax", include_self=True)
    low = torch.where(flat == FREE, MIXED, flat)
    lowest = low.scatter_reduce(
        0, places, torch.where(owners == FREE, MIXED, owners), "amin", include_self=True
    )
    made = torch.where((highest == FREE) | (highest == lowest), highest, MIXED)
    return made.view(base.shape)


class _Numbers:
    """What advanced indices say: where they are known, and to whom they belong where not.

    Attributes:
        known: indices with zeros in place of those that records decide.
        unknown: the axes of the tensor that records pick from.
        owners: of the picked rows, by the numbers alone; None where no record decides.
        start: the axis of the result where the picked rows begin.
    """

    def __init__(self, call: Call, indices: Sequence[Any]) -> None:
        self.known: list[Any] = []
        self.unknown: list[int] = []
        parts: list[Tensor] = []
        taken: list[int] = []
        axis = 0
        for index in indices:
            if index is None:
                self.known.append(None)
                axis += 1
            elif index.dtype in (torch.bool, torch.uint8):
                for places in index.nonzero(as_tuple=True):  # free: the caller has seen to it
                    self.known.append(places)
                    taken.append(axis)
                    axis += 1
            else:
                taken.append(axis)
                if call.is_known(index):
                    self.known.append(index)
                else:
                    self.unknown.append(axis)
                    self.known.append(torch.zeros(index.shape, dtype=torch.long, device="cpu"))
                    parts.append(call.owners(index))
                axis += 1
        together = taken == list(range(taken[0], taken[0] + len(taken))) if taken else True
        self.start = taken[0] if taken and together else 0
        self.ndim = max((i.ndim for i in self.known if i is not None), default=0)
        self.owners = join([aligned(p, self.ndim) for p in parts]) if parts else None

    def over(self, axes: int) -> Tensor | None:
        """The owners of the indices, broadcast to all axes of the selected rows."""
        if self.owners is None:
            return None
        behind = axes - self.start - self.ndim
        return self.owners.reshape((1,) * self.start + tuple(self.owners.shape) + (1,) * behind)


def _known_on_cpu(values: list[Any]) -> list[Any]:
    return [None if value is None else value.to("cpu") for value in values]


def picked(call: Call) -> list[Tensor]:
    """Those of the selected elements and of the indices."""
    tensor, (out,) = call["self"], outputs_of(call)
    numbers = _Numbers(call, call["indices"])
    owners = joined_over(call.owners(tensor), numbers.unknown)
    shape = [1 if i in numbers.unknown else size for i, size in enumerate(tensor.shape)]
    made = torch.ops.aten.index(owners.expand(shape), _known_on_cpu(numbers.known))
    if (by_number := numbers.over(out.ndim)) is not None:
        made = join([made, by_number])
    made = squeezed(made)
    for axis, index in enumerate(_known_on_cpu(numbers.known)):
        if index is not None and axis not in numbers.unknown and made.numel() > 1:
            places = call.numbers_along(tensor, axis)[index]
            behind = out.ndim - numbers.start - numbers.ndim
            call.require_same_places(places.reshape(tuple(places.shape) + (1,) * behind), made)
    return [made]


def put(call: Call) -> list[Tensor]:
    """Those of the values and indices where something is written, and elsewhere those before."""
    tensor, values = call["self"], call["values"]
    masks = [i for i in call["indices"] if i is not None and i.dtype == torch.bool]
    if any(not call.is_known(mask) for mask in masks):
        return [_masked_put(call, tensor, call["indices"], values)]
    numbers = _Numbers(call, call["indices"])
    base = joined_over(call.owners(tensor), numbers.unknown)
    shape = [1 if i in numbers.unknown else size for i, size in enumerate(tensor.shape)]
    places = torch.arange(torch.Size(shape).numel(), device="cpu").view(shape)
    places = torch.ops.aten.index(places, _known_on_cpu(numbers.known))
    if call.is_free(values):
        there = torch.ops.aten.index(base.expand(shape), _known_on_cpu(numbers.known))
        call.require_same_for_all(values, squeezed(there))
    written = aligned(call.owners(values), places.ndim)
    if (by_number := numbers.over(places.ndim)) is not None:
        written = join([written, by_number])
    made = joined_into(base.expand(shape), places, written.expand(places.shape))
    there = torch.zeros(made.shape, dtype=torch.bool, device="cpu")
    there.view(-1)[places.flatten()] = True
    _require_same_writes(call, tensor, there, made)
    return [squeezed(made)]


def _require_same_writes(call: Call, tensor: Tensor, there: Tensor, made: Tensor) -> None:
    """Require that every record is written to at the same positions."""
    before = call.owners(tensor)
    call.require_same_places(squeezed(there), squeezed(torch.where(before == FREE, made, before)))


def _masked_put(call: Call, tensor: Tensor, indices: Sequence[Any], values: Tensor) -> Tensor:
    """`x[mask] = value`, if records determine the mask."""
    if len(indices) == 1 and values.numel() == 1:
        owners = call.owners(indices[0])
        mask = owners.reshape(tuple(owners.shape) + (1,) * (tensor.ndim - owners.ndim))
        value = call.owners(values).reshape((1,) * tensor.ndim)
        return join([call.owners(tensor), mask, value])
    parts = [of_all(call, i, tensor.ndim) for i in indices if i is not None]
    whole = of_all(call, values, tensor.ndim)
    return join([call.owners(tensor), whole, *parts])


def gathered(call: Call) -> list[Tensor]:
    """Those of the index and the element, or the whole axis if a record determines the index."""
    tensor, index = call["self"], call["index"]
    dim = call["dim"] % tensor.ndim if tensor.ndim else 0
    owners = call.owners(tensor)
    if call.is_known(index):
        made = squeezed(torch.gather(owners.expand(tensor.shape), dim, index.to("cpu")))
        if tensor.ndim and made.numel() > 1:
            call.require_same_places(call.numbers_along(tensor, dim)[index.to("cpu")], made)
        return [made]
    over = joined_over(owners, [dim])
    for axis, size in enumerate(index.shape):
        if over.shape[axis] > size:
            over = over.narrow(axis, 0, size)
    return [join([over, call.owners(index)])]


def selected(call: Call) -> list[Tensor]:
    """Those of the index and the row, or the whole axis if a record determines the index."""
    tensor, index = call["self"], call["index"]
    dim = call["dim"] % tensor.ndim
    owners = call.owners(tensor)
    if call.is_known(index):
        made = squeezed(torch.index_select(owners.expand(tensor.shape), dim, index.to("cpu")))
        places = call.numbers_along(tensor, dim)[index.to("cpu")]
        call.require_same_places(spread(places.flatten(), [dim], tensor.ndim), made)
        return [made]
    over = joined_over(owners, [dim])
    numbers = call.owners(index).reshape([-1 if i == dim else 1 for i in range(tensor.ndim)])
    return [join([over, numbers])]


def scattered(call: Call) -> list[Tensor]:
    """Those before, and those of all values and indices that may be written there."""
    tensor, index = call["self"], call["index"]
    source = call["src"] if call["src"] is not None else call["value"]
    dim = call["dim"] % tensor.ndim if tensor.ndim else 0
    parts = [call.owners(index)]
    if isinstance(source, Tensor):
        owners = aligned(call.owners(source), index.ndim)
        for axis, size in enumerate(index.shape):
            if owners.shape[axis] > size:
                owners = owners.narrow(axis, 0, size)
        parts.append(owners)
    written = joined_over(join(parts), [dim])
    if any(
        index.shape[i] != size and written.shape[i] > 1
        for i, size in enumerate(tensor.shape)
        if i != dim
    ):
        sizes = [1 if i == dim else size for i, size in enumerate(tensor.shape)]
        whole = torch.full(sizes, FREE, dtype=TYPE, device="cpu")
        place = tuple(slice(0, 1 if i == dim else index.shape[i]) for i in range(index.ndim))
        whole[place] = written
        written = whole
    made = join([call.owners(tensor), written])
    if call.is_settled(index) and tensor.ndim:
        there = torch.zeros(tensor.shape, dtype=torch.bool, device="cpu")
        _require_same_writes(call, tensor, there.scatter(dim, index.to("cpu"), True), made)
        if isinstance(source, Tensor) and call.is_free(source):
            moved = torch.zeros(tensor.shape, dtype=source.dtype, device="cpu")
            moved = moved.scatter(dim, index.to("cpu"), source.detach().to("cpu"))
            call.require_same_for_all(moved, made)
    return [made]


def added_along(call: Call) -> list[Tensor]:
    """Those before, and those of all values and indices along the axis."""
    tensor, index = call["self"], call["index"]
    source = call["source"] if call["source"] is not None else call["value"]
    dim = call["dim"] % tensor.ndim
    parts = [of_all(call, index, tensor.ndim)]
    if isinstance(source, Tensor):
        parts.append(joined_over(aligned(call.owners(source), tensor.ndim), [dim]))
    made = join([call.owners(tensor), *parts])
    if call.is_settled(index):
        there = torch.zeros(tensor.shape[dim], dtype=torch.bool, device="cpu")
        there[index.to("cpu").flatten()] = True
        _require_same_writes(call, tensor, spread(there, [dim], tensor.ndim), made)
        if isinstance(source, Tensor) and source.ndim and call.is_free(source):
            moved = torch.zeros(tensor.shape, dtype=source.dtype, device="cpu")
            moved = moved.index_copy(dim, index.to("cpu"), source.detach().to("cpu"))
            call.require_same_for_all(moved, made)
    return [made]


def in_order_of_mask(call: Call) -> list[Tensor]:
    """Those of the element, of the whole mask and of the whole source."""
    (out,) = outputs_of(call)
    return [with_all_of(call, aligned(call.owners(call["self"]), out.ndim), "mask", "source")]


def looked_up(call: Call) -> list[Tensor]:
    """Those of the index and of the table."""
    table, owners = call["weight"], call.owners(call["indices"]).unsqueeze(-1)
    rows = joined_over(call.owners(table), [0]).reshape(-1)
    return [join([owners, aligned(rows, owners.ndim)])]


def taken(call: Call) -> list[Tensor]:
    """Those of the whole tensor and of the index."""
    return [with_all_of(call, call.owners(call["index"]), "self")]


def into_table(call: Call) -> list[Tensor]:
    """Those of all lookups."""
    (out,) = outputs_of(call)
    parts = [of_all(call, t, 0) for t in owned_tensors(call)]
    return [join(parts).reshape((1,) * out.ndim)]


def bags(call: Call) -> list[Tensor]:
    """Those of the rows and indices of the bag; records must not determine where bags begin."""
    indices, offsets = call["indices"], call["offsets"]
    out, *others = outputs_of(call)
    whose = call.owners(indices).expand(indices.shape).flatten()
    weights = call["per_sample_weights"]
    if isinstance(weights, Tensor) and not call.is_free(weights):
        whose = join([whose, call.owners(weights).expand(weights.shape).flatten()])
    if not call.is_free(offsets):
        every = with_all_of(call, joined_over(whose, [0]), "offsets", "weight")
        return [every.reshape((1,) * part.ndim) for part in (out, *others)]
    starts = offsets.to("cpu")[: out.shape[0]]
    places = torch.arange(len(whose), device="cpu")
    bag = torch.searchsorted(starts, places, right=True) - 1
    free = torch.full((out.shape[0],), FREE, dtype=TYPE, device="cpu")
    rows = joined_into(free, bag, whose)
    rows = with_all_of(call, rows, "weight")
    found = [rows.unsqueeze(1)]
    every = joined_over(rows, [0])
    for part in others:
        if part.ndim == 2 and part.shape[0] == len(rows):
            found.append(rows.unsqueeze(1))
        elif part.ndim == 1 and part.shape[0] == len(whose):
            found.append(whose)
        else:
            found.append(every.reshape((1,) * part.ndim))
    return found


RULES = (
    (picked, packets("index _unsafe_index")),
    (put, packets("index_put _index_put_impl_ _unsafe_index_put")),
    (gathered, packets("gather")),
    (selected, packets("index_select")),
    (
        scattered,
        packets("scatter scatter_add scatter_reduce"),
    ),
    (
        added_along,
        packets("index_add index_copy index_fill index_reduce"),
    ),
    (in_order_of_mask, packets("masked_scatter")),
    (looked_up, packets("embedding")),
    (
        into_table,
        packets(
            "embedding_dense_backward _embedding_bag_dense_backward "
            "_embedding_bag_backward embedding_backward"
        ),
    ),
    (bags, packets("_embedding_bag _embedding_bag_forward_only")),
    (taken, packets("take")),
)
