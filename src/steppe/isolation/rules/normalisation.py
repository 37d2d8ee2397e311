"""Rules of normalisation layers."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import FREE, everywhere, join, joined_over
from steppe.isolation.rules.arguments import aligned, outputs_of, with_all_of


def _affine(call: Call, owners: Tensor) -> Tensor:
    """With weight and bias, where those are made from records too."""
    return with_all_of(call, owners, "weight", "bias")


def over_last(call: Call) -> list[Tensor]:
    """Those of all elements along the normalised axes."""
    x = call["input"]
    axes = range(x.ndim - len(call["normalized_shape"]), x.ndim)
    names = ("input", "grad_out", "mean", "rstd")
    given = [call[name] for name in names if isinstance(call[name], Tensor)]
    parts = [aligned(call.owners(tensor), x.ndim) for tensor in given]
    found = _affine(call, joined_over(join(parts), axes))
    whole = joined_over(found, range(x.ndim))
    # Beside the result and its statistics, a backward pass may make the gradients of weights.
    return [
        found if out.ndim == x.ndim and _fits(found, out) else whole.reshape((1,) * out.ndim)
        for out in outputs_of(call)
    ]


def _fits(owners: Tensor, out: Tensor) -> bool:
    return all(a in (1, b) for a, b in zip(owners.shape, out.shape, strict=True))


def over_groups(call: Call) -> list[Tensor]:
    """Those of the whole row."""
    x = call["input"]
    rows = _affine(call, joined_over(call.owners(x), range(1, x.ndim)))
    flat = rows.reshape(-1, 1)
    return [rows, flat, flat]


def over_groups_back(call: Call) -> list[Tensor]:
    """Of an input: those of its row. Of a weight or bias: those of all rows."""
    grad, x = call["grad_out"], call["input"]
    parts = [joined_over(call.owners(t), range(1, t.ndim)) for t in (grad, x)]
    for name in ("mean", "rstd"):
        rows = joined_over(call.owners(call[name]), [1])
        parts.append(rows.reshape((-1,) + (1,) * (x.ndim - 1)))
    rows = _affine(call, join(parts))
    whole = joined_over(rows, [0])
    return _masked(call, (rows, whole.reshape(1), whole.reshape(1)))


def over_batch(call: Call) -> list[Tensor]:
    """Those of the whole channel; with fixed statistics, those of the element."""
    x = call["input"]
    outputs = outputs_of(call)
    owners = call.owners(x)
    learns = call["training"] is True or call.name == "_batch_norm_with_update"
    stats = call["running_mean"], call["running_var"]
    if not learns:
        for name in ("running_mean", "running_var"):
            call.untouched.add(name)
        spread = [
            call.owners(s).reshape((1, -1) + (1,) * (x.ndim - 2))
            for s in stats
            if isinstance(s, Tensor) and not call.is_free(s)
        ]
        found = _affine(call, join([owners, *spread]))
        free = everywhere(1, FREE)
        spread = [call.owners(s) for s in stats if isinstance(s, Tensor)]
        kept = join([free, *spread])
        return [found, *[kept if out.numel() == kept.numel() else free for out in outputs[1:]]]
    over = joined_over(owners, [axis for axis in range(x.ndim) if axis != 1])
    channels = over.reshape(-1)
    for name in ("running_mean", "running_var"):
        before = call[name]
        if isinstance(before, Tensor):
            call.written[name] = join([channels, call.owners(before)])
    free = everywhere(1, FREE)
    return [_affine(call, over), *[channels if out.numel() else free for out in outputs[1:]]]


def over_batch_back(call: Call) -> list[Tensor]:
    """Those of the channel; of an input, with fixed statistics: those of the element."""
    grad = call["grad_out"] if call["grad_out"] is not None else call["grad_output"]
    x = call["input"]
    parts = [call.owners(t) for t in (grad, x) if isinstance(t, Tensor)]
    spread = []
    for name in ("save_mean", "save_invstd", "save_var", "running_mean", "running_var"):
        given = call[name]
        if isinstance(given, Tensor) and given.numel() and not call.is_free(given):
            spread.append(call.owners(given).reshape((1, -1) + (1,) * (x.ndim - 2)))
    whole = join([*parts, *spread])
    axes = [axis for axis in range(x.ndim) if axis != 1]
    over = joined_over(whole, axes)
    learns = call["train"] is True or call["update"] is True
    grad_x = over if learns or "train" not in call.given else join([call.owners(grad), *spread])
    channels = over.reshape(-1)
    return _masked(call, (_affine(call, grad_x), channels, channels))


def _masked(call: Call, made: tuple[Tensor, ...]) -> list[Tensor]:
    mask = call["output_mask"] or (True,) * len(made)
    return [owners for wanted, owners in zip(mask, made, strict=True) if wanted]


RULES = (
    (
        over_last,
        packets(
            "native_layer_norm native_layer_norm_backward _fused_rms_norm "
            "_fused_rms_norm_backward rms_norm"
        ),
    ),
    (over_groups, packets("native_group_norm")),
    (over_groups_back, packets("native_group_norm_backward")),
    (
        over_batch,
        packets(
            "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
            "_batch_norm_with_update _batch_norm_no_update cudnn_batch_norm"
        ),
    ),
    (
        over_batch_back,
        packets("native_batch_norm_backward batch_norm_backward cudnn_batch_norm_backward"),
    ),
)
