"""Start files: weights and card come back, and damage is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from steppe.errors import ConfigurationError, DataError
from steppe.starts import Card, PublicRecords, begins_with, read_start, starts_of, write_start

CARD = Card(
    PublicRecords("cifar100", 50_000, "ab" * 32),
    {"kind": "DPAdapter", "cap": 2.0},
    {"batch_size": 50},
    scores={"accuracy": 0.5, "loss": float("nan")},
)


def test_weights_and_card_come_back(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 2), "b": torch.arange(4), "c": torch.tensor(1.5)}
    start = read_start(write_start(tmp_path / "sub" / "one.safetensors", weights, CARD))
    assert all(torch.equal(start.weights[name], tensor) for name, tensor in weights.items())
    assert start.card.data == CARD.data
    assert start.card.method == CARD.method
    assert start.card.scores == {"accuracy": 0.5, "loss": None}
    assert start.card.sentence == (
        "cifar100 (50,000 records, SHA-256 abababababababab…), by DPAdapter training"
    )


def test_changed_weights_and_changed_cards_are_noticed(tmp_path: Path) -> None:
    path = write_start(tmp_path / "one.safetensors", {"a": torch.zeros(2)}, CARD)
    with safetensors.safe_open(path, framework="pt") as file:
        about = file.metadata()
    safetensors.torch.save_file({"a": torch.ones(2)}, path, about)
    with pytest.raises(DataError, match=r"does not have its hash: weights or card were changed"):
        read_start(path)
    card = about["steppe.start"].replace("cifar100", "nothing")
    safetensors.torch.save_file({"a": torch.zeros(2)}, path, {**about, "steppe.start": card})
    with pytest.raises(DataError, match="does not have its hash"):
        read_start(path)


def test_weights_without_a_card_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.safetensors"
    safetensors.torch.save_file({"a": torch.ones(2)}, path)
    with pytest.raises(DataError, match=r"has no card, so the privacy statement could not say"):
        read_start(path)


def test_what_is_no_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is not a file; give a file that `steppe pretrain`"):
        read_start(tmp_path / "missing.safetensors")
    torch.save({"a": torch.ones(2)}, tmp_path / "pickle.safetensors")
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        read_start(tmp_path / "pickle.safetensors")
    with pytest.raises(ConfigurationError, match=r"must end in \.safetensors"):
        write_start(tmp_path / "one.pt", {}, CARD)
    with pytest.raises(ConfigurationError, match=r"data\.name=' ': must be text"):
        PublicRecords(" ")


def test_a_note_travels_with_the_model_and_stays_out_of_its_state(tmp_path: Path) -> None:
    import copy

    layer = nn.Linear(2, 2)
    start = read_start(write_start(tmp_path / "one.safetensors", layer.state_dict(), CARD))
    begins_with(layer, start)
    whole = nn.Sequential(copy.deepcopy(layer), nn.Linear(2, 1))
    assert starts_of(whole) == ((CARD.sentence, start.sha256),)
    assert set(layer.state_dict()) == {"weight", "bias"}
