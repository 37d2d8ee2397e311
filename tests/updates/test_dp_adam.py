"""DPAdam against a hand computation, against Adam, and against what it is for."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe
from steppe.errors import ConfigurationError
from steppe.updates import DPAdam


def take(optimizer: torch.optim.Optimizer, weight: nn.Parameter, gradients: list[Tensor]) -> None:
    for gradient in gradients:
        weight.grad = gradient.to(weight.dtype, copy=True)
        optimizer.step()


def test_two_steps_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    optimizer = DPAdam([weight], lr=0.5, noise_std=0.3, betas=(0.8, 0.6), eps=0.01, floor=0.2)
    take(optimizer, weight, [torch.tensor([0.5, -0.1]), torch.tensor([0.7, 0.2])])
    expected = []
    for g1, g2 in ((0.5, 0.7), (-0.1, 0.2)):
        w = 1.0
        m, v = 0.2 * g1, 0.4 * g1**2
        w -= 0.5 * (m / 0.2) / (math.sqrt(max(v / 0.4 - 0.09, 0.018)) + 0.01)
        m, v = 0.8 * m + 0.2 * g2, 0.6 * v + 0.4 * g2**2
        w -= 0.5 * (m / 0.36) / (math.sqrt(max(v / 0.64 - 0.09, 0.018)) + 0.01)
        expected.append(w)
    torch.testing.assert_close(
        weight.detach(), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_noise_it_is_adam(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    gradients = [torch.randn(50, dtype=dtype) for _ in range(20)]
    mine, theirs = (nn.Parameter(torch.ones(50, dtype=dtype)) for _ in range(2))
    take(DPAdam([mine], lr=0.01, noise_std=0.0), mine, gradients)
    take(torch.optim.Adam([theirs], lr=0.01), theirs, gradients)
    torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)


def test_the_second_moment_of_the_signal_is_recovered() -> None:
    """Two weights with gradients 1 and 0.3 under noise of 1 move alike again, as in Adam."""
    torch.manual_seed(2)
    signal = torch.tensor([1.0, 0.3]).repeat(500)
    moves = []
    for optimizer_of in (
        lambda p: DPAdam(p, lr=1e-3, noise_std=1.0, floor=0.01),
        lambda p: torch.optim.Adam(p, lr=1e-3),
    ):
        weight = nn.Parameter(torch.zeros(1000))
        optimizer = optimizer_of([weight])
        gradients = [signal + torch.randn(1000) for _ in range(2000)]
        take(optimizer, weight, gradients[:1000])
        before = weight.detach().clone()
        take(optimizer, weight, gradients[1000:])
        large, small = (weight.detach() - before).view(500, 2).abs().mean(0).tolist()
        moves.append(small / large)
    assert moves[0] > 0.85
    assert moves[1] < 0.5


def test_a_schedule_is_averaged_as_the_squares_are() -> None:
    torch.manual_seed(3)
    gradients = [torch.randn(4, dtype=torch.float64) for _ in range(5)]
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = DPAdam([weight], noise_std=[(2, 0.4), (2, 0.1)], betas=(0.9, 0.5))
    take(optimizer, weight, gradients)
    stds = [0.4, 0.4, 0.1, 0.1, 0.1]  # the last level holds on
    expected = sum(0.5 * 0.5 ** (4 - i) * std**2 for i, std in enumerate(stds))
    assert optimizer.state[weight]["noise_sq"] == pytest.approx(expected, rel=1e-12)


def test_for_plan_takes_the_noise_of_every_step() -> None:
    plan = steppe.Plan(
        delta=1e-3,
        noise_multiplier=2.0,
        population=100,
        batch_size=20,
        steps=25,
        clip=steppe.Flat(0.5),
        point=steppe.SAM(0.1),
        noise=steppe.StepSchedule(0.6, every=10),
    )
    optimizer = DPAdam.for_plan([nn.Parameter(torch.zeros(2))], plan, lr=0.2, floor=0.3)
    group = optimizer.param_groups[0]
    levels = [std for count, std in group["noise_std"] for _ in range(count)]
    assert levels == pytest.approx([plan.noise_std_at(step) / 20 for step in range(25)])
    assert (group["lr"], group["floor"]) == (0.2, 0.3)


def test_for_plan_is_what_a_private_step_is_noised_with() -> None:
    """An empty batch's gradient is pure noise; its spread is the one the optimizer was told."""
    plan = steppe.Plan(delta=1e-3, noise_multiplier=2.0, population=50, batch_size=1e-6, steps=1)
    model = nn.Linear(200, 50)
    optimizer = DPAdam.for_plan(model.parameters(), plan)
    data = (torch.randn(50, 200), torch.randint(50, (50,)))
    private = steppe.make_private(model, optimizer, data, plan, loss=nn.functional.cross_entropy)
    for batch in private:
        private.step(batch)
    ((_, std),) = optimizer.param_groups[0]["noise_std"]
    assert model.weight.grad is not None
    assert float(model.weight.grad.std()) == pytest.approx(std, rel=0.05)


def scheduled(lost: int = 0) -> tuple[steppe.Private, DPAdam]:
    """A run of six steps with noise in three levels, of which the first `lost` fail."""
    plan = steppe.Plan(
        delta=1e-3,
        noise_multiplier=2.0,
        population=50,
        batch_size=10,
        steps=6,
        noise=steppe.StepSchedule(0.6, every=2),
    )
    model = nn.Linear(3, 2)
    optimizer = DPAdam.for_plan(model.parameters(), plan)
    data = (torch.randn(50, 3), torch.randint(2, (50,)))
    private = steppe.make_private(model, optimizer, data, plan, loss=nn.functional.cross_entropy)
    plain = private.engine.objective

    def failing(batch: object) -> torch.Tensor:
        raise RuntimeError("half way")

    batches = iter(private)
    private.engine.exchange_objective_(failing)
    for _ in range(lost):
        with pytest.raises(RuntimeError, match="half way"):
            private.step(next(batches))
    private.engine.exchange_objective_(plain)
    for batch in batches:
        private.step(batch)
    return private, optimizer


@pytest.mark.parametrize("lost", [0, 3])
def test_the_level_is_that_of_the_plans_step(lost: int) -> None:
    private, optimizer = scheduled(lost)
    moments = 0.0
    for step in range(lost, 6):
        variance = (private.plan.noise_std_at(step) / 10) ** 2
        moments = 0.999 * moments + 0.001 * variance
    (state, _) = optimizer.state.values()
    assert state["noise_sq"] == pytest.approx(moments)


@pytest.mark.parametrize("noise_std", [12.3, 0.0, [(5, 0.2), (1, 0.1)]])
def test_other_noise_than_the_plans_is_refused_before_any_step(noise_std: Any) -> None:
    plan = steppe.Plan(delta=1e-3, noise_multiplier=2.0, population=50, batch_size=10, steps=6)
    model = nn.Linear(3, 2)
    data = (torch.randn(50, 3), torch.randint(2, (50,)))
    optimizer = DPAdam(model.parameters(), noise_std=noise_std)
    with pytest.raises(ValueError, match=r"noise_std=.*: must be \(\(6, 0\.2\),\), .*for_plan"):
        steppe.make_private(model, optimizer, data, plan, loss=nn.functional.cross_entropy)
    right = DPAdam(model.parameters(), noise_std=0.2)
    steppe.make_private(model, right, data, plan, loss=nn.functional.cross_entropy)


def test_a_loaded_state_of_another_plan_is_refused_before_its_step_is_charged() -> None:
    plan = steppe.Plan(delta=1e-3, noise_multiplier=2.0, population=50, batch_size=10, steps=6)
    model = nn.Linear(3, 2)
    data = (torch.randn(50, 3), torch.randint(2, (50,)))
    optimizer = DPAdam.for_plan(model.parameters(), plan)
    private = steppe.make_private(model, optimizer, data, plan, loss=nn.functional.cross_entropy)
    other = DPAdam(model.parameters(), noise_std=0.1)
    optimizer.load_state_dict(other.state_dict())
    batch = next(iter(private))
    with pytest.raises(ConfigurationError, match=r"noise_std=\(\(1, 0\.1\),\): must be 0\.2"):
        private.step(batch)
    assert private.steps_done == 0
    optimizer.load_state_dict(DPAdam.for_plan(model.parameters(), plan).state_dict())
    private.step(batch)
    assert private.steps_done == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stored_state_goes_on_as_if_nothing_had_happened(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    gradients = [torch.randn(8).to(dtype) for _ in range(6)]
    weight = nn.Parameter(torch.ones(8, dtype=dtype))
    optimizer = DPAdam([weight], lr=0.1, noise_std=[(4, 0.4), (9, 0.1)])
    take(optimizer, weight, gradients[:3])
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    other = nn.Parameter(weight.detach().clone())
    resumed = DPAdam([other], lr=0.5, noise_std=0.0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    take(optimizer, weight, gradients[3:])
    take(resumed, other, gradients[3:])
    close = 1e-2 if dtype == torch.bfloat16 else 0.0  # torch rounds stored states of such weights
    torch.testing.assert_close(other, weight, rtol=close, atol=close)


def test_it_can_be_copied_and_scheduled() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = copy.deepcopy(DPAdam([weight], lr=0.1, noise_std=0.2))
    (own,) = optimizer.param_groups[0]["params"]
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    take(optimizer, own, [torch.ones(3)])
    rates.step()
    assert optimizer.param_groups[0]["lr"] == 0.05
    assert not own.equal(weight)


def test_weights_without_a_gradient_stay() -> None:
    weight, still = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    take(DPAdam([weight, still], noise_std=0.1), weight, [torch.ones(1)])
    assert still.item() == 1.0
    assert weight.item() < 1.0


def test_a_closure_is_called_with_gradients_on() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = DPAdam([weight], noise_std=0.0)

    def closure() -> float:
        loss = (weight**2).sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 1.0
    assert weight.item() < 1.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"noise_std": -1.0}, r"noise_std=-1.0: must be finite and not negative; .*for_plan"),
        ({"noise_std": math.nan}, r"noise_std=nan: must not be NaN"),
        ({"noise_std": "loud"}, r"noise_std='loud': must be a real number"),
        ({"noise_std": []}, r"noise_std=\[\]: must be a number or pairs \(steps, std\)"),
        ({"noise_std": [1, 2]}, r"noise_std=\[1, 2\]: must be a number or pairs"),
        ({"betas": (0.9,)}, r"betas=\(0.9,\): must be two numbers"),
        ({"betas": 0.9}, r"betas=0.9: must be two numbers"),
        ({"noise_std": [(0, 1.0)]}, r"steps of noise_std=0: must be a whole number"),
        ({"lr": -1.0}, r"lr=-1.0: must be finite and not negative"),
        ({"eps": math.inf}, r"eps=inf: must be finite"),
        ({"floor": 0.0}, r"floor=0.0: must be finite and above 0; a common choice"),
        ({"betas": (0.9, 1.0)}, r"betas=\(0.9, 1.0\): must lie in \[0, 1\)"),
        ({"betas": (math.nan, 0.9)}, r"betas=nan: must not be NaN"),
        ({"betas": ("a", "b")}, r"betas='a': must be a real number; use \(0.9, 0.999\)"),
        ({"lr": "fast"}, r"lr='fast': must be a real number"),
    ],
)
def test_bad_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DPAdam([nn.Parameter(torch.zeros(1))], **({"noise_std": 0.1} | wrong))
