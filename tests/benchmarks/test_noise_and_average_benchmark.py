"""What noise and an average cost: the numbers are about what they say they are about."""

from __future__ import annotations

import torch

from benchmarks.noise_and_average import without_kernel
from steppe.noise import SecureSource, _pairs


def test_without_the_kernel_torch_makes_the_noise() -> None:
    compiled = _pairs.COMPILED
    source = without_kernel()
    assert compiled == _pairs.COMPILED
    assert isinstance(source._normals[torch.float32]._pairs, _pairs.Passes)
    ordinary = SecureSource()
    ordinary.fill_normal_(torch.empty(1), 1.0)
    assert isinstance(ordinary._normals[torch.float32]._pairs, _pairs.OnePass) == compiled
