"""Records one at a time: what mixes in a batch cannot, and nothing is carried over unnoticed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from global_generators import states
from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum, record_gradients
from steppe.errors import IsolationError, MisuseError, UnsupportedModelError
from steppe.gradients import objective_of
from steppe.gradients.one_at_a_time import by_vmap
from steppe.gradients.one_at_a_time.each_record import EachRecord
from steppe.gradients.record_gradients import WeightSlots
from steppe.utils.batches import count, each, rows
from steppe.utils.module_modes import without_dropout

RECORDS = 3  # one by one, every one has a process of its own
Body = Callable[[nn.Module, Tensor], Tensor]


class Net(nn.Module):
    """Two layers with somebody's code between them."""

    def __init__(self, body: Body = lambda self, h: h) -> None:
        super().__init__()
        self.a, self.b, self.body, self.on = nn.Linear(4, 5), nn.Linear(5, 1), body, True

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).tanh()
        return self.b(self.body(self, h) if self.on else h).squeeze(1)


def batch(records: int = RECORDS) -> tuple[Tensor, Tensor]:
    return torch.randn(records, 4), torch.randn(records)


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def chosen(model: nn.Module, objective: Any, example: Any) -> EachRecord:
    found = EachRecord(trained(model), model)
    before = states()
    assert found.choose(objective, example) == found.way
    assert states() == before
    return found


def squares(model: nn.Module) -> Callable[[Any], Tensor]:
    return objective_of(model, F.mse_loss)


def rows_of(found: EachRecord, objective: Any, data: Any) -> Tensor:
    """Every record's gradient, by way of the slots."""
    return written_out(found, found.slots(objective, data, count(data)), count(data))


def written_out(found: EachRecord, some: WeightSlots, records: int) -> Tensor:
    slots = {id(p): slot for p, slot in some}
    return torch.cat(
        [
            slots[id(p)].written_out().reshape(records, -1)
            if id(p) in slots
            else torch.zeros(records, p.numel(), dtype=p.dtype)
            for p in found._parameters.values()
        ],
        1,
    )


# --- what a batch mixes


def hooked(change: Callable[[Tensor], Tensor]) -> Body:
    def body(self: nn.Module, h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(change)
        return h

    return body


def guarded(g: Tensor) -> Tensor:
    return g if torch.isfinite(g).all() else torch.zeros_like(g)


def shortened(g: Tensor) -> Tensor:
    return g * torch.clamp(1e6 / g.norm(), max=1.0)


def hooked_module() -> Net:
    model = Net(lambda self, h: self.c(h))
    model.c = nn.Tanh()
    model.c.register_full_backward_hook(lambda module, into, out: tuple(map(guarded, into)))
    return model


class Guard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return guarded(g)


class Shorten(torch.autograd.Function):
    """One that torch can run over records, and that then sees one of them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(h: Tensor) -> Tensor:
        return h.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return shortened(g)


class Whole(Shorten):
    """One that says itself what it does with a whole batch."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, axes: Any, h: Tensor) -> Any:
        return Whole.apply(h - h.mean(0)), axes[0]


def hardest(model: nn.Module) -> Callable[[Any], Tensor]:
    def objective(data: Any) -> Tensor:
        losses = F.mse_loss(model(data[0]), data[1], reduction="none")
        return torch.where(losses.max() > 3, losses * (losses >= losses.max()), losses)

    return objective


@torch.library.custom_op("steppe_tests::size", mutates_args=())
def size(h: Tensor) -> Tensor:
    return h.abs().amax(-1, keepdim=True)


@size.register_vmap
def _(info: Any, axes: Any, h: Tensor) -> tuple[Tensor, int]:
    return h.abs().amax() + size(h), axes[0]


class Tokens(nn.Module):
    """A language model that divides by the number of tokens in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(7, 4)
        self.o = nn.Linear(4, 7, bias=False)
        self.o.weight = self.e.weight

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.o(self.e(ids).tanh()).transpose(1, 2)
        return F.cross_entropy(logits, labels, reduction="none").sum(1) / (labels >= 0).sum()


def tokens(records: int = RECORDS) -> dict[str, Tensor]:
    ids = torch.randint(7, (records, 5))
    length = torch.randint(1, 6, (records, 1))
    return {"ids": ids, "labels": ids.where(torch.arange(5) < length, -100)}


def branch(self: nn.Module, h: Tensor) -> Tensor:
    return h * 2 if float(h.detach().max()) > 0.5 else h


def written(self: nn.Module, h: Tensor) -> Tensor:
    parts = torch.zeros(len(h), 5)
    parts[:, :2] = h[:, :2]
    return parts - h.mean(0)


MIXES: dict[str, tuple[Callable[[], nn.Module], Any, Callable[..., Any], str]] = {
    "hook that guards": (lambda: Net(hooked(guarded)), squares, batch, "one by one"),
    "hook that shortens": (lambda: Net(hooked(shortened)), squares, batch, "vmap"),
    "hook of a module": (hooked_module, squares, batch, "one by one"),
    "function": (lambda: Net(lambda self, h: Guard.apply(h)), squares, batch, "one by one"),
    "function for vmap": (lambda: Net(lambda self, h: Shorten.apply(h)), squares, batch, "vmap"),
    "function over batches": (
        lambda: Net(lambda self, h: Whole.apply(h - h.mean(0) * 0.5)),
        squares,
        batch,
        "one by one",
    ),
    "operation over batches": (
        lambda: Net(lambda self, h: h / size(h.detach()).amax()),
        squares,
        batch,
        "one by one",
    ),
    "hardest examples": (Net, hardest, batch, "vmap"),
    "centred": (lambda: Net(lambda self, h: h - 0.5 * h.mean(0)), squares, batch, "vmap"),
    "branch": (lambda: Net(branch), squares, batch, "one by one"),
    "written in place": (lambda: Net(written), squares, batch, "one by one"),
    "mean over tokens": (Tokens, lambda model: lambda data: model(**data), tokens, "vmap"),
    "one loss for all": (
        Tokens,
        lambda model: lambda data: model(**data).sum(),
        tokens,
        "vmap",
    ),
}
LOUD = (float("inf"), float("nan"), 3e38)


def louder(data: Any, value: float) -> Any:
    """The same records, but for the first: its target, or all of its tokens count."""
    data = each(torch.clone, data)
    if isinstance(data, dict):
        data["labels"][0] = data["ids"][0]
    else:
        data[1][0] = value
        data[0][0] *= 30
    return data


def mixing(name: str) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(3)
    make, objective_for, data, _ = MIXES[name]
    model = make()
    return model, objective_for(model), data


@pytest.mark.parametrize("name", MIXES)
def test_what_mixes_in_a_batch_sees_one_record(name: str) -> None:
    """Its gradient is its own, and one record moves the clipped sum by no more than its bound."""
    model, objective, data = mixing(name)
    found = chosen(model, objective, data(2))
    assert found.way == MIXES[name][3]
    assert bool(found.why) == (found.way == "one by one")
    assert ("the whole batch" in found.why) == name.endswith("over batches")
    engine = ClippedSum(trained(model), objective, Flat(0.01))

    def answered(some: Any) -> tuple[Tensor, Tensor]:
        slots, records = found.slots(objective, some, count(some)), count(some)
        gradients, out = written_out(found, slots, records), torch.zeros(engine.width)
        engine.add_slots_(out, slots, records)
        return gradients, out

    base = data()
    without, total = answered(rows(base, slice(1, None)))
    assert float(total.norm()) > 0.003
    for value in (0.3, *LOUD):
        now = louder(base, value)
        wanted = record_gradients(objective, list(trained(model).values()), now)
        gradients, moved = answered(now)
        torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-6, equal_nan=True)
        torch.testing.assert_close(gradients[1:], without, rtol=1e-6, atol=1e-6)
        assert float((moved - total).norm()) <= 0.01 * (1 + 1e-4)


@pytest.mark.parametrize("name", MIXES)
def test_the_engine_mixes_or_refuses_them(name: str) -> None:
    """Otherwise the cases above would show nothing."""
    model, objective, data = mixing(name)
    engine = ClippedSum(trained(model), objective, Flat())
    base, found = data(8), []
    try:
        for value in LOUD:
            now = louder(base, value)
            wanted = record_gradients(objective, list(trained(model).values()), now)
            slots = {id(p): s.written_out() for p, s in engine.slots(now)}
            parts = [slots[id(p)].reshape(8, -1) for p in engine.parameters.values()]
            found.append(torch.allclose(torch.cat(parts, 1)[1:], wanted[1:], rtol=0.01, atol=1e-5))
    except (RuntimeError, UnsupportedModelError):
        return
    assert not all(found)


# --- ordinary models


class Through(nn.Module):
    """A layer that is called in its own way."""

    def __init__(self, layer: nn.Module, call: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)


def last(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0][:, -1]


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 7))
    model[3].weight = model[0].weight
    return model


def attended(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x, x, need_weights=False)[0].mean(1)


def vectors() -> Tensor:
    return torch.randn(RECORDS, 4)


def sequences() -> Tensor:
    return torch.randn(RECORDS, 3, 4)


def images() -> Tensor:
    return torch.randn(RECORDS, 3, 6, 6)


def words() -> Tensor:
    return torch.randint(7, (RECORDS, 3))


def picture_model() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Conv2d(8, 7, 1, groups=1), nn.Flatten())


def standing() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 7, 6), nn.BatchNorm2d(7), nn.Flatten()).eval()


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 7), nn.Dropout(0.4))
    model[0].weight.requires_grad_(False)
    return model


def normed() -> nn.Module:
    first = parametrizations.weight_norm(nn.Linear(4, 5))
    return nn.Sequential(first, nn.Tanh(), parametrizations.orthogonal(nn.Linear(5, 7)))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], str]] = {
    "perceptron": (frozen, vectors, "vmap"),
    "convolutions": (picture_model, images, "vmap"),
    "LSTM": (lambda: Through(nn.LSTM(4, 7, batch_first=True), last), sequences, "vmap"),
    "GRU": (lambda: Through(nn.GRU(4, 7, batch_first=True), last), sequences, "one by one"),
    "attention": (
        lambda: nn.Sequential(
            Through(nn.MultiheadAttention(4, 2, batch_first=True), attended), nn.Linear(4, 7)
        ),
        sequences,
        "vmap",
    ),
    "encoder": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True),
            nn.Flatten(),
            nn.Linear(12, 7),
        ),
        sequences,
        "vmap",
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.LayerNorm(12), nn.Linear(12, 7)),
        words,
        "vmap",
    ),
    "tied weights": (tied, words, "vmap"),
    "parametrised": (normed, vectors, "vmap"),
    "statistics in eval mode": (standing, images, "vmap"),
}


def layers(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(4)
    make, inputs, _ = LAYERS[name]
    model, x = make(), inputs()
    if dtype != torch.float32:  # orthogonal weights cannot be moved to half precision
        model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    return model, objective_of(model, F.cross_entropy), (x, torch.randint(7, (RECORDS,)))


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_ordinary_layers(name: str) -> None:
    """By the way that is chosen, and one by one, where a process has met no other record."""
    model, objective, data = layers(name)
    found = chosen(model, objective, rows(data, slice(0, 2)))
    assert found.way == LAYERS[name][2], found.why
    kept = [i for i in range(RECORDS) if i != 2]
    with without_dropout(model):
        wanted = record_gradients(objective, list(trained(model).values()), data)
        for way in dict.fromkeys((found.way, "one by one")):
            found.way = way
            gradients = rows_of(found, objective, data)
            torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-6)
            if not data[0].is_floating_point():
                continue
            for value in LOUD if way == "vmap" else LOUD[1:2]:
                loud = each(torch.clone, data)
                loud[0][2] = value
                now = rows_of(found, objective, loud)
                torch.testing.assert_close(now[kept], gradients[kept], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["perceptron", "GRU"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_and_the_pull_of_weights(name: str, dtype: torch.dtype) -> None:
    model, objective, data = layers(name, dtype)
    found = chosen(model, objective, rows(data, slice(0, 2)))
    engine = ClippedSum(trained(model), objective, Flat(0.1), l2=0.05)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    out = torch.zeros(engine.width, dtype=wide)
    with without_dropout(model), torch.no_grad():
        engine.add_slots_(out, found.slots(objective, data, RECORDS), RECORDS)
    with without_dropout(model):
        wanted = clipped_sum(objective, trained(model), data, Flat(0.1), 0.05)
    close = 1e-9 if dtype == torch.float64 else 0.02
    torch.testing.assert_close(out, wanted, rtol=close, atol=close * float(wanted.abs().max()))


@pytest.mark.parametrize("way", ["vmap", "one by one"])
def test_weights_without_gradients_are_left_out(way: str) -> None:
    model = Net(lambda self, h: h + self.held.detach())
    model.held, model.idle = nn.Parameter(torch.ones(5)), nn.Linear(2, 2)
    model.all = nn.Linear(1, 1)

    def objective(data: Any) -> Tensor:  # the same gradient for every record
        return squares(model)(data) + model.all.weight.sum()

    found = chosen(model, objective, batch(2))
    assert found.way == "vmap"
    found.way = way
    names = {id(p): name for name, p in model.named_parameters()}
    used = [names[id(p)] for p, _ in found.slots(objective, batch(), RECORDS)]
    assert used == ["a.weight", "a.bias", "b.weight", "b.bias", "all.weight"]


def test_sparse_gradients() -> None:
    torch.manual_seed(6)
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Flatten(), nn.Linear(12, 7))
    objective, data = objective_of(model, F.cross_entropy), (words(), torch.arange(RECORDS))
    found = chosen(model, objective, data)
    assert found.way == "one by one"
    gradients = rows_of(found, objective, data)
    model[0].sparse = False
    wanted = record_gradients(objective, list(trained(model).values()), data)
    torch.testing.assert_close(gradients, wanted)


def test_hooks_of_weights_see_every_record() -> None:
    model = Net()
    model.a.weight.register_hook(shortened)
    found = chosen(model, squares(model), batch(2))
    assert found.way == "one by one"
    assert "hooks" in found.why


def test_random_numbers_differ_from_record_to_record() -> None:
    model = nn.Sequential(nn.Linear(4, 30), nn.Dropout(0.5), nn.Linear(30, 7))
    objective = objective_of(model, F.cross_entropy)
    data = torch.ones(RECORDS, 4), torch.ones(RECORDS, dtype=torch.long)
    found = chosen(model, objective, rows(data, slice(0, 2)))
    assert found.way == "vmap"
    for way in ("vmap", "one by one"):
        found.way = way
        assert len(rows_of(found, objective, data).unique(dim=0)) == RECORDS


def test_random_numbers_that_are_not_a_layers_go_by_vmap_too() -> None:
    model = Net(lambda self, h: F.dropout(F.dropout(h)))  # vmap draws in another order
    assert chosen(model, squares(model), batch()).way == "vmap"


# --- what is carried over


KEPT: list[Any] = []


def keep_in_module(self: nn.Module, h: Tensor) -> Tensor:
    out = h + 0.1 * self.kept if hasattr(self, "kept") else h
    self.kept = h.detach()
    return out


def keep_in_list(self: nn.Module, h: Tensor) -> Tensor:
    out = h + 0.1 * KEPT[-1] if KEPT else h
    KEPT.append(h.detach())
    return out


def keep_a_gradient(self: nn.Module, h: Tensor) -> Tensor:
    def change(g: Tensor) -> Tensor:
        out = g + 0.1 * KEPT[-1] if KEPT else g
        KEPT.append(g)
        return out

    return hooked(change)(self, h)


def largest_so_far(self: nn.Module, h: Tensor) -> Tensor:
    self.largest = max(getattr(self, "largest", 0.1), float(h.detach().abs().max()))
    return h / self.largest


def largest_anywhere(self: nn.Module, h: Tensor) -> Tensor:
    KEPT.append(max(0.1, *KEPT, float(h.detach().abs().max())))
    return h / KEPT[-1]


def scaled_by_the_one_before(self: nn.Module, h: Tensor) -> Tensor:
    before, self.before = getattr(self, "before", 1.0), float(h.detach().abs().max())
    return h / before


def averaged(self: nn.Module, h: Tensor) -> Tensor:
    self.mean.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h - self.mean


def replaced(self: nn.Module, h: Tensor) -> Tensor:
    self.mean = 0.9 * self.mean + 0.1 * h.detach().mean(0)
    return h - self.mean


def hidden(self: nn.Module, h: Tensor) -> Tensor:
    self.mean.data.copy_(h.detach()[0])
    return h


def counted(self: nn.Module, h: Tensor) -> Tensor:
    self.mean.data.add_(1)
    return h


def counted_openly(self: nn.Module, h: Tensor) -> Tensor:
    self.mean.add_(1)
    return h


def normalised(self: nn.Module, h: Tensor) -> Tensor:
    parts = h.unsqueeze(-1) * torch.arange(3.0)
    return F.batch_norm(parts, self.mean, self.mean + 1, training=True).sum(-1)


def added_up(self: nn.Module, h: Tensor) -> Tensor:
    if h.requires_grad:
        h.backward(torch.ones_like(h), retain_graph=True)
    return h if self.a.weight.grad is None else h * self.a.weight.grad.norm()


def own_generator(self: nn.Module, h: Tensor) -> Tensor:
    return h * torch.rand(h.shape, generator=GENERATOR)


GENERATOR = torch.Generator().manual_seed(0)
KEEPING: dict[str, Body] = {
    "module": keep_in_module,
    "list": keep_in_list,
    "gradient": keep_a_gradient,
    "gradients added up": added_up,
    "number": largest_so_far,
    "number for the next": scaled_by_the_one_before,
    "number elsewhere": largest_anywhere,
    "generator": own_generator,
}
CARRIED: dict[str, tuple[Body, str]] = {
    "buffer": (averaged, "buffers=.'mean'"),
    "buffer replaced": (replaced, "buffers=.'mean'"),
    "buffer by data": (hidden, "buffers=.'mean'"),
    "buffer that counts": (counted, "buffers=.'mean'"),
    "buffer that counts openly": (counted_openly, "buffers=.'mean'"),
    "statistics": (normalised, "buffers=.'mean'"),
}


def carrying(body: Body) -> Net:
    torch.manual_seed(5)
    KEPT.clear()
    model = Net(body)
    model.register_buffer("mean", torch.zeros(5))
    return model


@pytest.mark.parametrize("name", CARRIED)
def test_what_is_carried_over_is_refused_at_set_up(name: str) -> None:
    body, said = CARRIED[name]
    model = carrying(body)
    values, buffer = copy.deepcopy(model.state_dict()), model.mean
    found, example = EachRecord(trained(model), model), batch()
    example[0][0] *= 0.01  # or nothing is larger
    with pytest.raises(IsolationError, match=said):
        found.choose(squares(model), example)
    assert model.mean is buffer
    assert all(torch.equal(value, values[key]) for key, value in model.state_dict().items())
    model.on = False  # mended
    assert found.choose(squares(model), batch()) == "vmap"


@pytest.mark.parametrize("name", KEEPING)
def test_what_code_keeps_of_a_record_is_gone_when_the_next_comes(name: str) -> None:
    model, data = carrying(KEEPING[name]), batch()
    found = chosen(model, squares(model), batch())
    assert found.way == "one by one"
    kept, before = len(KEPT), rows_of(found, squares(model), data)
    after = rows_of(found, squares(model), louder(data, 1e3))
    torch.testing.assert_close(after[1:], before[1:], rtol=0, atol=0)
    assert float((after[0] - before[0]).abs().max()) > 0
    assert len(KEPT) == kept


OPENLY = ["buffer", "buffer replaced", "buffer that counts openly"]  # others go with the process


@pytest.mark.parametrize("name", OPENLY)
def test_what_is_carried_over_later_is_refused_in_the_step(name: str) -> None:
    body, said = CARRIED[name]
    model, example = carrying(body), batch()
    example[0][0] *= 0.01
    model.on = False
    found = chosen(model, squares(model), example)
    found.way = "one by one"
    found.slots(squares(model), batch(), RECORDS)
    model.on = True
    with pytest.raises(IsolationError, match=said):
        found.slots(squares(model), batch(), RECORDS)


@pytest.mark.parametrize("body", [keep_in_module, keep_in_list, keep_a_gradient])
def test_a_tensor_that_vmap_left_behind_is_refused(body: Body, monkeypatch: Any) -> None:
    """Without the marks torch would let it meet the records in its places."""
    model = carrying(body)
    model.on = False
    found, data = chosen(model, squares(model), batch()), batch()
    assert found.way == "vmap"
    model.on = True
    first = rows_of(found, squares(model), data)
    with pytest.raises(IsolationError, match="met a tensor"):
        found.slots(squares(model), data, RECORDS)
    with monkeypatch.context() as patch:
        patch.setattr(by_vmap, "pass_of", lambda tensor: None)
        assert not torch.allclose(rows_of(found, squares(model), data), first)


def test_what_no_record_decides_may_be_kept() -> None:
    def body(self: nn.Module, h: Tensor) -> Tensor:
        if not hasattr(self, "table"):
            self.table, self.mask = torch.arange(5.0).cos(), torch.ones_like(h)
        self.seen, self.maps = h, [h, h]  # to be looked at, not used
        return h * self.table * self.mask

    for way in ("vmap", "one by one"):
        model = carrying(body)
        found = chosen(model, squares(model), batch())
        assert found.way == "vmap"
        found.way = way
        for data in (batch(), batch()):
            wanted = record_gradients(squares(model), list(trained(model).values()), data)
            gradients = rows_of(found, squares(model), data)
            torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-6)


def crashes(self: nn.Module, h: Tensor) -> Tensor:
    KEPT[0].data = h
    return h


def reads_its_neighbours(self: nn.Module, h: Tensor) -> Tensor:
    return h + h.detach().clone().resize_(1, 8)[:, :5] * 0


@pytest.mark.parametrize("body", [crashes, reads_its_neighbours])
def test_calls_that_vmap_does_not_keep_apart_go_one_by_one(body: Body) -> None:
    model = carrying(body)
    KEPT.append(torch.zeros(5))
    found = chosen(model, squares(model), batch())
    assert found.way == "one by one"
    assert found.why.endswith("goes one by one only.")


# --- the rest


def test_an_empty_batch_does_not_run_the_model() -> None:
    model = Net()
    found = chosen(model, squares(model), batch())
    model.forward = None  # type: ignore[method-assign,assignment]
    assert found.slots(squares(model), batch(0), 0) == []


def test_the_way_is_chosen_before_the_first_step() -> None:
    model = Net()
    with pytest.raises(MisuseError, match="way=unknown"):
        EachRecord(trained(model), model).slots(squares(model), batch(), RECORDS)


def test_losses_that_are_none() -> None:
    model = Net()
    found = EachRecord(trained(model), model)
    for objective, said in (
        (lambda data: model(data[0]).repeat(2), "loss=more than one number"),
        (lambda data: float(model(data[0]).detach()), "loss=float"),
        (lambda data: model(data[0]).detach(), "none does"),
    ):
        with pytest.raises(UnsupportedModelError, match=said):
            found.choose(objective, batch())


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_other_gradients_by_vmap_are_not_taken(dropout: float) -> None:
    """Such as those of a weight that the code has from elsewhere than the model."""
    model = Net(lambda self, h: self.drop(h))
    model.drop = nn.Dropout(dropout)
    weight = model.a.weight

    def objective(data: Any) -> Tensor:
        return F.mse_loss(model(data[0]), data[1], reduction="none") + (weight**2).sum()

    found = chosen(model, objective, batch())
    assert (found.way, found.why) == ("one by one", "vmap gives other gradients than autograd")


def test_nothing_of_the_callers_is_written() -> None:
    model = Net()
    versions = [p._version for p in model.parameters()]
    for way in ("vmap", "one by one"):
        data = batch()
        before = each(torch.clone, data)

        def objective(data: Any) -> Tensor:
            data[0].mul_(2)
            return F.mse_loss(model(data[0]), data[1], reduction="none")

        found = chosen(model, objective, batch())
        assert found.way == "vmap"
        found.way = way
        found.slots(objective, data, RECORDS)
        assert all(torch.equal(a, b) for a, b in zip(data, before, strict=True))
        assert all(tensor._version == 0 for tensor in data)
        assert versions == [p._version for p in model.parameters() if p.grad is None]
