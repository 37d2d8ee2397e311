"""Peak memory of one engine on one case, in a process of its own.

`python -m benchmarks.memory a 256 plain` prints one JSON object. `peak_mb` is the highest resident
memory of training steps, above the level just before the engine is built around the model: it
counts activations, gradients, buffers and workspaces, and whatever the engine keeps from step to
step; not the weights, nor code and data that torch loads on first use. Building the engine and its
first step happen once (some engines try kernels there); their peak is `start_mb`. Our engine's
check of the model, on a few made-up records, has been made by then.

The child runs with glibc's mmap threshold held at its starting value. Left alone, the threshold
grows with use, freed tensors stay in a fragmented heap, and the same plain step peaks anywhere from
190 to 300 MB; held still, freed tensors leave at once and the peak repeats to 1 MB. It also makes
every large tensor fresh memory, which slows down some ways to clip more than others. So our own
engine takes the ways here that it chose in the process that timed it, which is as users have it,
and what that process found out about the model.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from unittest import mock

import torch

from benchmarks import engine_steppe, engines, settings
from benchmarks.cases import CASES, Case

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
SAMPLE_SECONDS = 0.002
MMAP_THRESHOLD = {"MALLOC_MMAP_THRESHOLD_": "131072"}
STEPS = 2


class PeakMemoryUnavailable(RuntimeError):
    """The child process could not measure; the message says why."""


@dataclass(frozen=True)
class Peak:
    """Peak MB of the training steps of an engine, and of its start."""

    peak_mb: float
    start_mb: float


def measure(
    case: Case, engine: str, vmap_chunk: int, kernels: Mapping[str, str] | None = None
) -> Peak:
    """Peaks of an engine, measured in a process of their own.

    Args:
        case: model and batch.
        engine: one of `engines.NAMES`.
        vmap_chunk: records at a time, for "vmap".
        kernels: the ways that our own engine takes; None lets it choose.
    """
    found = engine_steppe.probed(case) if engine.startswith("steppe") else None
    with ProcessPoolExecutor(1, mp_context=_server()) as pool:
        try:
            return pool.submit(_peaks, case, engine, vmap_chunk, kernels, found).result()
        except Exception as error:  # whatever the child ended with
            raise PeakMemoryUnavailable(f"{type(error).__name__}: {error}") from error


def _server() -> BaseContext:
    """Makes processes by forking one that has loaded the code, which takes longer than measuring.

    It runs nothing but imports, so that every child starts threads and caches of its own.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.engines", "torch._dynamo"])
    with mock.patch.dict(os.environ, MMAP_THRESHOLD):  # read when a process starts
        forkserver.ensure_running()
    return context


def resident_mb() -> float:
    """Resident memory without code now, with freed pages given back first."""
    _return_free_memory()
    return _status_mb("RssAnon")


def peak_mb(work: Callable[[], None]) -> float:
    """Highest resident memory without code during `work`, in MB.

    Examples:
        >>> before = resident_mb()
        >>> peak_mb(lambda: None) < before + 5 < peak_mb(lambda: bytearray(20_000_000).clear())
        True
    """
    _return_free_memory()
    if _reset_high_water_mark():
        work()
        return _status_mb("VmHWM") - _status_mb("RssFile")  # pages of code come and do not go
    return _sampled_peak(work)


def _return_free_memory() -> None:
    """Give freed pages back to the system, or earlier work would hide later growth."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _status_mb(field: str) -> float:
    for line in STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise PeakMemoryUnavailable(f"{STATUS} has no field {field}")


def _reset_high_water_mark() -> bool:
    try:
        CLEAR_REFS.write_text("5")
    except OSError:  # some containers forbid it
        return False
    return True


def _sampled_peak(work: Callable[[], None]) -> float:
    peak = _status_mb("RssAnon")
    done = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_SECONDS):
            peak = max(peak, _status_mb("RssAnon"))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        work()
    finally:
        done.set()
        sampler.join()
    return max(peak, _status_mb("RssAnon"))


def _peaks(
    case: Case,
    engine: str,
    vmap_chunk: int,
    kernels: Mapping[str, str] | None,
    found: engine_steppe.Found | None,
) -> Peak:
    """The peaks in this process, which must have done nothing else."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(settings.THREADS)
    if found is not None:
        engine_steppe.remember(case, found)

    records = case.new_batch()
    # Two records through a throw-away engine load the code, which is no part of a step.
    engines.setup(engine, case, case.new_batch(2), vmap_chunk, kernels)()

    weights_mb = sum(p.numel() * p.element_size() for p in case.new_model().parameters()) / 1e6
    level = resident_mb() + weights_mb
    steps: list[Callable[[], None]] = []

    def start() -> None:
        steps.append(engines.setup(engine, case, records, vmap_chunk, kernels))
        steps[0]()

    def train() -> None:
        for _ in range(STEPS):
            steps[0]()

    start_mb = peak_mb(start) - level
    return Peak(peak_mb=round(peak_mb(train) - level, 2), start_mb=round(start_mb, 2))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    parser.add_argument("engine")
    parser.add_argument("--vmap-chunk", type=int, default=32)
    parser.add_argument("--kernels", type=json.loads, help="the ways our engine takes, as JSON")
    asked = parser.parse_args()
    [case] = [case for case in CASES if (case.model, case.batch) == (asked.model, asked.batch)]
    found = measure(case, asked.engine, asked.vmap_chunk, asked.kernels)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
