"""Bugs that live in Opacus 1.6.0: each is a test of the same surface here."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from compat_loop import (
    assert_gradients,
    classification_truth,
    clipped_mean,
    start,
    vectors,
)
from steppe.compat import ModuleValidator, PrivacyEngine
from steppe.errors import ConfigurationError, DataError, MisuseError, UnsupportedModelError


@pytest.mark.parametrize("records", [99, 100, 101])
def test_divisor_does_not_depend_on_the_data(records: int) -> None:
    """3: expected batch int(n·q) moved with the private n (#571 #819)."""
    loop = start(data=vectors(records), batch_size=10)
    assert loop.optimizer.expected_batch_size == 10
    assert loop.loader.sample_rate == pytest.approx(10 / records, rel=1e-15)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_batch_statistics_are_found(affine: bool, frozen: bool) -> None:
    """4: BatchNorm without or with frozen weights passed validation."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, affine=affine), nn.Linear(4, 2))
    model[1].requires_grad_(not frozen)
    assert not ModuleValidator.is_valid(model)
    loop = start(model)
    x, y = loop.batch()
    with pytest.raises(UnsupportedModelError, match=r"BatchNorm1d|buffers="):
        loop.backward(x, y)


def test_frozen_batch_normalisation_is_allowed() -> None:
    """7 of the pains: eval-mode BN for transfer was refused (#472)."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].eval()
    assert ModuleValidator.is_valid(model)
    data = vectors(12)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    loop.run()
    assert_gradients(model, truth)


class Positions(nn.Module):
    """An embedding of places, which have no record."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.places = nn.Embedding(length, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x):
        return self.head(torch.tanh(x + self.places(torch.arange(x.shape[1])))).mean(1)


@pytest.mark.parametrize("length", [6, 9])
def test_input_without_a_record_axis(length: int) -> None:
    """5: as many positions as records gave wrong gradients without a word."""
    data = TensorDataset(torch.randn(6, length, 5), torch.randint(0, 2, (6,)))
    model = Positions(length)
    truth = classification_truth(model, data, clip=0.2)
    loop = start(model, data, clip=0.2)
    loop.run()
    assert_gradients(model, truth)


def test_argument_without_a_record_axis_is_refused() -> None:
    """5, from outside: a constant must not pass for records."""

    class Shifted(nn.Linear):
        def forward(self, x, shift):
            return super().forward(x + shift)

    loop = start(Shifted(5, 2))
    x, _ = loop.batch()
    with pytest.raises(MisuseError, match="argument=1 axes: every tensor given to the module"):
        loop.model(x, torch.ones(5))
    with pytest.raises(MisuseError, match="argument=2 axes: every tensor"):
        loop.model(x[1:], x[1:])


def test_embedding_bag_with_repeated_indices() -> None:
    """6: repeated indices did not add up."""
    bags = torch.tensor([[1, 1, 1, 2], [3, 3, 0, 0], [4, 4, 4, 4]])
    data = TensorDataset(bags, torch.tensor([0, 1, 0]))
    model = nn.Sequential(nn.EmbeddingBag(5, 4, mode="sum"), nn.Linear(4, 2))
    truth = classification_truth(model, data, clip=0.3)
    loop = start(model, data, clip=0.3)
    loop.run()
    assert_gradients(model, truth)


def test_users_hooks_do_not_replace_the_account() -> None:
    """8: `attach_step_hook` replaced the accountant's hook, ε = 0."""
    loop = start(sigma=1.0)
    calls = []
    loop.optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    loop.optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    loop.run()
    assert calls == ["before", "after"]
    assert loop.engine.get_epsilon(1e-3) > 0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_one_bad_record_does_not_spoil_the_step(value: float) -> None:
    """11: Inf or NaN in one record made all weights NaN."""
    data = vectors(12)
    rest = TensorDataset(data.tensors[0][1:], data.tensors[1][1:])
    data.tensors[0][0] = value
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    truth = classification_truth(model, rest, clip=0.5, divisor=12)
    loop = start(model, data)
    loop.run()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    if value != 1e30:  # finite records are clipped, not dropped
        assert_gradients(model, truth)


def test_half_precision_weights_are_clipped_in_full() -> None:
    """12: with bfloat16 weights the clipped norm exceeded the bound; noise was drawn in bf16."""
    model = nn.Linear(64, 32).bfloat16()
    data = TensorDataset(torch.randn(1, 64).bfloat16(), torch.zeros(1, dtype=torch.long))
    loop = start(model, data, clip=1.0)
    x, y = loop.batch()
    F.cross_entropy(100 * model(x).float(), y).backward()
    loop.optimizer.step()
    norm = torch.cat([p.grad.double().flatten() for p in model.parameters()]).norm()
    assert float(norm) <= 1 + 2**-8  # only the release is rounded to bfloat16


@pytest.mark.parametrize("records", [49, 93, 98, 103, 107, 161])
def test_no_step_is_lost_to_rounding(records: int) -> None:
    """13: int(1/(1/n)) ≠ n for 312 of n ≤ 5000."""
    assert len(start(data=vectors(records), batch_size=1).loader) == records


def test_samplers_are_refused_not_replaced() -> None:
    """14: WeightedRandomSampler thrown away, q from the wrong length (#600 #813)."""
    model = nn.Linear(5, 2)
    loader = DataLoader(vectors(100), 10, sampler=WeightedRandomSampler(torch.ones(100), 50))
    with pytest.raises(DataError, match="sampler=WeightedRandomSampler: records must be chosen"):
        PrivacyEngine().make_private(
            module=model,
            optimizer=optim.SGD(model.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


@pytest.mark.parametrize("batch", [300, 999])
def test_requested_batch_is_the_expected_batch(batch: int) -> None:
    """14: 300 of 1000 became 250, 999 became 500."""
    loop = start(data=vectors(1000), batch_size=batch)
    sizes = []
    for _ in range(20):
        x, y = loop.batch()
        sizes.append(len(x))
        loop.backward(x, y)
        loop.optimizer.step()
    spread = (batch * (1 - batch / 1000) / 20) ** 0.5
    assert abs(sum(sizes) / 20 - batch) < 6 * spread
    assert loop.optimizer.expected_batch_size == batch


def test_accountant_at_its_edges() -> None:
    """15: empty history, tiny loss, length in segments."""
    for name in ("prv", "pld", "rdp"):
        accountant = PrivacyEngine(accountant=name).accountant
        assert accountant.get_epsilon(1e-5) == 0.0
        accountant.step(noise_multiplier=100.0, sample_rate=1e-4)
        assert 0.0 <= accountant.get_epsilon(1e-5) < 0.01
        accountant.step(noise_multiplier=100.0, sample_rate=1e-4)
        accountant.step(noise_multiplier=90.0, sample_rate=1e-4)
        assert len(accountant) == 3
        assert accountant.history == [(100.0, 1e-4, 2), (90.0, 1e-4, 1)]


def test_padding_row_stays_still() -> None:
    """18: the row of `padding_idx` got a gradient."""
    model = nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Flatten(), nn.Linear(12, 2))
    data = TensorDataset(torch.randint(0, 6, (10, 3)), torch.randint(0, 2, (10,)))
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    loop.run()
    assert_gradients(model, truth)


def test_layers_called_by_keyword() -> None:
    """18: `layer(input=x)` raised AttributeError."""

    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x):
            return self.layer(input=x)

    model, data = ByName(), vectors(12)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    x, y = loop.batch()
    F.cross_entropy(model(x=x), y).backward()
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_seeds_do_not_reach_the_noise() -> None:
    """19: `torch.manual_seed(0)` made the noise predictable."""
    gradients = []
    for _ in range(2):
        torch.manual_seed(0)
        loop = start(sigma=1.0)
        torch.manual_seed(0)
        loop.run()
        gradients.append(loop.model.weight.grad)
    assert (gradients[0] != gradients[1]).all()
    with pytest.raises(ConfigurationError, match="noise_generator='Generator': must be None: who"):
        start(noise_generator=torch.Generator())


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("poison_sampling", "did you mean 'poisson_sampling'"),
        ("max_grad_nrom", "did you mean 'max_grad_norm'"),
        ("alphas", "orders of the RDP account"),
        ("zzz", "known are module, optimizer, data_loader"),
    ],
)
def test_unknown_keywords_raise(name: str, answer: str) -> None:
    """20: misspelt keywords were swallowed."""
    with pytest.raises(TypeError, match=rf"make_private\(\) has no keyword '{name}': .*{answer}"):
        start(**{name: 5})
    model = nn.Linear(5, 2)
    wanted = rf"make_private_with_epsilon\(\) has no keyword '{name}': .*{answer}"
    with pytest.raises(TypeError, match=wanted):
        PrivacyEngine().make_private_with_epsilon(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(vectors(12), batch_size=3),
            target_epsilon=1.0,
            target_delta=1e-3,
            epochs=1,
            max_grad_norm=1.0,
            **{name: 5},
        )
    with pytest.raises(TypeError, match="did you mean 'secure_mode'"):
        PrivacyEngine(secure_mod=True)


class Texts(torch.utils.data.Dataset):
    """The i-th record is i + 1 words long."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, place):
        return torch.arange(place + 1) % 9


def test_padding_to_the_longest_record_of_the_batch_is_refused() -> None:
    """One long record lengthens all others of its batch, and their gradients with them."""

    def padded(records: list) -> torch.Tensor:
        return nn.utils.rnn.pad_sequence(records, batch_first=True)

    def padded_to_the_same(records: list) -> torch.Tensor:
        return torch.stack([F.pad(record, (0, 30 - len(record))) for record in records])

    def make(collate) -> None:
        model = nn.Embedding(9, 4)
        PrivacyEngine().make_private(
            module=model,
            optimizer=optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(Texts(), batch_size=5, collate_fn=collate),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )

    with pytest.raises(DataError, match="a long record would change all others; pad to a"):
        make(padded)
    make(padded_to_the_same)


def test_fix_keeps_trained_scales() -> None:
    """20: the BN→GN fixer dropped affine weights."""
    model = nn.Sequential(nn.BatchNorm2d(4))
    nn.init.uniform_(model[0].weight)
    assert torch.equal(ModuleValidator.fix(model)[0].weight, model[0].weight)


def test_fast_gradients_are_clipped_for_an_outlier() -> None:
    """1: one outlier moved the "clipped" sum by 25 845 where the bound was 70.5."""
    data = vectors(64)
    data.tensors[0][0] *= 1e6
    loop = start(data=data, clip=1.1)
    loop.run()
    norm = torch.cat([p.grad.flatten() for p in loop.model.parameters()]).norm()
    assert float(norm) * 64 <= 64 * 1.1 * (1 + 1e-5)


def test_replacing_one_record_moves_the_sum_by_twice_the_bound() -> None:
    """5, measured: the sensitivity is what the noise is made for."""
    data = vectors(8)
    state = nn.Linear(5, 2).state_dict()
    sums = []
    for scale in (1.0, -1e4):
        model = nn.Linear(5, 2)
        model.load_state_dict(state)
        changed = TensorDataset(data.tensors[0].clone(), data.tensors[1])
        changed.tensors[0][3] *= scale
        loop = start(model, changed, clip=0.1)
        loop.run()
        sums.append(torch.cat([p.grad.flatten() for p in model.parameters()]) * 8)
    assert float((sums[0] - sums[1]).norm()) <= 0.2 * (1 + 1e-4)


def test_two_losses_for_one_record_share_one_bound() -> None:
    """17 of the pains: several losses are one objective for each record, clipped once."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 2), nn.Linear(5, 1)

        def forward(self, x):
            return self.a(x), self.b(x)

    model, data = TwoHeads(), vectors(12)
    x, y = data.tensors

    def both(m, i):
        logits, value = m(x[i : i + 1])
        return F.cross_entropy(logits, y[i : i + 1]) + value.square().mean()

    truth = clipped_mean(model, list(range(12)), both, clip=0.5, divisor=12)
    loop = start(model, data)
    x, y = loop.batch()
    logits, value = model(x)
    (F.cross_entropy(logits, y) + value.square().mean()).backward()
    loop.optimizer.step()
    assert_gradients(model, truth)
