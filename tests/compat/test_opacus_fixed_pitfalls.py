"""Bugs that Opacus had and fixed: each is a test of the same surface here."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from compat_loop import (
    assert_gradients,
    classification_truth,
    clipped_mean,
    images,
    small_cnn,
    start,
    vectors,
)
from steppe.compat import ModuleValidator, PrivacyEngine, get_noise_multiplier
from steppe.errors import ConfigurationError, MisuseError


def test_shuffled_batches_are_not_accounted_as_poisson() -> None:
    """Fixed-size shuffled batches accounted as Poisson (#80, PR #128)."""
    with pytest.raises(ConfigurationError, match="poisson_sampling=False: must be True: the"):
        start(poisson_sampling=False)
    loop = start(data=vectors(200), batch_size=20)
    sizes = []
    for x, y in loop.loader:
        sizes.append(len(x))
        loop.backward(x, y)
        loop.optimizer.step()
    assert len(set(sizes)) > 1  # sampled, although the user's loader had fixed batches


class Reshaping(nn.Module):
    """Cannot be run on an empty batch: a view of nothing has no second size."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 3)

    def forward(self, x):
        return self.layer(x.view(x.size(0), -1))


@pytest.mark.parametrize("make", [small_cnn, Reshaping])
def test_empty_batch_is_a_step_of_pure_noise(make) -> None:
    """Empty batch: crash, or skipped without noise and accounting (#164 #530 #631 #806)."""
    model = make()
    loop = start(model, images(400), 1, sigma=1.0, clip=1.0)
    empty = 0
    for x, y in loop.loader:
        before = [p.detach().clone() for p in model.parameters()]
        loop.optimizer.zero_grad()
        output = model(x)
        assert output.shape == (len(x), 3)
        F.cross_entropy(output, y).backward()  # NaN for no records, as everywhere in torch
        loop.optimizer.step()
        assert all(p.isfinite().all() for p in model.parameters())
        if len(x) == 0:
            empty += 1
            assert all((a != b).any() for a, b in zip(before, model.parameters(), strict=True))
        if empty == 5:
            break
    assert empty == 5
    assert len(loop.engine.accountant) >= 5


def test_empty_batch_may_not_be_left_out() -> None:
    """A loop that goes on at an empty batch runs another mechanism than the account's."""
    loop = start(data=vectors(400), batch_size=1, sigma=1.0)

    def skipping() -> None:
        for x, y in loop.loader:
            if len(x) == 0:
                continue
            loop.backward(x, y)
            loop.optimizer.step()

    with pytest.raises(MisuseError, match="a batch was drawn and not stepped; call"):
        skipping()


def test_empty_batch_noise_has_the_promised_size() -> None:
    """Pure noise means N(0, (σC/B)²), the synthetic record says nothing."""
    model = nn.Linear(300, 200)
    loop = start(model, vectors(2000, 300), 1, sigma=1.3, clip=1.0)
    for x, y in loop.loader:
        loop.backward(x, y)
        loop.optimizer.step()
        if len(x) == 0:
            break
    gradient = model.weight.grad.flatten()
    assert float(gradient.std()) == pytest.approx(1.3, rel=0.02)
    assert abs(float(gradient.mean())) < 5 * 1.3 / len(gradient) ** 0.5


@pytest.mark.parametrize(("records", "batch"), [(99, 10), (100, 10), (101, 10), (93, 1)])
def test_steps_are_counted_not_derived(records: int, batch: int) -> None:
    """Steps rounded after multiplying by epochs, so that ε was too small (3bbed59a)."""
    loop = start(data=vectors(records), batch_size=batch, sigma=1.0)
    yielded = 0
    for _ in range(2):
        for x, y in loop.loader:
            loop.backward(x, y)
            loop.optimizer.step()
            yielded += 1
    assert yielded == 2 * len(loop.loader) == len(loop.engine.accountant)
    assert len(loop.loader) == len(DataLoader(vectors(records), batch_size=batch))


def test_epochs_and_steps_give_the_same_noise() -> None:
    """`steps` against `epochs` mix-up in calibration (030b723f)."""
    asked = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 1 / 49}
    assert get_noise_multiplier(**asked, epochs=3) == get_noise_multiplier(**asked, steps=147)


def test_closure_cannot_wipe_the_noise() -> None:
    """`step(closure)`: the inner optimizer ran the closure again (#313, PR #330)."""
    model = nn.Linear(300, 200)
    loop = start(model, vectors(20, 300), sigma=2.0, clip=1.0)
    x, y = loop.batch()
    calls = []

    def closure() -> torch.Tensor:
        calls.append(1)
        loop.optimizer.zero_grad()
        return loop.backward(x, y)

    before = model.weight.detach().clone()
    loss = loop.optimizer.step(closure)
    assert len(calls) == 1
    assert loss.item() > 0
    moved = (before - model.weight).detach() / 0.1
    torch.testing.assert_close(moved, model.weight.grad, rtol=1e-3, atol=1e-5)
    assert float(moved.std()) == pytest.approx(2.0 / 20, rel=0.02)


def test_closure_by_keyword() -> None:
    model, data = nn.Linear(5, 2), vectors(12)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    x, y = loop.batch()
    loop.optimizer.step(closure=lambda: loop.backward(x, y))
    assert_gradients(model, truth)


@pytest.mark.parametrize("place", ["never", "first", "after backward", "after step"])
def test_zero_grad_may_stand_anywhere(place: str) -> None:
    """zero_grad forgotten: gradient used twice (#409 #422 #423)."""
    model, data = nn.Linear(5, 2), vectors(12)
    loop = start(model, data)
    for _ in range(3):
        truth = classification_truth(model, data, clip=0.5)
        x, y = loop.batch()
        if place == "first":
            loop.optimizer.zero_grad()
        loop.backward(x, y)
        if place == "after backward":
            loop.optimizer.zero_grad()
        loop.optimizer.step()
        assert_gradients(model, truth)
        if place == "after step":
            loop.optimizer.zero_grad()


def test_second_step_on_one_batch_raises() -> None:
    """A batch's gradient must not be used twice."""
    loop = start()
    loop.run()
    with pytest.raises(MisuseError, match="step=2: no drawn batch waits for a step, and each"):
        loop.optimizer.step()


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(5, 5)
        self.out = nn.Linear(5, 5)
        self.out.weight = self.into.weight

    def forward(self, x):
        return self.out(torch.tanh(self.into(x)))


class OwnParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x * self.scale)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.spare = nn.Linear(5, 2)

    def forward(self, x):
        return self.layer(x)


def bias_only() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].weight.requires_grad_(False)
    model[2].weight.requires_grad_(False)
    return model


@pytest.mark.filterwarnings("ignore:parameters=.'spare.weight':UserWarning")
@pytest.mark.parametrize("make", [Tied, OwnParameter, Unused, bias_only])
def test_ways_to_hold_weights(make) -> None:
    """Tied weights (#413), own parameters beside children (PR #510), frozen and trainable in one
    layer (#436 #542), unused parameters (#414 and others: zero gradient, noise still added)."""
    model, data = make(), vectors(12)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    loop.run()
    assert_gradients(model, truth)
    assert all(torch.equal(p, model.get_parameter(name)) for name, p in frozen.items())


def test_unused_weights_get_noise() -> None:
    loop = start(Unused(), sigma=1.0)
    with pytest.warns(UserWarning, match="should be used by the model, but are not, so only noise"):
        loop.run()
    assert loop.model.spare.weight.grad.abs().min() > 0


def test_optimizer_of_another_model_is_refused() -> None:
    """Optimizer holds other parameters than the model, after `fix` say (#439 #489)."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match="optimizer lacks"):
        start(ModuleValidator.fix(model), optimizer=optimizer)
    wide = nn.ModuleList([nn.Linear(5, 2), nn.Linear(5, 2)])
    with pytest.raises(ConfigurationError, match="2 weights that are not the model's"):
        start(wide[0], optimizer=optim.SGD(wide.parameters(), lr=0.1))


def test_get_epsilon_is_pure() -> None:
    """`get_epsilon` popped the history (#535)."""
    loop = start(sigma=1.0)
    loop.run(3)
    first = loop.engine.get_epsilon(1e-3)
    assert [loop.engine.get_epsilon(1e-3) for _ in range(3)] == [first] * 3
    assert len(loop.engine.accountant) == 3


@pytest.mark.parametrize("early", [True, False], ids=["before", "after"])
def test_schedulers_reach_the_weights(early: bool) -> None:
    """LR schedulers changed the wrapper only (#649 #660 #322), made before or after."""
    model = nn.Linear(5, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if early else None
    loop = start(model, optimizer=optimizer)
    scheduler = scheduler or optim.lr_scheduler.StepLR(loop.optimizer, 1, 0.5)
    for rate in (0.1, 0.05, 0.025):
        before = model.weight.detach().clone()
        loop.run()
        torch.testing.assert_close(before - model.weight, rate * model.weight.grad)
        scheduler.step()


def test_reassigned_param_groups_reach_the_weights() -> None:
    """The same, for libraries that put new groups in place."""
    loop = start()
    loop.optimizer.param_groups = [{**g, "lr": 1.0} for g in loop.optimizer.param_groups]
    before = loop.model.weight.detach().clone()
    loop.run()
    torch.testing.assert_close(before - loop.model.weight, loop.model.weight.grad)


def test_max_grad_norm_is_measured() -> None:
    """`max_grad_norm` ignored while the noise used the user's value (PR #664)."""
    for bound in (0.01, 0.2):
        model, data = nn.Linear(5, 2), vectors(12)
        truth = classification_truth(model, data, clip=bound)
        loop = start(model, data, clip=bound)
        loop.run()
        assert_gradients(model, truth)
        assert loop.optimizer.max_grad_norm == bound


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_linear_layers_on_many_axes(axes: int) -> None:
    """Ghost: bias norm wrong for 3-D input (PR #751)."""

    class Averaged(nn.Linear):
        def forward(self, x):
            return super().forward(x).flatten(1, -2).mean(1) if x.ndim > 2 else super().forward(x)

    data = TensorDataset(torch.randn(6, *[3] * (axes - 1), 5), torch.randint(0, 2, (6,)))
    model = Averaged(5, 2)
    truth = classification_truth(model, data, clip=0.3)
    loop = start(model, data, clip=0.3)
    loop.run()
    assert_gradients(model, truth)


def test_masked_tokens_with_a_sum_for_each_record() -> None:
    """Ghost token loss ignored `ignore_index` (#792): a sum keeps the records apart."""
    model = nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 7))
    tokens = torch.randint(0, 7, (8, 5))
    targets = torch.where(torch.rand(8, 5) < 0.4, -100, tokens)
    truth = clipped_mean(
        model,
        list(range(8)),
        lambda m, i: F.cross_entropy(
            m(tokens[i : i + 1]).mT, targets[i : i + 1], reduction="sum", ignore_index=-100
        ),
        clip=0.5,
        divisor=8,
    )
    loop = start(model, TensorDataset(tokens, targets), loss_reduction="sum")
    x, y = loop.batch()
    F.cross_entropy(model(x).mT, y, reduction="sum", ignore_index=-100).backward()
    loop.optimizer.step()
    assert_gradients(model, truth)


@pytest.mark.slow
def test_calibration_never_overshoots() -> None:
    """Calibrated σ overshoots the target ε (#346, PR #348)."""
    for target in (0.5, 4.0):
        for accountant in ("prv", "rdp"):
            engine = PrivacyEngine(accountant=accountant)
            sigma = get_noise_multiplier(
                target_epsilon=target,
                target_delta=1e-5,
                sample_rate=0.02,
                steps=20,
                accountant=accountant,
            )
            for _ in range(20):
                engine.accountant.step(noise_multiplier=sigma, sample_rate=0.02)
            assert 0.98 * target < engine.get_epsilon(1e-5) <= target
