"""The probe must name what mixes records, and leave everything as it was."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from steppe.clipping import Report, probe
from steppe.clipping.layout import Layout
from steppe.errors import IsolationError, UnsupportedModelError

LABELS = torch.zeros(1, dtype=torch.long)


def run(model: nn.Module, example: Tensor) -> Report:
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}

    def objective(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return probe(model, parameters, objective, (example, LABELS[: len(example)]))


class Centred(nn.Module):
    """Batch normalisation in disguise."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Remembers(nn.Module):
    """Keeps a running mean of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.mul_(0.9).add_(x.detach().mean(0))
        return x


class Neighbour(nn.Module):
    """Attends over the batch axis by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)  # time-major, fed batch-first

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0].mean(1)[:, :3]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(3), r"layer='1 \(BatchNorm1d\)', batch_norm training=True"),
        (nn.BatchNorm1d(3, affine=False, track_running_stats=False), r"layer='1 \(BatchNorm1d\)'"),
        (nn.BatchNorm1d(3).requires_grad_(False), r"buffers=\['1.running_mean'"),
        (Centred(), r"layer='1 \(Centred\)'"),
        (Remembers(), r"buffers=\['1.seen'\]"),
    ],
)
def test_what_mixes_records_is_refused_by_name(layer: nn.Module, message: str) -> None:
    model = nn.Sequential(nn.Linear(6, 3), layer, nn.Linear(3, 3))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match=message):
        run(model, torch.zeros(1, 6))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_attention_over_the_batch_is_refused() -> None:
    with pytest.raises(IsolationError, match="attention"):
        run(Neighbour(), torch.zeros(1, 5, 4))


def test_frozen_statistics_are_an_affine_map() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).eval()
    assert len(run(model, torch.zeros(1, 6)).rows) == 3


def test_weights_that_torch_does_not_show_are_refused() -> None:
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            x, weight = ctx.saved_tensors
            return grad * weight, (grad * x).sum(0)

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return Hidden.apply(x, self.weight)

    with pytest.raises(UnsupportedModelError, match=r"parameters=\['1.weight'\]"):
        run(nn.Sequential(nn.Linear(6, 3), Scale()), torch.zeros(1, 6))


def test_checkpointed_blocks_are_right_or_refused() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=True)

    with pytest.raises(UnsupportedModelError):
        run(nn.Sequential(nn.Linear(6, 6), Block()), torch.zeros(1, 6))


def test_time_major_and_flattened_code_is_understood() -> None:
    class TimeMajor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x.transpose(0, 1))
            return self.b(h.reshape(-1, 3)).view(x.shape[1], -1, 3).mean(0)

    layouts = run(TimeMajor(), torch.zeros(1, 4, 2)).layouts
    assert layouts[0].inputs == (Layout(1),)
    assert layouts[1].inputs == (Layout(0, interleaved=True),)


def test_no_value_of_the_example_is_read() -> None:
    """An example full of NaN gives the same report as one full of zeros."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), nn.Linear(3, 3))
    poisoned = torch.full((1, 6), float("nan"))
    assert run(model, poisoned) == run(model, torch.zeros(1, 6))


def test_random_state_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    state = torch.random.get_rng_state()
    run(model, torch.zeros(1, 6))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_masks_and_positive_inputs_are_tried_until_losses_are_finite() -> None:
    class Keeps(nn.Module):
        """Log of the input, and a mask that must be True somewhere."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            scores = (x.log() * self.weight).masked_fill(~keep, float("-inf"))
            return scores.logsumexp(1)

    model = Keeps()
    example = (torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.bool))
    report = probe(model, dict(model.named_parameters()), lambda b: model(*b), example)
    assert report.unused == ()


def test_report_lists_paths_and_unused_weights() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    model.spare = nn.Parameter(torch.ones(2))
    model.forward = lambda x: model[0](x)  # type: ignore[method-assign]
    report = run(model, torch.zeros(1, 6))
    assert report.unused == ("spare",)
    assert [(row.operation, row.path, row.weights, row.numel) for row in report.rows] == [
        ("linear", "linear", ("0.weight", "0.bias"), 21)
    ]
    assert "spare" in str(report)
    assert "unused" in str(report)
