"""Whether products in bfloat16 are faster than in float32, and safe, on this processor."""

from __future__ import annotations

import functools
import platform
import subprocess
import sys

import torch

_TRIAL = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); a @ a"


@functools.cache
def bfloat16_is_fast() -> bool:
    """By what the processor announces; where bfloat16 is not built in, torch emulates it slowly.

    Some virtual machines announce AMX and do not have it: a product in bfloat16 ends the process
    with an illegal instruction there. So where AMX is announced, another process tries it first.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    found = torch.cpu.get_capabilities()
    if not found.get("avx512_bf16", False):
        return False
    if not found.get("amx_tile", False):
        return True
    tried = subprocess.run([sys.executable, "-c", _TRIAL], capture_output=True, check=False)  # noqa: S603 - our own line
    return tried.returncode == 0
