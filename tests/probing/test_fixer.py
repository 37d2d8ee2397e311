"""Batch normalisation becomes group normalisation and keeps its weights."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from steppe import fix
from steppe.errors import ConfigurationError, UnsupportedModelError


def test_affine_weights_and_modes_are_kept() -> None:
    model = nn.Sequential(nn.Conv2d(3, 48, 1), nn.Sequential(nn.BatchNorm2d(48, eps=1e-3))).eval()
    nn.init.normal_(model[1][0].weight)
    model[1][0].bias.requires_grad_(False)
    fixed = fix(model)
    norm = fixed[1][0]
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_groups, norm.eps, norm.training) == (16, 1e-3, False)
    assert torch.equal(norm.weight, model[1][0].weight)
    assert not norm.bias.requires_grad
    assert isinstance(model[1][0], nn.BatchNorm2d)
    assert [n for n, _ in fixed.named_parameters()] == [n for n, _ in model.named_parameters()]


def test_lone_layers_and_instance_norm() -> None:
    assert isinstance(fix(nn.SyncBatchNorm(8, affine=False)), nn.GroupNorm)
    fixed = fix(nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)))
    assert list(fixed.buffers()) == []
    assert fixed(torch.randn(2, 4, 5)).shape == (2, 4, 5)


def test_vectors_keep_their_information_and_shared_layers_stay_shared() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.second = nn.BatchNorm1d(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    fixed = fix(Twice())
    assert fixed.first is fixed.second
    assert isinstance(fixed.first, nn.GroupNorm)
    assert fixed(torch.randn(4, 32)).abs().max() > 0.5


def test_tied_weights_stay_tied() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[2].bias = model[0].bias
    fixed = fix(model)
    assert fixed[1].weight is fixed[0].weight is not model[0].weight
    assert fixed[2].bias is fixed[0].bias
    assert fixed[1].bias is not fixed[0].bias


def test_a_layer_without_shift_stays_without() -> None:
    norm = nn.BatchNorm2d(8).to(torch.bfloat16)
    norm.bias = None
    fixed = fix(norm)
    assert fixed.bias is None
    assert fixed.weight.dtype == torch.bfloat16


class _Renamed(nn.BatchNorm2d):
    """Computes what its parent does."""


class _Own(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).relu()


class _More(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gain = nn.Parameter(torch.ones(1))


def _hooked() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda module, inputs, output: 2 * output)
    return norm


def test_a_subclass_that_changes_nothing_is_replaced() -> None:
    assert isinstance(fix(_Renamed(4)), nn.GroupNorm)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LazyBatchNorm2d(), r"layer '1'=LazyBatchNorm2d: must know its channels"),
        (lambda: nn.LazyInstanceNorm2d(affine=True), r"must know its channels .*run the model"),
        (lambda: _Own(4), r"layer '1'=_Own: must compute what torch's own layer does"),
        (lambda: _More(4), r"must hold no more than torch's own layer .*take gain out"),
        (_hooked, r"must have no hooks to be fixed; register them on the fixed copy"),
        (
            lambda: parametrizations.weight_norm(nn.BatchNorm2d(4), dim=None),
            r"must have plain weights .*remove_parametrizations",
        ),
    ],
)
def test_what_would_be_lost_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        fix(nn.Sequential(nn.Conv2d(3, 4, 1), make()))


def test_lazy_layers_that_know_their_channels_are_fixed() -> None:
    model = nn.Sequential(nn.LazyBatchNorm2d(), nn.LazyInstanceNorm2d(track_running_stats=True))
    model(torch.randn(2, 4, 3, 3))
    assert isinstance(fix(model)[0], nn.GroupNorm)
    assert list(fix(model).buffers()) == []


def test_parametrisations_can_be_taken_away() -> None:
    norm = parametrizations.weight_norm(nn.BatchNorm2d(4), dim=None)
    parametrize.remove_parametrizations(norm, "weight")
    assert torch.equal(fix(norm).weight, norm.weight)


@pytest.mark.parametrize("nothing", [None, 5, nn.BatchNorm2d, lambda x: x])
def test_what_is_no_model_is_refused(nothing: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"model='\w+': must be a torch nn\.Module"):
        fix(nothing)
