"""Every method has its paper, and every entry is BibTeX."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import steppe
from steppe import averaging, citations, finetuning, noise, points, pretraining

ENTRY = re.compile(r"@(?:inproceedings|article|misc)\{(\w+),\n(?:  .*\n)+\}")


def plan(**choices: Any) -> steppe.Plan:
    return steppe.Plan(delta=1e-5, noise_multiplier=1.0, batch_size=8, steps=9, **choices)


def keys(text: str) -> list[str]:
    return ENTRY.findall(text + "\n")


ALWAYS = ["abadi2016deep", "koskela2020computing", "doroshenko2022connect"]


def test_dp_sgd_and_its_account_are_always_cited() -> None:
    assert keys(citations.bibtex(plan())) == ALWAYS


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"point": steppe.SAM(0.1)}, ["foret2021sharpness", "park2023differentially"]),
        ({"point": steppe.SAT(0.1)}, ["park2023differentially"]),
        ({"point": steppe.SATMomentum(0.1)}, ["park2023differentially"]),
        ({"noise": steppe.TimeSchedule(0.1, every=3)}, ["yu2019differentially"]),
        ({"clip": steppe.Quantile()}, ["andrew2021differentially"]),
        ({"clip": steppe.Automatic()}, ["bu2023automatic"]),
        ({"clip": steppe.PerLayer()}, ["mcmahan2018learning"]),
        ({"clip": steppe.GEP()}, ["yu2021not"]),
        ({"l2": 0.1}, ["guo2024differential"]),
        ({"l2": {"head": 0.1}}, ["guo2024differential"]),
        ({"views": 4}, ["de2022unlocking"]),
        (
            {"sampling": steppe.CappedPoisson(9), "adjacency": "zero-out"},
            ["ganesh2025tighter"],
        ),
    ],
)
def test_a_choice_brings_its_paper(choices: dict[str, Any], expected: list[str]) -> None:
    assert keys(citations.bibtex(plan(**choices))) == ALWAYS + expected


def test_what_the_plan_does_not_know_can_be_added_and_is_cited_once() -> None:
    model = nn.Linear(1, 1)
    others = [
        steppe.DPAdam(model.parameters(), noise_std=0.1),
        averaging.SWA(model),
        averaging.EMA(model, decay=0.9),
        averaging.Window(model, k=2),
        torch.optim.SGD(model.parameters(), lr=1.0),
    ]
    found = keys(citations.bibtex(plan(views=2), *others))
    assert found == [
        *ALWAYS,
        "de2022unlocking",
        "tang2024dpadambc",
        "indri2023can",
        "izmailov2018averaging",
        "shejwalkar2025recycling",
    ]


def test_citation_prints(capsys: pytest.CaptureFixture[str]) -> None:
    steppe.citation(plan(point=steppe.SAT(0.1)))
    assert keys(capsys.readouterr().out) == [*ALWAYS, "park2023differentially"]


@pytest.mark.parametrize("key", citations._ENTRIES)
def test_entries_are_bibtex(key: str) -> None:
    text = citations._ENTRIES[key]
    assert keys(text) == [key]
    assert text.count("{") == text.count("}")
    assert text.isascii()
    assert all(f"  {name} = {{" in text for name in ("title", "author", "year"))


def test_the_tables_fit_together() -> None:
    cited = {key for row in citations._BY_CLASS.values() for key in row}
    cited |= {*citations._ALWAYS, *citations._L2, *citations._VIEWS}
    assert cited == set(citations._ENTRIES)
    rooms = [steppe, averaging, noise, points, pretraining, finetuning]
    assert all(any(hasattr(room, name) for room in rooms) for name in citations._BY_CLASS)
