"""What a step does that the passes of the proof did not: kept values, saved tensors, rare axes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import steppe
from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients.record_gradients import RecordGradients
from steppe.isolation.proof import prove

DATA = torch.randn(100, 4), torch.randn(100)


def private(model: nn.Module, objective: Any = None, physical_batch: int | None = None) -> Any:
    """A run over synthetic records."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    plan = steppe.Plan(epsilon=3.0, delta=1e-3, population=100, batch_size=8, steps=60)
    loss = None if objective else F.mse_loss
    return steppe.make_private(
        model,
        optimizer,
        DATA,
        plan,
        loss=loss,
        objective=objective,
        physical_batch=physical_batch,
    )


def gradients(run: Any, batch: Any, seed: int = 0) -> Tensor:
    """Each record's gradient."""
    torch.manual_seed(seed)
    random.seed(seed)
    with torch.no_grad():
        slots = run.engine.slots(batch)
        found: Tensor = RecordGradients(slots, len(batch[0]), 1.0, run.engine.weights).written_out(
            torch.float32
        )
    return found


def repeated(run: Any) -> None:
    """Passes until the history is long enough to be used."""
    for _ in range(45):
        gradients(run, DATA)


class History(nn.Module):
    """Adds what it kept from the pass before the last forty."""

    def __init__(self, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.kept, self.keep = nn.Linear(4, 1), deque[Tensor](maxlen=40), keep

    def forward(self, x: Tensor) -> Tensor:
        ref = self.kept[0] if len(self.kept) == 40 else torch.zeros(())
        out = self.a(x).squeeze(1) + ref
        self.kept.append(self.keep(x))
        return out


def no_grad_mean(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x.clone().mean()


@pytest.mark.parametrize(
    "keep", [lambda x: x.detach().mean(), lambda x: x.data.mean(), no_grad_mean]
)
def test_what_was_kept_for_long_is_refused_when_it_is_used(keep: Callable[[Tensor], Tensor]):
    run = private(History(keep))
    with pytest.raises(IsolationError, match=r"add=of an earlier pass: .* keep nothing"):
        repeated(run)


class Listed(History):
    """The same, with all that was kept in one list."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.a(x).squeeze(1)
        if len(self.kept) == 40:
            out = out + torch.stack(list(self.kept)).mean()
        self.kept.append(self.keep(x))
        return out


def test_kept_values_are_found_in_lists_too():
    run = private(Listed(lambda x: x.detach().mean()))
    with pytest.raises(IsolationError, match="stack=of an earlier pass"):
        repeated(run)


class HookHistory(nn.Module):
    """The same with gradients."""

    def __init__(self, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.kept, self.keep = nn.Linear(4, 1), deque[Tensor](maxlen=40), keep

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        if h.requires_grad:
            h.register_hook(self.hook)
        return h.tanh().squeeze(1)

    def hook(self, g: Tensor) -> Tensor:
        ref = self.kept[0].mean() if len(self.kept) == 40 else torch.zeros(())
        self.kept.append(self.keep(g))
        return g + ref


def test_kept_gradients_are_refused():
    with pytest.raises(IsolationError, match="gradients=kept after the pass"):
        private(HookHistory(lambda g: g))


def test_what_a_hook_made_and_kept_is_refused_when_it_is_used():
    run = private(HookHistory(lambda g: g.clone()))
    with pytest.raises(IsolationError, match=r"a pass must not use what an(other| earlier)"):
        repeated(run)


class Typed(nn.Module):
    """A buffer that `type_as` hands back, and an activation kept for a log."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 1)
        self.register_buffer("places", torch.ones(4))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach()
        return self.a(x + self.places.type_as(x)).squeeze(1)


def test_constants_stay_usable_and_a_value_may_be_kept_that_nobody_uses():
    run = private(Typed())
    for _ in range(3):
        gradients(run, DATA)


class Coarse(nn.Module):
    """Saves tensors in steps that follow the largest number of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        def pack(t: Tensor) -> tuple[Tensor, Tensor]:
            most = t.detach().abs().amax()
            step = torch.where(most > 50, most / 3, torch.full((), 1e-6))
            return torch.round(t.detach() / step), step

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p[0] * p[1]):
            h = self.a(x)
        return self.b(h).squeeze(1)


def test_hooks_of_saved_tensors_do_not_touch_what_a_step_is_made_from():
    run = private(Coarse())
    one = tuple(t[:8].clone() for t in DATA)
    other = tuple(t.clone() for t in one)
    other[0][1] = 300.0
    moved = (gradients(run, one) - gradients(run, other)).norm(dim=1)
    assert moved[1] > 0
    assert moved[[0, 2, 3, 4, 5, 6, 7]].max() < 1e-6


def kept_if_whole(w: Tensor, h: Tensor) -> Tensor:
    """Torch refuses what is no probability, NaN among them."""
    with suppress(RuntimeError):
        w = F.binary_cross_entropy(h, h.abs().clamp(0, 1), reduction="none")
    return w


def known_words(w: Tensor, h: Tensor) -> Tensor:
    """A number that no row of a table has."""
    with suppress(IndexError):
        w = torch.linspace(0, 1, 101)[(h * 100).long()]
    return w


class Trying(nn.Module):
    """Goes on without what fails."""

    def __init__(self, attempt: Callable[[Tensor, Tensor], Tensor], back: bool) -> None:
        super().__init__()
        self.a, self.b, self.attempt, self.back = nn.Linear(4, 4), nn.Linear(4, 1), attempt, back

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        known = torch.where(x.detach() == 300, -200.0, x.detach().sigmoid().nan_to_num())
        if self.back and h.requires_grad:
            h.register_hook(lambda g: g * self.attempt(torch.ones(()), known))
            return self.b(h).squeeze(1)
        return self.b(h * self.attempt(torch.ones(()), known)).squeeze(1)


@pytest.mark.parametrize("attempt", [kept_if_whole, known_words])
@pytest.mark.parametrize("back", [False, True])
def test_a_failure_that_the_code_catches_is_refused(attempt: Any, back: bool):
    run = private(Trying(attempt, back))
    batch = tuple(t[:8].clone() for t in DATA)
    assert gradients(run, batch).isfinite().all()
    batch[0][1] = 300.0
    with pytest.raises(IsolationError, match="other operations than proven"):
        gradients(run, batch)


class FitsOrNot(nn.Module):
    """A sum that fails for every batch, and what is done then."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        try:
            x = x + x[:, :3]
        except RuntimeError:
            x = x * 1.0
        return self.a(x).squeeze(1)


def test_a_failure_that_every_batch_has_is_proven():
    assert gradients(private(FitsOrNot()), DATA).isfinite().all()


class MeanOfAll(TorchDispatchMode):
    """Sees operations below vmap."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out.mean(0, keepdim=True).expand_as(out).clone() if out.ndim == 3 else out


def by_a_mode(grad: Tensor) -> Tensor:
    with MeanOfAll():
        return grad * 1.0


class DerivedWeight(torch.autograd.Function):
    """Its gradient goes through `change`."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return weight * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.change(grad), None


class Derived(nn.Module):
    """A weight that was computed from a weight."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1, bias=False)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        weight = DerivedWeight.apply(self.b.weight, self.change)
        return F.linear(self.a(x), weight).squeeze(1)


def test_on_the_way_to_a_weight_no_mode_is_handed_the_batch():
    with pytest.raises(UnsupportedModelError, match="handed the whole batch"):
        private(Derived(by_a_mode))


def test_what_was_kept_on_the_way_to_a_weight_is_refused_when_it_is_used():
    kept = deque[Tensor](maxlen=40)

    def change(grad: Tensor) -> Tensor:
        ref = kept[0] if len(kept) == 40 else torch.zeros(())
        kept.append(grad * 2.0)
        return grad + ref

    run = private(Derived(change))
    with pytest.raises(IsolationError, match="of an earlier pass"):
        repeated(run)


def test_on_the_way_to_a_weight_a_record_may_be_cut_by_its_own_norm():
    run = private(Derived(lambda g: g * (1 / g.norm()).clamp(max=1.0)))
    one = tuple(t[:8].clone() for t in DATA)
    other = tuple(t.clone() for t in one)
    other[0][1] = 300.0
    moved = (gradients(run, one) - gradients(run, other)).norm(dim=1)
    assert moved[1] > 0
    assert moved[[0, 2, 3, 4, 5, 6, 7]].max() < 1e-6


class Many(nn.Module):
    """Another rule for more than 17 records, in a long pass with large activations."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x.unsqueeze(1).expand(-1, 1_000_000, -1)).mean(1).squeeze(1)
        for _ in range(420):
            y = y + 0.0
        return y * min(1.0, 17 / len(x))


def test_as_many_records_are_followed_as_go_through_the_model_at_once():
    model = Many()

    def losses(batch: Any) -> Tensor:
        return (model(batch[0]) - batch[1]).square()

    with pytest.raises(IsolationError, match="number of records=decides"):
        prove(model, losses, DATA, 24)


class RareAxis(nn.Module):
    """Once in a while over the other axis, which no proof draws."""

    def __init__(self, call: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.call = nn.Linear(4, 4), nn.Linear(4, 1), call

    def forward(self, x: Tensor) -> Tensor:
        axis = 0 if random.random() < 0.004 else 1
        return self.b(self.call(self.a(x), axis)).squeeze(1)


@pytest.mark.parametrize(
    "call",
    [
        lambda h, d: h / (1e-3 + torch.linalg.vector_norm(h, dim=d, keepdim=True)),
        lambda h, d: h - h.nansum(d, keepdim=True),
        lambda h, d: h - torch.linalg.norm(h, None, d, keepdim=True),
        lambda h, d: h.renorm(2, d, 1.0),
        lambda h, d: h - (h[0] if d == 0 else h[:, 0]).sum(),
        lambda h, d: torch.cat(h.chunk(2, dim=d)[::-1], 1) if d else h + h.select(d, 0),
        lambda h, d: h.rot90(2, (0, 1)) if d == 0 else h.rot90(2, (1, 0)),
    ],
)
def test_an_axis_drawn_by_a_rare_coin_is_refused(call: Callable[[Tensor, int], Tensor]):
    seed = next(s for s in range(5000) if random.Random(s).random() < 0.004)
    with pytest.raises((IsolationError, UnsupportedModelError)):
        gradients(private(RareAxis(call)), tuple(t[:8] for t in DATA), seed)


def variational(model: nn.Module, batch: Any) -> Tensor:
    mean, log_std = model(batch[0]).chunk(2, 1)
    q = torch.distributions.Normal(mean, log_std.exp())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    kl = torch.distributions.kl_divergence(q, prior)
    return (q.rsample().sum(1) - batch[1]).square() + kl.sum(1)


def gaussian(model: nn.Module, batch: Any) -> Tensor:
    out = model(batch[0])
    return F.gaussian_nll_loss(out[:, 0], batch[1], F.softplus(out[:, 1]), reduction="none")


@pytest.mark.parametrize("objective", [variational, gaussian])
def test_checks_of_values_by_torch_itself_are_left_out(objective: Any):
    run = private(nn.Linear(4, 2), objective)
    assert gradients(run, DATA).isfinite().all()
    assert torch.distributions.Distribution._validate_args  # as it was


@pytest.mark.parametrize("reduced", [torch.rand(5, 3), torch.rand(5, 1), torch.rand(5)])
def test_gaussian_loss_is_that_of_torch(reduced: Tensor):
    from steppe.gradients.rules.value_checks import gaussian_nll_loss

    out = torch.randn(5, 3, requires_grad=True)
    target, var = torch.randn(5, 3), (reduced - 0.2).clamp(min=0).requires_grad_()
    for full in (False, True):
        pairs = [
            torch.autograd.grad(loss.sum(), (out, var))
            for loss in (
                f(out, target, var, full=full, reduction="none")
                for f in (F.gaussian_nll_loss, gaussian_nll_loss)
            )
        ]
        torch.testing.assert_close(*pairs)


@pytest.mark.parametrize("reentrant", [True, False])
def test_weights_in_checkpointed_blocks_are_refused_by_name(reentrant: bool):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            from torch.utils.checkpoint import checkpoint

            return self.b(checkpoint(self.a, x.tanh(), use_reentrant=reentrant)).squeeze(1)

    with pytest.raises(UnsupportedModelError):
        private(Checkpointed())
