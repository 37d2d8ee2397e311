"""Records do not reach a step by way of earlier batches, the module's inside or other weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compat_loop import Loop, start, vectors
from steppe.errors import IsolationError

Steps = Iterator[None]
Run = Callable[[Loop], Steps]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 2)
        self.drop, self.scale, self.kept = nn.Dropout(0.0), 1.0, None
        self.register_buffer("centre", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(self.first(x).relu())) - self.centre
        return out / self.scale


class Storing(Network):
    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.first(x).relu()
        out: Tensor = self.last(self.kept)
        return out


def each(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none")


def stepped(loop: Loop, loss_of: Callable[[Tensor, Tensor, Tensor], Tensor], after: Any) -> Steps:
    """Passes over the loader; `after` sees each batch when it was stepped."""
    while True:
        for x, y in loop.loader:
            loop.optimizer.zero_grad()
            out = loop.model(x)
            loss = loss_of(x, y, out)
            loss.backward()
            loop.optimizer.step()
            after(x, out, loss)
            yield


def keeping(use: Callable[[Tensor, Any], Tensor], keep: Callable[..., Any], start: Any) -> Run:
    """A loop with something that it keeps from step to step."""

    def run(loop: Loop) -> Steps:
        kept = SimpleNamespace(it=start() if callable(start) else start)

        def after(x: Tensor, out: Tensor, loss: Tensor) -> None:
            made = keep(kept.it, x, out, loss)
            kept.it = kept.it if made is None else made

        return stepped(loop, lambda x, y, out: use(each(out, y), kept.it), after)

    return run


def _divided(losses: Tensor, by: Any) -> Tensor:
    return (losses / by).mean()


def _written(by: Tensor, x: Tensor, out: Tensor, loss: Tensor) -> None:
    by.data.copy_(out.detach().abs().mean(0).sum())


def optimizer_by_loss(loop: Loop) -> Steps:
    def after(x: Tensor, out: Tensor, loss: Tensor) -> None:
        loop.optimizer.param_groups[0]["lr"] = 0.1 * loss.item()

    return stepped(loop, lambda x, y, out: each(out, y).mean(), after)


def put_into(change: Callable[[Any, Tensor, Tensor], object]) -> Run:
    def run(loop: Loop) -> Steps:
        def after(x: Tensor, out: Tensor, loss: Tensor) -> None:
            change(loop.model, out.detach(), loss)

        return stepped(loop, lambda x, y, out: each(out, y).mean(), after)

    return run


def hook_that_divides(keep: Callable[[Tensor], Any]) -> Run:
    def run(loop: Loop) -> Steps:
        kept = [keep(torch.ones(()))]
        loop.model.first.register_forward_hook(lambda m, i, out: out / kept[-1])
        return stepped(
            loop,
            lambda x, y, out: each(out, y).mean(),
            lambda x, out, loss: kept.append(keep(loss.detach())),
        )

    return run


EARLIER = "made from records of an earlier batch"
READ = "number that was read from records"

CARRIED: dict[str, tuple[Run, str]] = {
    "average of item()": (
        keeping(_divided, lambda m, x, out, loss: 0.9 * m + 0.1 * loss.item(), 1.0),
        READ,
    ),
    "average of losses": (
        keeping(
            _divided, lambda m, x, out, loss: 0.9 * m + 0.1 * loss.detach(), lambda: torch.ones(())
        ),
        EARLIER,
    ),
    "a number in a hook": (hook_that_divides(lambda loss: loss.item() + 1), "module=holds a n"),
    "a tensor in a hook": (hook_that_divides(lambda loss: loss.abs() + 1), "module=holds a tensor"),
    "a copy of the last loss": (
        keeping(
            _divided,
            lambda m, x, out, loss: copy.deepcopy(loss.detach()),
            lambda: torch.ones(()),
        ),
        EARLIER,
    ),
    "mean of a list of losses": (
        keeping(
            lambda losses, seen: losses.mean() / torch.stack([*seen, torch.ones(())]).mean(),
            lambda seen, x, out, loss: [*seen, loss.detach()],
            list,
        ),
        EARLIER,
    ),
    "written to memory": (keeping(_divided, _written, lambda: torch.ones(())), EARLIER),
    "a queue of rows": (
        keeping(
            lambda losses, queue: losses.mean() + queue.mean(),
            lambda queue, x, out, loss: torch.cat([x[:2], queue])[:6],
            lambda: torch.zeros(6, 5),
        ),
        EARLIER,
    ),
    "a learning rate": (optimizer_by_loss, r"optimizer.lr=holds a number that was read"),
    "a buffer": (
        put_into(lambda m, out, loss: m.centre.add_(out.mean(0))),
        "module.centre=holds|wri",
    ),
    "another buffer": (
        put_into(lambda m, out, loss: setattr(m, "centre", out.mean(0))),
        "module.centre=holds a tensor",
    ),
    "a buffer's data": (
        put_into(lambda m, out, loss: m.centre.data.copy_(out.mean(0))),
        "weights or buffers=written",
    ),
    "an attribute": (
        put_into(lambda m, out, loss: setattr(m, "scale", loss.item())),
        "module.scale=holds a number",
    ),
    "a rate of dropout": (
        put_into(lambda m, out, loss: setattr(m.drop, "p", loss.item() / 10)),
        "module.p=holds a number",
    ),
}


def start_network(model: nn.Module | None = None, **options: Any) -> Loop:
    torch.manual_seed(0)
    return start(model or Network(), vectors(24), 16, sigma=1.0, **options)


def go(steps: Steps, times: int) -> None:
    for _ in range(times):
        next(steps)


@pytest.mark.parametrize("name", CARRIED)
@pytest.mark.parametrize("isolation", ["proven", "probed"])
def test_what_is_kept_of_a_batch_has_no_part_in_the_next(name: str, isolation: str) -> None:
    run, message = CARRIED[name]
    loop = start_network(isolation=isolation)
    if isolation == "probed":  # the loop itself is one that runs
        go(run(loop), 4)
        return
    with pytest.raises(IsolationError, match=message):
        go(run(loop), 4)
    assert len(loop.engine.accountant) == 1


def test_what_is_kept_for_logs_is_accepted_in_every_step() -> None:
    losses: list[Tensor] = []
    seen: list[float] = []
    right = torch.zeros(())

    def after(x: Tensor, out: Tensor, loss: Tensor) -> None:
        losses.append(loss.detach())
        right.add_((out.argmax(1) == 0).float().mean())
        seen.append(torch.stack(losses).mean().item())
        assert f"{seen[-1]:.3f}" == f"{sum(map(float, losses)) / len(losses):.3f}"
        assert out.detach().numpy().shape == out.shape

    loop = start_network()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        go(stepped(loop, lambda x, y, out: each(out, y).mean(), after), 6)
    assert len(loop.engine.accountant) == 6
    assert 0 <= float(right) <= 6


# Weights beside the module


def learned_factor(loop: Loop) -> Steps:
    factor = nn.Parameter(torch.zeros(()))
    return stepped(
        loop, lambda x, y, o: each(o, y).mean() * factor.exp() + factor, lambda *_: factor
    )


def head(loop: Loop, frozen: bool = False) -> Steps:
    layer = nn.Linear(2, 2).requires_grad_(not frozen)
    return stepped(loop, lambda x, y, out: each(layer(out), y).mean(), lambda *_: None)


def encoder(loop: Loop) -> Steps:
    layer = nn.Linear(5, 5)
    while True:
        for x, y in loop.loader:
            each(loop.model(layer(x)), y).mean().backward()
            loop.optimizer.step()
            yield


def teacher(loop: Loop) -> Steps:
    other = nn.Linear(5, 2)

    def loss_of(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        each(other(x), y).mean().backward()
        return (out - other(x).detach()).square().sum(1).mean()

    return stepped(loop, loss_of, lambda *_: None)


@pytest.mark.parametrize("run", [learned_factor, head, encoder, teacher])
def test_weights_beside_the_module_get_no_gradient_of_records(run: Run) -> None:
    loop = start_network()
    with pytest.raises(IsolationError, match=r"a weight of shape .* outside of the module"):
        go(run(loop), 2)
    assert len(loop.engine.accountant) == 0


def test_frozen_weights_beside_the_module_are_accepted() -> None:
    loop = start_network()
    go(head(loop, frozen=True), 4)
    assert len(loop.engine.accountant) == 4


def test_weights_that_thaw_later_are_refused() -> None:
    layer = nn.Linear(2, 2).requires_grad_(False)
    loop = start_network()
    steps = stepped(loop, lambda x, y, out: each(layer(out), y).mean(), lambda *_: None)
    go(steps, 3)
    layer.requires_grad_(True)
    with (
        pytest.warns(UserWarning, match="comes again"),
        pytest.raises(IsolationError, match="outside of the module"),
    ):
        go(steps, 2)
    assert len(loop.engine.accountant) == 3


# The module's inside


def stored(use: Callable[[Tensor], Tensor]) -> Run:
    return lambda loop: stepped(
        loop, lambda x, y, out: each(out, y).mean() + use(loop.model.kept), lambda *_: None
    )


def hooked(use: Callable[[Tensor, Tensor], Tensor]) -> Run:
    def run(loop: Loop) -> Steps:
        seen: list[Tensor] = []
        loop.model.first.register_forward_hook(lambda m, i, out: seen.append(out.detach()))
        return stepped(loop, lambda x, y, out: use(each(out, y), seen[-1]), lambda *_: seen.clear())

    return run


INSIDE: dict[str, Run] = {
    "stored features": stored(lambda h: h.mean(0).square().sum()),
    "stored and used as they are": stored(lambda h: (h * torch.ones(4)).mean()),
    "features of a hook": hooked(lambda losses, h: (losses / h.abs().max()).mean()),
    "rows of a hook": hooked(lambda losses, h: (losses / h.abs().sum(1)).mean()),
    "read from a hook": hooked(lambda losses, h: losses.mean() / float(h.abs().max())),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_the_module_does_not_return_has_no_part_in_the_loss(name: str) -> None:
    loop = start_network(Storing())
    with pytest.raises(IsolationError):
        go(INSIDE[name](loop), 2)
    assert len(loop.engine.accountant) == 0


def test_hooks_for_logs_are_accepted() -> None:
    seen: list[float] = []
    loop = start_network()
    loop.model.first.register_forward_hook(lambda m, i, out: seen.append(out.detach().shape[1]))
    go(stepped(loop, lambda x, y, out: each(out, y).mean(), lambda *_: None), 4)
    assert set(seen) == {4}


# Further ways


def by_a_list(loop: Loop) -> Steps:
    def loss_of(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        weights = torch.tensor([row.item() for row in x.norm(dim=1)])
        return (each(out, y) * weights / weights.sum()).mean()

    return stepped(loop, loss_of, lambda *_: None)


def by_saved_tensors(loop: Loop) -> Steps:
    def loss_of(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t / t.abs().max(), lambda t: t):
            return out.square().square().mean()

    return stepped(loop, loss_of, lambda *_: None)


@pytest.mark.parametrize(
    ("run", "message"),
    [(by_a_list, "its place among the others"), (by_saved_tensors, "loop=saved_tensors_hooks")],
)
def test_further_ways_are_refused(run: Run, message: str) -> None:
    loop = start_network()
    with pytest.raises(IsolationError, match=message):
        go(run(loop), 2)
    assert len(loop.engine.accountant) == 0


def test_a_largest_value_in_one_half_is_noticed_before_the_first_step() -> None:
    """Either half of the first batch comes alone, and the record is in one of them only."""
    for row in (0, 23):
        data = vectors(24)
        data.tensors[0][row] *= 1e4
        loop = start(Network(), data, sigma=1.0)
        steps = stepped(
            loop,
            lambda x, y, out: each(out, y).mean() * (0.01 if float(x.abs().max()) > 1e3 else 1.0),
            lambda *_: None,
        )
        with pytest.raises(IsolationError, match="after it read values"):
            go(steps, 4)
        assert len(loop.engine.accountant) == 0
