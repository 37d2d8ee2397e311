"""The clipped sum as a whole: limits, composition, misuse."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum, record_gradients
from steppe.errors import MisuseError, UnsupportedModelError
from steppe.gradients import Kernels
from steppe.probing import probe
from steppe.utils.batches import count


def setting(seed: int = 0) -> tuple[nn.Module, dict[str, Tensor], object, tuple[Tensor, Tensor]]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))
    batch = (torch.randn(12, 5), torch.randint(3, (12,)))

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return model, dict(model.named_parameters()), objective, batch


def test_an_endless_clip_gives_the_plain_gradient() -> None:
    model, parameters, objective, batch = setting()
    engine = ClippedSum(parameters, objective, Flat(1e9))
    out = torch.zeros(engine.numel)
    engine.add_(out, batch)
    F.cross_entropy(model(batch[0]), batch[1], reduction="sum").backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.allclose(out, plain, rtol=1e-5, atol=1e-6)


def test_micro_batches_add_up_to_the_whole() -> None:
    _, parameters, objective, batch = setting()
    sums = []
    for physical in (None, 1, 5, 12, 100):
        engine = ClippedSum(parameters, objective, Flat(0.3), physical_batch=physical)
        out = torch.zeros(engine.numel)
        engine.add_(out, batch)
        sums.append(out)
    assert all(torch.allclose(s, sums[0], rtol=1e-5, atol=1e-6) for s in sums)


def test_the_model_keeps_no_trace() -> None:
    """No attribute, hook, gradient or renamed weight is left behind, nor on the batch."""
    model, parameters, objective, batch = setting()
    before = {name: set(vars(m)) for name, m in model.named_modules()}
    names = list(model.state_dict())
    ClippedSum(parameters, objective, Flat(1.0)).add_(torch.zeros(75), batch)
    assert {name: set(vars(m)) for name, m in model.named_modules()} == before
    assert list(model.state_dict()) == names
    assert all(p.grad is None and not vars(p) for p in model.parameters())
    assert not vars(batch[0])
    assert all(not m._forward_hooks and not m._backward_hooks for m in model.modules())


def test_unused_weights_get_zero_and_frozen_ones_cost_nothing() -> None:
    model, _, objective, batch = setting()
    spare = nn.Parameter(torch.ones(4))
    model[0].weight.requires_grad_(False)
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad} | {"spare": spare}
    engine = ClippedSum(parameters, objective, Flat(0.5))
    out = torch.zeros(engine.numel)
    engine.add_(out, batch)
    assert torch.equal(out[-4:], torch.zeros(4))
    wanted = clipped_sum(objective, list(parameters.values()), batch, Flat(0.5))
    assert torch.allclose(out, wanted, rtol=1e-4, atol=1e-6)
    uses = engine.passes.trace(objective, batch, count(batch)).uses
    assert [len(use.slots) for use in uses] == [1, 2]  # the frozen weight has no slot


def test_several_losses_count_as_one_record() -> None:
    model, parameters, _, batch = setting()

    def two(batch: tuple[Tensor, Tensor]) -> Tensor:
        out = model(batch[0])
        return F.cross_entropy(out, batch[1], reduction="none") + out.square().mean(1)

    engine = ClippedSum(parameters, two, Flat(0.2))
    out = torch.zeros(engine.numel)
    engine.add_(out, batch)
    wanted = clipped_sum(two, list(parameters.values()), batch, Flat(0.2))
    assert torch.allclose(out, wanted, rtol=1e-4, atol=1e-6)


def test_l2_term_stands_before_the_clip() -> None:
    """With λ so large that θ decides, every record contributes Cθ/‖θ‖, whatever its loss says."""
    model, parameters, objective, batch = setting()
    engine = ClippedSum(parameters, objective, Flat(0.2), l2=1e5)
    out = torch.zeros(engine.numel)
    engine.add_(out, batch)
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(out, 12 * 0.2 * theta / theta.norm(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("positions", [1, 6])
def test_a_gradient_that_cancels_the_l2_term_is_still_bounded(
    dtype: torch.dtype, positions: int
) -> None:
    """g ≈ −λθ: the three parts of the norm cancel, in half precision most of all."""
    torch.manual_seed(0)
    first, second = nn.Linear(8, 16, bias=False).to(dtype), nn.Linear(16, 1, bias=False).to(dtype)
    parameters = {"first": first.weight, "second": second.weight}
    target = (torch.randn(1, positions, 8) * 3).to(dtype)

    def objective(batch: tuple[Tensor]) -> Tensor:
        penalty = (first.weight.square().sum() + second.weight.square().sum()) / 2
        return (second(first(batch[0])) * 1e-3).flatten(1).sum(1).float() - penalty.float()

    engine = ClippedSum(parameters, objective, Flat(0.01), l2=1.0)
    out = torch.zeros(engine.numel)
    engine.add_(out, (target,))
    assert float(out.double().norm()) <= 0.01 * (1 + 1e-4)


def test_pinned_kernels_are_used_and_checked() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    x = torch.randn(6, 5, 4)
    parameters = dict(layer.named_parameters())

    def objective(batch: tuple[Tensor]) -> Tensor:
        return layer(batch[0]).square().flatten(1).sum(1)

    sums = []
    for way in ("gram", "kept"):
        kernels = Kernels(pinned={"linear 4->3 T=5": way})
        engine = ClippedSum(parameters, objective, Flat(1.0), kernels=kernels)
        out = torch.zeros(engine.numel)
        engine.add_(out, (x,))
        sums.append(out)
        assert kernels.chosen == {"linear 4->3 T=5": way}
    assert torch.allclose(*sums, rtol=1e-5)
    magic = Kernels(pinned={"linear 4->3 T=5": "magic"})
    engine = ClippedSum(parameters, objective, Flat(1.0), kernels=magic)
    with pytest.raises(ValueError, match=r"kernels\['linear 4->3 T=5'\]='magic': must be one of"):
        engine.add_(out, (x,))


def test_losses_that_are_not_per_record_are_refused() -> None:
    model, parameters, _, batch = setting()
    mean = ClippedSum(parameters, lambda b: F.cross_entropy(model(b[0]), b[1]), Flat(1.0))
    with pytest.raises(
        UnsupportedModelError, match="loss=one number for the whole batch: must be one loss"
    ):
        mean.add_(torch.zeros(75), batch)
    constant = ClippedSum(parameters, lambda b: torch.zeros(12), Flat(1.0))
    with pytest.raises(UnsupportedModelError, match="loss=constant"):
        constant.add_(torch.zeros(75), batch)


def test_wrong_buffer_and_unknown_weights_are_refused() -> None:
    model, parameters, objective, batch = setting()
    with pytest.raises(MisuseError, match=r"out=\(3,\) torch.float32: must be a flat"):
        ClippedSum(parameters, objective, Flat(1.0)).add_(torch.zeros(3), batch)
    parameters.pop("2.bias")
    with pytest.raises(MisuseError, match=r"weights of shapes=\[\(3,\)\]"):
        ClippedSum(parameters, objective, Flat(1.0)).add_(torch.zeros(72), batch)
    assert model[2].bias.requires_grad


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Small random networks of mixed layers on images or vectors."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    layers: list[nn.Module] = []
    if draw(st.booleans()):
        channels, size = draw(st.integers(1, 3)), draw(st.integers(10, 13))
        x = torch.randn(4, channels, size, size)
        for _ in range(draw(st.integers(1, 2))):
            wide = draw(st.sampled_from([2, 4]))
            kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
            padding = draw(st.integers(0, 1))
            layers.append(nn.Conv2d(channels, wide, kernel, stride, padding))
            layers.append(draw(st.sampled_from([nn.GroupNorm(2, wide), nn.Tanh(), nn.PReLU()])))
            channels = wide
        layers.append(nn.Flatten())
    else:
        x = torch.randn(4, draw(st.integers(2, 6)))
    width = nn.Sequential(*layers)(x).shape[1]
    for _ in range(draw(st.integers(1, 3))):
        wide = draw(st.integers(2, 6))
        layers += [nn.Linear(width, wide, bias=draw(st.booleans()))]
        layers += [draw(st.sampled_from([nn.Tanh(), nn.LayerNorm(wide), nn.SELU()]))]
        width = wide
    return nn.Sequential(*layers), x


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(networks(), st.floats(0.01, 10), st.sampled_from([None, 1, 3]), st.sampled_from([0.0, 0.5]))
def test_random_networks_equal_the_reference(
    case: tuple[nn.Module, Tensor], relative: float, physical: int | None, l2: float
) -> None:
    # In float64: a normalisation over two numbers magnifies the rounding of another batch size.
    model, x = case[0].double(), case[1].double()
    parameters = dict(model.named_parameters())

    def objective(batch: tuple[Tensor]) -> Tensor:
        return model(batch[0]).square().flatten(1).sum(1)

    gradients = record_gradients(objective, list(parameters.values()), (x,))
    clip = Flat(relative * float(gradients.norm(dim=1).mean()) + 1e-6)
    engine = ClippedSum(parameters, objective, clip, l2=l2, physical_batch=physical)
    out = torch.zeros(engine.numel, dtype=torch.float64)
    engine.add_(out, (x,))
    wanted = clipped_sum(objective, list(parameters.values()), (x,), clip, l2)
    assert float((out - wanted).norm()) <= 1e-5 * max(float(wanted.norm()), clip.bound)


def clipped_and_wanted(
    objective: Callable[[tuple[Tensor, Tensor]], Tensor],
    parameters: dict[str, Tensor],
    batch: tuple[Tensor, Tensor],
    engine: ClippedSum,
) -> tuple[Tensor, Tensor]:
    out = torch.zeros(engine.numel)
    engine.add_(out, batch)
    return out, clipped_sum(objective, parameters, batch, engine.clip)


@pytest.mark.parametrize("physical", [None, 5])
def test_a_batch_that_the_model_writes_over_is_whole_for_the_next_query(
    physical: int | None,
) -> None:
    model, parameters, _, batch = setting()
    before = batch[0].clone()

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0].mul_(2).sub_(1)), batch[1], reduction="none")

    engine = ClippedSum(parameters, objective, Flat(0.3), physical_batch=physical)
    for _ in range(3):
        assert torch.allclose(*clipped_and_wanted(objective, parameters, batch, engine), atol=1e-6)
        assert torch.equal(batch[0], before)


def test_a_batch_is_copied_only_where_it_is_written() -> None:
    model, parameters, _, batch = setting()
    places = []

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        places.append(batch[0].data_ptr())
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    engine = ClippedSum(parameters, objective, Flat(0.3))
    for _ in range(3):
        engine.add_(torch.zeros(engine.numel), batch)
    assert places[1:] == [batch[0].data_ptr()] * 2


def test_an_objective_that_begins_to_write_is_refused() -> None:
    model, parameters, _, batch = setting()
    passes = []

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        passes.append(1)
        x = batch[0] if len(passes) == 1 else batch[0].mul_(2)
        return F.cross_entropy(model(x), batch[1], reduction="none")

    engine = ClippedSum(parameters, objective, Flat(0.3))
    engine.add_(torch.zeros(engine.numel), batch)
    with pytest.raises(UnsupportedModelError, match="batch=written: must be changed in place in"):
        engine.add_(torch.zeros(engine.numel), batch)


@pytest.mark.parametrize("both", [False, True])
def test_gradients_that_the_objective_takes_inside_do_not_count(both: bool) -> None:
    """Adversarial examples: the gradient of the input is taken on the way to the loss."""
    model, parameters, _, batch = setting()

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, labels = batch
        start = x.detach().clone().requires_grad_()
        plain = F.cross_entropy(model(start), labels, reduction="none")
        (uphill,) = torch.autograd.grad(plain.sum(), start, retain_graph=both)
        worse = F.cross_entropy(model(x + 0.1 * uphill.sign()), labels, reduction="none")
        return plain + worse if both else worse

    report = probe(model, parameters, objective, batch)
    engine = ClippedSum(parameters, objective, Flat(0.3), layouts=report.layouts)
    assert torch.allclose(*clipped_and_wanted(objective, parameters, batch, engine), atol=1e-6)


@pytest.mark.parametrize("total", [1, 7, 64, 65, 127, 128, 129, 1000])
def test_physical_batches_are_of_about_one_size(total: int) -> None:
    model, sizes = nn.Linear(2, 1), list[int]()

    def losses(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return model(x).squeeze(1)

    engine = ClippedSum(dict(model.named_parameters()), losses, Flat(1.0), physical_batch=64)
    norms = engine.add_(torch.zeros(engine.width), torch.randn(total, 2))
    assert len(norms) == sum(sizes) == total
    assert max(sizes) <= 64
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-total // 64)
