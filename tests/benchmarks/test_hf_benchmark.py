"""The ways that are timed train what their mode says, and clip alike."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf: pip install steppe[hf]")
pytest.importorskip("peft", reason="needs the extra hf: pip install steppe[hf]")

from benchmarks import hf, settings

SIZES = {
    "vocab_size": 20,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


@pytest.mark.filterwarnings("ignore")  # the peer warns about its own hooks
@pytest.mark.parametrize("mode", hf.MODES)
def test_private_ways_take_the_same_step_without_noise(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "LEARNING_RATE", 1.0)
    monkeypatch.setattr(settings, "CLIP", 0.1)
    moved = {}
    for name in (hf.OURS, hf.PEER):
        # Noise of 1e-6 would be refused by the plan; the peer's is off, ours is compared with it.
        monkeypatch.setattr(settings, "NOISE_MULTIPLIER", 1.0 if name == hf.OURS else 0.0)
        model = hf.model_of(mode, SIZES)
        trained = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
        step = hf.WAYS[name](model, hf.batch_of(model))
        step()
        after = dict(model.named_parameters())
        moved[name] = torch.cat([(after[n] - old).flatten() for n, old in trained.items()])
    assert moved[hf.OURS].numel() == moved[hf.PEER].numel() > 0
    # The difference is our noise: σC / batch a coordinate.
    noise = moved[hf.OURS] - moved[hf.PEER]
    expected = 0.1 / hf.BATCH
    assert 0.6 < float(noise.detach().std()) / expected < 1.4
