"""Values that synthetic records do not have must not reach another record."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.errors import IsolationError, MisuseError, UnsupportedModelError
from steppe.probing import Report, inspect, probe

LABELS = torch.zeros(1, dtype=torch.long)
TOKENS = torch.zeros(1, 10, dtype=torch.long)


def run(model: nn.Module, example: Any, classes: Callable[..., Tensor] | None = None) -> Report:
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    loss = classes or (lambda output, labels: F.cross_entropy(output, labels, reduction="none"))

    def objective(batch: Any) -> Tensor:
        *inputs, labels = batch
        return loss(model(*inputs), labels)

    torch.manual_seed(0)
    return probe(model, parameters, objective, (*example, LABELS))


class Before(nn.Module):
    """Does something to the inputs of a small network."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.inner = change, nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.change(x))


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda x: torch.where(x.isnan(), x.nanmean(0), x), "nansum"),
        (lambda x: torch.where(x.isinf(), x[~x.isinf()].sum() / len(x), x), "index"),
        (lambda x: torch.where(x == 0, x.mean(0), x), "mean"),
        (lambda x: x / 255 if x.max() > 100 else x, r"bool\(\)"),
        (lambda x: x / 255 if x.max() > 0.5 else x, r"bool\(\)"),
    ],
    ids=["NaN", "inf", "zero", "large", "small"],
)
def test_numbers_that_reach_other_records_are_refused(
    change: Callable[[Tensor], Tensor], operation: str
) -> None:
    with pytest.raises(IsolationError, match=rf"{operation}.*test_values\.py:\d+"):
        run(Before(change), (torch.zeros(1, 8),))


def hook_that_reads(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda g: g if torch.isfinite(g).all() else torch.zeros_like(g))
    return x


def test_a_hook_is_named_by_line_and_layer() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Before(hook_that_reads))
    with pytest.raises(
        IsolationError, match=r"in a hook or backward\(\) on the way back to 0 \(Linear\), test_val"
    ):
        run(model, (torch.zeros(1, 8),))


def test_what_torch_alone_runs_has_no_line() -> None:
    with pytest.raises(IsolationError, match=r"aten\._softmax mixes the records"):
        inspect(nn.Sequential(nn.Softmax(0), nn.Linear(8, 2)), torch.zeros(1, 8))


def test_code_of_a_session_has_its_line() -> None:
    typed: dict[str, Any] = {}
    exec(compile("change = lambda x: x - x.mean(0)", "<stdin>", "exec"), typed)  # noqa: S102
    with pytest.raises(IsolationError, match=r"aten\.mean\.dim \(<stdin>:1\)"):
        run(Before(typed["change"]), (torch.zeros(1, 8),))


def test_numpy_is_named_with_its_remedy() -> None:
    change = lambda x: torch.from_numpy(x.detach().numpy())  # noqa: E731
    with pytest.raises(IsolationError, match=r"^numpy\(\) in .*use torch's operations in place of"):
        run(Before(change), (torch.zeros(1, 8),))


def test_the_error_says_what_to_do() -> None:
    with pytest.raises(IsolationError) as caught:
        run(Before(lambda x: torch.where(x.isnan(), x.nanmean(0), x)), (torch.zeros(1, 8),))
    assert re.fullmatch(
        r"layer='model \(Before\)': must treat every record alone, and aten\.nansum "
        r"\(test_values\.py:\d+\) mixes the records of the batch; compute along the axes of a "
        r"record \(dim=1 and later\), with GroupNorm or LayerNorm in place of batch statistics\.",
        str(caught.value),
    )


class Packed(nn.Module):
    """All records in one sequence under a mask: 0 · NaN is NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        records = torch.arange(len(x)).repeat_interleave(x.shape[1])
        mask = records[:, None] == records[None]
        q, k, v = self.inner(x.flatten(0, 1)).chunk(3, dim=-1)
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        return self.head(mixed.view(x.shape).mean(1))


def test_a_product_over_all_records_under_a_mask_is_refused() -> None:
    with pytest.raises(IsolationError, match=r"Packed.*aten\.bmm"):
        run(Packed(), (torch.zeros(1, 4, 8),))


class Recurrent(nn.Module):
    """Words through a recurrent layer, in one of several ways."""

    def __init__(self, padding: int, way: str) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True)
        self.head, self.padding, self.way = nn.Linear(4, 3), padding, way

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x != self.padding).sum(1)
        if self.way == "cut":
            x = x[:, : max(int(lengths.max()), 1)]
        order = torch.arange(len(x))
        if self.way == "sorted":
            order = lengths.argsort(stable=True)
        if self.way == "sorted down":
            order = lengths.argsort(descending=True, stable=True)
        return self.head(self.layer(self.words(x)[order])[0][:, -1][order.argsort()])


@pytest.mark.parametrize("padding", [2, 3, 7])
@pytest.mark.parametrize("way", ["cut", "sorted", "sorted down"])
def test_padding_that_moves_other_records_is_refused(padding: int, way: str) -> None:
    """Sorting leaves every loss as it is, and gives rows of weights' inputs to other records."""
    words = {
        "cut": "must not be read by Python",
        "sorted": r"aten\.sort.* mixes the records",
    }
    with pytest.raises(IsolationError, match=words[way.removesuffix(" down")]):
        run(Recurrent(padding, way), (TOKENS,))


def test_padding_that_moves_nothing_is_accepted() -> None:
    assert run(Recurrent(7, "as it is"), (TOKENS,)).notes == ()


class Packs(nn.Module):
    """Runs a layer on the words that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner = nn.Embedding(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        keep = x != 7
        out = torch.zeros(*x.shape, 8)
        out[keep] = torch.tanh(self.inner(self.words(x)[keep]))
        return out.mean(1)[:, :3]


def test_rows_picked_by_their_values_are_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="must not decide shapes"):
        run(Packs(), (TOKENS,))


class Own(nn.Module):
    """Does something of its own to the outputs of a layer."""

    def __init__(self, layer: nn.Module, after: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.after = layer, after

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.after(self.layer(*inputs))


class Experts(nn.Module):
    """Every record is routed by itself, and no expert is ever full."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 3))

    def forward(self, x: Tensor) -> Tensor:
        gate, chosen = self.router(x).softmax(-1).max(-1)
        route = F.one_hot(chosen, 4).to(x) * gate[:, None]
        return torch.einsum("bd,edf,be->bf", x, self.experts, route)


class Attends(nn.Module):
    """Words under a mask made of their padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8, padding_idx=7)
        self.layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.words(x), src_key_padding_mask=x == 7).mean(1)[:, :3]


class Averages(nn.Module):
    """A loss for each position, averaged over those of the record that count."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 9)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.words(x[:, :-1])).transpose(1, 2)
        losses = F.cross_entropy(logits, x[:, 1:], ignore_index=7, reduction="none")
        return losses.sum(1) / (x[:, 1:] != 7).sum(1).clamp(min=1)


PICTURES = torch.zeros(1, 3, 8, 8)


@pytest.mark.parametrize(
    ("make", "example"),
    [
        (lambda: nn.Linear(8, 3), torch.zeros(1, 8)),
        (Experts, torch.zeros(1, 8)),
        (Attends, TOKENS),
        (lambda: Recurrent(7, "as it is"), TOKENS),
        (lambda: Own(nn.Linear(8, 3), lambda y: F.normalize(y, eps=0.0)), torch.zeros(1, 8)),
        (lambda: Own(nn.Linear(8, 3), torch.sin), torch.zeros(1, 8)),
        (
            lambda: nn.Sequential(
                nn.Conv2d(3, 4, 3),
                nn.GroupNorm(2, 4),
                nn.ReLU(),
                nn.Dropout(0.3),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(36, 3),
            ),
            PICTURES,
        ),
        (
            lambda: nn.Sequential(
                nn.Conv2d(3, 3, 3), nn.InstanceNorm2d(3), nn.Flatten(), nn.LayerNorm(108)
            ),
            PICTURES,
        ),
        (lambda: Own(nn.EmbeddingBag(9, 3, padding_idx=2), torch.tanh), TOKENS),
    ],
    ids=[
        "linear", "experts", "attention", "gru", "own NaN", "sine", "convolution",
        "norms", "bags",
    ],
)  # fmt: skip
def test_ordinary_models_are_accepted(make: Callable[[], nn.Module], example: Tensor) -> None:
    assert run(make(), (example,)).rows


@pytest.mark.parametrize(
    "loss",
    [
        lambda y, label: F.cross_entropy(y, label, ignore_index=-100, reduction="none"),
        lambda y, label: F.cross_entropy(y, label, ignore_index=2, reduction="none"),
        lambda y, label: F.cross_entropy(y, label, torch.arange(1.0, 4.0), reduction="none"),
        lambda y, label: F.mse_loss(y[:, 0], label.float(), reduction="none"),
    ],
    ids=["ignored", "ignored class", "weights of classes", "squares"],
)
def test_ordinary_losses_are_accepted(loss: Callable[..., Tensor]) -> None:
    assert run(nn.Linear(8, 3), (torch.zeros(1, 8),), loss).rows


def test_losses_averaged_over_positions_are_accepted() -> None:
    assert run(Averages(), (TOKENS,), lambda losses, labels: losses + 0 * labels).rows


def test_an_average_over_all_labels_that_count_is_refused() -> None:
    def loss(y: Tensor, label: Tensor) -> Tensor:
        counted = (label != -100).sum() / len(label)
        return F.cross_entropy(y, label, reduction="none") / counted

    with pytest.raises(IsolationError, match=r"loss=mixes records in aten\.sum"):
        run(nn.Linear(8, 3), (torch.zeros(1, 8),), loss)


def test_values_that_a_model_refuses_are_left_out_and_our_own_errors_are_not() -> None:
    def asserted(x: Tensor) -> Tensor:
        torch._assert_async(x.isfinite().all())
        return x

    def checked(x: Tensor) -> Tensor:
        if not x.isfinite().all():
            raise MisuseError("x=not finite: must be numbers")
        return x

    assert run(Before(asserted), (torch.zeros(1, 8),)).notes == ()
    with pytest.raises(IsolationError, match="must not be read by Python"):
        run(Before(checked), (torch.zeros(1, 8),))


def test_bytes_and_truths_are_tried_too() -> None:
    class Scaled(nn.Module):
        def __init__(self, truth: bool) -> None:
            super().__init__()
            self.inner, self.truth = nn.Linear(8, 3), truth

        def forward(self, x: Tensor, some: Tensor) -> Tensor:
            large = some.all(1).all() if self.truth else x.max() > 1
            return self.inner(x.float() / 255 if large else x.float())

    example = (torch.zeros(1, 8, dtype=torch.uint8), torch.zeros(1, 8, dtype=torch.bool))
    with pytest.raises(IsolationError, match="must not be read by Python"):
        run(Scaled(False), example)
    with pytest.raises(IsolationError, match="must not be read by Python"):
        run(Scaled(True), example)
