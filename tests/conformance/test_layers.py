"""One table of layers, one battery: every row must equal the reference in every setting.

A new layer joins by adding a row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum, record_gradients
from steppe.finetuning import FrozenBatchNorm, LoRALinear
from steppe.gradients import Kernels
from steppe.probing import probe
from steppe.probing.report import Report

B = 5


class Sequence(nn.Module):
    """Calls a layer that returns a tuple and keeps its first output."""

    def __init__(self, layer: nn.Module, batch_first: bool = True) -> None:
        super().__init__()
        self.layer, self.batch_first = layer, batch_first

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x if self.batch_first else x.transpose(0, 1))[0]
        return out if self.batch_first else out.transpose(0, 1)


class Attention(nn.Module):
    def __init__(self, cross: bool = False, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True, **options)
        self.cross = cross

    def forward(self, x: Tensor) -> Tensor:
        other = x.flip(1)[:, 1:] if self.cross else x
        return self.attention(x, other, other, need_weights=False)[0]


class Bare(nn.Module):
    """Class token, position embedding and a scale: parameters without a layer of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.position = nn.Parameter(torch.randn(1, 5, 6))
        self.scale = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        x *= self.scale
        return x


class Scalar(nn.Module):
    """A weight without axes, as it is or through a function."""

    def __init__(self, through: Callable[[Tensor], Tensor] = lambda weight: weight) -> None:
        super().__init__()
        self.factor, self.shift = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.randn(()))
        self.layer, self.through = nn.Linear(6, 4), through

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.through(self.factor) + self.shift


class Tied(nn.Module):
    """One weight as embedding and as output layer, and a layer called twice."""

    def __init__(self, words: int = 7, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.twice = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.twice(self.embedding(x)))
        return F.linear(self.twice(h), self.embedding.weight)


class ByHand(nn.Module):
    """Linear layers that were written out, with the weight either way round."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bias = nn.Parameter(torch.randn(6, 4)), nn.Parameter(torch.randn(4))
        self.second = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, 6), self.first)
        h = torch.tanh(flat).view(*x.shape[:-1], 4) + x @ self.first
        return torch.matmul(torch.tanh(h @ self.second.T), self.second)


class TwoLookups(nn.Module):
    """One table looked up for words and, with weights, for bags of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4, padding_idx=2)

    def forward(self, x: Tensor) -> Tensor:
        table = self.words.weight
        weights = torch.linspace(0.5, 2.0, x.shape[1], dtype=table.dtype, device=table.device)
        bags = F.embedding_bag(x, table, mode="sum", per_sample_weights=weights.expand(x.shape))
        return torch.tanh(self.words(x)).sum(1) * bags


class Positions(nn.Module):
    """A position embedding looked up by numbers that belong to no record."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(length, 3)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.positions(torch.arange(x.shape[1], device=x.device))


class Products(nn.Module):
    """What a custom layer does with torch: einsum, matmul, where, in-place."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.randn(4, 3, 3))
        self.mix = nn.Parameter(torch.randn(5, 5))
        self.gate = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.einsum("btc,tcd->btd", x, self.core)
        h = h + torch.bmm(x, self.core[0].expand(len(x), -1, -1))
        h = h + x @ self.core[1].repeat(len(x), 1, 1)
        h = torch.where(h > 0, h, h * self.gate[:, None])
        return h.sum(2) @ torch.tanh(self.mix @ self.mix)[:4, :3]


class TimeMajorProduct(nn.Module):
    """Records between the axes of a product whose weight is as wide as the batch is long."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Parameter(torch.randn(4, B, 3))

    def forward(self, x: Tensor) -> Tensor:
        return (x.transpose(0, 1) @ self.core).transpose(0, 1)


class LearnedQueries(nn.Module):
    """Attention pooling: the same queries for every record, expanded to the batch."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(1, 2, 6))
        self.inner, self.keys, self.way = nn.Linear(6, 6), nn.Linear(3, 6), way

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.queries.expand(len(x), -1, -1), self.keys(x)
        match self.way:
            case "einsum":
                return torch.einsum("bqd,bkd->bqk", q, k)
            case "einsum, queries first":
                return torch.einsum("q...d, ...kd", self.inner(q).transpose(0, 1), k)
            case "repeated":
                q = self.inner(self.queries.repeat(len(x), 1, 1))
                return torch.einsum("bqd,bkd->bqk", [q, k])
            case "attention":
                return F.scaled_dot_product_attention(q, k, k)
        q, k = (t.unflatten(-1, (2, 3)).transpose(1, 2) for t in (self.inner(q), k))
        return F.scaled_dot_product_attention(k, q, q).transpose(1, 2)


class Pairs(nn.Bilinear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x.flip(-1))


class Standardised(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
        return (weight - mean) * torch.rsqrt(variance * weight[0].numel() + 1e-4)


def standardised_conv() -> nn.Module:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    return parametrize.register_parametrization(conv, "weight", Standardised())


def frozen(layer: nn.Module, *names: str) -> nn.Module:
    for name in names:
        layer.get_parameter(name).requires_grad_(False)
    return layer


def evaluated(layer: nn.Module) -> nn.Module:
    for buffer in layer.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return layer.eval()


def low_rank(layer: nn.Linear) -> nn.Module:
    """A layer with a change of low rank that has begun to learn."""
    changed = LoRALinear(layer, rank=2, alpha=3.0)
    nn.init.normal_(changed.lora_b)
    return changed


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: int = 0  # above 0: integer input below this number


CASES = [
    Case("linear", lambda: nn.Linear(6, 4), (6,)),
    Case("linear no bias", lambda: nn.Linear(6, 4, bias=False), (6,)),
    Case("linear frozen weight", lambda: frozen(nn.Linear(6, 4), "weight"), (6,)),
    Case("linear 3-d", lambda: nn.Linear(6, 4), (3, 6)),
    Case("linear 3-d wide", lambda: nn.Linear(2, 2), (9, 2)),
    Case("linear 5-d", lambda: nn.Linear(3, 4), (2, 3, 2, 3)),
    Case("linear 4-d", lambda: nn.Linear(3, 4), (2, 3, 3)),
    Case("conv1d", lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (4, 9)),
    Case("conv1d dilated", lambda: nn.Conv1d(2, 3, 3, padding=2, dilation=2), (2, 7)),
    Case("conv2d", lambda: nn.Conv2d(3, 4, 3), (3, 6, 5)),
    Case("conv2d 1x1", lambda: nn.Conv2d(3, 4, 1), (3, 4, 4)),
    Case("conv2d stride", lambda: nn.Conv2d(3, 4, (3, 2), (2, 3), (1, 2)), (3, 8, 9)),
    Case("conv2d dilated", lambda: nn.Conv2d(2, 4, 3, padding="same", dilation=2), (2, 6, 6)),
    Case("conv2d depthwise", lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), (4, 5, 5)),
    Case("conv2d all at once", lambda: nn.Conv2d(4, 6, 3, 2, 2, 2, groups=2), (4, 7, 6)),
    Case("conv2d frozen bias", lambda: frozen(nn.Conv2d(2, 3, 3), "bias"), (2, 5, 5)),
    Case("conv3d", lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (2, 3, 4, 3)),
    Case("conv3d all at once", lambda: nn.Conv3d(2, 4, 2, (1, 2, 1), 1, 2, 2), (2, 3, 4, 3)),
    *(
        Case(
            f"conv{len(shape) - 1}d {mode}",
            lambda layer=layer, mode=mode: layer(2, 3, 2, padding=1, padding_mode=mode),  # type: ignore[misc]
            shape,
        )
        for layer, shape in ((nn.Conv1d, (2, 6)), (nn.Conv2d, (2, 5, 5)), (nn.Conv3d, (2, 3, 3, 2)))
        for mode in ("circular", "reflect", "replicate")
    ),
    Case("transposed conv", lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), (3, 4, 4)),
    Case("standardised conv", standardised_conv, (3, 5, 5)),
    Case("weight norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
    Case("group norm", lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    Case("layer norm", lambda: nn.LayerNorm((3, 4)), (2, 3, 4)),
    Case("layer norm no bias", lambda: nn.LayerNorm(4, bias=False), (2, 3, 4)),
    Case("instance norm", lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    Case("instance norm 1-d", lambda: nn.InstanceNorm1d(3, affine=True), (3, 5)),
    Case("rms norm", lambda: nn.RMSNorm(4), (3, 4)),
    Case("batch norm, eval", lambda: evaluated(nn.BatchNorm2d(3)), (3, 4, 4)),
    Case(
        "batch norm, frozen",
        lambda: FrozenBatchNorm.of(nn.BatchNorm2d(3)).train(),
        (3, 4, 4),
    ),
    Case("low-rank change", lambda: low_rank(nn.Linear(6, 4)), (6,)),
    Case("low-rank change, 3-d", lambda: low_rank(nn.Linear(6, 4, bias=False)), (3, 6)),
    Case("prelu", lambda: nn.PReLU(3), (3, 4)),
    Case("embedding", lambda: nn.Embedding(7, 4), (6,), tokens=7),
    Case("embedding padded", lambda: nn.Embedding(7, 4, padding_idx=1), (6,), tokens=7),
    Case("embedding bag", lambda: nn.EmbeddingBag(5, 4, mode="sum"), (6,), tokens=5),
    Case("embedding bag mean", lambda: nn.EmbeddingBag(5, 4, mode="mean"), (6,), tokens=5),
    Case("embedding bag max", lambda: nn.EmbeddingBag(5, 4, mode="max"), (6,), tokens=5),
    Case("embedding bag padded", lambda: nn.EmbeddingBag(5, 4, padding_idx=1), (6,), tokens=5),
    Case("lstm", lambda: Sequence(nn.LSTM(4, 2, batch_first=True)), (3, 4)),
    Case("lstm deep", lambda: Sequence(nn.LSTM(4, 2, 2, bidirectional=True), False), (3, 4)),
    Case("gru", lambda: Sequence(nn.GRU(4, 2, 2, batch_first=True)), (3, 4)),
    Case("gru deep", lambda: Sequence(nn.GRU(4, 2, 2, bidirectional=True), False), (3, 4)),
    Case("rnn", lambda: Sequence(nn.RNN(4, 3, nonlinearity="relu"), False), (3, 4)),
    Case("rnn deep", lambda: Sequence(nn.RNN(4, 2, 2, bidirectional=True), False), (3, 4)),
    Case("attention", Attention, (4, 6)),
    Case("attention cross", lambda: Attention(cross=True), (4, 6)),
    Case("attention bias kv", lambda: Attention(add_bias_kv=True, add_zero_attn=True), (4, 6)),
    Case(
        "transformer layer",
        lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True, norm_first=True),
        (4, 6),
    ),
    Case(
        "transformer layer, norm last",
        lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, "gelu", batch_first=True),
        (4, 6),
    ),
    Case("bare parameters", Bare, (4, 6)),
    Case("scalar", Scalar, (6,)),
    Case("scalar, 3-d", Scalar, (3, 6)),
    Case("scalar derived", lambda: Scalar(torch.exp), (6,)),
    Case("tied weights", Tied, (6,), tokens=7),
    Case("tied weights, many words", lambda: Tied(60, 12), (6,), tokens=60),
    Case("two lookups", TwoLookups, (6,), tokens=9),
    Case("products by hand", ByHand, (6,)),
    Case("products by hand, 3-d", ByHand, (3, 6)),
    Case("positions", lambda: Positions(4), (4, 3)),
    Case("positions as many as records", lambda: Positions(B), (B, 3)),
    Case("products", Products, (4, 3)),
    Case("time-major product", TimeMajorProduct, (4, B)),
    *(
        Case(f"learned queries, {way}", lambda way=way: LearnedQueries(way), (4, 3))  # type: ignore[misc]
        for way in ("einsum", "einsum, queries first", "repeated", "attention", "heads")
    ),
    Case("bilinear", lambda: Pairs(4, 4, 3), (4,)),
]


@functools.cache
def build(case: Case, dtype: torch.dtype) -> tuple[dict[str, Tensor], Any, Any]:
    """Weights, losses and a batch, none of which a test may change."""
    torch.manual_seed(len(case.name))
    layer = case.make().to(dtype)
    shape = (B, *case.shape)
    x = torch.randint(case.tokens, shape) if case.tokens else torch.randn(shape, dtype=dtype)
    sketch = torch.randn(layer(x).flatten(1).shape[1]).to(dtype)

    def objective(batch: Any) -> Tensor:
        out = layer(batch[0]).flatten(1)
        return (out * sketch * (1 + out)).sum(1)

    return {n: p for n, p in layer.named_parameters() if p.requires_grad}, objective, (x,)


@functools.cache
def report_of(case: Case, dtype: torch.dtype, device: str) -> Report:
    """What the probe finds, with this default device."""
    parameters, objective, batch = build(case, dtype)
    with torch.device(device):
        return probe(nn.Module(), parameters, objective, batch)


def layouts_of(case: Case, dtype: torch.dtype, device: str = "cpu") -> Any:
    """Where the probe finds the records, with this default device."""
    return report_of(case, dtype, device).layouts


@functools.cache
def norms_of(case: Case, dtype: torch.dtype) -> Tensor:
    """The norm of every record's gradient by the reference."""
    parameters, objective, batch = build(case, dtype)
    return record_gradients(objective, list(parameters.values()), batch).double().norm(dim=1)


def clip_of(case: Case, dtype: torch.dtype) -> Flat:
    """A bound that some records reach and others do not."""
    return Flat(0.7 * float(norms_of(case, dtype).median()))


@functools.cache
def sum_of(case: Case, dtype: torch.dtype, l2: float) -> Tensor:
    """The clipped sum by the reference."""
    parameters, objective, batch = build(case, dtype)
    return clipped_sum(objective, list(parameters.values()), batch, clip_of(case, dtype), l2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(  # every two of them together
    ("physical", "dtype", "l2"),
    [
        pytest.param(None, torch.float32, 0.0, id="0.0-f32-None"),
        pytest.param(2, torch.float32, 0.3, id="0.3-f32-2"),
        pytest.param(2, torch.float64, 0.0, id="0.0-f64-2"),
        pytest.param(None, torch.float64, 0.3, id="0.3-f64-None"),
    ],
)
def test_clipped_sum_equals_the_reference(
    case: Case, physical: int | None, dtype: torch.dtype, l2: float
) -> None:
    parameters, objective, batch = build(case, dtype)
    engine = ClippedSum(
        parameters,
        objective,
        clip_of(case, dtype),
        l2=l2,
        physical_batch=physical,
        layouts=layouts_of(case, dtype),
    )
    out = torch.zeros(engine.numel, dtype=dtype)
    norms = engine.add_(out, batch)
    wanted = sum_of(case, dtype, l2)
    error = float((out - wanted).norm() / wanted.norm())
    assert error < (1e-4 if dtype == torch.float32 else 1e-6), error
    assert norms.shape == (B,)
    if not l2:
        assert torch.allclose(norms.double(), norms_of(case, dtype), rtol=2e-5)


# Layers that have a rule of their own, by how the names of their rows begin.
RULES = {
    "linear": "linear",
    "conv": "convolution",
    "standardised": "convolution",
    "group norm": "group norm",
    "layer norm": "layer norm",
    "instance norm": "channel norm",
    "rms norm": "layer norm",
    "batch norm": "channel norm",
    "embedding": "embedding",
    "embedding bag": "embedding bag",
    "lstm": "recurrent",
    "gru": "recurrent",
    "rnn": "recurrent",
    "attention": "linear",
    "attention cross": "projections",
    "transformer": "linear",
    "tied": "linear",
    "prelu": "torch.func",
    "bare": "torch.func",
    "bilinear": "torch.func",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_layer_table_says_which_path_is_taken_and_why(case: Case) -> None:
    """A rule that declines would be as right as it is slow, so the sums would not show it."""
    report = report_of(case, torch.float32, "cpu")
    named = {weight for row in report.rows for weight in row.weights}
    assert named | set(report.unused) == set(build(case, torch.float32)[0])
    assert all(row.why for row in report.rows)
    families = [name for name in RULES if case.name.startswith(name)]
    if families:
        assert RULES[max(families, key=len)] in [row.path for row in report.rows]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_empty_batch_adds_nothing_and_does_not_run_the_model(case: Case) -> None:
    parameters, _, batch = build(case, torch.float32)

    def never(batch: Any) -> Tensor:
        raise AssertionError("the model ran on an empty batch")

    engine = ClippedSum(parameters, never, Flat(1.0))
    out = torch.full((engine.numel,), 0.5)
    assert engine.add_(out, (batch[0][:0],)).shape == (0,)
    assert torch.equal(out, torch.full((engine.numel,), 0.5))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_half_precision_is_clipped_in_float32(case: Case) -> None:
    """What is summed has the norm that was computed, whatever the model's own precision."""
    parameters, objective, batch = build(case, torch.bfloat16)
    clip = Flat(1e-3)  # every record is clipped, so every contribution has norm exactly C
    layouts = layouts_of(case, torch.bfloat16)
    for i in range(B):
        engine = ClippedSum(parameters, objective, clip, layouts=layouts)
        out = torch.zeros(engine.numel)
        engine.add_(out, (batch[0][i : i + 1],))
        assert 1e-3 * (1 - 1e-2) <= float(out.double().norm()) <= 1e-3 * (1 + 2e-5)


@pytest.mark.parametrize("case", [c for c in CASES if not c.tokens], ids=lambda case: case.name)
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_non_finite_record_counts_zero_and_changes_nothing(case: Case, poison: float) -> None:
    parameters, objective, batch = build(case, torch.float32)
    layouts = layouts_of(case, torch.float32)
    x = batch[0].clone()
    x[2] = poison
    engine = ClippedSum(parameters, objective, Flat(0.1), layouts=layouts)
    out, clean = torch.zeros(engine.numel), torch.zeros(engine.numel)
    engine.add_(out, (x,))
    engine.add_(clean, (torch.cat([x[:2], x[3:]]),))
    assert torch.isfinite(out).all()
    assert torch.allclose(out, clean, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("hostile", [False, True], ids=["finite", "hostile"])
def test_rows_that_fill_a_batch_up_add_nothing(case: Case, hostile: bool) -> None:
    """Every record's loss is divided by 1, and that of hostile padding by its 0."""
    parameters, plain, (x,) = build(case, torch.float64)

    def objective(batch: Any) -> Tensor:
        losses: Tensor = plain(batch)
        return losses / batch[1] if hostile else losses

    batch = (x, torch.ones(B, dtype=torch.float64))
    layouts = layouts_of(case, torch.float64)  # a division meets no weight
    for l2, records, physical in ((0.0, B, None), (0.3, B - 2, 3), (0.3, 0, None)):
        drawn = x[:records], batch[1][:records]
        options: dict[str, Any] = {"l2": l2, "layouts": layouts, "physical_batch": physical}
        engine = ClippedSum(parameters, objective, Flat(0.1), padded_to=B + 3, **options)
        out = torch.zeros(engine.numel, dtype=torch.float64)
        assert engine.add_(out, drawn).shape == (records,)
        wanted = torch.zeros_like(out)
        ClippedSum(parameters, objective, Flat(0.1), **options).add_(wanted, drawn)
        assert torch.allclose(out, wanted, rtol=1e-6, atol=1e-9)
        assert records or not out.any()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_everything_is_made_where_the_weights_are(case: Case) -> None:
    """With another default device, a tensor made without naming its place cannot meet the others.

    It stands for weights on an accelerator, which the machines of these tests do not have.
    """
    parameters, objective, batch = build(case, torch.float32)
    options: dict[str, Any] = {"l2": 0.3, "physical_batch": 3, "kernels": Kernels(measure=False)}
    inputs = [batch[0]]
    if not case.tokens:
        inputs.append(batch[0].clone())
        inputs[1][2] = float("nan")

    def summed(layouts: Any, x: Tensor) -> Tensor:
        found = []
        for options["padded_to"] in (None, B + 2):
            engine = ClippedSum(parameters, objective, Flat(0.1), layouts=layouts, **options)
            out = torch.zeros(engine.numel, device=engine.device)
            engine.add_(out, (x,))
            engine.add_(out, (x[:0],))
            found.append(out)
        return torch.cat(found)

    layouts = layouts_of(case, torch.float32, "meta")
    for x in inputs:
        usual = summed(layouts_of(case, torch.float32), x)
        with torch.device("meta"):
            found = summed(layouts, x)
        assert torch.equal(found, usual)
