"""The private loop as users write it."""

import copy
import math
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data import DataLoader, TensorDataset

import steppe
from silent import Silent
from steppe.clipping import ClippedSum, Flat
from steppe.errors import (
    BudgetExhausted,
    ConfigurationError,
    DataError,
    IsolationError,
    MisuseError,
    SteppeError,
    UnsupportedModelError,
)
from steppe.points.here import HereRun
from steppe.private.private import example_for
from steppe.probing.cache import form_of
from steppe.records import as_records
from steppe.step import PrivateStep

N = 200


def parts(seed: int = 0, **options: Any) -> tuple[nn.Module, Any, Any, steppe.Plan]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = (torch.randn(N, 6), torch.randint(3, (N,)))
    settings = {"delta": 1e-4, "population": N, "batch_size": 20, "steps": 6} | options
    if "epsilon" not in settings:
        settings.setdefault("noise_multiplier", 1.0)
    return model, optimizer, data, steppe.Plan(**settings)


def private(seed: int = 0, loss: Any = F.cross_entropy, **options: Any) -> steppe.Private:
    model, optimizer, data, plan = parts(seed, **options)
    return steppe.make_private(model, optimizer, data, plan, loss=loss)


def test_a_whole_run_spends_the_budget_and_no_more() -> None:
    loop = private(epsilon=3.0)
    assert len(loop) == 6
    assert loop.epsilon() == 0.0
    for batch in loop:
        loop.step(batch)
    assert len(loop) == 0
    assert 2.99 < loop.epsilon() <= 3.0
    assert list(loop) == []
    assert re.search(r"guarantee: \(ε, δ\) = \((2\.99\d*|3\.0), 0\.0001\)", str(loop.statement()))


def test_no_noise_and_no_clip_is_plain_sgd() -> None:
    """Full batches, an endless clip and noise below rounding: the plain optimizer's path."""
    model, optimizer, data, plan = parts(
        batch_size=N, noise=Silent(), clip=steppe.Flat(100.0), steps=3
    )
    plain = copy.deepcopy(model)
    descent = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
        descent.zero_grad()
        F.cross_entropy(plain(data[0]), data[1]).backward()
        descent.step()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_plan_cannot_be_exchanged() -> None:
    loop = private()
    for owner in (loop, loop._step):
        with pytest.raises(AttributeError):
            owner.plan = replace(loop.plan, epsilon=None, noise_multiplier=50.0)


@pytest.mark.parametrize("hooked", [True, False])
def test_batches_made_in_inference_mode(hooked: bool) -> None:
    """Under a tracer, which a hook asks for, and as a row of layers."""

    def trained(mode: Callable[[], AbstractContextManager[Any]]) -> list[Tensor]:
        model, optimizer, data, plan = parts(batch_size=N, noise=Silent(), steps=3)
        if hooked:
            model.register_forward_hook(lambda *_: None)
        loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
        for batch in loop:
            with mode():
                made = tuple(part.clone() for part in batch)
            loop.step(made)
        return list(model.parameters())

    torch.testing.assert_close(trained(torch.inference_mode), trained(nullcontext))


def test_the_divisor_is_the_expected_batch() -> None:
    """Noise off, the same clipped sum whatever was drawn: the gradient is sum / expected batch."""
    loop = private(noise=Silent(), batch_size=20.5, clip=steppe.Flat(0.01))
    for batch in loop:
        total = torch.zeros(loop.engine.numel)
        loop.engine.add_(total, batch)
        loop.step(batch)
        gradient = torch.cat([p.grad.flatten() for p in loop.model.parameters()])
        assert torch.allclose(gradient, total / 20.5, rtol=1e-4, atol=1e-8)


def test_empty_batches_are_noise_only_steps() -> None:
    loop = private(batch_size=1e-9, steps=3, noise_multiplier=2.0)
    before = [p.detach().clone() for p in loop.model.parameters()]
    for batch in loop:
        assert len(batch[0]) == 0
        loop.step(batch)
    assert loop.steps_done == 3
    assert all(not torch.equal(p, b) for p, b in zip(loop.model.parameters(), before, strict=True))


def test_model_optimizer_and_schedulers_stay_the_users() -> None:
    model, optimizer, data, plan = parts()
    names = list(model.state_dict())
    loop = steppe.make_private(model, optimizer, data, plan, loss=nn.CrossEntropyLoss())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for batch in loop:
        loop.step(batch)
        scheduler.step()
    assert loop.model is model
    assert list(model.state_dict()) == names
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**6)
    fresh = torch.optim.SGD(copy.deepcopy(model).parameters(), lr=1.0, momentum=0.9)
    fresh.load_state_dict(optimizer.state_dict())
    assert fresh.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_any_optimizer(make: Any) -> None:
    model, _, data, plan = parts()
    optimizer = make(model.parameters(), lr=1e-3)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6


def test_accumulated_parts_are_one_step() -> None:
    sums = []
    for split in (False, True):
        model, optimizer, data, plan = parts(noise=Silent())
        source = steppe.SeededSource(3)
        loop = steppe.make_private(
            model, optimizer, data, plan, loss=F.cross_entropy, source=source
        )
        for batch in loop:
            if split:
                half = len(batch[0]) // 2
                loop.accumulate(tuple(t[:half] for t in batch))
                loop.accumulate(tuple(t[half:] for t in batch))
                loop.step()
            else:
                loop.step(batch)
        sums.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*sums, rtol=1e-4, atol=1e-6)


def test_take_gives_an_epoch_at_a_time() -> None:
    loop = private()
    for _ in range(3):
        for batch in loop.take(2):
            loop.step(batch)
        with torch.no_grad():
            loop.model.eval()
            loop.model(torch.zeros(1, 6))
            loop.model.train()
    assert len(loop) == 0


def test_population_left_out_is_read_once_and_said() -> None:
    loop = private(population=None)
    assert loop.plan.population == N
    assert "length" in str(loop.statement())
    assert loop.plan.population_source == "data"


def test_seeded_runs_are_stamped() -> None:
    model, optimizer, data, plan = parts()
    source = steppe.SeededSource(1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, source=source)
    assert "NOT PRIVATE" in str(loop.statement())


def test_a_data_loader_keeps_its_collate_function() -> None:
    model, optimizer, data, plan = parts()

    def doubled(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return 2 * torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])

    loader = DataLoader(TensorDataset(*data), batch_size=20, shuffle=True, collate_fn=doubled)
    loop = steppe.make_private(model, optimizer, loader, plan, loss=F.cross_entropy)
    batch = next(iter(loop))
    assert all(any(torch.equal(row, 2 * x) for x in data[0]) for row in batch[0][:3])


def test_views_are_averaged_and_do_not_raise_the_sensitivity() -> None:
    model, optimizer, data, plan = parts(views=4, clip=steppe.Flat(0.01), noise=Silent())
    loop = steppe.make_private(
        model,
        optimizer,
        data,
        plan,
        loss=F.cross_entropy,
        augment=lambda x: x + 0.1 * torch.randn_like(x),
    )
    out = torch.zeros(loop.engine.numel)
    loop.engine.add_(out, (data[0][:1], data[1][:1]))
    assert float(out.norm()) <= 0.01 * (1 + 1e-5)
    for batch in loop:
        loop.step(batch)


def test_own_objective() -> None:
    model, optimizer, data, plan = parts()
    columns = {"features": data[0], "label": data[1]}

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch["features"]), batch["label"], reduction="none")

    loop = steppe.make_private(model, optimizer, columns, plan, objective=losses)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6


def test_the_plans_last_step_is_the_last() -> None:
    loop = private(steps=1)
    batch = next(iter(loop))
    loop.step(batch)
    with pytest.raises(BudgetExhausted, match="the plan pays for 1 steps"):
        loop.step(batch)
    with pytest.raises(BudgetExhausted, match="the plan pays for 1 steps"):
        loop.step()
    assert loop.steps_done == 1


def test_a_drawn_batch_must_be_stepped_once_and_whole() -> None:
    loop = private()
    batches = iter(loop)
    batch = next(batches)
    with pytest.raises(MisuseError, match="records: must be the batch just drawn"):
        loop.step(tuple(torch.cat([t, t[:1]]) for t in batch))
    with pytest.raises(MisuseError, match="a batch was drawn and not stepped"):
        next(batches)
    assert loop.steps_done == 0
    loop.step(batch)
    with pytest.raises(MisuseError, match="must be the batch just drawn"):
        loop.step(batch)


def test_optimizer_and_model_must_agree() -> None:
    model, _, data, plan = parts()
    few = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"optimizer lacks \['2.weight', '2.bias'\]"):
        steppe.make_private(model, few, data, plan, loss=F.cross_entropy)
    other = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ConfigurationError, match="holds 1 weights that are not the model's"):
        steppe.make_private(model, other, data, plan, loss=F.cross_entropy)
    newton = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ConfigurationError, match="optimizer='LBFGS'"):
        steppe.make_private(model, newton, data, plan, loss=F.cross_entropy)
    with pytest.raises(ConfigurationError, match="no trainable weights"):
        steppe.make_private(model.requires_grad_(False), few, data, plan, loss=F.cross_entropy)


def test_weights_that_stand_still_are_reported_after_the_first_step() -> None:
    model, _, data, plan = parts()
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}], lr=0.1
    )
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    # As when an adapter is swapped for a copy: the optimizer moves weights that nobody uses.
    optimizer.param_groups[1]["params"] = [p.detach().clone() for p in model[2].parameters()]
    with pytest.raises(MisuseError, match=r"parameters=\['2.weight', '2.bias'\]: must move"):
        loop.step(next(iter(loop)))


def test_late_freezing_and_unfreezing() -> None:
    loop = private()
    batches = iter(loop)
    loop.step(next(batches))
    loop.model[0].requires_grad_(False)
    before = loop.model[0].weight.detach().clone()
    loop.step(next(batches))
    assert loop.model[0].weight.grad is None
    assert torch.equal(loop.model[0].weight, before)
    loop.model[0].requires_grad_(True)
    loop.step(next(batches))
    assert not torch.equal(loop.model[0].weight, before)


class _Squares(nn.Module):
    """Code of a user's own, so that the proof is renewed now and then."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square()


def test_a_weight_that_was_frozen_is_no_trouble_when_the_proof_is_renewed() -> None:
    torch.manual_seed(0)
    _, _, data, _ = parts()
    plan = steppe.Plan(epsilon=3.0, delta=1e-3, population=N, batch_size=20, steps=6)
    model = nn.Sequential(nn.Linear(6, 8), _Squares(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        if loop.steps_done == 2:
            model[0].weight.requires_grad_(False)
            before = model[0].weight.detach().clone()
        loop.step(batch)
    assert loop.steps_done == 6
    assert torch.equal(model[0].weight, before)


def test_switching_batch_norm_to_training_is_caught_at_the_next_step() -> None:
    torch.manual_seed(0)
    _, _, data, plan = parts()
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    batches = iter(loop)
    loop.step(next(batches))
    model.train()
    batch = next(batches)
    with pytest.raises((IsolationError, UnsupportedModelError), match="BatchNorm1d"):
        loop.step(batch)
    assert loop.steps_done == 1
    model.eval()
    loop.step(batch)


def test_capped_batches_need_the_true_population() -> None:
    model, optimizer, data, plan = parts(
        sampling=steppe.CappedPoisson(), adjacency="zero-out", population=N + 1
    )
    with pytest.raises(ConfigurationError, match="population=201: must be the data's length"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    loop = private(sampling=steppe.CappedPoisson(cap=21), adjacency="zero-out")
    for batch in loop:
        assert len(batch[0]) <= 21
        loop.step(batch)


FIXED: dict[str, Any] = {
    "sampling": steppe.CappedPoisson(fixed_shapes=True),
    "adjacency": "zero-out",
}


class Recording(nn.Module):
    """Notes the shapes of what goes through, there and back."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        self.seen += [tuple(x.shape), tuple(y.shape)]
        if y.requires_grad:
            y.register_hook(lambda gradient: self.seen.append(tuple(gradient.shape)))
        return y


def seen_in_steps(draws: list[int], views: int = 1, **options: Any) -> list[list[tuple[int, ...]]]:
    """What a model sees in steps that draw so many records each."""
    constants: dict[str, Any] = {"steps": len(draws), "views": views} | options
    physical = constants.pop("physical_batch", None)
    model, _, data, plan = parts(**constants)
    model = Recording(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    augment = None if views == 1 else torch.neg
    loop = steppe.make_private(
        model, optimizer, data, plan,
        loss=F.cross_entropy, physical_batch=physical, augment=augment,
    )  # fmt: skip
    loop._offers._draw = lambda step, source: torch.arange(draws[step])
    steps = []
    for batch in loop:
        assert len(batch[0]) == draws[len(steps)]
        model.seen.clear()
        loop.step(batch)
        steps.append(list(model.seen))
    return steps


def test_with_fixed_shapes_every_step_is_like_every_other() -> None:
    draws = [0, 46, 1, 20]  # four, since before the fifth step the model is probed again
    once = [(46, 6), (46, 3), (46, 3)]
    assert seen_in_steps(draws, **FIXED) == [once] * 4
    pieces = [(12, 6), (12, 3), (12, 3)] * 4
    assert seen_in_steps(draws, physical_batch=13, **FIXED) == [pieces] * 4
    twice = [(92, 6), (92, 3), (92, 3)]
    assert seen_in_steps(draws, views=2, **FIXED) == [twice] * 4
    usual = seen_in_steps(draws, **FIXED | {"sampling": steppe.CappedPoisson()})
    assert [len(step) for step in usual] == [0, 3, 3, 3]
    assert [step[0][0] for step in usual[1:]] == draws[1:]


def test_fixed_shapes_change_no_gradient() -> None:
    """The same draws and the same noise, with and without padding."""
    moved = []
    for sampling in (steppe.CappedPoisson(), steppe.CappedPoisson(fixed_shapes=True)):
        model, optimizer, data, plan = parts(
            clip=steppe.Quantile(), l2=0.1, batch_size=2, steps=25, **FIXED | {"sampling": sampling}
        )
        source = steppe.SeededSource(4)
        loop = steppe.make_private(
            model, optimizer, data, plan, loss=F.cross_entropy, source=source
        )
        sizes = set()
        for batch in loop:
            sizes.add(len(batch[0]))
            loop.step(batch)
        assert min(sizes) == 0
        assert max(sizes) > 3
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        moved.append((weights, loop.engine.clipper.state()["bound"]))
    assert torch.allclose(moved[0][0], moved[1][0], rtol=1e-4, atol=1e-6)
    assert moved[0][1] == pytest.approx(moved[1][1], rel=1e-6)


def test_an_empty_batch_of_fixed_shapes_is_noise_alone() -> None:
    loop = private(steps=2, noise=Silent(), l2=0.1, **FIXED)
    loop._offers._draw = lambda step, source: torch.arange(0)
    batch = next(iter(loop))
    loop._step.take([batch])
    assert not any(p.grad.any() for p in loop.model.parameters())


def test_a_batch_of_fixed_shapes_comes_whole() -> None:
    loop = private(**FIXED)
    batch = next(iter(loop))
    rest = (
        r": must be the whole batch where shapes are fixed, since the number of parts would tell "
        r"its size; pass what was drawn to step\(\), and set physical_batch for what goes through "
        r"the model at once\.$"
    )
    with pytest.raises(MisuseError, match=r"^part=list" + rest):
        loop.accumulate(list(batch))
    with pytest.raises(MisuseError, match=r"^batch=NoneType" + rest):
        loop.step()
    assert loop.steps_done == 0
    loop.step(batch)
    assert loop.steps_done == 1


def test_what_stops_at_zeros_is_refused_before_the_first_step() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            torch._assert_async(x.any(), "nothing there")
            return super().forward(x)

    def make(sampling: steppe.CappedPoisson) -> steppe.Private:
        _, _, data, plan = parts(adjacency="zero-out", sampling=sampling)
        model = Picky(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)

    make(steppe.CappedPoisson())
    with pytest.raises(UnsupportedModelError, match=r"^fixed_shapes=True: .*said: nothing there;"):
        make(steppe.CappedPoisson(fixed_shapes=True))


def test_the_padding_of_the_engine_must_be_the_plans() -> None:
    loop = private(**FIXED)
    loop.engine.padded_to = None
    with pytest.raises(
        ConfigurationError, match=r"^engine\.padded_to=None: must be the plan's 46; make it from"
    ):
        PrivateStep(loop.plan, loop.engine, loop.optimizer, steppe.SecureSource())


def test_loss_or_objective_but_not_both() -> None:
    model, optimizer, data, plan = parts()
    with pytest.raises(ConfigurationError, match="`loss` or `objective` is required"):
        steppe.make_private(model, optimizer, data, plan)
    with pytest.raises(UnsupportedModelError, match="loss=0 axes"):
        steppe.make_private(model, optimizer, data, plan, loss=lambda o, t: o.mean())


def test_double_precision_stays_double() -> None:
    model, _, data, plan = parts()
    model = model.double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = steppe.make_private(
        model, optimizer, (data[0].double(), data[1]), plan, loss=F.cross_entropy
    )
    loop.step(next(iter(loop)))
    assert all(p.grad.dtype == torch.float64 for p in model.parameters())


def test_grid_noise_runs_through_the_same_step(monkeypatch: pytest.MonkeyPatch) -> None:
    finish, asked = steppe.Gaussian.finish_, []

    def noted(self: Any, buffer: Tensor, std: float, sensitivity: float, source: Any) -> Tensor:
        asked.append((buffer.dtype, std, sensitivity))
        return finish(self, buffer, std, sensitivity, source)

    monkeypatch.setattr(steppe.Gaussian, "finish_", noted)
    loop = private(noise=steppe.Gaussian(grid=True), epsilon=2.0, clip=Flat(0.02))
    for batch in loop:
        loop.step(batch)
    assert loop.epsilon() <= 2.0
    assert "defence on" in str(loop.statement()).lower()
    # How much more noise the rounding takes depends on what one record may say.
    assert asked == [(torch.float64, 0.02 * loop.plan.sigma, 0.02)] * 6


def test_the_padding_row_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(9, 4, mode="sum", padding_idx=2), nn.Linear(4, 3))
    words = nn.Embedding(9, 4, padding_idx=-1)
    both = nn.ModuleDict({"bag": model, "words": words})
    data = (torch.randint(9, (N, 5)), torch.randint(3, (N,)))

    def losses(both: nn.Module, batch: Any) -> Tensor:
        out = both["bag"](batch[0]) + both["words"](batch[0]).mean((1, 2))[:, None]
        return F.cross_entropy(out, batch[1], reduction="none")

    optimizer = torch.optim.SGD(both.parameters(), lr=0.1)
    plan = steppe.Plan(delta=1e-4, population=N, batch_size=20, steps=2, noise_multiplier=1.0)
    before = model[0].weight[2].detach().clone()
    loop = steppe.make_private(both, optimizer, data, plan, objective=losses)
    for batch in loop:
        loop.step(batch)
    assert torch.equal(model[0].weight[2], before)
    assert torch.equal(words.weight[8], torch.zeros(4))
    assert not torch.equal(model[0].weight[1], before)


def test_labels_are_checked_before_the_first_step_where_classes_are_declared() -> None:
    model, optimizer, data, plan = parts()
    data[1][17] = 3
    with pytest.raises(DataError, match="labels=int64: must be whole numbers from 0 to 2"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, classes=3)
    data[1][17] = 0
    steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, classes=3)


@pytest.mark.parametrize("grid", [False, True])
def test_a_step_that_fails_leaves_no_gradient_behind(grid: bool) -> None:
    loop = private(noise=steppe.Gaussian(grid=grid), noise_multiplier=100.0)
    batches = iter(loop)
    loop.step(next(batches))
    kept = [p.grad for p in loop.model.parameters()]
    copies = [g.clone() for g in kept]
    add = loop.engine.add_slots_

    def fails(*arguments: Any) -> Tensor:
        add(*arguments)
        raise RuntimeError("out of memory")

    loop.engine.add_slots_ = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        loop.step(next(batches))
    assert all(p.grad is None for p in loop.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert loop.steps_done == 2  # charged before it was taken
    loop.engine.add_slots_ = add  # type: ignore[method-assign]
    loop.step(next(batches))

    def stops(closure: Any = None) -> None:
        raise RuntimeError("no such state")

    loop.optimizer.step = stops  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no such state"):
        loop.step(next(batches))
    assert all(p.grad is None for p in loop.model.parameters())


def test_a_read_error_offers_the_same_draw_again() -> None:
    class Flaky(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.fail = False
            self.asked: list[int] = []

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            self.asked.append(i)
            if self.fail:
                raise OSError("network file system hiccup")
            return torch.full((6,), float(i)), i % 3

    model, optimizer, _, plan = parts(batch_size=50)
    data = Flaky()
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    loop.step(next(iter(loop)))
    data.fail, data.asked = True, []
    with pytest.raises(OSError, match="hiccup"):
        next(iter(loop))
    first = data.asked[0]
    data.fail = False
    batch = next(iter(loop))
    assert int(batch[0][0, 0]) == first
    loop.step(batch)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6


@pytest.mark.parametrize("rate", [1e-9, 0.0])
def test_a_tiny_learning_rate_is_no_mistake(rate: float) -> None:
    model, _, data, plan = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1.0)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    loop.step(next(iter(loop)))
    assert loop.steps_done == 1
    assert all(weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_the_batch_is_asked_as_often_as_the_point_says(queries: int) -> None:
    @dataclass(frozen=True)
    class Mean:
        queries: int

        def begin(self, weights: Any) -> Any:
            return MeanRun()

    class MeanRun(HereRun):
        def gradient(self, answers: Any) -> Tensor:
            given.append(answers)
            return torch.stack(answers).mean(0)

    given: list[list[Tensor]] = []
    loop = private(point=Mean(queries))
    asked, query = [], loop._step.mechanism.query
    loop._step.mechanism.query = lambda std: asked.append(std) or query(std)  # type: ignore
    loop.step(next(iter(loop)))
    assert len(asked) == len(given[0]) == queries
    alone = private(noise_multiplier=loop.plan.sigma / queries**0.5)
    assert loop.epsilon() == pytest.approx(alone.plan.epsilon_spent(1), rel=1e-3)


def test_a_premature_step_keeps_the_accumulated_parts() -> None:
    loop = private()
    batch = next(iter(loop))
    half = len(batch[0]) // 2
    loop.accumulate(tuple(t[:half] for t in batch))
    with pytest.raises(MisuseError, match="must be the batch just drawn"):
        loop.step()
    loop.accumulate(tuple(t[half:] for t in batch))
    loop.step()
    assert loop.steps_done == 1


def test_parts_that_are_no_batch_or_too_many_do_not_stay() -> None:
    loop = private()
    batch = next(iter(loop))
    with pytest.raises(DataError):
        loop.accumulate(5)
    loop.accumulate(batch)
    loop.accumulate(batch)
    with pytest.raises(MisuseError, match="must be the batch just drawn") as caught:
        loop.step()
    assert str(len(batch[0])) not in str(caught.value)  # how many were drawn is private
    loop.step(batch)
    assert loop.steps_done == 1


def test_the_engine_must_be_the_plans() -> None:
    loop = private()
    other = steppe.Plan(
        noise_multiplier=1.0, delta=1e-4, population=N, batch_size=20, steps=2, clip=steppe.Flat(9)
    )
    with pytest.raises(ConfigurationError, match="must be the plan's Flat"):
        PrivateStep(other, loop.engine, loop.optimizer, steppe.SecureSource())


@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_weights_in_channels_last_order_step_as_others_do(l2: float) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 2))
    data = (torch.randn(20, 3, 8, 8), torch.randint(2, (20,)))
    constants = {"noise_multiplier": 1.0, "delta": 1e-3, "population": 20, "batch_size": 10}
    moved = []
    for order in (torch.contiguous_format, torch.channels_last):
        model = copy.deepcopy(plain).to(memory_format=order)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        plan = steppe.Plan(**constants, steps=2, l2=l2)
        source = steppe.SeededSource(3)
        private = steppe.make_private(
            model, optimizer, data, plan, loss=F.cross_entropy, source=source
        )
        for batch in private:
            private.step(batch)
        moved.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-5, atol=1e-6)


def test_mixed_precision_around_a_step_is_refused_before_it_is_charged() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MisuseError, match="autocast"):
        private()
    loop = private()
    batch = next(iter(loop))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MisuseError, match="autocast"):
        loop.step(batch)
    assert loop.steps_done == 0
    loop.step(batch)  # the drawn batch is still there
    assert loop.steps_done == 1


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_coarse_products_are_refused_before_a_step_is_charged(precision: str) -> None:
    """On processors that have them, a record would say up to 1 % more than its clip."""
    loop = private()
    batch = next(iter(loop))
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(MisuseError, match=r"^fp32_precision of mkldnn.matmul='(tf32|bf16)'"):
            private()
        with pytest.raises(MisuseError, match="since products of rounded numbers are too"):
            loop.step(batch)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert loop.steps_done == 0
    loop.step(batch)
    assert loop.steps_done == 1


@pytest.mark.parametrize("operation", ["conv", "rnn"])
def test_coarse_products_of_layers_are_refused(operation: str) -> None:
    backend = getattr(torch.backends.mkldnn, operation)
    backend.fp32_precision = "bf16"
    try:
        with pytest.raises(MisuseError, match=f"^fp32_precision of mkldnn.{operation}='bf16': mu"):
            private()
    finally:
        backend.fp32_precision = "none"


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.autograd.detect_anomaly])
def test_modes_that_end_in_an_error_are_refused_before_the_charge(mode: Any) -> None:
    model, optimizer, data, plan = parts()
    with mode(), pytest.raises(MisuseError, match=f"{mode.__name__}=on: must be off around make"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    run = private()
    batch = next(iter(run))
    with mode(), pytest.raises(MisuseError, match=f"{mode.__name__}=on: must be off"):
        run.step(batch)
    assert run.steps_done == 0
    run.step(batch)
    assert run.steps_done == 1


def test_an_interrupt_before_the_charge_keeps_draws_and_steps_together() -> None:
    """The draw of a step belongs to the number of the step, whatever happened before."""
    asked: list[int] = []

    class Noted(steppe.Poisson):
        def begin(self, *arguments: Any) -> Any:
            draw = super().begin(*arguments)

            def noted(step: int, source: Any) -> Tensor:
                asked.append(step)
                return draw(step, source)

            return noted

    run = private(sampling=Noted())
    charge = run._step._charge

    def interrupted() -> float:
        raise KeyboardInterrupt

    run._step._charge = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.step(next(iter(run)))
    run._step._charge = charge
    for batch in run:
        run.step(batch)
    assert run.steps_done == run.plan.total_steps
    assert asked == list(range(run.plan.total_steps))


def test_a_loop_that_was_left_is_offered_the_same_draw() -> None:
    run = private()
    run.step(next(iter(run)))
    left, _ = next(iter(run))
    before = left.clone()
    left.mul_(0.0)
    ((again, labels),) = run.take(1)
    assert torch.equal(again, before), "read anew, not as the loop left it"
    run.step((again, labels))
    assert run.steps_done == 2


def test_the_state_of_another_plan_is_refused() -> None:
    run = private()
    for batch in run.take(2):
        run.step(batch)
    state = run.state_dict()
    other = private(noise_multiplier=100.0)
    with pytest.raises(ConfigurationError, match=r"must be .*, the digest of this run's plan"):
        other.load_state_dict(state)
    assert other.steps_done == 0
    same = private()
    same.load_state_dict(state)
    assert same.steps_done == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: None, "state='NoneType': must hold plan, steps_done, clip, walk; load what"),
        (lambda state: {}, "state='without plan, steps_done, clip, walk'"),
        (lambda state: {**state, "walk": None}, "state='without walk'"),
        (lambda state: {"plan": state["plan"], "clip": {}, "walk": {}}, "'without steps_done'"),
        (lambda state: {**state, "walk": {"climb": 5}}, r"\['climb'\]=5: must be a vector"),
        (lambda state: {**state, "clip": {}}, "clip state's bound=None: must be a real number"),
    ],
)
def test_what_is_no_state_is_refused(change: Any, message: str) -> None:
    run = private(clip=steppe.Quantile())
    with pytest.raises(ConfigurationError, match=message):
        run.load_state_dict(change(run.state_dict()))
    assert run.steps_done == 0


def test_gradients_that_others_left_never_move_a_weight() -> None:
    """Frozen while the loop was made private, so the engine does not know these weights."""
    model, optimizer, data, plan = parts()
    first = next(iter(model.parameters()))
    first.requires_grad_(False)
    run = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    before = first.detach().clone()
    first.grad = torch.ones_like(first)
    run.step(next(iter(run)))
    assert torch.equal(before, first)


def test_a_model_changed_during_the_run_is_probed_again() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Identity(), nn.Linear(8, 2))
    x, y = torch.randn(60, 4), torch.randint(0, 2, (60,))
    plan = steppe.Plan(delta=1e-3, noise_multiplier=1.0, population=60, batch_size=20, steps=9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = steppe.make_private(model, optimizer, (x, y), plan, loss=F.cross_entropy)
    run.step(next(iter(run)))
    batch = next(iter(run))
    model[1] = nn.BatchNorm1d(8, affine=False, track_running_stats=False)
    with pytest.raises(SteppeError, match="BatchNorm1d"):
        run.step(batch)
    model[1] = nn.Identity()
    hook = model[0].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
    with pytest.raises(SteppeError, match="must treat every record alone"):
        run.step(batch)
    hook.remove()
    model[2] = nn.Linear(8, 2)
    with pytest.raises(SteppeError, match="must be among the trained ones"):
        run.step(batch)
    assert run.steps_done == 1


def mixes(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output - output.mean(0)


def leaks(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return tuple(None if g is None else g - g.mean(0) for g in inputs)


def forgets_statistics(model: Any) -> Any:
    model[1].running_mean = model[1].running_var = None
    return lambda: None


CHANGES: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "forward": lambda m: setattr(m[0], "forward", lambda x: x - x.mean(0)) or (lambda: None),
    "hook of all modules": lambda m: register_module_forward_hook(mixes).remove,
    "hook of a backward pass": lambda m: m[0].register_full_backward_hook(leaks).remove,
    "buffers": forgets_statistics,
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_of_a_model_is_probed(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6).eval(), nn.Linear(6, 3))
    data = (torch.randn(N, 6), torch.randint(3, (N,)))
    plan = steppe.Plan(delta=1e-4, noise_multiplier=1.0, population=N, batch_size=20, steps=6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    run.step(next(iter(run)))
    batch = next(iter(run))
    undo = CHANGES[name](model)
    try:
        with pytest.raises(SteppeError):
            run.step(batch)
    finally:
        undo()
    assert run.steps_done == 1


def test_records_that_meet_later_in_a_run_are_noticed() -> None:
    """A term over the batch that is left out in the first steps."""
    model, optimizer, data, plan = parts(steps=40)
    late = False

    def losses(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        z = model(x)
        apart = (z - z.mean(0).detach()).square().sum(1) if late else 0.0
        return F.cross_entropy(z, y, reduction="none") + apart

    run = steppe.make_private(model, optimizer, data, plan, objective=losses)
    for batch in run.take(4):
        run.step(batch)
    late = True
    batch = next(iter(run))
    with pytest.raises(IsolationError, match="loss=mixes records") as caught:
        run.step(batch)
    assert run.steps_done == 4
    assert "Do not publish this model" in caught.value.__notes__[0]


def test_weights_that_are_no_longer_finite_do_not_stop_a_run() -> None:
    model, optimizer, data, plan = parts(steps=6)
    run = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in run:
        run.step(batch)
        with torch.no_grad():
            model[0].weight.fill_(math.inf)
    assert run.steps_done == 6


def test_a_model_in_another_precision_is_refused_before_the_charge() -> None:
    run = private()
    batch = next(iter(run))
    run.model.double()
    with pytest.raises(SteppeError, match="dtype"):
        run.step(batch)
    assert run.steps_done == 0


def test_a_step_inside_a_step_is_refused() -> None:
    """It used to wait for itself."""
    running: list[steppe.Private] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        for loop in running:
            loop.step((torch.zeros(len(target), 6), target))
        return F.cross_entropy(output, target, reduction="none")

    loop = private(loss=loss)
    batch = next(iter(loop))
    before = [p.detach().clone() for p in loop.model.parameters()]
    running.append(loop)
    with pytest.raises(MisuseError, match="must be the batch just drawn"):
        loop.step(batch)
    assert loop.steps_done == 1, "the batch was read, so it is charged"
    assert all(map(torch.equal, before, loop.model.parameters()))


def test_of_two_threads_with_one_batch_one_is_refused() -> None:
    run = private()
    batch, wait, refused = next(iter(run)), threading.Barrier(4), []

    def step() -> None:
        wait.wait()
        try:
            run.step(batch)
        except MisuseError as error:
            refused.append(error)

    threads = [threading.Thread(target=step) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.steps_done == 1
    assert len(refused) == 3


def test_no_error_tells_how_many_records_were_drawn() -> None:
    run = private(batch_size=50)
    x, y = next(iter(run))
    with pytest.raises(SteppeError) as caught:
        run.step((x, y[1:]))
    assert not {str(len(x)), str(len(x) - 1)} & set(re.findall(r"\d+", str(caught.value)))


@pytest.mark.parametrize("bound", [1e-46, 1e39])
def test_noise_beyond_float32_is_refused_before_the_first_step(bound: float) -> None:
    with pytest.raises(ConfigurationError, match=r"must lie in the range of torch\.float32"):
        private(clip=steppe.Flat(bound))


def test_the_memory_of_another_model_is_refused() -> None:
    run = private(point=steppe.SAT(0.1))
    run.step(next(iter(run)))
    state = run.state_dict()
    state["walk"]["climb"] = state["walk"]["climb"][:-1]
    other = private(point=steppe.SAT(0.1))
    with pytest.raises(ConfigurationError, match=r"'climb'.*must be a vector of the model's"):
        other.load_state_dict(state)
    assert other.steps_done == 0


def test_a_batch_in_another_precision_is_probed_before_the_charge() -> None:
    run = private()
    x, y = next(iter(run))
    with pytest.raises(SteppeError, match="must have the same dtype"):
        run.step((x.double(), y))
    assert run.steps_done == 0
    run.step((x, y))  # the batch is still there to be stepped
    assert run.steps_done == 1


def test_freezing_every_weight_is_refused_before_the_charge() -> None:
    run = private()
    batch = next(iter(run))
    run.model.requires_grad_(False)
    with pytest.raises(MisuseError, match="`model` has no trainable weights"):
        run.step(batch)
    assert run.steps_done == 0


def test_complex_weights_are_refused() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.turn).abs()

    _, _, data, plan = parts()
    model = Turned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"'turn'=.*must be real.*torch\.view_as_complex"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


def test_weights_made_in_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        model = nn.Linear(6, 3)
    _, _, data, plan = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match="'weight'='made in inference_mode'"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


# --- the lines of a plain loop beside the private step -----------------------------------------


def plain_lines(loop: steppe.Private, batch: Any, zero: str) -> None:
    """The step that every tutorial has, with `zero_grad` at either end."""
    if "before" in zero:
        loop.optimizer.zero_grad()
    F.cross_entropy(loop.model(batch[0]), batch[1]).backward()
    loop.optimizer.step()
    if "after" in zero:
        loop.optimizer.zero_grad()


@pytest.mark.parametrize("first", ["plain", "private"])
@pytest.mark.parametrize("zero", ["before", "after", "never"])
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_a_plain_step_beside_the_private_one_is_noticed(first: str, zero: str, name: str) -> None:
    model, _, data, plan = parts(batch_size=60)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)

    def both() -> None:
        for batch in loop:
            if first == "plain":
                plain_lines(loop, batch, zero)
            loop.step(batch)
            if first == "private":
                plain_lines(loop, batch, zero)

    with pytest.raises(MisuseError, match=r"private steps must be the only ones.*fresh weights"):
        both()
    assert loop.steps_done == (0 if first == "plain" and zero != "after" else 1)
    with pytest.raises(MisuseError):
        next(iter(loop))


def test_plain_steps_alone_are_noticed() -> None:
    loop = private()
    batches = iter(loop)
    plain_lines(loop, next(batches), "before")
    with pytest.raises(MisuseError, match="private steps must be the only ones"):
        next(batches)
    assert loop.steps_done == 0


def test_a_plain_step_after_the_last_private_one_is_noticed() -> None:
    loop = private(steps=1)
    batches = iter(loop)
    batch = next(batches)
    loop.step(batch)
    plain_lines(loop, batch, "before")
    with pytest.raises(MisuseError, match="private steps must be the only ones"):
        next(batches)


def _averaged_for_a_while(loop: steppe.Private) -> None:
    kept = copy.deepcopy(loop.model.state_dict())
    loop.model.load_state_dict({name: torch.zeros_like(t) for name, t in kept.items()})
    loop.model(torch.zeros(1, 6))
    loop.model.load_state_dict(kept)


def _bounded(loop: steppe.Private) -> None:
    with torch.no_grad():
        for weight in loop.model.parameters():
            weight.clamp_(-0.1, 0.1)


def _zeroed_and_bounded(loop: steppe.Private) -> None:
    loop.optimizer.zero_grad(set_to_none=False)
    _bounded(loop)


def _measured(loop: steppe.Private) -> None:
    assert float(torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1e9)) > 0


def _measured_on_public_records(loop: steppe.Private) -> None:
    loss = loop.model(torch.ones(2, 6)).square().sum()
    torch.autograd.grad(loss, list(loop.model.parameters()))


def _public_step(loop: steppe.Private) -> None:
    plain_lines(loop, (torch.ones(2, 6), torch.zeros(2, dtype=torch.long)), "before and after")


def _forgotten_momentum(loop: steppe.Private) -> None:
    for state in loop.optimizer.state.values():
        state["momentum_buffer"].mul_(0.5)
    _bounded(loop)


def _loaded_optimizer(loop: steppe.Private) -> None:
    loop.optimizer.load_state_dict(copy.deepcopy(loop.optimizer.state_dict()))
    loop.optimizer.zero_grad()


@pytest.mark.parametrize(
    "between",
    [
        _averaged_for_a_while,
        _bounded,
        _zeroed_and_bounded,
        _measured,
        _measured_on_public_records,
        _public_step,
        _forgotten_momentum,
        _loaded_optimizer,
    ],
)
def test_what_may_be_done_between_private_steps(between: Any) -> None:
    loop = private()
    steppe.DecoupledDecay(loop.optimizer, 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, 1, gamma=0.9)
    for batch in loop:
        loop.step(batch)
        scheduler.step()
        between(loop)
    assert loop.steps_done == 6


def test_gradients_of_a_training_before_are_no_mistake() -> None:
    model, optimizer, data, plan = parts()
    F.cross_entropy(model(data[0]), data[1]).backward()
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6


def test_gradients_are_not_kept_alive() -> None:
    loop = private()
    loop.step(next(iter(loop)))
    memory = [StorageWeakRef(p.grad.untyped_storage()) for p in loop.model.parameters()]
    loop.optimizer.zero_grad()
    assert all(storage.expired() for storage in memory)


# --- batches that were transformed -------------------------------------------------------------


class _Summed(nn.Module):
    """Works on rows: as many a record as it has positions."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.flatten(0, 1)).view(len(x), -1, 3).mean(1)


def sequences() -> steppe.Private:
    torch.manual_seed(0)
    model = _Summed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = (torch.randn(N, 40, 2), torch.randint(3, (N,)))
    plan = steppe.Plan(
        delta=1e-4, population=N, batch_size=20, steps=40, noise_multiplier=1.0, clip=steppe.Flat(9)
    )
    return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


def test_a_cropped_batch_is_probed_in_its_own_shape() -> None:
    loop = sequences()
    for x, y in loop.take(3):
        loop.step((x[:, :5], y))
    for x, y in loop.take(1):
        loop.step((x, y))
    assert loop.steps_done == 4
    assert len(loop._probes._reports) == 2, "once for each shape"


def test_a_batch_that_does_not_fit_is_refused_before_the_charge() -> None:
    loop = private()
    x, y = next(iter(loop))
    for wrong in ((x[:, :4], y), (x[:, None, None], y), {"x": x, "y": y}, (y, x)):
        with pytest.raises(SteppeError):
            loop.step(wrong)
    assert loop.steps_done == 0
    loop.step((x, y))
    assert loop.steps_done == 1


def test_shapes_without_end_are_refused_before_the_charge() -> None:
    loop = sequences()
    for length, (x, y) in zip(range(25, 40), loop.take(15), strict=True):
        loop.step((x[:, :length], y))
    x, y = next(iter(loop))
    with pytest.raises(MisuseError, match="at most 16 shapes and types in a run"):
        loop.step((x[:, :3], y))
    assert loop.steps_done == 15
    loop.step((x[:, :30], y))  # known shapes go on
    assert loop.steps_done == 16


def test_parts_must_go_through_the_model_alike() -> None:
    loop = sequences()
    x, y = next(iter(loop))
    loop.accumulate((x[:5], y[:5]))
    with pytest.raises(MisuseError, match="parts=of several forms"):
        loop.step((x[5:, :10], y[5:]))
    assert loop.steps_done == 0


# --- optimizers and arguments that cannot work -------------------------------------------------


class _Follows(torch.optim.Optimizer):
    """Has no learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.1 * parameter.grad)


class _Asks(_Follows):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()


class _Rests(_Follows):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def test_an_optimizer_without_a_learning_rate() -> None:
    model, _, data, plan = parts()
    optimizer = _Follows(model.parameters())
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
    model, _, data, plan = parts()
    idle = steppe.make_private(model, _Rests(model.parameters()), data, plan, loss=F.cross_entropy)
    with pytest.raises(MisuseError, match="must move in the first step"):
        idle.step(next(iter(idle)))


def test_an_optimizer_that_needs_a_closure_is_refused_at_set_up() -> None:
    model, _, data, plan = parts()
    with pytest.raises(ConfigurationError, match=r"optimizer='_Asks'.*needs closure"):
        steppe.make_private(model, _Asks(model.parameters()), data, plan, loss=F.cross_entropy)


def test_a_scheduler_made_before_does_not_look_like_a_closure() -> None:
    model, optimizer, data, plan = parts()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": {}}, "plan='dict': must be a steppe.Plan"),
        ({"plan": None}, "plan='NoneType': must be a steppe.Plan"),
        ({"model": lambda x: x}, "model='function': must be a torch nn.Module"),
        ({"kernels": "fast"}, "kernels='fast': must be steppe.Kernels or None"),
        ({"loss": nn.CrossEntropyLoss}, r"loss='CrossEntropyLoss': must be made first; write"),
        ({"loss": None, "objective": 5}, "objective=5: must be a function of"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(change: dict[str, Any], message: str) -> None:
    model, optimizer, data, plan = parts()
    given = {"model": model, "optimizer": optimizer, "data": data, "plan": plan}
    with pytest.raises(ConfigurationError, match=message):
        steppe.make_private(**(given | {"loss": F.cross_entropy} | change))


def test_made_up_records_lie_where_the_weights_are() -> None:
    """Data stay on the host, and the loop moves its batches."""
    model = nn.Linear(3, 2, device="meta")
    engine = ClippedSum(dict(model.named_parameters()), lambda batch: model(batch[0]), Flat(1.0))
    rows = as_records([(torch.zeros(3), {"y": torch.tensor(0)})] * 2)
    assert form_of(example_for(engine, rows)) == form_of(
        [torch.zeros(0, 3, device="meta"), {"y": torch.zeros(0, dtype=torch.long, device="meta")}]
    )


def test_a_lazy_layer_is_named() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, data, plan = parts()
    with pytest.raises(ConfigurationError, match=r"^weight '0.weight'='not made yet': must be "):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


def test_seeded_noise_promises_no_epsilon() -> None:
    model, optimizer, data, plan = parts()
    source = steppe.SeededSource(0)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, source=source)
    assert loop.epsilon() == 0.0, "nothing was asked yet"
    loop.step(next(iter(loop)))
    assert loop.epsilon() == math.inf


@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (lambda plan: plan, "clip", Flat(1e-3)),
        (lambda plan: plan, "batch_size", 2.0),
        (lambda plan: plan, "steps", 1000),
        (lambda plan: plan.clip, "bound", 50.0),
        (lambda plan: plan, "sigma", 0.1),
    ],
)
def test_a_plan_that_was_written_to_promises_nothing(where: Any, name: str, value: Any) -> None:
    """Another clip in the plan was noise for that one, and the records went on as before."""
    loop = private()
    loop.step(next(iter(loop)))
    before = getattr(where(loop.plan), name)
    object.__setattr__(where(loop.plan), name, value)
    for question in (loop.epsilon, loop.statement, loop.state_dict):
        with pytest.raises(MisuseError, match=r"^plan=changed since the loop was made private: mu"):
            question()
    object.__setattr__(where(loop.plan), name, before)
    assert loop.epsilon() > 0
