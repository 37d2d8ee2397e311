"""The run of pre-training: files, resume, and what is refused before it begins."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pretraining_cases import flat, network, public, trained
from torch import nn

import steppe
from steppe.errors import ConfigurationError, DataError, MisuseError
from steppe.pretraining import (
    SAM,
    Contrastive,
    DPAdapter,
    KeptPerturbation,
    MeanPerturbation,
    PublicData,
    Standard,
)
from steppe.runs import Interrupted, read_log
from steppe.starts import read_start, starts_of

ADAM = partial(torch.optim.Adam, lr=1e-2)


def stop_after(steps: int) -> Any:
    """Ctrl-C after so many steps."""

    def callback(done: int, _: nn.Module) -> None:
        if done == steps:
            os.kill(os.getpid(), signal.SIGINT)

    return callback


@pytest.mark.parametrize(
    "method",
    [Standard(), SAM(), DPAdapter(48, warmup=2), KeptPerturbation(5, 48), MeanPerturbation(0.9)],
    ids=lambda method: type(method).__name__,
)
def test_a_resumed_run_gives_the_weights_of_one_that_was_not(method: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "optimizer": ADAM,
        "scheduler": lambda own: torch.optim.lr_scheduler.CosineAnnealingLR(own, 12),
        "augment": lambda x: x + 0.1 * torch.randn_like(x),
        "checkpoint_every": 100,
    }
    whole, _ = trained(tmp_path / "whole", method, model=network(dropout=0.2), **options)
    stopped = {**options, "callbacks": [stop_after(7)]}
    with pytest.raises(Interrupted, match=r"stopped after step 7 of 12; resume with: steppe.pretr"):
        trained(tmp_path / "parts", method, model=network(dropout=0.2), **stopped)
    other, outcome = trained(
        tmp_path / "parts", method, model=network(dropout=0.2), resume=True, **options
    )
    assert torch.equal(flat(whole), flat(other))
    assert outcome.gradients == trained_gradients(tmp_path / "whole")
    notes = [line["text"] for line in read_log(tmp_path / "parts" / "log.jsonl") if "text" in line]
    assert notes == ["stopped after step 7 of 12", "resumed from the checkpoint after step 7"]


def trained_gradients(run: Path) -> int:
    return int(read_start(run / "start.safetensors").card.constants["gradients"])


def test_a_run_writes_a_start_with_its_card_and_a_log(tmp_path: Path) -> None:
    model, outcome = trained(tmp_path / "run", DPAdapter(48), evaluate_every=4)
    start = read_start(outcome.start)
    for name, tensor in model.state_dict().items():
        assert torch.equal(start.weights[name], tensor)
    assert start.card.data.name == "half-planes"
    assert start.card.data.records == 96
    assert start.card.data.sha256 == public().facts.sha256
    assert start.card.method["kind"] == "DPAdapter"
    assert start.card.method["perturbation_batch"] == 48
    assert start.card.constants["batch_size"] == 16
    assert start.card.scores == outcome.scores
    assert starts_of(model) == ((start.card.sentence, start.sha256),)
    lines = read_log(tmp_path / "run" / "log.jsonl")
    evaluated = [line for line in lines if line["kind"] == "evaluation"]
    assert [line["step"] for line in evaluated] == [4, 8, 12]
    assert all(0 <= line["accuracy"] <= 1 for line in evaluated)
    assert "times as many as" in str(outcome)


def test_training_lowers_the_held_out_loss(tmp_path: Path) -> None:
    _, outcome = trained(tmp_path / "run", DPAdapter(96, cap=0.5), steps=60)
    assert outcome.scores["accuracy"] > 0.85


def test_a_callback_ends_the_run(tmp_path: Path) -> None:
    _, outcome = trained(tmp_path / "run", callbacks=[lambda done, _: done == 3])
    assert outcome.steps == 3


def test_statistics_of_batch_normalisation_follow_the_update_alone(tmp_path: Path) -> None:
    def normalised() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    plain, _ = trained(tmp_path / "plain", Standard(), model=normalised())
    small, _ = trained(tmp_path / "small", DPAdapter(48, cap=1e-30), model=normalised())
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, small.state_dict()[name]), name


def test_torchs_own_random_state_is_left_alone(tmp_path: Path) -> None:
    model = network()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(tmp_path / "run", model=model)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_contrastive_start_has_no_head_and_resumes(tmp_path: Path) -> None:
    view = lambda x: x + 0.1 * torch.randn_like(x)  # noqa: E731
    options: dict[str, Any] = {"objective": Contrastive(view=view, width=4), "optimizer": ADAM}
    data = PublicData(public().inputs, None, "unlabelled", public().inputs[:20])
    whole, outcome = trained(tmp_path / "whole", data=data, **options)
    start = read_start(outcome.start)
    assert set(start.weights) == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert isinstance(whole.get_submodule("5"), nn.Linear)
    assert whole.get_submodule("5").out_features == 2
    with pytest.raises(Interrupted):
        trained(tmp_path / "parts", data=data, callbacks=[stop_after(5)], **options)
    other, _ = trained(tmp_path / "parts", data=data, resume=True, **options)
    assert torch.equal(whole.get_submodule("3").weight, other.get_submodule("3").weight)
    losses = [
        line["loss"]
        for line in read_log(tmp_path / "whole" / "log.jsonl")
        if line["kind"] == "evaluation"
    ]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"method": DPAdapter()},
            r"perturbation_batch=5000: must be at most the number of public ",
        ),
        ({"batch_size": 97}, r"batch_size=97: must be at most the number of public records, 96; g"),
        ({"batch_size": 0}, r"batch_size=0: must be a whole number of at least 1"),
        ({"steps": None}, r"`steps` or `epochs` is required"),
        ({"epochs": 2}, r"steps=12: cannot be given together with epochs=2"),
        ({"seed": -1}, r"seed=-1: must be a whole number from 0"),
        ({"augment": "mixup"}, r"augment='mixup': must be one of 'crop-flip'; or give a function"),
        ({"method": DPAdapter}, r"method='DPAdapter': must be a method of pre-training"),
        ({"checkpoint_every": 0}, r"checkpoint_every=0: must be a whole number"),
        ({"data": (torch.ones(20, 5), None)}, r"`data\.targets` are needed by this loss"),
        (
            {"data": (torch.ones(20, 5), torch.ones(19))},
            r"data\.targets=19: must be as many as the",
        ),
        ({"data": torch.ones(20, 5)}, r"data='Tensor': must be \(inputs, targets\), the name of a"),
        ({"data": "minst"}, r"name='minst': must be one of mnist, .*did you mean 'mnist'"),
        (
            {"optimizer": lambda w: torch.optim.LBFGS(w)},
            r"optimizer='LBFGS': must be a torch optimizer that steps without a closure",
        ),
        (
            {"optimizer": lambda w: torch.optim.SGD(w[:2], lr=0.1)},
            r"optimizer lacks \['3.weight', '3.bias', '5.weight'\]: must hold every trainable",
        ),
        (
            {"scheduler": lambda own: torch.optim.lr_scheduler.ReduceLROnPlateau(own)},
            r"scheduler='ReduceLROnPlateau': must be a torch scheduler that follows the steps",
        ),
        (
            {"objective": Contrastive(), "optimizer": torch.optim.SGD(network().parameters(), 0.1)},
            r"optimizer='SGD': lacks the layers that this objective trains beside the model",
        ),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    options = {"method": Standard(), **changes}
    with pytest.raises(ConfigurationError, match=message):
        trained(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_refused_and_another_configuration_does_not_resume(
    tmp_path: Path,
) -> None:
    trained(tmp_path / "run")
    with pytest.raises(MisuseError, match=r"contains a run already; resume it with `steppe\.pretr"):
        trained(tmp_path / "run")
    with pytest.raises(ConfigurationError, match=r"method\.kind='SAM': differs from the value"):
        trained(tmp_path / "run", SAM(), resume=True)
    with pytest.raises(DataError, match="contains no pre-training to resume"):
        trained(tmp_path / "other", resume=True)


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path) -> None:
    huge = partial(torch.optim.SGD, lr=1e38)
    with pytest.raises(MisuseError, match=r"loss=.*: is not finite in step \d+, so the weights"):
        trained(tmp_path / "run", optimizer=huge)
    assert not (tmp_path / "run" / "start.safetensors").exists()


def test_it_is_public_by_its_name() -> None:
    assert steppe.pretrain is not None
    assert "steppe.private" not in Path(steppe.pretraining.__file__).read_text()


def test_a_start_from_a_start_names_the_records_of_both(tmp_path: Path) -> None:
    model, first = trained(tmp_path / "first")
    other = PublicData(public().inputs + 1, public().targets, "shifted")
    _, second = trained(tmp_path / "second", SAM(), model=model, data=other)
    assert second.card.earlier == [first.card.sentence]
    assert read_start(second.start).card.sentence == (
        f"{other.facts.sentence}, by SAM training; before that on {first.card.sentence}"
    )
    assert starts_of(model) == ((second.card.sentence, read_start(second.start).sha256),)
