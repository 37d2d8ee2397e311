"""All experiments by name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterator

from steppe.papers.experiment import Experiment
from steppe.utils import validation

# Modules of this package, in the order in which they are listed.
PAPERS = ("dp_swa", "recycling", "dp_sat", "weight_decay", "dp_adapter", "combinations")


def experiments() -> Iterator[Experiment]:
    """Every experiment, paper by paper, the most telling of each first."""
    for paper in PAPERS:
        yield from importlib.import_module(f"steppe.papers.{paper}").EXPERIMENTS


def find(name: str) -> Experiment:
    """The experiment of this name.

    Examples:
        >>> find("dp-sat-toy").name
        'dp-sat-toy'
    """
    known = []
    for experiment in experiments():
        if experiment.name == name:
            return experiment
        known.append(experiment.name)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    rule = f"must be one of {', '.join(known)}"
    raise validation.fail("experiment", name, rule, f"did you mean {near!r}?")
