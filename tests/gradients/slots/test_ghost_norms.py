"""Norms from Gram matrices against float64: with too small a norm a record says too much."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from steppe.gradients.slots import ghost_norms
from steppe.gradients.slots.ghost_norms import (
    kernel_takes,
    matrices,
    paired_,
    paired_rows,
    paired_rows_and_sums,
    roundings,
)

needs_kernel = pytest.mark.skipif(not ghost_norms.COMPILED, reason="installed without the kernel")


@pytest.fixture(params=[pytest.param(True, marks=needs_kernel, id="kernel"), False])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With the compiled kernel, and without it."""
    monkeypatch.setattr(ghost_norms, "COMPILED", request.param)
    return request.param


def whole(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """By whole Gram matrices, as convolutions do it."""
    dtype = torch.float32 if kernel_takes(x, g) else torch.float64
    made = [
        matrices(t.to(dtype), torch.full((len(t), t.shape[1], t.shape[1]), torch.nan, dtype=dtype))
        for t in (x, g)
    ]
    if dtype == torch.float32:  # both halves are the same numbers
        assert all(torch.equal(gram, gram.mT) for gram in made if not gram.isnan().any())
    return paired_(*made, *(roundings(t.shape[2], dtype) for t in (x, g)))


@pytest.mark.usefixtures("kernel")
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


@pytest.mark.usefixtures("kernel")
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


@pytest.mark.usefixtures("kernel")
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


@pytest.mark.usefixtures("kernel")
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


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("positions", [2, 31, 32, 64])
def test_norms_are_not_lost_where_products_underflow(positions: int) -> None:
    """Each Gram matrix is fine, and the product of two of their entries is below float32."""
    torch.manual_seed(positions)
    for of_x in range(-30, 6, 3):
        for of_g in range(-30, 6, 3):
            x = torch.randn(3, positions, 9) * 10.0**of_x
            g = torch.randn(3, positions, 9) * 10.0**of_g
            truth = torch.bmm(g.double().mT, x.double()).square().sum((1, 2))
            assert bool((paired_rows(x, g) >= truth * (1 - 1e-6)).all()), (of_x, of_g)


@pytest.mark.parametrize("positions", [8, 40, 64])
def test_sums_that_leave_float32_on_their_way_are_no_short_norms(
    positions: int, kernel: bool
) -> None:
    """Terms of both signs, the sum of which is small and a part of which is minus infinity."""
    torch.manual_seed(positions)
    left = 0
    for power in torch.linspace(17.5, 39.0, 60).tolist():
        kept = (torch.rand(20, positions, 1) < 0.6).float()
        g = torch.randn(20, positions, 8)
        x = kept.expand(-1, -1, 128) * 10.0 ** (power / 2)
        g = (g - g.mean(1, keepdim=True)) * 10.0 ** (power / 2)
        truth = torch.bmm(g.double().mT, x.double()).square().sum((1, 2))
        for found in (paired_rows(x, g), whole(x, g)):
            assert bool((found >= truth * (1 - 1e-6)).all()), power
            left += int(torch.isinf(found).sum())
    assert left or not kernel, "none was tried that left float32"


SHAPES = [(1, 8, 8), (2, 9, 15), (3, 16, 100), (60, 8, 23), (61, 287, 9), (65, 288, 192)]
SHAPES += [(71, 97, 95), (72, 96, 10), (73, 295, 296), (145, 576, 33), (200, 17, 871)]
SHAPES += [(13, 290, 584), (7, 95, 583)]


@needs_kernel
@pytest.mark.parametrize(("positions", "features", "outputs"), SHAPES)
def test_the_kernel_gives_what_torch_gives(
    monkeypatch: pytest.MonkeyPatch, positions: int, features: int, outputs: int
) -> None:
    """Around the sizes of its tiles, blocks and chunks, with the guard and without it."""
    torch.manual_seed(positions)
    x, g = torch.randn(5, positions, features), torch.randn(5, positions, outputs)
    norms, sums = paired_rows_and_sums(x, g)
    assert torch.equal(norms, paired_rows(x, g))
    assert torch.allclose(sums.double(), g.double().sum(1), rtol=0, atol=1e-6 * positions)
    truth = torch.bmm(g.double().mT, x.double()).square().sum((1, 2))
    assert bool((norms >= truth).all())
    monkeypatch.setattr(ghost_norms, "_ROUNDING", 0.0)
    assert torch.allclose(paired_rows(x, g), whole(x, g), rtol=5e-7)
    assert torch.allclose(paired_rows(x, g), truth, rtol=2e-7)


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("features", [64, 95, 192, 295, 512, 583, 4608, 2**16])
@pytest.mark.parametrize("period", [96, 288, 512])
def test_nothing_that_is_rounded_away_is_lost(features: int, period: int) -> None:
    """Now and then eight features are large, the first of every lane. What is added to their
    squares is too small to count, and is all that the gradient of two such positions consists of.
    """
    large = (torch.arange(features) % period < 8).float()
    power = torch.arange(-14.0, -10.0, 0.125).view(-1, 1)
    rest = (1 - large) * 2.0**power
    x = torch.stack([large + rest, large - rest], 1)
    g = torch.stack([large + rest, rest - large], 1)
    # The gradient is 2 (large restᵀ + rest largeᵀ).
    truth = 8 * large.double().square().sum() * rest.double().square().sum(1)
    for found in (paired_rows(x, g), whole(x, g)):
        assert bool((found >= truth).all()), (found / truth).min()


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("features", [5, 96, 295, 512, 583])
def test_nothing_is_lost_where_all_roundings_are_alike(features: int) -> None:
    """Features that are all one number are rounded in the same direction at every step of a sum."""
    torch.manual_seed(features)
    x = 1 + torch.rand(20_000, 1, 1)
    x = torch.cat([x, x * (1 + 1e-3 * torch.randn_like(x))], 1)
    g = x * torch.tensor([[1.0], [-1.0]])
    truth = (features * (x.double() * g.double()).sum((1, 2))).square()
    x, g = x.expand(-1, -1, features), g.expand(-1, -1, features)
    for found in (paired_rows(x, g), whole(x, g)):
        assert bool((found >= truth).all()), (found / truth).min()


@needs_kernel
def test_a_record_has_the_same_norm_in_any_company() -> None:
    torch.manual_seed(0)
    x, g = torch.randn(7, 65, 100), torch.randn(7, 65, 20)
    norms, sums = paired_rows_and_sums(x, g)
    for i in range(7):
        alone = paired_rows_and_sums(x[i : i + 1], g[i : i + 1])
        assert torch.equal(alone[0], norms[i : i + 1])
        assert torch.equal(alone[1], sums[i : i + 1])


@needs_kernel
def test_the_kernel_takes_vectors_however_they_lie() -> None:
    torch.manual_seed(1)
    x, g = torch.randn(4, 30, 20), torch.randn(4, 30, 9)
    want = paired_rows_and_sums(x, g)
    spread = torch.zeros(4, 60, 40)
    spread[:, ::2, 3:23] = x
    backwards = torch.empty(9, 30, 4).permute(2, 1, 0).copy_(g)
    for found in (
        paired_rows_and_sums(spread[:, ::2, 3:23], g),
        paired_rows_and_sums(x, backwards),
        paired_rows_and_sums(x.clone().requires_grad_(), g),
        paired_rows_and_sums(x, torch._neg_view(-g)),
    ):
        assert all(map(torch.equal, found, want))
    one = paired_rows(x[:1].expand(4, -1, -1), g[:1].expand(4, -1, -1))
    assert torch.equal(one, want[0][:1].expand(4))


@needs_kernel
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 3e38])
@pytest.mark.parametrize("place", [(0, 0), (31, 5), (64, 19)])
def test_no_number_that_is_not_finite_is_lost_in_the_kernel(
    value: float, place: tuple[int, int]
) -> None:
    torch.manual_seed(2)
    x, g = torch.randn(3, 65, 20), torch.randn(3, 65, 20)
    norms = paired_rows(x, g)
    changed_x, changed_g = x.clone(), g.clone()
    changed_x[1][place] = changed_g[1][place] = value
    for found in (paired_rows(changed_x, g), paired_rows(x, changed_g)):
        assert not torch.isfinite(found[1])
        assert torch.equal(found[::2], norms[::2])


@needs_kernel
def test_an_empty_batch_has_no_norms() -> None:
    norms, sums = paired_rows_and_sums(torch.zeros(0, 5, 8), torch.zeros(0, 5, 9))
    assert norms.shape == (0,)
    assert sums.shape == (0, 9)


@pytest.mark.usefixtures("kernel")
def test_records_without_positions_have_norms_of_zero() -> None:
    norms, sums = paired_rows_and_sums(torch.zeros(3, 0, 8), torch.zeros(3, 0, 9))
    assert torch.equal(norms, torch.zeros(3, dtype=torch.float64))
    assert torch.equal(sums, torch.zeros(3, 9))


@pytest.mark.usefixtures("compiler")
def test_the_kernel_is_built_where_it_can_be() -> None:
    """An optional part that fails to build is left out without a word; here is the word."""
    try:
        from steppe.gradients.native import _gram_norms
    except ImportError as error:
        if "no AVX2" not in str(error):
            raise
        pytest.skip(str(error))
    assert ghost_norms.COMPILED
    assert _gram_norms.SHORTEST == 8


@needs_kernel
def test_the_kernel_refuses_what_does_not_fit() -> None:
    from steppe.gradients.native._gram_norms import gram_matrices, gram_norms, matrix_norms

    x, g = np.ones((2, 3, 8), np.float32), np.ones((2, 3, 9), np.float32)
    norms, sums = np.zeros(2), np.zeros((2, 9), np.float32)
    for wrong in (
        (x[:1], g, norms, sums),
        (x[:, :2], g, norms, sums),
        (x[:, :, :7], g, norms, sums),
        (x[0], g, norms, sums),
        (x, g.astype(np.int32), norms, sums),
        (x, g.astype(np.float64), norms, sums),
        (np.ones((2, 3, 16), np.float32)[:, :, ::2], g, norms, sums),
        (x, g, np.zeros(3), sums),
        (x, g, np.zeros(2, np.float32), sums),
        (x, g, norms, np.zeros((2, 8), np.float32)),
        (
            np.zeros(2 * 3 * 8 * 4 + 1, np.uint8)[1:].view(np.float32).reshape(2, 3, 8),
            g,
            norms,
            None,
        ),
    ):
        with pytest.raises(ValueError, match="must be"):
            gram_norms(*wrong, 0.0, 0.0, 0.0, 1)
    with pytest.raises(ValueError, match="must be"):
        gram_norms(x, g, norms, sums, 0.0, 0.0, 0.0, 0)
    squares = np.zeros((2, 3, 3), np.float32)
    for one, out in ((x[:, :, :7], squares), (x, squares[:1]), (x, squares.astype(np.float64))):
        with pytest.raises(ValueError, match="must be"):
            gram_matrices(one, out, 1)
    endless = np.broadcast_to(np.ones((1, 1, 8), np.float32), (1, 2**31, 8))
    with pytest.raises(ValueError, match="must be"):
        gram_matrices(endless, np.empty(0, np.float32), 1)
    for gram_x, gram_g, out in (
        (squares, squares[:1], norms),
        (squares, squares[:, :2], norms),
        (squares[:, ::2, ::2], squares[:, ::2, ::2], norms),
        (squares.astype(np.float64), squares, norms),
        (squares, squares, norms[:1]),
    ):
        with pytest.raises(ValueError, match="must be"):
            matrix_norms(gram_x, gram_g, out, 0.0, 0.0, 0.0, 1)
    norms.flags.writeable = False
    with pytest.raises((TypeError, BufferError, ValueError)):
        gram_norms(x, g, norms, sums, 0.0, 0.0, 0.0, 1)


@needs_kernel
def test_kernel_and_torch_share_their_threads() -> None:
    """A second OpenMP would start threads of its own, which wait for the same processors."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no list of loaded libraries on this system")
    loaded = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    assert len(loaded) <= 1, loaded
