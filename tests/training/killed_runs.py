"""Kills real training processes and compares the ledger with what they had begun.

Run as a program, so that torch is imported once: every run is a fork of this process. A fork
leaves one byte in a trace, which the kernel keeps whatever happens to the process, before each step
touches the data. The result is printed as JSON.

    python killed_runs.py FOLDER moments 36    kill -9 after random times
    python killed_runs.py FOLDER calls 25      kill -9 inside the n-th call that writes to the disk
    python killed_runs.py FOLDER full 5        no file may grow beyond n kB, as on a full disk
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from training_cases import trainer

from steppe.averaging import EMA
from steppe.ledger import Ledger
from steppe.step import PrivateStep

BLOCK, CHECKPOINT = 2, 3
_take = PrivateStep.take


def train(run: Path, trace: Path) -> None:
    """Begin the run in this folder, or go on with it, and leave a byte for every step begun."""
    descriptor = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def traced(self: PrivateStep, parts: Any) -> None:
        os.write(descriptor, b"x")
        _take(self, parts)

    PrivateStep.take = traced  # type: ignore[method-assign]
    model = torch.nn.Linear(6, 2)
    own = trainer(
        run,
        model=model,
        averages=[EMA(model, 0.9)],
        block=BLOCK,
        checkpoint_every=CHECKPOINT,
        store_every=None,
        evaluate=None,
    )
    if (run / "config.json").exists():
        own.resume()
    else:
        own.fit()


def forked(run: Path, trace: Path, before: Callable[[], None]) -> int:
    """Start a training process; `before` is called in it first."""
    child = os.fork()
    if child:
        return child
    try:
        before()
        train(run, trace)
        os._exit(0)
    except BaseException as error:
        (run.parent / f"{run.name}.error").write_text(repr(error))
        os._exit(1)


def after_a_kill(run: Path, trace: Path) -> dict[str, int]:
    """How many steps were begun, and how many the ledger knows of."""
    runs = Ledger(run / "ledger.jsonl").runs()
    return {
        "begun": trace.stat().st_size if trace.exists() else 0,
        "charged": sum(known.charged for known in runs.values()),
    }


def die_in_call(number: int, share: float) -> Callable[[], None]:
    """Kill this process in its n-th call that changes the disk, after a share of a write."""

    def install() -> None:
        count = 0

        def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == number:
                    if name == "write":
                        descriptor, data = arguments
                        real(descriptor, data[: int(len(data) * share)])
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **options)

            return call

        for name in ("write", "fsync", "replace", "open", "mkdir"):
            setattr(os, name, counted(name, getattr(os, name)))

    return install


def kill_at_moments(folder: Path, kills: int) -> list[dict[str, Any]]:
    """Kill runs somewhere after a random step, go on with each, and begin anew when one ends."""
    chance, found, number = random.Random(0), [], 0
    while sum("end" not in line for line in found) < kills:
        number += 1
        run, trace, status = folder / f"run{number}", folder / f"trace{number}", 1
        while status:
            begun = after_a_kill(run, trace)["begun"]
            child = forked(run, trace, lambda: None)
            if wait_for(child, trace, begun + chance.randint(0, 6)):
                time.sleep(chance.uniform(0.0, 0.03))
                os.kill(child, signal.SIGKILL)
                status = os.waitpid(child, 0)[1]
            else:
                status = 0
            if os.WIFSIGNALED(status):
                found.append({"run": run.name, **after_a_kill(run, trace)})
        if (folder / f"{run.name}.error").exists():
            raise SystemExit((folder / f"{run.name}.error").read_text())
        found.append({"run": run.name, "end": True, **after_a_kill(run, trace)})
    return found


def wait_for(child: int, trace: Path, begun: int) -> bool:
    """Wait until so many steps were begun; False if the process has ended before."""
    while not trace.exists() or trace.stat().st_size < begun:
        if os.waitpid(child, os.WNOHANG)[0]:
            return False
        time.sleep(0.001)
    return True


def kill_in_calls(folder: Path, calls: int) -> list[dict[str, Any]]:
    """Kill a run in its first, second, third … call that writes, and go on with it."""
    chance, found = random.Random(0), []
    for number in range(1, calls + 1):
        run, trace = folder / f"run{number}", folder / f"trace{number}"
        run.parent.mkdir(exist_ok=True)
        at = 5 * number
        child = forked(run, trace, die_in_call(at, chance.random()))
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            found.append({"run": run.name, "call": at, **after_a_kill(run, trace)})
        elif status:
            raise SystemExit((folder / f"{run.name}.error").read_text())
        if os.waitpid(forked(run, trace, lambda: None), 0)[1]:
            raise SystemExit((folder / f"{run.name}.error").read_text())
        found.append({"run": run.name, "end": True, **after_a_kill(run, trace)})
    return found


def fill_the_disk(folder: Path, sizes: int) -> list[dict[str, Any]]:
    """Let the system refuse to make files larger than so much, and go on once there is room."""
    first, found = folder / "first", []
    settings = (first / "statement.json").stat().st_size  # the largest file before the first step
    ledger = (first / "ledger.jsonl").stat().st_size
    between = settings + (ledger - settings) // 2
    for number in range(1, sizes + 1):
        run, trace = folder / f"run{number}", folder / f"trace{number}"
        size = number * between // 3  # the third lets the settings through, and not all charges

        def limit(size: int = size) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        status = os.waitpid(forked(run, trace, limit), 0)[1]
        error = folder / f"{run.name}.error"
        said = error.read_text() if error.exists() else ""
        error.unlink(missing_ok=True)
        found.append({"run": run.name, "said": said, **after_a_kill(run, trace)})
        if status and os.waitpid(forked(run, trace, lambda: None), 0)[1]:
            raise SystemExit(error.read_text())
        found.append({"run": run.name, "end": True, **after_a_kill(run, trace)})
    return found


def main() -> None:
    folder, way, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    # What a first run imports and computes, every fork then knows.
    train(folder / "first", folder / "first.trace")
    ways = {"moments": kill_at_moments, "calls": kill_in_calls, "full": fill_the_disk}
    found = ways[way](folder, number)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
