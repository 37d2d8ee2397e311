"""Runs on the same data in folders beside a run, whose cost its ledger does not add up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from steppe.errors import SteppeError
from steppe.training.folder import RunFolder


def runs_beside(run: Path, data: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """The folders of other runs on data of the same name that are not in the run's ledger.

    Args:
        run: the run's folder, which need not exist.
        data: what is declared about its data; see `fingerprint.of_data`.
        known: the ids of the runs in its ledger.

    Guarantees:
        Reads only the configurations in the folder that holds the run's folder.
    """
    run = run.resolve()
    others = (path.parent for path in run.parent.glob("*/config.json"))
    return sorted(path.name for path in others if path != run and _is_apart(path, data, known))


def note(beside: Collection[str]) -> str:
    """What to tell the owner of the data.

    Examples:
        >>> note(["first"])
        "first, beside this run, was trained on the same data and is not in this run's ledger: the
        privacy losses add up; give all runs on the same data one ledger (--ledger, ledger=) to have
        them added up"
    """
    names = ", ".join(beside)
    was, is_not = ("was", "is not") if len(beside) == 1 else ("were", "are not")
    return (
        f"{names}, beside this run, {was} trained on the same data and {is_not} in this "
        "run's ledger: the privacy losses add up; give all runs on the same data one ledger "
        "(--ledger, ledger=) to have them added up"
    )


def _is_apart(path: Path, data: Mapping[str, Any], known: Collection[str]) -> bool:
    try:
        config = RunFolder(path).read_config()
        other = config["settings"]["data"]
        same = other["name"] == data["name"] and other["record"] == data["record"]
    except (SteppeError, KeyError, TypeError):
        return False  # not a run of ours, or damaged: this is only a note
    return bool(same) and config["run"] not in known
