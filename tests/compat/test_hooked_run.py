"""Every order of calls that would void the guarantee is refused, with its reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from compat_loop import assert_gradients, classification_truth, start, vectors
from steppe.compat import PrivacyEngine
from steppe.errors import ConfigurationError, IsolationError, MisuseError


def test_step_without_a_drawn_batch() -> None:
    """The user's old loader is still in the loop."""
    loop = start()
    x, y = vectors(12).tensors
    before = loop.model.weight.detach().clone()
    loop.backward(x, y)
    with pytest.raises(MisuseError, match="take every batch from the loader that make_private"):
        loop.optimizer.step()
    assert torch.equal(before, loop.model.weight)


def test_step_in_eval_mode() -> None:
    loop = start()
    x, y = loop.batch()
    loop.model.eval()
    loop.backward(x, y)
    before = loop.model.weight.detach().clone()
    with pytest.raises(MisuseError, match=r"did not run on this batch in train mode; call"):
        loop.optimizer.step()
    assert torch.equal(before, loop.model.weight)


def test_step_after_running_a_copy() -> None:
    loop = start()
    x, y = loop.batch()
    said = "the very module that was given to make_private"
    with pytest.raises(IsolationError, match=said):
        F.cross_entropy(copy.deepcopy(loop.model)(x), y).backward()
    with pytest.raises(MisuseError, match=said):
        loop.optimizer.step()


def test_step_without_backward() -> None:
    loop = start()
    x, _ = loop.batch()
    loop.model(x)
    with pytest.raises(MisuseError, match="no gradient reached the module's weights; call loss"):
        loop.optimizer.step()


class _Idle(optim.SGD):
    """Steps on to the next batch, and moves nothing."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        del closure


class _MovesLast(_Idle):
    """Moves nothing in its parent's step, and all weights after it."""

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        super().step(closure)
        for weight in self.param_groups[0]["params"]:
            weight.data.sub_(weight.grad)


def test_an_optimizer_that_moves_nothing_is_an_error_in_the_first_step() -> None:
    model = nn.Linear(5, 2)
    loop = start(model, optimizer=_Idle(model.parameters(), lr=0.1))
    text = (
        r"^parameters=\['weight', 'bias'\]: must move in the first step, but did not; check .*\.$"
    )
    with pytest.raises(MisuseError, match=text):
        loop.run(1)
    assert len(loop.engine.accountant) == 1, "a step that released a gradient is charged"


def test_a_step_within_a_step_is_judged_at_its_end() -> None:
    model = nn.Linear(5, 2)
    _Idle(model.parameters(), lr=0.1)  # from its first object on, torch runs hooks in this step
    loop = start(model, optimizer=_MovesLast(model.parameters(), lr=0.1))
    loop.run(2)
    assert len(loop.engine.accountant) == 2


def test_another_optimizer_finds_nothing_to_release() -> None:
    """Stepping the wrong optimizer moved the weights without noise; here there is no gradient."""
    loop = start()
    other = optim.SGD(loop.model.parameters(), lr=0.1)
    before = loop.model.weight.detach().clone()

    def wrong() -> None:
        for _ in range(2):
            for x, y in loop.loader:
                other.zero_grad()
                loop.backward(x, y)
                other.step()

    with pytest.raises(MisuseError, match=r"a batch was drawn and not stepped; call optimizer"):
        wrong()
    assert torch.equal(before, loop.model.weight)
    assert loop.model.weight.grad is None


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (lambda: torch.autocast("cpu", dtype=torch.bfloat16), "autocast"),
        (torch.autograd.detect_anomaly, "detect_anomaly"),
    ],
)
def test_modes_that_the_probe_would_blame_on_a_layer(mode, name: str) -> None:
    """Before the first batch, which is probed, and after it."""
    model, data = nn.Linear(5, 2), vectors(12)
    loop = start(model, data)
    for done in range(2):
        truth = classification_truth(model, data, clip=0.5)
        x, y = loop.batch()
        with mode(), pytest.raises(MisuseError, match=f"^{name}=on: must be off around make_priv"):
            model(x)
        loop.backward(x, y)  # the drawn batch is still there
        loop.optimizer.step()
        assert_gradients(model, truth)
        assert len(loop.engine.accountant) == done + 1


def test_coarse_products_are_refused_in_the_pass_and_in_the_step() -> None:
    loop = start()
    x, y = loop.batch()
    torch.set_float32_matmul_precision("medium")
    try:
        with pytest.raises(MisuseError, match=r"^fp32_precision of mkldnn.matmul='bf16': must be"):
            loop.model(x)
        torch.set_float32_matmul_precision("highest")
        loop.backward(x, y)
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(MisuseError, match=r"^fp32_precision of mkldnn.matmul='bf16': must be"):
            loop.optimizer.step()
    finally:
        torch.set_float32_matmul_precision("highest")
    loop.optimizer.step()  # the drawn batch is still there
    assert len(loop.engine.accountant) == 1


def test_evaluation_may_use_any_mode() -> None:
    loop = start()
    x, _ = loop.batch()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert loop.model(x).dtype == torch.bfloat16
    with torch.inference_mode():
        loop.model(x)


def test_gradient_that_comes_another_way() -> None:
    """A penalty on the weights would be dropped without a word."""
    loop = start()
    x, y = loop.batch()
    loss = F.cross_entropy(loop.model(x), y) + loop.model.weight.square().sum()
    with pytest.raises(MisuseError, match="parameter='weight': must reach the loss through the"):
        loss.backward()
    assert loop.model.weight.grad is None


def test_constants_on_the_optimizer_stay() -> None:
    loop = start(sigma=1.0)
    x, y = loop.batch()
    loop.backward(x, y)
    loop.optimizer.noise_multiplier = 0.1
    with pytest.raises(MisuseError, match=r"optimizer.noise_multiplier=0.1: must stay 1.0, the"):
        loop.optimizer.step()


def test_weights_that_come_later() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    loop = start(model)
    model[0].requires_grad_(True)
    loop.batch()
    with pytest.raises(MisuseError, match=r"new weights=\['0.weight', '0.bias'\]: must be known"):
        loop.optimizer.step()


def test_weights_added_to_the_optimizer_later() -> None:
    loop = start()
    loop.optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})
    x, y = loop.batch()
    loop.backward(x, y)
    with pytest.raises(MisuseError, match="new weights=2: must be known when make_private"):
        loop.optimizer.step()


@pytest.mark.parametrize("change", [lambda layer: layer, nn.utils.parametrizations.weight_norm])
def test_freezing_later_is_allowed(change) -> None:
    """Late freezing was refused by ghost mode (#673)."""
    model, data = nn.Sequential(nn.Linear(5, 4), change(nn.Linear(4, 2))), vectors(12)
    loop = start(model, data)
    loop.run()
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    truth = classification_truth(model, data, clip=0.5)
    loop.run()
    assert torch.equal(before, model[0].weight)
    assert model[0].weight.grad is None
    assert_gradients(model, truth)


def test_peeking_at_a_batch_costs_nothing() -> None:
    model, data = nn.Linear(5, 2), vectors(12)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    x, _ = loop.batch()
    assert x.shape == (12, 5)
    loop.run()
    assert_gradients(model, truth)
    assert len(loop.engine.accountant) == 1


def test_kept_gradients_are_not_overwritten() -> None:
    loop = start(sigma=1.0)
    loop.run()
    kept = loop.model.weight.grad
    values = kept.clone()
    loop.run()
    assert torch.equal(kept, values)


def test_optimizer_whose_step_calls_its_parents() -> None:
    class Twice(optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    optim.SGD([torch.zeros(1)], lr=0.1)  # the parent's step gets its hooks from the first instance
    model, data = nn.Linear(5, 2), vectors(12)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data, optimizer=Twice(model.parameters(), lr=0.1))
    loop.run()
    assert_gradients(model, truth)
    loop.run()
    assert len(loop.engine.accountant) == 2


def test_optimizer_state_is_the_plain_one() -> None:
    model = nn.Linear(5, 2)
    loop = start(model, optimizer=optim.Adam(model.parameters()))
    loop.run(2)
    state = loop.optimizer.state_dict()
    plain = optim.Adam(nn.Linear(5, 2).parameters())
    plain.load_state_dict(state)
    assert set(state) == {"state", "param_groups"}
    loop.optimizer.load_state_dict(state)
    loop.run()


def test_two_runs_of_one_engine_add_up() -> None:
    engine = PrivacyEngine()
    first = start(sigma=1.0)
    first.run()
    single = first.engine.get_epsilon(1e-3)
    first.engine.accountant.step(noise_multiplier=1.0, sample_rate=first.loader.sample_rate)
    assert first.engine.get_epsilon(1e-3) > single
    assert engine.get_epsilon(1e-3) == 0.0


def test_data_loader_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="data_loader='TensorDataset': must be a torch"):
        PrivacyEngine().make_private(
            module=nn.Linear(5, 2),
            optimizer=None,
            data_loader=vectors(5),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_an_input_with_a_gradient_may_be_written_over_before_the_step() -> None:
    """Norms taken early belong to what is summed, also where torch cannot see the change."""
    torch.manual_seed(0)
    model = nn.Linear(200, 200, bias=False)
    data = TensorDataset(torch.randn(12, 4, 200), torch.zeros(12))
    loop = start(model, data)
    x, _ = loop.batch()
    x = x.clone().requires_grad_()
    loop.model(x).sin().sum((1, 2)).mean().backward()
    x.detach().numpy()[:] *= 1000
    loop.optimizer.step()
    released = model.weight.grad.norm() * 12
    assert released <= 12 * 0.5 * 1.001
    assert x.grad is not None


def test_a_step_that_failed_lets_no_plain_one_through() -> None:
    """The next one looked like a step inside it, and went along whatever gradient there was."""
    loop = start()
    x, y = loop.batch()
    loop.backward(x, y)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    handle = loop.optimizer.register_step_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        loop.optimizer.step()
    handle.remove()
    loop.optimizer.step()  # along the private gradient, which is paid for
    before = loop.model.weight.detach().clone()
    loop.optimizer.zero_grad()
    loop.backward(x, y)
    with pytest.raises(MisuseError, match="no drawn batch waits for a step"):
        loop.optimizer.step()
    assert torch.equal(before, loop.model.weight)
    loop.run()
    assert len(loop.engine.accountant) == 2


class _FailsOnce(optim.SGD):
    """Raises in its first step, and is plain afterwards."""

    failed = False

    def step(self, closure: Any = None) -> Any:
        if not self.failed:
            self.failed = True
            raise RuntimeError("half way")
        return super().step(closure)


def _after_a_failed_step() -> Any:
    optim.SGD([torch.zeros(1)], lr=0.1)  # the parent's step gets its hooks from the first instance
    model = nn.Linear(5, 2)
    loop = start(model, optimizer=_FailsOnce(model.parameters(), lr=0.1))
    loop.backward(*loop.batch())
    with pytest.raises(RuntimeError, match="half way"):
        loop.optimizer.step()
    return loop


@pytest.mark.parametrize(
    "change",
    [
        lambda weight, raw: setattr(weight, "grad", raw),
        lambda weight, raw: weight.grad.copy_(raw),
    ],
)
def test_a_gradient_written_by_hand_after_a_step_that_failed(change) -> None:
    """It looked like a step inside the one that failed, and the raw gradient was the step."""
    loop = _after_a_failed_step()
    loop.model.eval()
    x, y = vectors(12).tensors
    (raw,) = torch.autograd.grad(F.cross_entropy(loop.model(x), y), loop.model.weight)
    before = loop.model.weight.detach().clone()
    change(loop.model.weight, raw)
    with pytest.raises(MisuseError, match="no drawn batch waits for a step"):
        loop.optimizer.step()
    assert torch.equal(before, loop.model.weight)


def test_a_frozen_weight_gets_no_gradient_by_hand_either() -> None:
    loop = _after_a_failed_step()
    loop.model.bias.requires_grad_(False).grad = torch.ones(2)
    with pytest.raises(MisuseError, match="no drawn batch waits for a step"):
        loop.optimizer.step()


def test_a_step_that_failed_may_be_called_again() -> None:
    loop = _after_a_failed_step()
    before, gradient = loop.model.weight.detach().clone(), loop.model.weight.grad.clone()
    loop.optimizer.step()
    torch.testing.assert_close(loop.model.weight.detach(), before - 0.1 * gradient)
    loop.run()
    assert len(loop.engine.accountant) == 2


def test_an_optimizer_may_put_another_gradient_in_the_place_of_the_private_one() -> None:
    class Signs(optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for weight in self.param_groups[0]["params"]:
                weight.grad = weight.grad.sign()
            return super().step(closure)

    optim.SGD([torch.zeros(1)], lr=0.1)
    model = nn.Linear(5, 2)
    loop = start(model, optimizer=Signs(model.parameters(), lr=0.5))
    before = model.weight.detach().clone()
    loop.run()
    torch.testing.assert_close((model.weight - before).abs(), torch.full((2, 5), 0.5))
    loop.run()
    assert len(loop.engine.accountant) == 2


def test_a_step_inside_the_closure_is_no_step_inside_the_private_one() -> None:
    """It comes before the private gradient is made."""
    loop = start()
    x, y = loop.batch()
    before = loop.model.weight.detach().clone()

    def closure() -> None:
        loop.backward(x, y)
        loop.model.weight.grad = torch.ones(2, 5)
        loop.optimizer.step()

    with pytest.raises(MisuseError, match="no drawn batch waits for a step"):
        loop.optimizer.step(closure)
    moved = loop.model.weight.detach() - before
    assert not torch.equal(moved, torch.full((2, 5), -0.1))
    assert len(loop.engine.accountant) == 1
