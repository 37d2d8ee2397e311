"""What holds for every test, wherever it lies."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

# Imports its library, so where the extra is missing its doctests cannot be collected.
if importlib.util.find_spec("transformers") is None:
    collect_ignore = ["src/steppe/integrations/transformers.py"]

# Some virtual machines announce AMX and do not have it: torch's products in bfloat16 end there with
# an illegal instruction. oneDNN reads this when it is first used.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


@pytest.fixture(scope="session", autouse=True)
def only_devices_that_exist_are_seeded() -> Iterator[None]:
    """`torch.manual_seed` writes down the call stack for every kind of device that is not in use.

    Thousands of tests call it, from deep within pytest, where that takes milliseconds.
    """
    import torch

    with pytest.MonkeyPatch.context() as patch:
        if not torch.accelerator.is_available():
            for kind in (torch.cuda, torch.xpu, torch.mtia):
                patch.setattr(kind, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True)
def threads_end_with_the_test() -> Iterator[None]:
    """A benchmark's choice of threads is its own: on two cores, two workers of two threads each
    spend most of their time waiting."""
    import torch

    threads = torch.get_num_threads()
    yield
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@pytest.fixture
def compiler() -> str:
    """The C compiler that the kernels are built with; without one such tests are skipped."""
    found, header = shutil.which("cc"), Path(sysconfig.get_paths()["include"]) / "Python.h"
    if found is None or not header.exists():
        pytest.skip("no C compiler, or no headers of Python, on this machine")
    return found
