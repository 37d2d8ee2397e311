"""State in Python, seeds, exceptions and code below vmap: one record must not reach the others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients.one_at_a_time.each_record import EachRecord

RECORDS = 4  # one by one, every one has a process of its own


class Tracker:
    """Lets losses through that are not much larger than those before."""

    def __init__(self) -> None:
        self.mean = 1.0

    def __call__(self, value: float) -> bool:
        fits = value < 20 * self.mean
        self.mean = 0.99 * self.mean + 0.01 * value
        return fits


class Slots(Tracker):
    __slots__ = ("mean",)


class Line(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor] = lambda h: h) -> None:
        super().__init__()
        self.a, self.b, self.change = nn.Linear(4, 4), nn.Linear(4, 1), change

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.change(self.a(x)).tanh()).squeeze(1)


def squares(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda data: (model(data[0]) - data[1]).square()


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.ones(RECORDS, 4), torch.tensor([0.1, 0.2, 60, 60])


def found_for(model: nn.Module, objective: Any) -> EachRecord:
    found = EachRecord(dict(model.named_parameters()), model)
    found.choose(objective, (torch.randn(2, 4), torch.randn(2)))
    return found


def rows_of(found: EachRecord, objective: Any, data: Any) -> Tensor:
    torch.manual_seed(0)
    slots = found.slots(objective, data, RECORDS)
    return torch.cat([slot.written_out().reshape(RECORDS, -1) for _, slot in slots], 1)


def moved(found: EachRecord, objective: Any, x: float = 1.0, y: float = 1e5) -> tuple[float, float]:
    """How far the others' rows move with record 1, and how far its own."""
    data = batch()
    before = rows_of(found, objective, data)
    data[0][1], data[1][1] = x, y
    far = (rows_of(found, objective, data) - before).abs().amax(1)
    return float(far[torch.arange(RECORDS) != 1].max()), float(far[1])


def tracked(model: nn.Module, tracker: Callable[[float], bool]) -> Callable[[Any], Tensor]:
    def objective(data: Any) -> Tensor:
        losses = squares(model)(data)
        return losses if tracker(float(losses.detach().mean())) else 0 * losses

    return objective


def failing(model: nn.Module) -> Callable[[Any], Tensor]:
    failed: list[int] = []

    def objective(data: Any) -> Tensor:
        try:
            torch.ones(3)[(data[1].abs() > 100).long() * 7]
        except IndexError:
            failed.append(1)
        return squares(model)(data) * (1 + len(failed))

    return objective


@pytest.mark.parametrize("make", [Tracker, Slots])
@pytest.mark.parametrize("inside", [False, True])
def test_an_object_that_tracks_losses(make: type[Tracker], inside: bool) -> None:
    model, tracker = Line(), make()
    if inside:
        model.tracker = tracker
    objective = tracked(model, tracker)
    found = found_for(model, objective)
    mean = tracker.mean
    assert found.way == "one by one"
    assert moved(found, objective)[0] == 0
    assert tracker.mean == mean


def test_errors_that_code_catches() -> None:
    """By vmap all records fail together; one by one only that record does."""
    model = Line()
    objective = failing(model)
    found = found_for(model, objective)
    assert found.way == "vmap"
    with pytest.raises(IsolationError, match="must not fail on a record"):
        moved(found, objective)
    found.way = "one by one"
    others, own = moved(found, objective)
    assert (others, own > 0) == (0, True)


def test_a_record_does_not_set_the_seed_of_the_next() -> None:
    def seeded(h: Tensor) -> Tensor:
        if float(h.detach().abs().max()) > 30:
            torch.manual_seed(7)
        return F.dropout(h)

    model = Line(seeded)
    found = found_for(model, squares(model))
    assert found.way == "one by one"
    others, own = moved(found, squares(model), x=1e3)
    assert (others, own > 0) == (0, True)
    same = (torch.ones(RECORDS, 4), torch.ones(RECORDS))
    assert len(rows_of(found, squares(model), same).unique(dim=0)) > 2


# --- what is handed the whole batch below vmap


def shrunk(h: Tensor) -> Tensor:
    scale = (h.detach().abs().amax() / 4).clamp(min=1)
    return torch.where(scale > 1, torch.round(h / scale) * scale, h)


class Emulate(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return shrunk(out) if func is torch.ops.aten.mul.Tensor else out


def emulated(h: Tensor) -> Tensor:
    with Emulate():
        return h * torch.ones(4)


class Own(torch.autograd.Function):
    """A function with a rule of its own for a whole batch."""

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g

    @staticmethod
    def vmap(info: Any, axes: Any, h: Tensor) -> Any:
        return shrunk(h), 0


class Around(Own):
    """One that torch runs over records, and that asks the other inside."""

    generate_vmap_rule = True
    vmap = torch.autograd.Function.vmap

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return Own.apply(h)


def hooked(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def body(h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(change)
        return h

    return body


def unseen(h: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return Own.apply(h)


def quietly(h: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return h * 2


BELOW = {
    "mode": (emulated, "mode=Emulate"),
    "mode in a hook": (hooked(emulated), "mode=Emulate"),
    "function": (Own.apply, "the whole batch"),
    "function in a hook": (hooked(Own.apply), "the whole batch"),
    "function in a function": (Around.apply, "the whole batch"),
    "function without the watch": (unseen, "the whole batch"),
    "without the watch": (quietly, "DisableTorchFunction"),
    "resized in a hook": (hooked(lambda g: g + g.clone().resize_(1, 8)[:, :4]), "resize"),
}


@pytest.mark.parametrize("name", BELOW)
def test_code_below_vmap_goes_one_by_one(name: str) -> None:
    change, said = BELOW[name]
    model = Line(change)
    found = found_for(model, squares(model))
    assert found.way == "one by one"
    assert said in found.why
    if "resized" not in name:  # reads what lies behind its memory
        assert moved(found, squares(model), x=1e3)[0] == 0


def test_code_below_vmap_is_refused_in_a_later_step() -> None:
    model = Line()
    found = found_for(model, squares(model))
    assert found.way == "vmap"
    model.change = emulated
    with pytest.raises(UnsupportedModelError, match="mode=Emulate"):
        found.slots(squares(model), batch(), RECORDS)
    model.change = lambda h: h
    assert moved(found, squares(model))[0] < 1e-4  # and all is as it was


@pytest.mark.filterwarnings("ignore:Warning only once")
def test_an_exchanged_kernel_goes_one_by_one() -> None:
    model = Line()
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("erfinv", shrunk, "CPU")
        assert "kernel=erfinv" in found_for(model, squares(model)).why
    finally:
        library._destroy()
    assert found_for(model, squares(model)).way == "vmap"


@pytest.mark.parametrize("kind", [TorchDispatchMode, TorchFunctionMode])
def test_modes_around_a_step_are_refused(kind: Any) -> None:
    model = Line()
    found = found_for(model, squares(model))
    data = batch()
    with kind(), pytest.raises(UnsupportedModelError, match=f"mode={kind.__name__} around"):
        found.slots(squares(model), data, RECORDS)


# --- how many passes there were

COUNT = itertools.count()


def generated() -> Iterator[int]:
    yield from range(10**9)


def counters() -> dict[str, Callable[[], int]]:
    own, numbers, made, held = itertools.count(), [0], generated(), iter(range(10**9))

    def listed() -> int:
        numbers.append(0)
        return len(numbers)

    def attribute() -> int:
        attribute.n = getattr(attribute, "n", 0) + 1  # type: ignore[attr-defined]
        return int(attribute.n)  # type: ignore[attr-defined]

    return {
        "closure": lambda: next(own),
        "global": lambda: next(COUNT),
        "list": listed,
        "generator": lambda: next(made),
        "iterator": lambda: next(held),
        "attribute": attribute,
    }


@pytest.mark.parametrize("name", counters())
def test_a_counter_of_passes_does_not_count(name: str) -> None:
    model, count = Line(), counters()[name]
    objective = lambda data: squares(model)(data) / (1 + count() // 50)  # noqa: E731
    found = found_for(model, objective)
    assert found.way == "one by one"
    assert found.why.startswith("kept=")


# --- where there are no processes


def test_without_processes_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Line()
    monkeypatch.setattr("steppe.gradients.one_at_a_time.each_record.HERE", False)
    assert found_for(model, squares(model)).way == "vmap"
    with pytest.raises(UnsupportedModelError, match="system=without fork"):
        found_for(model, tracked(model, Tracker()))


def test_shared_memory_is_refused() -> None:
    model = Line().share_memory()
    with pytest.raises(UnsupportedModelError, match="shared between processes"):
        found_for(model, tracked(model, Tracker()))


def test_a_process_that_ends_is_named() -> None:
    import os

    model = Line()
    with pytest.raises(UnsupportedModelError, match="ended with code 3"):
        found_for(model, lambda data: os._exit(3))
