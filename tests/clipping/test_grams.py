"""Norms from Gram matrices against float64: with too small a norm a record says too much."""

import itertools

import pytest
import torch

from steppe.clipping.grams import paired_, paired_rows


def whole(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """By whole Gram matrices."""
    return paired_(torch.bmm(x, x.mT), torch.bmm(g, g.mT), max(x.shape[2], g.shape[2]))


@pytest.mark.parametrize("positions", [1, 5, 31, 32, 33, 65])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_ways_give_the_norm_of_the_sum(positions: int, dtype: torch.dtype) -> None:
    torch.manual_seed(positions)
    x = torch.randn(4, positions, 50, dtype=dtype)
    g = torch.randn(4, positions, 30, dtype=dtype)
    truth = torch.einsum("btp,btd->bpd", g.double(), x.double()).square().sum((1, 2))
    for found in (paired_rows(x, g), whole(x, g)):
        assert found.dtype == torch.float64
        assert torch.allclose(found, truth, rtol=1e-4)
        assert bool((found >= truth * (1 - 1e-6)).all())


@pytest.mark.parametrize("positions", [32, 47, 65, 200])
def test_halves_of_gram_matrices_cancel_as_safely_as_whole_ones(positions: int) -> None:
    """Every position comes twice with opposite signs, so that hardly anything is left."""
    torch.manual_seed(positions)
    x, g = torch.randn(8, positions, 96), torch.randn(8, positions, 24)
    order = torch.randperm(2 * positions)
    rows = torch.cat([x, x + 1e-5 * torch.randn_like(x)], 1)[:, order]
    grads = torch.cat([g, -g], 1)[:, order]
    truth = torch.einsum("btp,btd->bpd", grads.double(), rows.double()).square().sum((1, 2))
    found = paired_rows(rows, grads)
    of_whole = whole(rows, grads)
    assert (found >= truth * (1 - 1e-6)).all(), (found / truth).min()
    traces = rows.double().square().sum((1, 2)) * grads.double().square().sum((1, 2))
    assert ((found - of_whole).abs() <= 1e-6 * traces).all()


@pytest.mark.parametrize(
    ("positions", "copies", "features"),
    [
        *itertools.product([2, 6, 16], [1], [16, 96, 192, 784, 4608]),
        *itertools.product([16, 40], [8], [96, 192, 4608]),
        *[(2, 1, 2**18), (6, 1, 2**18)],
    ],
)
def test_two_positions_that_cancel_are_no_short_norms(
    positions: int, copies: int, features: int
) -> None:
    """All features add up with one sign, which rounds most, and hardly a gradient is left."""
    torch.manual_seed(features + positions)
    records = max(2**21 // (positions * features), 8)
    for around in (torch.ones, lambda *shape: torch.randn(*shape).abs()):
        one = around(records, 1, features) + 0.01 * torch.randn(records, 1, features)
        other = one + 10.0 ** (-2 - 3 * torch.rand(records, 1, 1)) * torch.randn_like(one)
        x, g = torch.zeros(records, positions, features), torch.zeros(records, positions, 8)
        x[:, :copies], x[:, copies : 2 * copies] = one, other
        g[:, :copies] = torch.randn(records, 1, 8)
        g[:, copies : 2 * copies] = -g[:, :copies]
        truth = torch.bmm(g.double().mT, x.double()).square().sum((1, 2))
        for found in (paired_rows(x, g), whole(x, g)):
            assert bool((found >= truth * (1 - 1e-6)).all()), (found / truth).min()


@pytest.mark.parametrize(
    ("positions", "features", "outputs"),
    [(20, 96, 670), (64, 64, 64), (64, 192, 768), (65, 192, 192), (64, 1152, 128)],
)
def test_norms_of_positions_that_differ_are_right_to_1e_5(
    positions: int, features: int, outputs: int
) -> None:
    """The guard is there for what cancels, and leaves alone what does not."""
    torch.manual_seed(positions)
    x, g = torch.randn(6, positions, features), torch.randn(6, positions, outputs)
    truth = torch.bmm(g.double().mT, x.double()).square().sum((1, 2)).sqrt()
    for found in (paired_rows(x, g), whole(x, g)):
        assert bool((found.sqrt() >= truth * (1 - 1e-6)).all())
        assert bool((found.sqrt() <= truth * (1 + 1e-5)).all()), (found.sqrt() / truth).max()


@pytest.mark.parametrize("positions", [2, 31, 32, 64])
def test_norms_are_not_lost_where_products_underflow(positions: int) -> None:
    """Each Gram matrix is fine, and the product of two of their entries is below float32."""
    torch.manual_seed(positions)
    for of_x in range(-30, 6, 3):
        for of_g in range(-30, 6, 3):
            x = torch.randn(3, positions, 4) * 10.0**of_x
            g = torch.randn(3, positions, 4) * 10.0**of_g
            truth = torch.bmm(g.double().mT, x.double()).square().sum((1, 2))
            assert bool((paired_rows(x, g) >= truth * (1 - 1e-6)).all()), (of_x, of_g)


@pytest.mark.parametrize("positions", [8, 40, 64])
def test_sums_that_leave_float32_on_their_way_are_no_short_norms(positions: int) -> None:
    """Terms of both signs, the sum of which is small and a part of which is minus infinity."""
    torch.manual_seed(positions)
    left = 0
    for power in torch.linspace(17.5, 20.0, 60).tolist():
        kept = (torch.rand(20, positions, 1) < 0.6).float()
        g = torch.randn(20, positions, 4)
        x = kept.expand(-1, -1, 128) * 10.0 ** (power / 2)
        g = (g - g.mean(1, keepdim=True)) * 10.0 ** (power / 2)
        truth = torch.bmm(g.double().mT, x.double()).square().sum((1, 2))
        for found in (paired_rows(x, g), whole(x, g)):
            assert bool((found >= truth * (1 - 1e-6)).all()), power
            left += int(torch.isinf(found).sum())
    assert left, "none was tried that left float32"
