"""Opacus' engine by its names and arguments: what comes back, what is computed, what is refused."""

from __future__ import annotations

import copy
import io
from typing import Any

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
from steppe import Flat, Plan
from steppe.compat import PrivacyEngine
from steppe.errors import (
    BudgetExhausted,
    ConfigurationError,
    IsolationError,
    MisuseError,
    UnsupportedModelError,
)
from steppe.updates import DecoupledDecay


def test_module_and_optimizer_come_back_themselves() -> None:
    model = small_cnn()
    optimizer = optim.Adam(model.parameters())
    loop = start(model, images(10), optimizer=optimizer)
    assert loop.model is model
    assert loop.optimizer is optimizer
    assert len(loop.loader.dataset) == 10


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
def test_gradient_is_the_clipped_mean(mode: str) -> None:
    model, data = small_cnn(), images(9)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data, grad_sample_mode=mode)
    loop.run()
    assert_gradients(model, truth)


@pytest.mark.parametrize("clip", [0.5, 50.0], ids=["clipped", "whole"])
def test_sum_reduction(clip: float) -> None:
    """Nothing is multiplied by the batch, which a clip that every record reaches would hide."""
    model, data = small_cnn(), images(9)
    truth = classification_truth(model, data, clip=clip)
    loop = start(model, data, clip=clip, loss_reduction="sum")
    x, y = loop.batch()
    F.cross_entropy(model(x), y, reduction="sum").backward()
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_clip_bound_holds_under_either_reduction() -> None:
    """Whatever the scale of the loss, the sum of n clipped gradients is at most nC."""
    for reduction in ("mean", "sum"):
        loop = start(data=vectors(8), clip=0.01, loss_reduction=reduction)
        x, y = loop.batch()
        (1e4 * F.cross_entropy(loop.model(x), y, reduction=reduction)).backward()
        loop.optimizer.step()
        norm = torch.cat([p.grad.flatten() for p in loop.model.parameters()]).norm()
        assert float(norm) <= 0.01 * (1 + 1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning:opacus")
@pytest.mark.filterwarnings("ignore:Secure RNG turned off:UserWarning")
@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
def test_gradient_equals_that_of_opacus_hooks() -> None:
    import opacus

    ours, data = small_cnn(), images(16)
    theirs = copy.deepcopy(ours)
    engine = opacus.PrivacyEngine()
    wrapped, optimizer, loader = engine.make_private(
        module=theirs,
        optimizer=optim.SGD(theirs.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=16),
        noise_multiplier=0.0,
        max_grad_norm=0.3,
    )
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
    loop = start(ours, data, clip=0.3)
    loop.run()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_noise_has_the_promised_size() -> None:
    model = nn.Linear(300, 200)
    loop = start(model, vectors(40, 300), 10, sigma=1.7, clip=0.2)
    x, y = loop.batch()
    (0.0 * F.cross_entropy(model(x), y)).backward()
    loop.optimizer.step()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters()])
    std = 1.7 * 0.2 / 10
    assert float(gradient.std()) == pytest.approx(std, rel=0.02)
    assert abs(float(gradient.mean())) < 5 * std / len(gradient) ** 0.5


def test_epsilon_is_that_of_the_plan() -> None:
    loop = start(data=vectors(100), batch_size=7, sigma=1.2)
    loop.run(9)
    plan = Plan(
        noise_multiplier=1.2, delta=1e-4, population=100, batch_size=7, steps=9, clip=Flat(0.5)
    )
    assert loop.engine.get_epsilon(delta=1e-4) == plan.epsilon_spent()
    assert loop.engine.accountant.history == [(1.2, plan.rate, 9)]


def with_budget(engine: PrivacyEngine, model: nn.Module, epsilon=1.0, epochs=1):
    return engine.make_private_with_epsilon(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(vectors(50), batch_size=8),
        target_epsilon=epsilon,
        target_delta=1e-3,
        epochs=epochs,
        max_grad_norm=1.0,
    )


def test_a_budget_that_is_none_is_called_as_it_was_given() -> None:
    with pytest.raises(ConfigurationError, match=r"^target_epsilon='3': must be a real number"):
        with_budget(PrivacyEngine(), nn.Linear(5, 2), epsilon="3")


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_budget_pays_for_exactly_the_epochs(accountant: str) -> None:
    model = nn.Linear(5, 2)
    engine = PrivacyEngine(accountant=accountant, secure_mode=True)
    _, optimizer, loader = with_budget(engine, model, epsilon=2.0, epochs=3)
    assert len(loader) == 7  # ceil(50 / 8), as many as the plain loader had
    for _ in range(3):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert 1.98 < engine.get_epsilon(1e-3) <= 2.0
    weight = model.weight.detach().clone()
    with pytest.raises(BudgetExhausted, match=r"steps=22: the budget pays for 21 steps; publish"):
        next(iter(loader))
    assert torch.equal(weight, model.weight)


def test_each_pass_draws_anew() -> None:
    data = TensorDataset(torch.arange(1000.0)[:, None], torch.zeros(1000, dtype=torch.long))
    loop = start(nn.Linear(1, 2), data, 500)
    seen = []
    for _ in range(2):
        x, y = loop.batch()
        seen.append(set(x.flatten().tolist()))
        loop.backward(x, y)
        loop.optimizer.step()
    assert seen[0] != seen[1]
    assert 400 < len(seen[0]) < 600


def test_a_batch_that_was_seen_and_not_stepped_is_drawn_again() -> None:
    """Whoever could draw until a batch suits him would sample by another law than the account's."""
    data = TensorDataset(torch.arange(1000.0)[:, None], torch.zeros(1000, dtype=torch.long))
    loop = start(nn.Linear(1, 2), data, 500)
    first = loop.batch()[0]
    for _ in range(3):
        assert torch.equal(loop.batch()[0], first)
    batches = list_of_stepped(loop)
    assert torch.equal(batches[0], first)
    assert len(batches) == len(loop.loader) == 2
    assert not torch.equal(batches[1], first)
    assert not torch.equal(loop.batch()[0], first)


def list_of_stepped(loop: Any) -> list[torch.Tensor]:
    """One pass with a step for each batch; the inputs."""
    found = []
    for x, y in loop.loader:
        loop.backward(x, y)
        loop.optimizer.step()
        found.append(x)
    return found


def test_workers_keep_the_account_of_the_batches() -> None:
    model = nn.Linear(5, 2)
    engine = PrivacyEngine()

    class Plain(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, index):
            return torch.full((5,), float(index)), index % 2

    _, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(Plain(), batch_size=1, num_workers=1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert len(engine.accountant) == len(loader) == 12


class SequenceFirst(nn.Module):
    """Time on the first axis, records on the second."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.RNN(5, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0]).mean(0)


@pytest.mark.parametrize("length", [7, 12])
def test_records_on_the_second_axis(length: int) -> None:
    """Also where the sequence is as long as the batch is large."""
    data = TensorDataset(torch.randn(12, length, 5), torch.randint(0, 2, (12,)))
    model = SequenceFirst()
    x, y = data.tensors
    truth = clipped_mean(
        model,
        list(range(12)),
        lambda m, i: F.cross_entropy(m(x[i : i + 1].transpose(0, 1)), y[i : i + 1]),
        clip=0.5,
        divisor=12,
    )
    loop = start(model, data, batch_first=False)
    x, y = loop.batch()
    # A mean over the first axis gives (records, classes): one-dimensional targets fit it.
    F.cross_entropy(model(x.transpose(0, 1)), y).backward()
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_forward_with_keywords_and_a_loss_inside() -> None:
    """Models of the transformers library return a dictionary with the mean loss in it."""

    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, inputs=None, labels=None):
            logits = self.layer(inputs)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    model, data = WithLoss(), vectors(12)
    truth = classification_truth(model.layer, data, clip=0.5)
    loop = start(model, data)
    x, y = loop.batch()
    model(inputs=x, labels=y)["loss"].backward()
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_module_that_returns_only_a_loss_is_refused() -> None:
    class OnlyLoss(nn.Linear):
        def forward(self, x, y):
            return F.cross_entropy(super().forward(x), y)

    model = OnlyLoss(5, 2)
    loop = start(model)
    x, y = loop.batch()
    with pytest.raises(ValueError, match="must contain a tensor with an entry for each record"):
        model(x, y)


def test_several_backward_calls_add_up_before_the_clip() -> None:
    model, data = nn.Linear(5, 2), vectors(12)
    x, y = data.tensors

    def both(m, i):
        output = m(x[i : i + 1])
        return F.cross_entropy(output, y[i : i + 1]) + output.square().sum()

    truth = clipped_mean(model, list(range(12)), both, clip=0.5, divisor=12)
    loop = start(model, data)
    x, y = loop.batch()
    output = model(x)
    F.cross_entropy(output, y).backward(retain_graph=True)
    output.square().sum(1).mean().backward()
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_evaluation_in_between_is_left_alone() -> None:
    model, data = small_cnn(), images(9)
    truth = classification_truth(model, data, clip=0.5)
    plain = copy.deepcopy(model)
    loop = start(model, data)
    x, y = loop.batch()
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(x[:2]), plain(x[:2]))
    model.train()
    with torch.no_grad():
        model(x[:1])
    loop.backward(x, y)
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_outputs_are_those_of_the_plain_module() -> None:
    model = small_cnn()
    plain = copy.deepcopy(model)
    loop = start(model, images(9))
    x, _ = loop.batch()
    torch.testing.assert_close(model(x).tolist(), plain(x).tolist())


def test_copies_and_files_of_the_module_are_free_of_hooks() -> None:
    model = small_cnn()
    loop = start(model, images(9))
    average = torch.optim.swa_utils.AveragedModel(model)
    loop.run()
    average.update_parameters(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    loop.batch()
    loaded(
        images(9).tensors[0]
    ).sum().backward()  # in train mode, with a batch drawn: a copy is not traced
    assert loaded[0].weight.grad is not None
    assert model[0].weight.grad is not loaded[0].weight.grad


def test_a_copy_can_be_made_private_again_but_not_the_module_itself() -> None:
    model = nn.Linear(5, 2)
    start(model)
    with pytest.raises(MisuseError, match="module=Linear: was made private before; build a new"):
        start(model)
    start(copy.deepcopy(model)).run()


def test_isolation_is_checked_before_the_first_step() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(x - x.mean(0))

    loop = start(Centred())
    x, y = loop.batch()
    with pytest.raises(IsolationError, match="must treat every record alone"):
        loop.backward(x, y)
    assert len(loop.engine.accountant) == 0


def test_failed_forward_may_be_tried_again() -> None:
    model, data = nn.Linear(5, 2), vectors(12)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    x, y = loop.batch()
    failing = model.register_forward_pre_hook(lambda module, args: 1 / 0)
    with pytest.raises(UnsupportedModelError, match="ZeroDivisionError: division by zero"):
        model(x)
    failing.remove()
    assert torch.overrides._get_current_function_mode() is None
    loop.backward(x, y)
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_compatible_module() -> None:
    engine, model = PrivacyEngine(), nn.Sequential(nn.BatchNorm1d(4))
    assert not engine.is_compatible(module=model, optimizer=None, data_loader=None)
    with pytest.raises(IsolationError, match=r"layer='0' \(BatchNorm1d\)"):
        engine.validate(module=model, optimizer=None, data_loader=None)
    fixed = engine.get_compatible_module(model)
    assert isinstance(fixed[0], nn.GroupNorm)
    assert engine.is_compatible(module=fixed)
    engine.validate(module=fixed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sigma": 0.0}, "noise_multiplier=0.0: must be finite and above 0; without noise"),
        ({"sigma": -1.0}, "noise_multiplier=-1.0: must be finite and above 0"),
        ({"clip": 0.0}, "max_grad_norm=0.0: must be finite and above 0"),
        ({"clip": float("inf")}, "max_grad_norm=inf: must be finite and above 0"),
        ({"clip": [1.0, 1.0]}, "must be a real number"),
        ({"loss_reduction": "none"}, "loss_reduction='none': must be one of 'mean', 'sum'"),
        ({"clipping": "adaptive"}, "target_unclipped_quantile"),
        ({"min_clipbound": 0.1}, "clipping='flat': must be 'adaptive' with min_clipbound"),
        ({"criterion": nn.MSELoss()}, "criterion='MSELoss': .* unless grad_sample_mode='ghost'"),
        ({"clipping": "layerwise"}, "clipping='layerwise': must be one of 'flat', 'per_layer'"),
        ({"grad_sample_mode": "magic"}, "grad_sample_mode='magic': must be one of 'hooks'"),
        ({"accountant": "gdp"}, "accountant='gdp': .* reports less ε than is spent; use 'prv'"),
        ({"batch_size": 13}, "batch_size=13.*: must not exceed population=12"),
    ],
)
def test_bad_values_are_refused_at_the_start(change: dict, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start(**change)


def test_spent_engine_is_refused_for_a_new_budget() -> None:
    loop = start(sigma=1.0)
    loop.run()
    model = nn.Linear(5, 2)
    with pytest.raises(ConfigurationError, match=r"accountant='1 steps': must be new"):
        with_budget(loop.engine, model)


def test_a_budget_is_for_one_run_of_an_engine() -> None:
    engine = PrivacyEngine()
    with_budget(engine, nn.Linear(5, 2))
    model = nn.Linear(5, 2)
    with pytest.raises(ConfigurationError, match=r"accountant='0 steps': must be new, because"):
        with_budget(engine, model)


@pytest.mark.parametrize("early", [True, False])
def test_hooks_of_others_see_the_private_gradient(early: bool) -> None:
    model = nn.Linear(5, 2)
    nn.init.constant_(model.weight, 100.0)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    if early:
        DecoupledDecay(optimizer, strength=1.0)
    loop = start(model, optimizer=optimizer)
    if not early:
        DecoupledDecay(optimizer, strength=1.0)
    loop.run(2)
    assert model.weight.mean().item() == pytest.approx(81.0, abs=0.5)
