"""User code in which constants that lie beside records, or in their memory, tell how many there are
or which place each has."""

from __future__ import annotations

from collections.abc import Callable

import torch
from isolation_case import Mixing, without
from isolation_networks import between, using
from torch import Tensor
from torch.nn import functional as F


def ones_beside(h: Tensor) -> Tensor:
    """A column of ones, as for a bias, whose sum is the number of records."""
    return h * torch.cat([h, h.new_ones(len(h), 1)], 1)[:, -1].sum()


def ones_padded(h: Tensor) -> Tensor:
    """The same by padding."""
    return h * F.pad(h, (0, 1), value=1.0)[:, -1].sum()


def ones_below(h: Tensor) -> Tensor:
    """A row of ones for each record."""
    return h * torch.cat([h, h.new_ones(len(h), 6)])[len(h) :].sum()


def ones_stacked(h: Tensor) -> Tensor:
    """Ones on an axis of their own."""
    return h * torch.stack([h, h.new_ones(len(h), 6)])[1].sum()


def ones_written(h: Tensor) -> Tensor:
    """Ones in place of a column."""
    z = h.clone()
    z[:, 0] = 1.0
    return h * z[:, 0].sum()


def filled_with_ones(h: Tensor) -> Tensor:
    """Ones in place of everything."""
    return h * h.detach().clone().fill_(1.0).mean(1).sum()


def zeros_and_one(h: Tensor) -> Tensor:
    """Zeros in place of everything, plus one."""
    return h * (h.detach().clone().zero_() + 1).mean(1).sum()


def written_into_ones(h: Tensor) -> Tensor:
    """Records in the memory of ones."""
    z = h.new_ones(len(h), 7)
    z[:, 1:] = h
    return h * z[:, 0].sum()


def weights_padded(h: Tensor) -> Tensor:
    """A softmax of ones over the records."""
    return h * F.pad(h, (0, 1), value=1.0)[:, -1:].softmax(0)


def moments(h: Tensor) -> Tensor:
    """The last entry of the second moments is the number of records."""
    z = F.pad(h, (0, 1), value=1.0)
    return h * (z.t() @ z)[6, 6]


def beside_the_mean(h: Tensor) -> Tensor:
    """Ones beside what nobody uses, the mean."""
    mean = h.mean(0, keepdim=True).expand(len(h), 6)
    return h * torch.cat([mean, h.new_ones(len(h), 1)], 1)[:, -1].sum()


def ranks_padded(h: Tensor) -> Tensor:
    """The first to the last, by adding ones up."""
    return h / F.pad(h, (0, 1), value=1.0)[:, -1:].cumsum(0)


def places_in_memory(h: Tensor) -> Tensor:
    """Records in the memory of their places."""
    z = torch.arange(len(h), dtype=h.dtype)[:, None].repeat(1, 2)
    z[:, 0] = h[:, 0]
    return h * z[:, 1:]


def share_in_memory(h: Tensor) -> Tensor:
    """Records in the memory of one divided by their number."""
    z = torch.full((len(h), 2), 1 / len(h), dtype=h.dtype)
    z[:, 0] = h[:, 0]
    return h * z[:, 1:]


def every_121st(h: Tensor) -> Tensor:
    """Of all numbers in a line, one of each record, from another feature each."""
    return h + h.detach().repeat(1, 20).view(-1)[::121][:, None]


def windows_that_wander(h: Tensor) -> Tensor:
    """Windows over all numbers in a line, each a little further on in its record."""
    return h + h.detach().repeat(1, 20).view(-1).unfold(0, 6, 121)


def type_by_number(h: Tensor) -> Tensor:
    """Small integers overflow."""
    kind = torch.int8 if len(h) > 5 else torch.int16
    return h * (h.detach() * 1000).to(kind).to(h.dtype)


def limit_by_number(h: Tensor) -> Tensor:
    """Not a number is no limit, and no other number either."""
    return h.clamp(max=float("nan") if len(h) == 3 else 0.01 * len(h)).nan_to_num(1.0)


def last_digits(h: Tensor) -> Tensor:
    """The number of records far behind the point, made large again."""
    wide = h.double()
    return ((wide * (1 + len(h) * 1e-6) - wide) * 1e6).to(h.dtype)


def last_digits_of_places(h: Tensor) -> Tensor:
    """The same with places."""
    wide = h.double()
    places = 1 + 1e-6 * torch.arange(len(h), dtype=torch.double)[:, None]
    return ((wide * places - wide) * 1e6).to(h.dtype)


def _case(
    name: str, kind: str, change: Callable[[Tensor], Tensor], says: str, which: int = 0
) -> Mixing:
    return Mixing(name, kind, using(between(change)), says=says, showing=without(which))


CASES = (
    _case("ones beside", "count", ones_beside, "aten.sum .* mixes"),
    _case("ones padded", "count", ones_padded, "aten.sum .* mixes"),
    _case("ones below", "count", ones_below, "aten.sum .* mixes"),
    _case("ones stacked", "count", ones_stacked, "aten.sum .* mixes"),
    _case("ones written", "count", ones_written, "aten.sum .* mixes"),
    _case("filled with ones", "count", filled_with_ones, "aten.sum .* mixes"),
    _case("zeros and one", "count", zeros_and_one, "aten.sum .* mixes"),
    _case("written into ones", "count", written_into_ones, "aten.sum .* mixes"),
    _case("weights padded", "count", weights_padded, "softmax .* mixes"),
    _case("moments", "count", moments, "aten.mm .* mixes"),
    _case("ones beside the mean", "count", beside_the_mean, "aten.mean.* mixes"),
    _case("ranks padded", "forward", ranks_padded, "aten.cumsum .* mixes"),
    _case("places in memory", "forward", places_in_memory, "aten.copy_.*place"),
    _case("share in memory", "count", share_in_memory, "number of records=decides a constant"),
    _case("every 121st", "forward", every_121st, "aten.slice.*place"),
    _case("windows that wander", "forward", windows_that_wander, "aten.unfold.*place"),
    _case("type by number", "count", type_by_number, "number of records=decides"),
    _case("limit by number", "count", limit_by_number, "a number in clamp"),
    _case("last digits", "count", last_digits, "a number in mul"),
    _case("last digits of places", "forward", last_digits_of_places, "aten.mul.*place"),
)
