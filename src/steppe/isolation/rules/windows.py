"""Rules of pooling, resampling and patches."""

from __future__ import annotations

from torch import Tensor

from steppe.isolation.call import Call
from steppe.isolation.operators import packets
from steppe.isolation.owners import join, joined_over
from steppe.isolation.rules.arguments import leading, outputs_of, owned_tensors


def over_places(call: Call) -> list[Tensor]:
    """Those of all positions of the channel."""
    places = int(next(letter for letter in call.name if letter.isdigit()))
    outputs = outputs_of(call)
    parts = []
    for tensor in owned_tensors(call):
        owners, axes = call.owners(tensor), max(out.ndim for out in outputs)
        # Other forms, such as random numbers for each picture, are of no place.
        kept = owners.ndim - places if owners.ndim == axes else 0
        over = joined_over(owners, range(max(0, kept), owners.ndim))
        parts.append(over.reshape((1,) * axes) if kept == 0 else over)
    found = join(parts)
    return [found for _ in outputs]


def over_rows(call: Call) -> list[Tensor]:
    """Those of the whole row."""
    # One picture alone, of `im2col` and `col2im`, has no axis of rows.
    alone = call.name == "im2col" and call["self"].ndim == 3
    kept = 0 if alone or (call.name == "col2im" and call["self"].ndim == 2) else 1
    return [
        join([leading(call.owners(tensor), kept, out.ndim) for tensor in owned_tensors(call)])
        for out in outputs_of(call)
    ]


_POOLS = (
    "avg_pool{d} avg_pool{d}_backward adaptive_avg_pool{d} _adaptive_avg_pool{d} "
    "_adaptive_avg_pool{d}_backward adaptive_max_pool{d} adaptive_max_pool{d}_backward "
    "max_pool{d}_with_indices max_pool{d}_with_indices_backward upsample_nearest{d} "
    "upsample_nearest{d}_backward _upsample_nearest_exact{d} _upsample_nearest_exact{d}_backward "
    "max_unpool{d} reflection_pad{d}_backward replication_pad{d}_backward "
    "fractional_max_pool{d} fractional_max_pool{d}_backward max_pool{d}"
)

RULES = (
    (
        over_places,
        packets(
            " ".join(_POOLS.format(d=f"{d}d") for d in (1, 2, 3))
            + " upsample_linear1d upsample_linear1d_backward upsample_bilinear2d "
            "upsample_bilinear2d_backward _upsample_bilinear2d_aa "
            "_upsample_bilinear2d_aa_backward upsample_bicubic2d upsample_bicubic2d_backward "
            "_upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward "
            "upsample_trilinear3d upsample_trilinear3d_backward"
        ),
    ),
    (
        over_rows,
        packets(
            "im2col col2im grid_sampler_2d grid_sampler_3d grid_sampler_2d_backward "
            "grid_sampler_3d_backward affine_grid_generator"
        ),
    ),
)
