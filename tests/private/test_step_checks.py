"""What must hold around a private step."""

from typing import Any

import pytest
import torch
from private_cases import parts, private
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


@pytest.mark.parametrize("rate", [1e-9, 0.0])
def test_a_tiny_learning_rate_is_no_mistake(rate: float) -> None:
    model, _, data, plan = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(1.0)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    loop.step(next(iter(loop)))
    assert loop.steps_done == 1
    assert all(weight.grad.any() for weight in model.parameters())


def test_mixed_precision_around_a_step_is_refused_before_it_is_charged() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MisuseError, match="autocast"):
        private()
    loop = private()
    batch = next(iter(loop))
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(MisuseError, match="autocast"):
        loop.step(batch)
    assert loop.steps_done == 0
    loop.step(batch)  # the drawn batch is still there
    assert loop.steps_done == 1


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_coarse_products_are_refused_before_a_step_is_charged(precision: str) -> None:
    """On processors that have them, a record would say up to 1 % more than its clip."""
    loop = private()
    batch = next(iter(loop))
    torch.set_float32_matmul_precision(precision)
    try:
        with pytest.raises(MisuseError, match=r"^fp32_precision of mkldnn.matmul='(tf32|bf16)'"):
            private()
        with pytest.raises(MisuseError, match="because products of rounded numbers are too"):
            loop.step(batch)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert loop.steps_done == 0
    loop.step(batch)
    assert loop.steps_done == 1


@pytest.mark.parametrize("operation", ["conv", "rnn"])
def test_coarse_products_of_layers_are_refused(operation: str) -> None:
    backend = getattr(torch.backends.mkldnn, operation)
    backend.fp32_precision = "bf16"
    try:
        with pytest.raises(MisuseError, match=f"^fp32_precision of mkldnn.{operation}='bf16': mu"):
            private()
    finally:
        backend.fp32_precision = "none"


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.autograd.detect_anomaly])
def test_modes_that_end_in_an_error_are_refused_before_the_charge(mode: Any) -> None:
    model, optimizer, data, plan = parts()
    with mode(), pytest.raises(MisuseError, match=f"{mode.__name__}=on: must be off around make"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    run = private()
    batch = next(iter(run))
    with mode(), pytest.raises(MisuseError, match=f"{mode.__name__}=on: must be off"):
        run.step(batch)
    assert run.steps_done == 0
    run.step(batch)
    assert run.steps_done == 1
