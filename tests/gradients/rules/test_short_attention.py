"""The compiled kernel for attention against torch's own, and what keeps records apart in it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe import Plan, make_private
from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.gradients.rules import attention, short_attention
from steppe.gradients.rules.short_attention import takes

pytestmark = pytest.mark.skipif(not short_attention.COMPILED, reason="installed without the kernel")
SHAPES = [(2, 1, 1, 8), (1, 2, 3, 16), (3, 7, 2, 24), (2, 8, 1, 40), (2, 9, 2, 8), (2, 33, 1, 128)]
SHAPES += [(3, 65, 3, 64), (1, 120, 2, 16), (2, 128, 1, 128)]


def attend(packed: Tensor, heads: int) -> Tensor:
    """As attention calls it."""
    assert takes(packed, heads)
    return short_attention.short_attention(packed, heads)


def by_torch(packed: Tensor, heads: int) -> Tensor:
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in packed.chunk(3, -1))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def outputs_and_gradients(packed: Tensor, heads: int, grad: Tensor) -> tuple[Tensor, Tensor]:
    packed = packed.detach().clone().requires_grad_()
    mixed = attend(packed, heads)
    return mixed.detach(), torch.autograd.grad(mixed, packed, grad)[0]


@pytest.mark.parametrize(("records", "positions", "heads", "width"), SHAPES)
def test_it_is_the_attention_that_torch_computes(
    records: int, positions: int, heads: int, width: int
) -> None:
    """Around the sizes of its tiles, and up to the longest and widest; against float64."""
    torch.manual_seed(positions)
    packed = 2 * torch.randn(records, positions, 3 * heads * width)
    grad = torch.randn(records, positions, heads * width)
    exact = packed.double().requires_grad_()
    truth = by_torch(exact, heads)
    (true_gradient,) = torch.autograd.grad(truth, exact, grad.double())
    mixed, gradient = outputs_and_gradients(packed, heads, grad)
    assert (mixed - truth).abs().max() < 3e-6 * truth.abs().max()
    assert (gradient - true_gradient).abs().max() < 3e-6 * true_gradient.abs().max()


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 30.0, 1e4, 1e15])
def test_scores_of_any_size_give_shares_that_add_up_to_one(size: float) -> None:
    """The largest score is taken off before anything is raised to a power."""
    torch.manual_seed(0)
    packed = torch.randn(4, 30, 3 * 2 * 16)
    packed[..., : 2 * 2 * 16] *= size
    packed[..., 2 * 2 * 16 :] = 1.0
    assert torch.allclose(attend(packed, 2), torch.ones(4, 30, 32), rtol=1e-6)
    packed[..., 2 * 2 * 16 :] = torch.randn(4, 30, 32)
    truth = by_torch(packed.double(), 2)
    # Rounded scores decide between positions where they are large.
    if size <= 30.0:
        assert torch.allclose(attend(packed, 2).double(), truth, atol=2e-5 * max(1.0, size))


def test_exponentials_are_right_to_the_last_digits() -> None:
    """Two positions whose scores differ by x have shares in the proportion of eˣ."""
    steps = torch.linspace(0.0, 90.0, 20_001)
    packed = torch.zeros(len(steps), 2, 24)
    packed[:, 0, 0] = 8.0**0.5
    packed[:, 1, 8] = -steps
    packed[:, 1, 16] = 1.0
    share = attend(packed, 1)[:, 0, 0].double()
    scores = -steps.double()
    truth = scores.exp() / (1 + scores.exp())
    # A score is rounded like any number; that much of it is the error of its exponential.
    allowed = 3e-7 + 1.2e-7 * steps
    seen = steps < 86.9
    assert ((share - truth).abs() <= allowed * truth)[seen].all()
    assert (share[~seen] <= 2e-38).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_record_is_the_same_in_any_company(threads: int) -> None:
    torch.manual_seed(1)
    packed, grad = torch.randn(7, 65, 3 * 48), torch.randn(7, 65, 48)
    mixed, gradient = outputs_and_gradients(packed, 3, grad)
    torch.set_num_threads(threads)
    for i in range(7):
        alone = outputs_and_gradients(packed[i : i + 1], 3, grad[i : i + 1])
        assert torch.equal(alone[0][0], mixed[i])
        assert torch.equal(alone[1][0], gradient[i])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_record_that_is_not_finite_stays_so_and_alone(value: float, part: int) -> None:
    torch.manual_seed(2)
    packed, grad = torch.randn(3, 9, 48), torch.randn(3, 9, 16)
    mixed, gradient = outputs_and_gradients(packed, 1, grad)
    for place in (0, 8):
        changed = packed.clone()
        changed[1, place, part * 16 : (part + 1) * 16] = value
        found = outputs_and_gradients(changed, 1, grad)
        if abs(value) != 3e38:
            assert not torch.isfinite(found[1][1]).all()
        assert torch.equal(found[0][::2], mixed[::2])
        assert torch.equal(found[1][::2], gradient[::2])


def test_queries_keys_and_values_may_lie_anywhere() -> None:
    torch.manual_seed(3)
    packed, grad = torch.randn(4, 10, 48), torch.randn(4, 10, 16)
    want = outputs_and_gradients(packed, 2, grad)
    leaf = packed.transpose(0, 1).contiguous().requires_grad_()
    mixed = attend(leaf.transpose(0, 1), 2)
    (gradient,) = torch.autograd.grad(mixed, leaf, grad.mT.contiguous().mT)
    assert torch.equal(mixed, want[0])
    assert torch.equal(gradient.transpose(0, 1), want[1])


def test_no_records_are_no_trouble() -> None:
    mixed, gradient = outputs_and_gradients(torch.zeros(0, 5, 24), 1, torch.zeros(0, 5, 8))
    assert mixed.shape == (0, 5, 8)
    assert gradient.shape == (0, 5, 24)


def test_its_gradient_can_be_differentiated_again() -> None:
    """A penalty on gradients is a loss like any other."""
    torch.manual_seed(4)
    packed, grad = torch.randn(2, 5, 48), torch.randn(2, 5, 16)
    found = []
    for function in (attend, by_torch):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            leaf, weight = packed.clone().requires_grad_(), grad.clone().requires_grad_()
            mixed = function(3 * leaf, 2)  # not a leaf itself
            (first,) = torch.autograd.grad(mixed, leaf, weight, create_graph=True)
            found.append((first, *torch.autograd.grad(first.square().sum(), (leaf, weight))))
    for one, other in zip(*found, strict=True):
        assert (one - other).abs().max() < 1e-5 * other.abs().max()


def test_what_it_does_not_take_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert takes(torch.zeros(1, 128, 3 * 128), 1)
    assert not takes(torch.zeros(1, 129, 24), 1)
    assert not takes(torch.zeros(1, 0, 24), 1)
    assert not takes(torch.zeros(1, 4, 3 * 136), 1)
    assert not takes(torch.zeros(1, 4, 3 * 12), 1)
    assert not takes(torch.zeros(1, 4, 24, dtype=torch.float64), 1)
    assert not takes(torch.zeros(1, 4, 24, dtype=torch.bfloat16), 1)
    assert not takes(torch.zeros(1, 4, 24, device="meta"), 1)
    monkeypatch.setattr(short_attention, "COMPILED", False)
    assert not takes(torch.zeros(1, 4, 24), 1)


@pytest.mark.parametrize("compiled", [True, False])
def test_layers_of_transformers_clip_alike_with_and_without_it(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    taken = []
    kernel = attention.short_attention
    monkeypatch.setattr(attention, "short_attention", lambda *a: taken.append(1) or kernel(*a))
    monkeypatch.setattr(short_attention, "COMPILED", compiled)
    torch.manual_seed(5)
    model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    parameters = dict(model.named_parameters())
    batch = torch.randn(6, 11, 16)

    def losses(batch: Tensor) -> Tensor:
        return model(batch).square().sum((1, 2))

    out = torch.zeros(sum(p.numel() for p in model.parameters()))
    ClippedSum(parameters, losses, Flat(0.5), physical_batch=4).add_(out, batch)
    want = clipped_sum(losses, parameters, batch, Flat(0.5))
    assert torch.allclose(out, want, rtol=1e-4, atol=1e-6)
    assert bool(taken) is compiled


def test_it_refuses_what_does_not_fit() -> None:
    from steppe.gradients.native._attention import attend, attend_backward

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    right = [zeros(2, 5, 48), zeros(2, 2, 5, 8), zeros(2, 5, 16)]
    sizes = [2, 5, 2, 8, 0.3, 1]
    attend(*right, *sizes)
    attend_backward(*right, zeros(2, 5, 48), *sizes)
    for position, wrong in itertools.product(range(3), (zeros(2, 5, 47), zeros(1))):
        changed = [*right[:position], wrong, *right[position + 1 :]]
        with pytest.raises(ValueError, match="must be"):
            attend(*changed, *sizes)
        with pytest.raises(ValueError, match="must be"):
            attend_backward(*changed, zeros(2, 5, 48), *sizes)
    with pytest.raises(ValueError, match="must be"):
        attend_backward(*right, zeros(2, 5, 16), *sizes)
    for position, number in (
        (0, -2),
        (0, 1),
        (0, 2**62 + 2),
        (2, 2**60 + 2),
        (1, 0),
        (1, 129),
        (2, 0),
        (3, 0),
        (3, 12),
        (5, 0),
    ):
        changed = [*sizes[:position], number, *sizes[position + 1 :]]
        with pytest.raises(ValueError, match="must be"):
            attend(*right, *changed)


@pytest.mark.usefixtures("compiler")
def test_it_is_built_where_it_can_be() -> None:
    """An optional part that fails to build is left out without a word; here is the word."""
    from steppe.gradients.native import _attention

    assert _attention.LANES == 8


def test_what_the_kernel_takes_is_proven_and_trained() -> None:
    """The proof runs on tensors that have no numbers for a kernel."""
    layer = nn.TransformerEncoderLayer(16, 2, 16, 0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Flatten(), nn.Linear(48, 2))
    data = torch.randn(8, 3, 16), torch.randint(2, (8,))
    assert takes(torch.zeros(8, 3, 48), 2)
    plan = Plan(noise_multiplier=1.0, delta=1e-3, population=8, batch_size=4, steps=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in run:
        run.step(batch)
    assert run.report().isolation == "proven"
