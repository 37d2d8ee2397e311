"""What noise and an average cost: the numbers are about what they say they are about."""

from __future__ import annotations

import torch

from benchmarks.noise_and_average import without_kernel
from steppe.noise import SecureSource
from steppe.randomness import box_muller


def test_without_the_kernel_torch_makes_the_noise() -> None:
    compiled = box_muller.COMPILED
    source = without_kernel()
    assert compiled == box_muller.COMPILED
    assert isinstance(source._normals[torch.float32]._pairs, box_muller.TorchBoxMuller)
    ordinary = SecureSource()
    ordinary.fill_normal_(torch.empty(1), 1.0)
    assert (
        isinstance(ordinary._normals[torch.float32]._pairs, box_muller.CompiledBoxMuller)
        == compiled
    )
