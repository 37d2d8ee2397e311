"""Averages of outputs against the plain loops that define them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from averaging_cases import bits, same_bits, walk
from torch import Tensor, nn

from steppe.averaging import EMA, OMV, OPA, SWA, Average, CheckpointAverage, Window
from steppe.averaging.layout import write_checkpoint
from steppe.errors import ConfigurationError


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Dropout(),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def checkpoints(model: nn.Module, count: int) -> list[dict[str, Tensor]]:
    found = []
    for seed in range(1, count + 1):
        walk(model, seed)
        found.append(bits(model))
    return found


@pytest.mark.parametrize("together", [1, 3, 7])
@pytest.mark.parametrize("batch_size", [4, 100])
def test_both_rules_equal_their_definitions(together: int, batch_size: int) -> None:
    model = network().train()
    stored = checkpoints(model, 7)
    inputs = torch.randn(10, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    before = bits(model)
    opa = OPA(model, stored, batch_size, together)
    omv = OMV(model, stored, batch_size, together)
    probabilities, votes = opa.probabilities(inputs), omv.votes(inputs)
    labels = (opa.labels(inputs), omv.labels(inputs))
    assert same_bits(bits(model), before)
    assert all(module.training for module in model.modules())

    model.eval()
    each = []
    for one in stored:
        model.load_state_dict(one)
        each.append(model(inputs).detach().double().softmax(-1))
    mean = torch.stack(each).mean(0)
    torch.testing.assert_close(probabilities, mean, rtol=1e-5, atol=1e-6)
    chosen = torch.stack([p.argmax(-1) for p in each])
    counted = torch.stack([(chosen == c).sum(0) for c in range(3)], dim=-1)
    assert votes.tolist() == counted.tolist()
    assert labels[0].tolist() == mean.argmax(-1).tolist()
    for row, label, average in zip(counted, labels[1], mean, strict=True):
        leaders = [c for c in range(3) if row[c] == row.max()]
        assert label == max(leaders, key=lambda c: (average[c].item(), -c))


def test_ties_go_to_the_larger_mean_then_to_the_lowest_class() -> None:
    model = nn.Linear(1, 3, bias=False)

    def logits(*values: float) -> dict[str, Tensor]:
        return {"weight": torch.tensor(values).unsqueeze(1)}

    one = torch.ones(1, 1)
    # Classes 1 and 2 have a vote each; class 2 is surer of itself. Class 0 leads in the mean.
    tied = [logits(0.9, 1.0, -9.0), logits(3.9, -9.0, 4.2)]
    assert OPA(model, tied).labels(one).tolist() == [0]
    assert OMV(model, tied).labels(one).tolist() == [2]
    mirrored = [logits(0.0, 1.0, 0.0), logits(0.0, 0.0, 1.0)]
    assert OMV(model, mirrored).labels(one).tolist() == [1]
    assert OMV(model, mirrored[::-1]).labels(one).tolist() == [1]
    assert OPA(model, mirrored).labels(one).tolist() == [1]


def test_memory_does_not_grow_with_checkpoints() -> None:
    """At most one group of checkpoints is alive when the next is asked for."""
    import gc
    import weakref

    model = nn.Linear(4, 2)
    alive: list[weakref.ref[Tensor]] = []

    class Stream:
        most = 0

        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            for seed in range(12):
                gc.collect()
                self.most = max(self.most, sum(ref() is not None for ref in alive))
                walk(model, seed)
                checkpoint = bits(model)
                alive.append(weakref.ref(checkpoint["weight"]))
                yield checkpoint
                del checkpoint

    stream = Stream()
    OPA(model, stream, together=2).labels(torch.ones(3, 4))
    assert len(alive) == 12
    assert stream.most <= 4


def test_bad_input_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(
        ConfigurationError, match=r"checkpoints='list_iterator': can be iterated over only"
    ):
        OPA(model, iter([bits(model)]))
    with pytest.raises(ConfigurationError, match=r"checkpoints=\[\]: must not be empty"):
        OPA(model, []).labels(torch.ones(1, 2))
    with pytest.raises(ConfigurationError, match=r"model='Flatten': answers with shape \(12,\) to"):
        OPA(nn.Flatten(0), [{}]).labels(torch.ones(3, 4))
    with pytest.raises(ConfigurationError, match=r"together=0: must be a whole number"):
        OPA(model, [bits(model)], together=0)


class Positioned(nn.Linear):
    """A layer with a table that it makes itself and does not store."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__(3, 2)
        self.register_buffer("table", torch.arange(2.0), persistent=False)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (nn.Sequential(nn.Linear(3, 8)), r"checkpoints='2\.weight': is missing from a checkpoint"),
        (
            nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 7)),
            r"'0\.bias': has shape \(5,\) in a checkpoint and \(8,\) in the model, so it is ano",
        ),
        (nn.Linear(3, 8), "checkpoints='bias': is in a checkpoint and not in the model"),
    ],
)
def test_checkpoints_of_another_model_are_refused(stored: nn.Module, message: str) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    for refused in (
        lambda: OPA(model, [bits(stored)]).labels(torch.ones(1, 3)),
        lambda: OMV(model, [bits(model), bits(stored)], together=2).labels(torch.ones(1, 3)),
        lambda: write_checkpoint(model, bits(stored)),
    ):
        with pytest.raises(ConfigurationError, match=message):
            refused()


def test_an_average_of_other_shapes_is_refused_where_torch_would_broadcast() -> None:
    model = nn.Linear(3, 2, bias=False)
    wide, narrow = {"weight": torch.ones(2, 3)}, {"weight": torch.ones(1, 3)}
    for checkpoints in ([wide, narrow], [narrow]):
        with pytest.raises(ConfigurationError, match=r"'weight': has shape \(1, 3\) in a check"):
            CheckpointAverage(model, checkpoints)


def test_frozen_weights_and_tables_that_are_not_stored_may_be_missing() -> None:
    model = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), Positioned())
    before = bits(model)
    averages: list[Average] = [SWA(model), EMA(model, 0.5), Window(model, k=2)]
    for average in averages:
        average.update(model)
        assert sorted(average.weights()) == ["1.bias", "1.weight"]
        write_checkpoint(model, average.weights())
    assert same_bits(bits(model), before)
    own = [average.weights() for average in averages]
    assert torch.equal(CheckpointAverage(model, [before]).weights()["1.weight"], before["1.weight"])
    assert OPA(model, own).outputs(torch.ones(2, 3)).count == 3
    with pytest.raises(ConfigurationError, match=r"average_buffers='1\.table': is no buffer that"):
        SWA(model, average_buffers=["1.table"])


def test_tied_weights_may_come_under_either_name_or_both() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    new = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    for names in (("0.weight",), ("1.weight",), ("0.weight", "1.weight")):
        nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
        write_checkpoint(model, dict.fromkeys(names, new))
        assert torch.equal(model.state_dict()["0.weight"], new)


def test_a_checkpoint_that_diverged_has_no_vote() -> None:
    model = nn.Linear(1, 2, bias=False)
    good, bad = {"weight": torch.ones(2, 1)}, {"weight": torch.tensor([[math.nan], [1.0]])}
    with pytest.raises(ConfigurationError, match="answers with numbers that are not finite; leave"):
        OPA(model, [good, bad]).predict(torch.ones(3, 1))
    masked = {"weight": torch.tensor([[-math.inf], [1.0]])}  # a class that is ruled out
    assert OPA(model, [good, masked]).labels(torch.ones(3, 1)).tolist() == [1, 1, 1]
