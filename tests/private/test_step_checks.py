"""What must hold around a private step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import steppe
from steppe.clipping import ClippedSum
from steppe.errors import MisuseError
from steppe.private.step_checks import refuse_coarse_products


def engine_of(model: nn.Module) -> ClippedSum:
    data = (torch.randn(40, 2, 5), torch.randint(2, (40,)))
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-4, population=40, batch_size=10, steps=1)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    return steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy).engine


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2))


def pretend_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines say so; what torch was told about CUDA can be read without it."""
    monkeypatch.setattr(ClippedSum, "device", property(lambda engine: torch.device("cuda")))


def test_convolutions_on_cuda_are_coarse_unless_torch_is_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = engine_of(network())
    refuse_coarse_products(engine)  # on the CPU
    pretend_cuda(monkeypatch)
    backend = torch.backends.cudnn.conv
    before = backend.fp32_precision
    assert before == "tf32"
    with pytest.raises(MisuseError, match=r"^fp32_precision of cuda.conv='tf32': must be 'ieee'"):
        refuse_coarse_products(engine)
    backend.fp32_precision = "ieee"
    try:
        refuse_coarse_products(engine)
    finally:
        backend.fp32_precision = before


def test_models_without_a_trained_convolution_do_not_ask_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = network()
    model[0].requires_grad_(False)
    frozen = engine_of(model)
    linear = engine_of(nn.Sequential(nn.Flatten(), nn.Linear(10, 2)))
    pretend_cuda(monkeypatch)
    refuse_coarse_products(frozen)
    refuse_coarse_products(linear)
