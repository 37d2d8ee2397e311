"""Box-Muller by the compiled kernel and by passes of torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from steppe.randomness import box_muller
from steppe.randomness.box_muller import GROUP, CompiledBoxMuller, TorchBoxMuller, pairs

HALF = GROUP // 2
needs_kernel = pytest.mark.skipif(
    not box_muller.COMPILED, reason="no compiled kernel: Steppe was installed without a C compiler"
)


class Words:
    """A keystream of given words, group after group."""

    def __init__(self, words: np.ndarray, turns: np.ndarray) -> None:
        self._parts = [
            part.view(np.uint8)
            for group in zip(words.reshape(-1, HALF), turns.reshape(-1, HALF), strict=True)
            for part in group
        ]

    def __call__(self, out: np.ndarray) -> None:
        out[:] = self._parts.pop(0)


def drawn(groups: int, turn: type[np.signedinteger]) -> tuple[np.ndarray, np.ndarray]:
    """Words of every size, down to the far tail, and the ends of what there is."""
    rng = np.random.default_rng(5)
    words = rng.integers(-(2**63), 2**63, groups * HALF, dtype=np.int64)
    words[::2] >>= rng.integers(0, 64, len(words[::2]))
    ends = [0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 2**32 - 1, 65535, 65536, 1 << 62]
    words[: len(ends)] = ends
    limits = np.iinfo(turn)
    turns = rng.integers(limits.min, limits.max, groups * HALF, dtype=turn, endpoint=True)
    eighths = np.arange(-4, 4) * (limits.max // 4 + 1)
    turns[: 3 * len(eighths)] = np.concatenate([eighths, eighths - (eighths > 0), eighths + 1])
    return words, turns


def polar(words: np.ndarray, turns: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """r² and θ by the formulas, in float64."""
    u = np.abs(words.astype(np.float64)) * (2.0**-63 * (1 - 2.0**-24)) + 2.0**-65
    return torch.tensor(-2 * np.log(u)), torch.tensor(turns * (2 * np.pi * 2.0**-32))


@pytest.mark.parametrize("std", [1.0, 1e-30, 2e37, 0.3])
@pytest.mark.parametrize("groups", [1, 3, 37])
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(CompiledBoxMuller, marks=needs_kernel),
        lambda k: TorchBoxMuller(torch.float32, k),
    ],
)
def test_both_ways_follow_the_formulas(
    way: type[CompiledBoxMuller], groups: int, std: float
) -> None:
    """From the reach of the noise to values near zero, and in all directions."""
    words, turns = drawn(groups, np.int32)
    found = torch.full((groups, GROUP), torch.nan)
    way(Words(words, turns)).fill_(found, std)
    cosines, sines = (found.double() / std).view(-1, 2, HALF).transpose(0, 1).reshape(2, -1)
    squared, angle = polar(words, turns)
    # u is rounded to float32 on the way, which near 1 is all there is of its logarithm.
    error = (cosines.square() + sines.square() - squared).abs()
    assert (error <= 1e-6 * squared + 4e-7).all()
    beside = (cosines * angle.sin() - sines * angle.cos()) / squared.sqrt()
    assert beside.abs().max() < 4e-7
    assert (cosines * angle.cos() + sines * angle.sin() > 0).all(), "the opposite direction"


def test_float64_follows_the_formulas() -> None:
    words, turns = drawn(2, np.int64)
    found = torch.empty(2, GROUP, dtype=torch.float64)
    pairs(torch.float64, Words(words, turns)).fill_(found, 0.5)
    u = np.abs(words.astype(np.longdouble)) * 2.0**-63 + 2.0**-65
    radii = 0.5 * np.sqrt(-2 * np.log(np.minimum(u, 1 - 2.0**-53)))
    angles = turns.astype(np.longdouble) * (2 * np.pi) * 2.0**-64
    want = np.stack([radii * np.cos(angles), radii * np.sin(angles)]).astype(np.float64)
    found_pairs = found.view(2, 2, HALF).transpose(0, 1).reshape(2, -1)
    assert torch.allclose(found_pairs, torch.tensor(want), rtol=1e-9, atol=1e-8)


@needs_kernel
def test_the_kernel_takes_float32_alone() -> None:
    assert isinstance(pairs(torch.float32, lambda out: None), CompiledBoxMuller)
    assert isinstance(pairs(torch.float64, lambda out: None), TorchBoxMuller)


@needs_kernel
def test_the_kernel_refuses_what_does_not_fit() -> None:
    from steppe.randomness._box_muller import box_muller

    words, turns, out = np.zeros(4, np.int64), np.zeros(4, np.int32), np.zeros(8, np.float32)
    unaligned = np.zeros(40, np.uint8)[1:33]
    for wrong in (
        (words[:3], turns, out),
        (words, turns[:3], out),
        (words, turns, out[:7]),
        (unaligned, turns, out),
    ):
        with pytest.raises(ValueError, match="must be of as many pairs"):
            box_muller(*wrong, 1.0)
    out.flags.writeable = False
    with pytest.raises((TypeError, BufferError)):
        box_muller(words, turns, out, 1.0)


@pytest.mark.usefixtures("compiler")
def test_the_kernel_is_built_where_it_can_be() -> None:
    """An optional part that fails to build is left out without a word; here is the word."""
    assert box_muller.COMPILED


@pytest.mark.parametrize("macros", [["-D__GLIBC__=2", "-D__GNUC__=11"], ["-U__GLIBC__"]])
def test_older_compilers_and_other_loaders_get_one_version(
    compiler: str, macros: list[str]
) -> None:
    """GCC 11 has no clones for x86-64-v3, and musl's loader could not choose among them."""
    source = Path(box_muller.__file__).with_name("_box_muller.c").read_text()
    alone = "".join(line for line in source.splitlines(True) if not line.startswith("#include"))
    command = [compiler, "-E", "-w", *macros, "-x", "c", "-"]
    found = subprocess.run(command, input=alone, capture_output=True, text=True, check=True)
    assert "static void normals" in found.stdout
    assert "target_clones" not in found.stdout
