"""Every step of a user's loop comes a way that was followed, or its batch comes again."""

from __future__ import annotations

import copy
import io
import math
import random
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loop_cases import DO_NOT
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from compat_loop import QUIET, Loop, classification_truth, start, vectors
from steppe.compat import BatchMemoryManager
from steppe.compat.loop_isolation import watched
from steppe.errors import IsolationError, MisuseError

Step = Callable[[Loop, Tensor, Tensor, int], Tensor]
CLIP = 0.5


def run(loop: Loop, step: Step, batches: int, after: Callable[[Tensor], None] | None = None) -> int:
    """So many batches as the loader hands out; how many of them were steps."""
    taken = 0
    while taken < batches:
        for x, y in loop.loader:
            loop.optimizer.zero_grad()
            loss = step(loop, x, y, taken)
            loss.backward()
            if after is not None:
                after(loss.detach())
            loop.optimizer.step()
            taken += 1
            if taken == batches:
                break
    return len(loop.engine.accountant)


def each(loop: Loop, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(loop.model(x), y, reduction="none")


# What mixes, as a user would write it


def centred_after_warm_up(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    if step >= 2:
        x = x - x.mean(0)
    return F.cross_entropy(loop.model(x), y)


def hardest_after_warm_up(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    losses = each(loop, x, y)
    return losses.mean() if step < 3 else losses.topk(4).values.mean()


def centred_in_place(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    if step >= 2:
        x -= x.mean(0)
    return F.cross_entropy(loop.model(x), y)


def written_through_a_view(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    if step >= 2:
        x.flatten()[:] = (x - x.mean(0)).flatten()
    return F.cross_entropy(loop.model(x), y)


def into_a_buffer(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    kept = torch.zeros(x.shape)
    kept[:] = x if step < 2 else x - x.mean(0)
    return F.cross_entropy(loop.model(kept), y)


def hooked(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    out = loop.model(x)
    if step >= 2:
        out.register_hook(lambda g: g / g.norm())
    return F.cross_entropy(out, y)


def in_numpy(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    if step >= 2:
        x = torch.from_numpy(x.numpy() - x.numpy().mean(0))
    return F.cross_entropy(loop.model(x), y)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad / grad.norm()


def own_function(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    out = loop.model(x)
    if step >= 2:
        out = Halved.apply(out)  # type: ignore[no-untyped-call]
    return F.cross_entropy(out, y)


@pytest.mark.parametrize(
    ("step", "steps"),
    [
        (centred_after_warm_up, 2),
        (hardest_after_warm_up, 3),
        (centred_in_place, 2),
        (written_through_a_view, 2),
        (into_a_buffer, 2),
        (hooked, 2),
        (own_function, 2),
    ],
)
def test_mixing_that_begins_after_a_warm_up_takes_no_step(step: Step, steps: int) -> None:
    loop = start(sigma=1.0)
    with pytest.warns(UserWarning, match="comes again"), pytest.raises(IsolationError):
        run(loop, step, 20)
    assert len(loop.engine.accountant) == steps


def test_a_change_to_numpy_is_refused() -> None:
    loop = start(sigma=1.0)
    with pytest.raises(IsolationError, match="in another way than before, after it read values"):
        run(loop, in_numpy, 20)
    assert len(loop.engine.accountant) == 2


def guarded(decide: Callable[[Tensor], bool]) -> Step:
    def step(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
        loss = F.cross_entropy(loop.model(x), y)
        return loss * 0 if decide(loss) else loss

    return step


GUARDS: dict[str, Callable[[Tensor], bool]] = {
    "math.isnan": lambda loss: math.isnan(loss.item()),
    "isnan": lambda loss: bool(torch.isnan(loss)),
    "float": lambda loss: not float(loss.detach()) < 1e4,
    "compared": lambda loss: not loss.item() < 1e4,
    "tolist": lambda loss: math.isnan(loss.tolist()),
    "numpy": lambda loss: math.isnan(loss.detach().numpy()),
    "a size": lambda loss: bool(len(loss[None].isnan().nonzero())),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_guard_that_fires_is_refused(name: str) -> None:
    data = vectors(12)
    loop = start(data=data)
    loop.run(2)
    data.tensors[0][0] = torch.nan
    before = [p.detach().clone() for p in loop.model.parameters()]
    with pytest.raises(IsolationError, match="read numbers after backward"):
        run(loop, guarded(GUARDS[name]), 1)
    assert len(loop.engine.accountant) == 2
    for p, was in zip(loop.model.parameters(), before, strict=True):
        assert torch.equal(p, was)


def test_one_record_moves_the_sum_of_a_guarded_loop_by_the_bound_at_most() -> None:
    """A guard of the whole loss took the others' clipped gradients out of the sum as well."""
    sums = []
    for value in (1.0, 1e6):
        data = vectors(12)
        loop = start(data=data, clip=CLIP)
        loop.run(2)
        loop.model.load_state_dict({"weight": torch.zeros(2, 5), "bias": torch.zeros(2)})
        data.tensors[0][0] = value

        def step(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
            far = x.abs().amax(1) > 1e5
            return torch.where(far, 0.0, each(loop, x, y)).mean()

        with pytest.warns(UserWarning, match="comes again"):
            run(loop, step, 2)
        sums.append(torch.cat([12 * p.grad.flatten() for p in loop.model.parameters()]))
    assert 0 < float((sums[0] - sums[1]).norm()) <= CLIP * (1 + 1e-5)


def test_a_number_chosen_by_values_is_refused() -> None:
    data = vectors(12)
    loop = start(data=data)

    def step(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
        loss = F.cross_entropy(loop.model(x), y)
        return loss * (1.0 if float(x.abs().max()) < 1e3 else 0.01)

    run(loop, step, 4)  # the first comes as halves, and again
    data.tensors[0][0] *= 1e5
    with pytest.raises(IsolationError, match="decide nothing by them"):
        run(loop, step, 1)
    assert len(loop.engine.accountant) == 1


def test_a_moving_average_of_losses_does_not_divide() -> None:
    for later in (0, 5):  # from the start, and after a warm-up
        kept = SimpleNamespace(mean=1.0)

        def step(
            loop: Loop, x: Tensor, y: Tensor, step: int, kept: Any = kept, later: int = later
        ) -> Tensor:
            loss = F.cross_entropy(loop.model(x), y)
            return loss / max(kept.mean, 1e-3) if step >= later else loss

        def after(loss: Tensor, kept: Any = kept) -> None:
            kept.mean = 0.9 * kept.mean + 0.1 * loss.item()

        loop = start()
        with pytest.raises(IsolationError, match="read from records"):
            run(loop, step, 20, after)
        assert len(loop.engine.accountant) == max(1, later)


@pytest.mark.parametrize("where", ["argument", "input", "weight", "cut"])
def test_a_number_that_was_read_does_not_reach_the_gradient(where: str) -> None:
    loop = start()
    loop.run(2)
    x, y = loop.batch()
    scale = abs(-(x.abs().max().item() / 3 + 1)) ** 2
    count = y.sum().item() % 7 + 2
    ways: dict[str, Callable[[], object]] = {
        "argument": lambda: loop.model(x, scale),
        "input": lambda: loop.model(x / scale),
        "weight": lambda: (each(loop, x, y) * scale).mean().backward(),
        "cut": lambda: each(loop, x, y)[:count].sum().backward(),
    }
    with pytest.raises(IsolationError, match="read from records"):
        ways[where]()


# What is honest


def silently(loop: Loop, step: Step, batches: int, **options: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return run(loop, step, batches, **options)


def logged(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    out = loop.model(x)
    loss = F.cross_entropy(out, y)
    if step % 3 == 0:
        assert loss.item() < 1e4
        assert f"{loss.item():.2f}" != "nan"
        (out.argmax(1) == y).float().mean().item()
        ((out.argmax(1) == y).sum() / max(1, step)).tolist()
    return loss


def smoothed(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    return F.cross_entropy(loop.model(x), y, label_smoothing=0.1)


def annealed(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    out = loop.model(x)
    return F.cross_entropy(out, y) + min(1.0, step / 10) * out.square().sum(1).mean()


def accumulated(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    return F.cross_entropy(loop.model(x), y) / 4


def by_record(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    out = loop.model(x)
    losses = [F.cross_entropy(o[None], t[None]) for o, t in zip(out, y, strict=True)]
    return torch.stack(losses).mean() if len(x) else out.sum() * 0


def evaluated(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    if step % 3 == 1:
        loop.model.eval()
        with torch.inference_mode():
            loop.model(x).argmax(1).eq(y).float().mean().item()
        loop.model.train()
    return F.cross_entropy(loop.model(x), y)


def sizes_asked(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    x = x.view(x.size(0), -1).reshape(len(x), x.shape[1]).expand(len(x), 5)
    weights = torch.ones(len(x))
    return (each(loop, x, y) * weights).sum() / len(x)


def shifted(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    return F.cross_entropy(
        loop.model(x.roll(step % 7 - 3, 1)[:, : 5 - step % 2].sum(1, True) + x), y
    )


def saved(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
    file = io.BytesIO()
    torch.save({"x": x}, file)
    file.seek(0)
    assert type(torch.load(file, weights_only=True)["x"]) is Tensor
    assert torch.equal(copy.deepcopy(x), x)
    return F.cross_entropy(loop.model(x), y)


@pytest.mark.parametrize(
    "step",
    [logged, smoothed, annealed, accumulated, by_record, evaluated, sizes_asked, shifted, saved],
)
def test_honest_loops_go_on_without_a_word(step: Step) -> None:
    loop = start(data=vectors(60), batch_size=30, sigma=1.0)
    assert silently(loop, step, 15) == 15
    assert loop.engine.isolation[0].watched <= 4


@pytest.mark.parametrize("name", DO_NOT)
def test_loops_that_do_not_mix_come_the_same_way(name: str) -> None:
    case = DO_NOT[name]
    loop = start(data=vectors(40), batch_size=24, sigma=1.0, loss_reduction=case.reduction)
    # With constants after a read, the first batch comes as two halves and again as it is.
    steps = 6 if name in ("logged before the loss", "accuracy like a weight") else 9
    assert silently(loop, lambda loop, x, y, step: case.loss(loop.model, x, y), 9) == steps


def test_reading_after_backward_and_best_losses() -> None:
    best = [math.inf]

    def after(loss: Tensor) -> None:
        best[0] = min(best[0], loss.item())

    loop = start(data=vectors(60), batch_size=20, sigma=1.0)
    assert silently(loop, smoothed, 12, after=after) == 12


def test_two_losses_by_epoch_come_again_once() -> None:
    loop = start(data=vectors(40), batch_size=10, sigma=1.0)

    def step(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
        if (step // 6) % 2:
            return F.multi_margin_loss(loop.model(x), y, reduction="none").mean()
        return F.cross_entropy(loop.model(x), y)

    with pytest.warns(UserWarning, match="comes again") as told:
        steps = run(loop, step, 24)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert steps == 23


def test_the_batch_that_comes_again_is_the_same_and_gives_the_same_gradient() -> None:
    data = vectors(12)
    loop = start(data=TensorDataset(torch.arange(12.0)[:, None] * torch.ones(5), data.tensors[1]))
    seen = []
    loop.run(2)

    def step(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
        seen.append(x.clone().as_subclass(Tensor))
        x.mul_(0.1)
        return F.cross_entropy(loop.model(x), y)

    with pytest.warns(UserWarning, match="comes again"):
        assert run(loop, step, 1) == 2
    assert all(p.grad is None for p in loop.model.parameters())
    scaled = TensorDataset(0.1 * loop.loader.dataset.tensors[0], data.tensors[1])
    truth = classification_truth(loop.model, scaled, CLIP)
    assert run(loop, step, 1) == 3
    assert torch.equal(*seen)
    for p, wanted in zip(loop.model.parameters(), truth, strict=True):
        torch.testing.assert_close(p.grad.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["parts", "closure", "left", "momentum"])
def test_every_drawn_batch_is_one_step(how: str) -> None:
    model = nn.Linear(5, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loop = start(model, vectors(24), 24, optimizer, sigma=QUIET, clip=CLIP)
    changed = [False]

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        loss = each(loop, x, y)
        loss = loss.exp().log().mean() if changed[0] else loss.mean()
        loss.backward()
        return loss

    def go(passes: int) -> None:
        for _ in range(passes):
            if how == "parts":
                with BatchMemoryManager(
                    data_loader=loop.loader, max_physical_batch_size=8, optimizer=optimizer
                ) as parts:
                    for place, (x, y) in enumerate(parts):
                        changed[0] = changed[0] or (passes == 1 and place == 1)
                        loss_of(x, y)
                        optimizer.step()
                continue
            for x, y in loop.loader:
                if how == "closure":
                    optimizer.step(lambda x=x, y=y: loss_of(x, y))
                else:
                    loss_of(x, y)
                    optimizer.step()
                if how == "left":
                    break

    go(2)
    changed[0] = how != "parts"
    before = [p.detach().clone() for p in model.parameters()]
    truth = classification_truth(model, vectors(24), CLIP)
    with pytest.warns(UserWarning, match="comes again"):
        go(1)
    if how == "left":
        assert len(loop.engine.accountant) == 2
        assert all(map(torch.equal, before, model.parameters()))
        go(1)
    assert len(loop.engine.accountant) == 3
    for p, wanted in zip(model.parameters(), truth, strict=True):
        torch.testing.assert_close(p.grad.double(), wanted, rtol=1e-5, atol=1e-5)


def test_a_loop_that_changes_at_every_step_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_MOST", 3)
    loop = start(sigma=1.0)

    def step(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
        for _ in range(step):
            x = x.sin()
        return F.cross_entropy(loop.model(x), y)

    with (
        pytest.warns(UserWarning, match="comes again"),
        pytest.raises(IsolationError, match="in another way at every step"),
    ):
        run(loop, step, 60)


def test_some_ways_that_take_turns_are_learned() -> None:
    chance = random.Random(0)
    loop = start(data=vectors(40), batch_size=20, sigma=1.0)

    def step(loop: Loop, x: Tensor, y: Tensor, step: int) -> Tensor:
        for change in chance.sample([Tensor.sin, Tensor.neg, Tensor.abs, Tensor.cos], 2):
            x = change(x)
        return F.cross_entropy(loop.model(x), y)

    with pytest.warns(UserWarning, match="comes again"):
        steps = run(loop, step, 40)
    assert 20 < steps < 40


def test_several_backward_calls() -> None:
    loop = start(data=vectors(40), batch_size=20, sigma=1.0)
    for number in range(6):
        x, y = loop.batch()
        out = loop.model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        if number == 5:
            out = out.sin()
        (0.1 * out.square().sum(1).mean()).backward()
        if number == 5:
            with pytest.warns(UserWarning, match="comes again"):
                loop.optimizer.step()
        else:
            loop.optimizer.step()
    assert len(loop.engine.accountant) == 5
    loop.batch()
    with pytest.raises(MisuseError, match="a batch was drawn"):
        loop.loader.run.require_stepped()
