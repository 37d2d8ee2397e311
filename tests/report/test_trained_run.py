"""A run that the trainer really made, from its folder to the page."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import nn

import steppe
from steppe.averaging import EMA, OPA, CheckpointStore
from steppe.flatness import Surface, gradient_norm_histogram, random_rays, record_gradient_norms
from steppe.report import add_flatness, add_gradient_norms, add_intervals, write
from steppe.training import Saving, Trainer


def test_the_page_of_a_trained_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(600, 6)
    labels = (inputs[:, 0] > 0).long()
    model = nn.Linear(6, 2)
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-4, population=500, batch_size=100, steps=20)
    public = inputs[500:], labels[500:]
    outcome = Trainer(
        model,
        (inputs[:500], labels[:500]),
        plan,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        evaluate=public,
        averages=[EMA(model, decay=0.9)],
        run=Saving(folder=tmp_path / "trained", store_every=2),
        progress=False,
    ).fit()

    surface = Surface(model, nn.functional.cross_entropy, [public])
    generator = torch.Generator().manual_seed(0)
    rays = random_rays(surface, generator, [0.0, 1.0, 2.0], rays=3)
    add_flatness(outcome.run, {"last": [rays]}, data="held-out rows", public=True)
    norms = gradient_norm_histogram(record_gradient_norms(surface), clip=1.0)
    add_gradient_norms(outcome.run, norms, data="held-out rows", public=True)
    store = CheckpointStore(outcome.run / "store")
    prediction = OPA(model, store.last(4)).predict(public[0])
    add_intervals(
        outcome.run, prediction, public[1], model="OPA(4)", data="held-out rows", public=True
    )

    page = write([outcome.run], outcome.run).read_text()
    assert re.findall(r'<figure class="plot" id="([\w-]+)"', page) == [
        *("curve-0", "curve-1", "by-epsilon", "calibration", "widths", "rays", "norms")
    ]
    assert 'class="missing"' not in page
    assert f"{100 * outcome.table[0]['accuracy']:.2f}\u202f%" in page
    assert "EMA(decay=0.9" in page
    assert str(tmp_path) not in page


def test_a_run_whose_last_evaluation_fails_says_so(tmp_path: Path) -> None:
    answers = iter([{"accuracy": 0.5}])  # one for the rehearsal, none for the end
    model = nn.Linear(6, 2)
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-4, population=500, batch_size=100, steps=2)
    inputs = torch.randn(500, 6)
    outcome = Trainer(
        model,
        (inputs, (inputs[:, 0] > 0).long()),
        plan,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        evaluate=lambda _: next(answers),
        run=Saving(folder=tmp_path / "trained", evaluate_every=2),
        progress=False,
    ).fit()
    page = write([outcome.run], outcome.run).read_text()
    assert "There is no final table: scoring the models failed." in page
