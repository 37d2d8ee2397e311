"""The private loop as users write it."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import steppe
from silent import Silent
from steppe.errors import (
    BudgetExhausted,
    ConfigurationError,
    DataError,
    IsolationError,
    MisuseError,
    SteppeError,
    UnsupportedModelError,
)
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
    assert "3.0" in str(loop.statement()) or "2.99" in str(loop.statement())


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
    loop = private(batch_size=0.001, steps=3, noise_multiplier=2.0)
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
        loop._step.take([batch])
    with pytest.raises(MisuseError, match="must be the batch just drawn"):
        loop.step(batch)


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


def test_loss_or_objective_but_not_both() -> None:
    model, optimizer, data, plan = parts()
    with pytest.raises(ConfigurationError, match="give either loss or objective"):
        steppe.make_private(model, optimizer, data, plan)
    with pytest.raises(UnsupportedModelError, match="loss shape"):
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


def test_grid_noise_runs_through_the_same_step() -> None:
    loop = private(noise=steppe.Gaussian(grid=True), epsilon=2.0)
    for batch in loop:
        loop.step(batch)
    assert loop.epsilon() <= 2.0
    assert "defence on" in str(loop.statement()).lower()


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
    add = loop.engine.add_

    def fails(out: Tensor, part: Any) -> Tensor:
        add(out, part)
        raise RuntimeError("out of memory")

    loop.engine.add_ = fails  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="out of memory"):
        loop.step(next(batches))
    assert all(p.grad is None for p in loop.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    assert loop.steps_done == 2  # charged before it was taken
    loop.engine.add_ = add  # type: ignore[method-assign]
    loop.step(next(batches))


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


def test_a_point_may_ask_only_as_often_as_it_says() -> None:
    @dataclass(frozen=True)
    class Greedy:
        queries: int = 1

        def begin(self, weights: Any) -> Any:
            return lambda ask: ask() + ask()

    loop = private(point=Greedy())
    with pytest.raises(MisuseError, match=r"at most queries=1 times a step"):
        loop.step(next(iter(loop)))
    twice = private(point=Greedy(queries=2))
    twice.step(next(iter(twice)))


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
    loop = private()
    batch = next(iter(loop))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MisuseError, match="autocast"):
        loop.step(batch)
    assert loop.steps_done == 0
    loop.step(batch)  # the drawn batch is still there
    assert loop.steps_done == 1


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.autograd.detect_anomaly])
def test_modes_that_end_in_an_error_are_refused_before_the_charge(mode: Any) -> None:
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
    with pytest.raises(MisuseError, match="model=no trainable weights"):
        run.step(batch)
    assert run.steps_done == 0
