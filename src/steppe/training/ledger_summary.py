"""What a run prints and stores about its ledger."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steppe.ledger import Ledger, LedgerRun

# Marks a path to the ledger in `run.toml` as relative to the run's folder.
RUN = "{run}/"


def runs_before(known: Mapping[str, LedgerRun], run: str) -> int:
    """The number of charged runs that began before a run.

    Args:
        known: the runs of the ledger, in the order in which they began.
        run: the id of the run, which may not be in the ledger yet.
    """
    earlier = itertools.takewhile(lambda one: one.id != run, known.values())
    return sum(one.charged > 0 for one in earlier)


def ledger_line(path: str, before: int) -> str:
    """The line about a named ledger, which shows if its name was misspelt.

    Examples:
        >>> ledger_line("/data/patients.jsonl", 0), ledger_line("/data/patients.jsonl", 1)
        ('ledger: /data/patients.jsonl, new', 'ledger: /data/patients.jsonl, 1 run before this one')
    """
    counted = "1 run" if before == 1 else f"{before} runs"
    return f"ledger: {path}, {f'{counted} before this one' if before else 'new'}"


def without_machine(facts: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The facts about a ledger without folder names of the machine, for files to be published.

    Args:
        facts: with the full `path` of a named ledger.
        run: the run's folder. The path becomes relative to it if the ledger is in it or in a folder
            above it; otherwise only the file's name remains.

    Examples:
        >>> without_machine({"runs": 2, "path": "/ann/patients.jsonl"}, Path("/ann/runs/first"))
        {'runs': 2, 'path': '../../patients.jsonl'}
        >>> without_machine({"path": "/data/ann/secret/patients.jsonl"}, Path("/data/runs/first"))
        {'path': 'patients.jsonl'}
    """
    if "path" not in facts:
        return dict(facts)
    path, run = Path(facts["path"]), run.resolve()
    around = run.is_relative_to(path.parent)
    return {**facts, "path": os.path.relpath(path, run) if around else path.name}


def path_from_run(run: Path, ledger: str) -> str:
    """The path to a ledger relative to the run's folder, so that both can be moved together.

    Examples:
        >>> path_from_run(Path("/ann/runs/first"), "/ann/patients.jsonl")
        '{run}/../../patients.jsonl'
    """
    return RUN + os.path.relpath(ledger, run.resolve())


def resolved_from_run(path: str, run: Path) -> str:
    """The absolute path of a ledger in `run.toml`; other paths are unchanged.

    Examples:
        >>> resolved_from_run("{run}/../../patients.jsonl", Path("/ann/runs/first"))
        '/ann/patients.jsonl'
    """
    if not path.startswith(RUN):
        return path
    return str((run.resolve() / path.removeprefix(RUN)).resolve())


def cost_together(ledger: Ledger, delta: float) -> dict[str, Any]:
    """The number of charged `runs`, their total `epsilon` at `delta`, and why it is infinite."""
    charged = [run for run in ledger.runs().values() if run.charged]
    epsilon = ledger.epsilon(delta)
    known = sum(run.not_private_reason is not None for run in charged)
    reason = None
    if known:
        whose = "this run" if len(charged) == 1 else f"{known} of {len(charged)} runs"
        reason = f"the noise of {whose} is known"
    elif not math.isfinite(epsilon):
        reason = "the noise is too small for any ε"
    return {
        "runs": len(charged),
        "epsilon": epsilon,
        "delta": delta,
        "not_private_reason": reason,
    }
