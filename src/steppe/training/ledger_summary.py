"""What a run says about its ledger: where it stands in it, and what all runs cost together."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steppe.ledger import Ledger, LedgerRun

# How a run's own file begins the way to its ledger, which may lead anywhere from another folder.
RUN = "{run}/"


def runs_before(known: Mapping[str, LedgerRun], run: str) -> int:
    """How many runs had been charged when a run began.

    Args:
        known: the runs of the ledger, in the order in which they began.
        run: the id of the run, which may not be among them yet.
    """
    earlier = itertools.takewhile(lambda one: one.id != run, known.values())
    return sum(one.charged > 0 for one in earlier)


def ledger_line(path: str, before: int) -> str:
    """The line about a ledger that was named, so that a slip in its name is seen.

    Examples:
        >>> ledger_line("/data/patients.jsonl", 0), ledger_line("/data/patients.jsonl", 1)
        ('ledger: /data/patients.jsonl, new', 'ledger: /data/patients.jsonl, 1 run before this one')
    """
    counted = "1 run" if before == 1 else f"{before} runs"
    return f"ledger: {path}, {f'{counted} before this one' if before else 'new'}"


def without_machine(facts: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """What a run says about its ledger, for a file that may be passed on.

    Args:
        facts: with the full `path` of a ledger that was named, which tells about the machine.
        run: the run's folder, from which the path is written where the ledger lies in it or in a
            folder around it; elsewhere the file's name alone.

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
    """The way to a ledger from the run's folder, for the run's own file: both may move together.

    Examples:
        >>> path_from_run(Path("/ann/runs/first"), "/ann/patients.jsonl")
        '{run}/../../patients.jsonl'
    """
    return RUN + os.path.relpath(ledger, run.resolve())


def resolved_from_run(path: str, run: Path) -> str:
    """The ledger that a run's own file names; a path that is no such way as it is.

    Examples:
        >>> resolved_from_run("{run}/../../patients.jsonl", Path("/ann/runs/first"))
        '/ann/patients.jsonl'
    """
    if not path.startswith(RUN):
        return path
    return str((run.resolve() / path.removeprefix(RUN)).resolve())


def cost_together(ledger: Ledger, delta: float) -> dict[str, Any]:
    """How many `runs` are charged, their `epsilon` at `delta`, and why that is infinite, if so."""
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
