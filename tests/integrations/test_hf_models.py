"""Models of transformers and peft, unchanged, equal autograd one record at a time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

pytest.importorskip("transformers", reason="needs the extra hf: pip install steppe[hf]")
pytest.importorskip("peft", reason="needs the extra hf: pip install steppe[hf]")

import steppe
from integrations.hf_models import FAMILIES, built
from steppe.clipping.reference import clipped_sum
from steppe.compat import PrivacyEngine
from steppe.integrations.record_losses import record_losses

RECORDS, CLIP = 5, 0.05
ADAPTED = [name for name, family in FAMILIES.items() if family.adapted]
CASES = [(name, False) for name in FAMILIES] + [(name, True) for name in ADAPTED]
LORA = {False: "full", True: "lora"}


class Rows:
    """A map-style data set of dicts."""

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns["labels"])

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {name: column[row] for name, column in self.columns.items()}


@pytest.fixture(autouse=True)
def libraries_may_warn() -> Iterator[None]:
    """Of what changes in their next versions."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", module="peft")
        yield


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def private_of(name: str, model: nn.Module, steps: int = 1) -> Any:
    plan = steppe.Plan(
        noise_multiplier=1.0,
        delta=1e-3,
        population=RECORDS,
        batch_size=RECORDS,
        steps=steps,
        clip=steppe.Flat(CLIP),
    )
    data = FAMILIES[name].batch(RECORDS)
    return data, steppe.make_private(
        model, optimizer_of(model), data, plan, objective=record_losses, physical_batch=RECORDS
    )


@pytest.mark.parametrize(("name", "adapter"), CASES, ids=lambda v: LORA.get(v, v))
def test_the_clipped_sum_is_that_of_one_record_at_a_time(name: str, adapter: bool) -> None:
    model = built(name, adapter=adapter)
    for weight in model.parameters():  # LoRA begins with zeros, which hide half of the gradient
        if weight.requires_grad and not weight.any():
            torch.nn.init.normal_(weight, std=0.1)
    data, private = private_of(name, model)
    assert private.report().isolation == "proven"
    engine = private.engine
    found = torch.zeros(engine.numel)
    norms = engine.add_(found, data)
    expected = clipped_sum(engine.objective, engine.parameters, data, steppe.Flat(CLIP))
    assert float((found - expected).norm()) <= 1e-4 * float(expected.norm())
    assert float(norms.max()) > CLIP  # something was clipped


@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_of_one_record_is_the_models_own(name: str) -> None:
    model, batch = built(name), FAMILIES[name].batch(4)
    with torch.no_grad():
        found = record_losses(model, batch)
        own = [
            model(**{k: column[i : i + 1] for k, column in batch.items()}).loss for i in range(4)
        ]
    torch.testing.assert_close(found, torch.stack(own))


def test_a_step_with_dropout_beside_relative_positions() -> None:
    _, private = private_of("t5", built("t5", dropout=0.1))
    for batch in private:
        private.step(batch)
    assert private.report().isolation == "proven"
    assert private.epsilon() > 0


@pytest.mark.parametrize(
    ("name", "adapter"),
    [(name, False) for name in FAMILIES] + [("bert", True)],
    ids=lambda v: LORA.get(v, v),
)
def test_a_loop_written_for_opacus(name: str, adapter: bool) -> None:
    model, data = built(name, dropout=0.1, adapter=adapter), FAMILIES[name].batch(4)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer_of(model),
        data_loader=DataLoader(Rows(data), batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=CLIP,
    )
    before = [p.detach().clone() for p in model.parameters() if p.requires_grad]
    for batch in loader:
        if batch["labels"].ndim == 1:
            model(**batch).loss.backward()  # a mean over records
        else:
            record_losses(model, batch).mean().backward()
        optimizer.step()
    after = [p for p in model.parameters() if p.requires_grad]
    assert all(not torch.equal(one, two) for one, two in zip(before, after, strict=True))
    assert engine.isolation[-1].isolation == "proven"
