"""The step of a private loop: its gradient, its charge, its failures and its state."""

import copy
import threading
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from private_cases import N, parts, private
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional as F

import steppe
from silent import Silent
from steppe.clipping import Flat
from steppe.errors import ConfigurationError, MisuseError
from steppe.points.here import HereRun
from steppe.step import PrivateStep


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
    loop._step.mechanism.query = lambda *of: asked.append(of) or query(*of)  # type: ignore
    loop.step(next(iter(loop)))
    assert len(asked) == len(given[0]) == queries
    alone = private(noise_multiplier=loop.plan.sigma / queries**0.5)
    assert loop.epsilon() == pytest.approx(alone.plan.epsilon_spent(1), rel=1e-3)


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


def test_the_state_of_another_plan_is_refused() -> None:
    run = private()
    for batch in run.batches(2):
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
        (
            lambda state: None,
            "state='NoneType': must contain plan, steps_done, clip, point, noise; load",
        ),
        (lambda state: {}, "state='without plan, steps_done, clip, point, noise'"),
        (lambda state: {**state, "point": None}, "state='without point'"),
        (
            lambda state: {"plan": state["plan"], "clip": {}, "point": {}},
            "'without steps_done, noise'",
        ),
        (lambda state: {**state, "point": {"climb": 5}}, r"\['climb'\]=5: must be a vector"),
        (lambda state: {**state, "clip": {}}, "clip state's bound=None: must be a real number"),
    ],
)
def test_what_is_no_state_is_refused(change: Any, message: str) -> None:
    run = private(clip=steppe.Quantile())
    with pytest.raises(ConfigurationError, match=message):
        run.load_state_dict(change(run.state_dict()))
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


def test_the_memory_of_another_model_is_refused() -> None:
    run = private(point=steppe.SAT(0.1))
    run.step(next(iter(run)))
    state = run.state_dict()
    state["point"]["climb"] = state["point"]["climb"][:-1]
    other = private(point=steppe.SAT(0.1))
    with pytest.raises(ConfigurationError, match=r"'climb'.*must be a vector of the model's"):
        other.load_state_dict(state)
    assert other.steps_done == 0


def test_gradients_are_not_kept_alive() -> None:
    loop = private()
    loop.step(next(iter(loop)))
    memory = [StorageWeakRef(p.grad.untyped_storage()) for p in loop.model.parameters()]
    loop.optimizer.zero_grad()
    assert all(storage.expired() for storage in memory)


def test_noise_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steppe.step_state.free_memory", lambda: 1000)
    order = {"sampling": steppe.FixedOrder(2), "adjacency": "zero-out", "steps": None}
    message = r"noise='.* vectors': of \d+ numbers are kept between steps, .* use BLT\(\)"
    with pytest.raises(ConfigurationError, match=message):
        private(noise=steppe.SqrtToeplitz(), **order)
    private(noise=steppe.Gaussian(), **order)
