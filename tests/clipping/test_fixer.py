"""Batch normalisation becomes group normalisation and keeps its weights."""

import torch
from torch import nn

from steppe import fix


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
