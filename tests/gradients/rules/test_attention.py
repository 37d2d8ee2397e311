from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rule_agreement import assert_agrees, assert_agrees_in_double, assert_same_output, squares
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import ContactLayout
from steppe.gradients.layout import RecordLayout
from steppe.gradients.rules.attention import multi_head_attention_forward

RECORDS, TARGET, SOURCE, WIDTH, HEADS = 5, 4, 6, 16, 2


def scrambled(model: nn.Module) -> nn.Module:
    """Biases start at zero, which would hide a forgotten one."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@settings(max_examples=60, deadline=None)
@given(
    sequences=st.sampled_from(["self", "memory", "all different"]),
    bias=st.booleans(),
    extra_bias=st.booleans(),
    zero=st.booleans(),
    separate=st.booleans(),
    need_weights=st.booleans(),
    average=st.booleans(),
    mask=st.sampled_from([None, "bool", "float", "per head", "causal"]),
    padding=st.sampled_from([None, "bool", "float"]),
    dropout=st.sampled_from([0.0, 0.3]),
)
def test_the_rewrite_is_the_same_function(
    sequences: str,
    bias: bool,
    extra_bias: bool,
    zero: bool,
    separate: bool,
    need_weights: bool,
    average: bool,
    mask: str | None,
    padding: str | None,
    dropout: float,
) -> None:
    torch.manual_seed(0)
    source = TARGET if sequences == "self" else SOURCE
    different = separate and sequences == "all different"
    layer = scrambled(
        nn.MultiheadAttention(
            WIDTH,
            HEADS,
            dropout=dropout,
            bias=bias,
            add_bias_kv=extra_bias,
            add_zero_attn=zero,
            kdim=3 if different else None,
            vdim=5 if different else None,
        )
    )
    query = torch.randn(TARGET, RECORDS, WIDTH)
    key = query if sequences == "self" else torch.randn(SOURCE, RECORDS, 3 if different else WIDTH)
    value = key
    if sequences == "all different":
        value = torch.randn(SOURCE, RECORDS, 5 if different else WIDTH)
    hidden = torch.rand(RECORDS, source) < 0.4
    hidden[:, 0] = False
    upper = torch.ones(TARGET, source).triu(1).bool()
    masks = {
        None: None,
        "bool": upper,
        "causal": upper,
        "float": torch.randn(TARGET, source),
        "per head": torch.randn(RECORDS * HEADS, TARGET, source),
    }
    float_mask = mask in ("float", "per head")
    if padding is not None and mask is not None:  # torch wants both of one kind
        padding = "float" if float_mask else "bool"
    paddings = {None: None, "bool": hidden, "float": hidden.float() * -2.0}
    options = {
        "embed_dim_to_check": WIDTH,
        "num_heads": HEADS,
        "in_proj_weight": layer.in_proj_weight,
        "in_proj_bias": layer.in_proj_bias,
        "bias_k": layer.bias_k,
        "bias_v": layer.bias_v,
        "add_zero_attn": zero,
        "dropout_p": dropout,
        "out_proj_weight": layer.out_proj.weight,
        "out_proj_bias": layer.out_proj.bias,
        "key_padding_mask": paddings[padding],
        "need_weights": need_weights,
        "attn_mask": masks[mask],
        "use_separate_proj_weight": different,
        "q_proj_weight": layer.q_proj_weight,
        "k_proj_weight": layer.k_proj_weight,
        "v_proj_weight": layer.v_proj_weight,
        "average_attn_weights": average,
        "is_causal": mask == "causal",
    }
    torch.manual_seed(1)
    expected, expected_weights = F.multi_head_attention_forward(query, key, value, **options)
    torch.manual_seed(1)
    found, found_weights = multi_head_attention_forward(query, key, value, **options)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert (found_weights is None) == (expected_weights is None)
    if found_weights is not None:
        torch.testing.assert_close(found_weights, expected_weights, rtol=1e-5, atol=1e-6)


def test_keys_and_values_may_be_given_ready_made() -> None:
    torch.manual_seed(2)
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    query = torch.randn(TARGET, RECORDS, WIDTH)
    fixed = torch.randn(2, RECORDS * HEADS, SOURCE, WIDTH // HEADS)
    given_weights = (layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0)
    out = (layer.out_proj.weight, layer.out_proj.bias)
    arguments = (query, query, query, WIDTH, HEADS, *given_weights, *out)
    options = {"static_k": fixed[0], "static_v": fixed[1]}
    expected, weights = F.multi_head_attention_forward(*arguments, **options)
    found, found_weights = multi_head_attention_forward(*arguments, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found_weights, weights)


def attention(**options: Any) -> nn.MultiheadAttention:
    layer = nn.MultiheadAttention(WIDTH, HEADS, **options)
    assert isinstance(layer, nn.MultiheadAttention)
    scrambled(layer)
    return layer


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("length", [TARGET, RECORDS])
def test_self_attention(batch_first: bool, need_weights: bool, length: int) -> None:
    def call(layer: nn.Module, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        out, _ = layer(x, x, x, need_weights=need_weights)
        return out if batch_first else out.transpose(0, 1)

    torch.manual_seed(3)
    x = torch.randn(RECORDS, length, WIDTH)
    layer = attention(batch_first=batch_first)
    assert_agrees_in_double(layer, x, call=call, paths={"linear"})
    assert_agrees(layer, x, call=call, tolerance=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["memory", "three", "separate"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("frozen", [None, "weight", "bias"])
def test_attention_between_sequences(
    batch_first: bool, kind: str, bias: bool, frozen: str | None
) -> None:
    torch.manual_seed(4)
    sizes = {"kdim": 3, "vdim": 5} if kind == "separate" else {}
    layer = attention(batch_first=batch_first, bias=bias, **sizes)
    for name, parameter in layer.named_parameters():
        if frozen and name.endswith(f"proj_{frozen}"):
            parameter.requires_grad_(False)
    query = torch.randn(RECORDS, TARGET, WIDTH)
    key = torch.randn(RECORDS, SOURCE, sizes.get("kdim", WIDTH))
    value = torch.randn(RECORDS, SOURCE, sizes.get("vdim", WIDTH))

    def call(layer: nn.Module, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        if not batch_first:
            batch = tuple(t.transpose(0, 1) for t in batch)
        q, k, v = batch
        out, _ = layer(q, k, k if kind == "memory" else v)
        return out if batch_first else out.transpose(0, 1)

    paths = None if frozen else {"projections", "linear"}
    assert_agrees_in_double(layer, (query, key, value), call=call, paths=paths)


@pytest.mark.parametrize("mask", ["bool", "float", "causal"])
@pytest.mark.parametrize("padded", [True, False])
def test_masks(mask: str, padded: bool) -> None:
    torch.manual_seed(5)
    x = torch.randn(RECORDS, TARGET, WIDTH)
    lengths = torch.tensor([4, 1, 2, 3, 4])
    upper = torch.ones(TARGET, TARGET).triu(1).bool()

    def call(layer: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, lengths = batch
        hidden = torch.arange(TARGET) >= lengths[:, None]
        attn_mask = upper.to(x.dtype) * -3.0 if mask == "float" else upper
        if mask == "float":
            hidden = hidden.to(x.dtype) * -5.0
        return layer(
            x,
            x,
            x,
            key_padding_mask=hidden if padded else None,
            attn_mask=attn_mask,
            is_causal=mask == "causal",
            need_weights=False,
        )[0]

    assert_agrees_in_double(attention(batch_first=True), (x, lengths), call=call)


class TrainedMask(nn.Module):
    """A trainable table of what to look at, as relative positions are."""

    def __init__(self, per_head: bool) -> None:
        super().__init__()
        self.attention = attention(batch_first=True)
        self.per_head = per_head
        self.mask = nn.Parameter(torch.randn(HEADS if per_head else 1, TARGET, TARGET))

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask.repeat(len(x), 1, 1) if self.per_head else self.mask[0]
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


@pytest.mark.parametrize("per_head", [True, False])
def test_trained_masks(per_head: bool) -> None:
    torch.manual_seed(6)
    assert_agrees_in_double(TrainedMask(per_head), torch.randn(RECORDS, TARGET, WIDTH))


class TrainedBias(nn.Module):
    """Relative positions as in T5, beside dropout that drops nothing in float32."""

    def __init__(self, groups: int = HEADS, **options: Any) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(HEADS, TARGET, TARGET))
        self.groups, self.options = groups, {"dropout_p": 1e-12, **options}

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(2, (HEADS, -1)).transpose(1, 2)
        k = q[:, : self.groups]
        return F.scaled_dot_product_attention(q, k, k, self.bias[None], **self.options)


@pytest.mark.parametrize(
    "options", [{}, {"scale": 0.7}, {"groups": 1, "enable_gqa": True}], ids=str
)
def test_dropout_beside_a_trained_bias(options: dict[str, Any]) -> None:
    torch.manual_seed(8)
    assert_agrees(TrainedBias(**options), torch.randn(RECORDS, TARGET, WIDTH))


def test_dropout_beside_a_trained_bias_drops() -> None:
    torch.manual_seed(8)
    model, x = TrainedBias(dropout_p=0.5), torch.ones(1, TARGET, WIDTH)
    outputs = torch.stack([model(x) for _ in range(400)]).detach()
    engine_outputs = []

    def objective(batch: Tensor) -> Tensor:
        output = model(batch)
        engine_outputs.append(output.detach())
        return squares(output)

    engine = ClippedSum(dict(model.named_parameters()), objective, Flat(0.05))
    for _ in range(400):
        engine.add_(torch.zeros(engine.numel), x)
    found = torch.stack(engine_outputs)
    assert (found.mean(0) - outputs.mean(0)).abs().max() < 0.3  # five standard errors
    assert 0.8 < float(found.std(0).mean() / outputs.std(0).mean()) < 1.25


class TrainedQuery(nn.Module):
    """A query that is a weight, beside dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(1, HEADS, 1, WIDTH // HEADS))

    def forward(self, x: Tensor) -> Tensor:
        k = x.unflatten(2, (HEADS, -1)).transpose(1, 2)
        query = self.query.expand(len(x), -1, -1, -1)
        return F.scaled_dot_product_attention(query, k, k, dropout_p=0.1)


def test_dropout_beside_a_trained_query_is_refused_with_the_way_on() -> None:
    with pytest.raises(UnsupportedModelError, match='attn_implementation="eager"'):
        assert_agrees(TrainedQuery(), torch.randn(RECORDS, TARGET, WIDTH))


class LearnedQueries(nn.Module):
    """Queries that are weights, asked of every record."""

    def __init__(self, asks: int) -> None:
        super().__init__()
        self.attention = attention(batch_first=True)
        self.queries = nn.Parameter(torch.randn(asks, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(self.queries.expand(len(x), -1, -1), x, x)[0]


@pytest.mark.parametrize("asks", [3, RECORDS])
def test_learned_queries(asks: int) -> None:
    torch.manual_seed(7)
    assert_agrees_in_double(LearnedQueries(asks), torch.randn(RECORDS, SOURCE, WIDTH))


class RecordsInTheMask(nn.Module):
    """Learned tokens throughout; a record only says which of them are hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = attention(batch_first=True)
        self.tokens = nn.Parameter(torch.randn(TARGET, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        x = self.tokens.expand(len(hidden), -1, -1)
        return self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]


def test_records_in_the_mask_alone() -> None:
    torch.manual_seed(13)
    hidden = torch.rand(RECORDS, TARGET) < 0.5
    hidden[:, 0] = False
    assert_agrees_in_double(RecordsInTheMask(), hidden)


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_extra_keys(options: dict[str, bool]) -> None:
    def call(layer: nn.Module, x: Tensor) -> Tensor:
        return layer(x, x, x)[0]

    torch.manual_seed(8)
    layer = attention(batch_first=True, **options)
    assert_agrees_in_double(layer, torch.randn(RECORDS, TARGET, WIDTH), call=call)


def encoder_layer(norm_first: bool, batch_first: bool = True) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(
        WIDTH, HEADS, 12, dropout=0.0, norm_first=norm_first, batch_first=batch_first
    )


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_layer(norm_first: bool) -> None:
    torch.manual_seed(9)
    layer = scrambled(encoder_layer(norm_first))
    x = torch.randn(RECORDS, TARGET, WIDTH)
    assert_agrees_in_double(layer, x, paths={"linear", "layer norm"})
    assert_agrees(layer, x, tolerance=1e-5)
    assert_same_output(layer, x, tolerance=1e-6)


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_layer_with_time_first(norm_first: bool) -> None:
    """Its norms and linear layers see the records on axis 1, and are told so by the layouts."""
    torch.manual_seed(9)
    layer = scrambled(encoder_layer(norm_first, batch_first=False))
    x = torch.randn(RECORDS, TARGET, WIDTH)

    def objective(x: Tensor) -> Tensor:
        return squares(layer(x.transpose(0, 1)).transpose(0, 1))

    inner, outer = (RecordLayout(),), (RecordLayout(axis=1),)
    attend = [ContactLayout("linear", inner, inner)] * 2
    feed = [ContactLayout("linear", outer, outer)] * 2
    norm = [ContactLayout("layer_norm", outer, outer)]
    order = norm + attend + norm + feed if norm_first else attend + norm + feed + norm
    parameters = dict(layer.named_parameters())
    engine = ClippedSum(parameters, objective, Flat(0.05), layouts=order)
    out = torch.zeros(engine.numel)
    engine.add_(out, x)
    expected = clipped_sum(objective, list(parameters.values()), x, Flat(0.05))
    assert (out - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder(norm_first: bool) -> None:
    torch.manual_seed(10)
    model = scrambled(
        nn.TransformerEncoder(encoder_layer(norm_first), 2, enable_nested_tensor=False)
    )
    x = torch.randn(RECORDS, TARGET, WIDTH)
    assert_agrees_in_double(model, x, paths={"linear", "layer norm"})
    assert_same_output(model, x, tolerance=1e-6)


def test_transformer_decoder_layer() -> None:
    torch.manual_seed(11)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 12, dropout=0.0, batch_first=True)
    scrambled(layer)

    def call(layer: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return layer(*batch)

    batch = (torch.randn(RECORDS, TARGET, WIDTH), torch.randn(RECORDS, SOURCE, WIDTH))
    assert_agrees_in_double(layer, batch, call=call, paths={"linear", "layer norm", "projections"})


def test_bfloat16_is_clipped_in_float32() -> None:
    torch.manual_seed(12)
    layer = scrambled(encoder_layer(True)).bfloat16()
    x = torch.randn(RECORDS, TARGET, WIDTH).bfloat16()
    engine = ClippedSum(
        dict(layer.named_parameters()), lambda x: squares(layer(x).float()), Flat(0.05)
    )
    out = torch.zeros(engine.numel)
    engine.add_(out, x)
    wide = layer.float()
    expected = clipped_sum(
        lambda x: squares(wide(x)), list(wide.parameters()), x.float(), Flat(0.05)
    )
    assert (out - expected).norm() <= 0.05 * expected.norm()


def refused(
    call: Callable[[nn.MultiheadAttention, Tensor], Any], x: Tensor
) -> pytest.ExceptionInfo[UnsupportedModelError]:
    layer = attention(batch_first=True)
    engine = ClippedSum(dict(layer.named_parameters()), lambda x: call(layer, x), Flat(1.0))
    with pytest.raises(UnsupportedModelError) as caught:
        engine.slots(x)
    return caught


def test_a_sequence_without_records_is_refused() -> None:
    caught = refused(lambda layer, x: layer(x, x, x)[0].sum(1), torch.randn(RECORDS, WIDTH))
    assert "query shape=(5, 16): must have three axes" in str(caught.value)


def test_a_causal_hint_needs_its_mask() -> None:
    def call(layer: nn.MultiheadAttention, x: Tensor) -> Tensor:
        return layer(x, x, x, is_causal=True, need_weights=False)[0]

    caught = refused(call, torch.randn(RECORDS, TARGET, WIDTH))
    assert "is_causal=True: is a hint about attn_mask" in str(caught.value)


def test_weights_of_another_width_are_refused_as_torch_does() -> None:
    x, packed, out = torch.randn(5, 3, 16), torch.randn(96, 16), torch.randn(16, 32)
    with pytest.raises((ValueError, RuntimeError)):
        multi_head_attention_forward(
            x, x, x, 16, 2, packed, None, None, None, False, 0.0, out, None, need_weights=False
        )
