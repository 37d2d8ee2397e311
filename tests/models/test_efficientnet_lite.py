"""EfficientNet-Lite0: padding as its weights expect it, sizes, and fixed statistics."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from steppe.errors import ConfigurationError
from steppe.finetuning import fold_batch_norm
from steppe.models import EfficientNetLite0, FrozenBatchNorm
from steppe.models.efficientnet_lite import SameConv2d


@pytest.mark.parametrize("size", [7, 8, 9, 16])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2), (1, 1)])
def test_padding_puts_the_odd_pixel_after_the_end(size: int, kernel: int, stride: int) -> None:
    torch.manual_seed(0)
    layer = SameConv2d(2, 3, kernel, stride, bias=False)
    x = torch.randn(2, 2, size, size)
    wanted = -(-size // stride)
    total = max((wanted - 1) * stride + kernel - size, 0)
    padded = F.pad(x, (total // 2, total - total // 2) * 2)
    found = layer(x)
    assert found.shape[-2:] == (wanted, wanted)
    torch.testing.assert_close(found, F.conv2d(padded, layer.weight, stride=stride))


def test_pictures_of_any_size_and_of_one_channel() -> None:
    torch.manual_seed(0)
    model = EfficientNetLite0(1, classes=4, resolution=32)
    grey = torch.rand(2, 1, 28, 28)
    assert model(grey).shape == (2, 4)
    assert torch.equal(model(grey), model(torch.cat([grey] * 3, 1)))


def test_folding_leaves_its_outputs() -> None:
    torch.manual_seed(0)
    model = EfficientNetLite0(classes=4, resolution=32)
    for module in model.modules():
        if isinstance(module, FrozenBatchNorm):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
    x = torch.rand(2, 3, 32, 32)
    before = model(x)
    fold_batch_norm(model, x)
    assert not any(isinstance(module, FrozenBatchNorm) for module in model.modules())
    torch.testing.assert_close(model(x), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 2}, r"channels=2: must be 1 or 3"),
        ({"resolution": 16}, r"resolution=16: must be at least 32"),
        ({"classes": 0}, r"classes=0: must be a whole number"),
    ],
)
def test_sizes_are_checked(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EfficientNetLite0(**changes)
