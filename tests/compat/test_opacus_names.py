"""Imports, keywords and methods of Opacus are found where Opacus has them."""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from compat_loop import assert_gradients, classification_truth, start, vectors
from steppe.compat import PrivacyEngine
from steppe.compat.accountants import PRVAccountant, RDPAccountant
from steppe.compat.distributed import DifferentiallyPrivateDistributedDataParallel
from steppe.compat.grad_sample import register_grad_sampler
from steppe.compat.grad_sample.functorch import make_functional
from steppe.errors import ConfigurationError, MisuseError

SAME = [
    "accountants:create_accountant",
    "accountants:PRVAccountant",
    "accountants:RDPAccountant",
    "accountants:IAccountant",
    "accountants.utils:get_noise_multiplier",
    "data_loader:DPDataLoader",
    "distributed:DifferentiallyPrivateDistributedDataParallel",
    "grad_sample:register_grad_sampler",
    "grad_sample.functorch:make_functional",
    "layers:DPGRU",
    "layers:DPLSTM",
    "layers:DPMultiheadAttention",
    "layers:DPRNN",
    "utils.batch_memory_manager:BatchMemoryManager",
    "validators:ModuleValidator",
    ":PrivacyEngine",
]
ABSENT = [
    "accountants:GaussianAccountant",
    "grad_sample:GradSampleModule",
    "grad_sample:GradSampleHooks",
    "grad_sample:GradSampleModuleFastGradientClippingTP",
    "lightning:DPLightningDataModule",
    "optimizers:DPOptimizer",
    "optimizers:FSDPOptimizerFastGradientClipping",
    "utils.fast_gradient_clipping_utils:DPLossFastGradientClipping",
    "utils.fsdp_utils:FSDP2Wrapper",
]


def _module(package: str, place: str) -> Any:
    return importlib.import_module(f"{package}.{place}" if place else package)


@pytest.mark.parametrize("name", SAME)
def test_a_name_is_where_opacus_has_it(name: str) -> None:
    place, _, what = name.partition(":")
    assert hasattr(_module("steppe.compat", place), what)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert hasattr(_module("opacus", place), what)


@pytest.mark.parametrize("name", ABSENT)
def test_a_name_that_is_absent_says_what_to_change(name: str) -> None:
    place, _, what = name.partition(":")
    text = f"from steppe.compat.{place} import {what}"
    with pytest.raises(ImportError, match=rf"{what}: is not offered, because .*; \w+ ") as error:
        exec(text, {})  # noqa: S102
    assert str(error.value).startswith(f"compat.{place}.{what}")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from steppe.compat.{place} import Nothing", {})  # noqa: S102


def test_every_keyword_of_opacus_is_accepted_or_refused_by_name() -> None:
    opacus = pytest.importorskip("opacus")
    for method in ("make_private", "make_private_with_epsilon"):
        theirs = set(inspect.signature(getattr(opacus.PrivacyEngine, method)).parameters)
        ours = set(inspect.signature(getattr(PrivacyEngine, method)).parameters)
        assert theirs - ours == {"kwargs", "rand_on_empty"} & theirs


def test_accountants_are_those_of_the_engine() -> None:
    for made, name in ((PRVAccountant(), "prv"), (RDPAccountant(), "rdp")):
        for _ in range(3):
            made.step(noise_multiplier=1.0, sample_rate=0.1)
        other = PrivacyEngine(accountant=name).accountant
        other.history = made.history
        assert made.get_epsilon(1e-5) == other.get_epsilon(1e-5) > 0


def test_a_registered_sampler_has_no_effect() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.ones(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by

    @register_grad_sampler(Scaled)
    def wrong(layer: nn.Module, activations: Any, backprops: Any) -> dict[nn.Parameter, Any]:
        raise AssertionError

    model = nn.Sequential(Scaled(), nn.Linear(5, 2))
    truth = classification_truth(model, vectors(12), 0.5)
    loop = start(model)
    loop.run()
    assert_gradients(model, truth)
    assert callable(wrong)


def test_a_functional_module_gives_the_same_gradients() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    x, y = vectors(6).tensors
    function, weights = make_functional(model)
    made = torch.func.grad(lambda w: F.cross_entropy(function(w, x), y))(weights)
    for one, other in zip(
        made, torch.autograd.grad(F.cross_entropy(model(x), y), list(weights)), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_one_process_needs_no_wrapper() -> None:
    model = nn.Linear(5, 2)
    assert DifferentiallyPrivateDistributedDataParallel(model) is model
    start(DifferentiallyPrivateDistributedDataParallel(model)).run()


def test_ghost_mode_returns_the_criterion() -> None:
    data = torch.utils.data.DataLoader(vectors(12), batch_size=12)
    for criterion in (None, nn.CrossEntropyLoss(label_smoothing=0.1)):
        model = nn.Linear(5, 2)
        module, optimizer, loss, loader = PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=data,
            criterion=criterion,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            grad_sample_mode="ghost",
            wrap_model=False,
        )
        assert module is model
        assert isinstance(loss, nn.CrossEntropyLoss)
        assert criterion is None or loss is criterion
        for x, y in loader:
            loss(module(x), y).backward()
            optimizer.step()


def test_a_hook_of_the_step_sees_the_private_gradient() -> None:
    loop = start(sigma=1.0)
    seen: list[Any] = []

    def hook(optimizer: Any) -> None:
        seen.append((optimizer, loop.model.weight.detach().clone(), loop.model.weight.grad.clone()))

    before = loop.model.weight.detach().clone()
    loop.optimizer.attach_step_hook(hook)
    loop.run(2)
    assert len(seen) == 2
    assert seen[0][0] is loop.optimizer
    assert torch.equal(seen[0][1], before)
    torch.testing.assert_close(seen[1][1], before - 0.1 * seen[0][2])
    assert len(loop.engine.accountant) == 2


def test_steps_are_not_skipped_by_hand() -> None:
    loop = start(sigma=1.0)
    loop.optimizer.signal_skip_step(False)
    with pytest.raises(MisuseError, match=r"signal_skip_step\(True\): .* BatchMemoryManager"):
        loop.optimizer.signal_skip_step(True)


# Adaptive clipping

ADAPTIVE: dict[str, Any] = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "min_clipbound": 1e-2,
    "max_clipbound": 10.0,
    "unclipped_num_std": 2.0,
}


def test_the_norm_follows_the_quantile() -> None:
    data = vectors(200)
    norms = []
    for row in range(200):
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
        F.cross_entropy(model(data.tensors[0][row][None]), data.tensors[1][row][None]).backward()
        norms.append(float(torch.cat([p.grad.flatten() for p in model.parameters()]).norm()))
    median = sorted(norms)[100]
    for clip in (0.1 * median, 10 * median):
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
        slow = torch.optim.SGD(model.parameters(), lr=1e-5)
        wide = ADAPTIVE | {"max_clipbound": 100.0}
        loop = start(model, data, sigma=0.5, optimizer=slow, clip=clip, **wide)
        loop.run(60)
        assert loop.optimizer.max_grad_norm == pytest.approx(median, rel=0.15)


def test_noise_and_sensitivity_are_those_of_the_quantile() -> None:
    """σ √(1 − share)⁻¹ of noise on the gradient in units of C, as in Andrew et al., theorem 1."""
    model = nn.Linear(300, 100)
    loop = start(model, vectors(10, width=300), sigma=2.0, clip=0.5, **ADAPTIVE)
    x, y = loop.batch()
    (1e-9 * F.cross_entropy(model(x), y)).backward()
    loop.optimizer.step()
    effective = (2.0**-2 - (2 * ADAPTIVE["unclipped_num_std"]) ** -2) ** -0.5
    spread = float(model.weight.grad.std()) * 10
    assert spread == pytest.approx(effective * 0.5, rel=0.025)
    assert loop.engine.accountant.history == [(2.0, 1.0, 1)]


def test_the_norm_is_not_set_by_hand() -> None:
    loop = start(sigma=1.0, **ADAPTIVE)
    loop.run()
    loop.optimizer.max_grad_norm = 5.0
    with pytest.raises(MisuseError, match=r"optimizer.max_grad_norm=5.0: must stay"):
        loop.run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unclipped_num_std": 0.4}, r"unclipped_num_std=0.4: must be above half the noise mult"),
        ({"min_clipbound": 20.0}, "max_grad_norm=0.5: must lie between low=20.0"),
        ({"target_unclipped_quantile": 1.5}, "target_unclipped_quantile=1.5"),
        ({"max_clipbound": None}, "max_clipbound"),
    ],
)
def test_bad_values_of_adaptive_clipping_are_refused(change: Any, message: str) -> None:
    with pytest.raises((ConfigurationError, TypeError), match=message):
        start(sigma=1.0, **(ADAPTIVE | change))


# Checkpoints


def run_to(path: Any, steps: int, **options: Any) -> tuple[Any, Any]:
    model = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loop = start(model, optimizer=optimizer, sigma=1.0, **options)
    loop.run(steps)
    loop.engine.save_checkpoint(
        path=path, module=model, optimizer=optimizer, checkpoint_dict={"epoch": 3}
    )
    return loop, model


@pytest.mark.parametrize("options", [{}, ADAPTIVE])
def test_a_run_goes_on_from_a_checkpoint(options: Any, tmp_path: Any) -> None:
    path = tmp_path / "run.ckpt"
    first, model = run_to(path, 3, **options)
    other = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    second = start(other, optimizer=optimizer, sigma=1.0, **options)
    state = second.engine.load_checkpoint(path=path, module=other, optimizer=optimizer)
    assert state["epoch"] == 3
    assert torch.equal(other.weight, model.weight)
    assert second.engine.accountant.history == first.engine.accountant.history
    assert optimizer.max_grad_norm == first.optimizer.max_grad_norm
    momenta = [
        one.state_dict()["state"][0]["momentum_buffer"] for one in (optimizer, first.optimizer)
    ]
    assert torch.equal(*momenta)
    second.run()
    assert len(second.engine.accountant) == 4
    assert math.isfinite(second.engine.get_epsilon(1e-3))


def test_a_pickle_is_neither_written_nor_read(tmp_path: Any) -> None:
    path = tmp_path / "run.ckpt"
    _, model = run_to(path, 1)
    assert b"steppe.compat" in path.read_bytes()[:4096]
    with pytest.raises(Exception, match=r"(?i)pickle|invalid|weights"):
        torch.load(path, weights_only=True)
    old = tmp_path / "old.pt"
    torch.save(model.state_dict(), old)
    engine = PrivacyEngine()
    with pytest.raises(ValueError, match=r"files of torch.save are not read, because they can run"):
        engine.load_checkpoint(path=old, module=model)
    with pytest.raises(ValueError, match="must be a file that save_checkpoint wrote"):
        engine.load_checkpoint(path=tmp_path / "absent", module=model)
    with pytest.raises(TypeError, match="a pickle can run code"):
        engine.save_checkpoint(path=path, module=model, torch_save_kwargs={})


def test_a_checkpoint_without_the_optimizer_is_named(tmp_path: Any) -> None:
    path = tmp_path / "run.ckpt"
    model = nn.Linear(5, 2)
    engine = PrivacyEngine()
    engine.save_checkpoint(path=path, module=model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="must contain 'optimizer_state_dict'"):
        engine.load_checkpoint(path=path, module=model, optimizer=optimizer)
    engine.load_checkpoint(path=path, module=model)
