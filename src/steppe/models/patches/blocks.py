"""Features in blocks of one size, so that they do not depend on other records, to the last bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BLOCK = 8  # few, so that the maps of a block stay near the processor


def in_blocks(
    compute: Callable[[Tensor], Tensor],
    pictures: Tensor,
    out: Tensor,
    label: str,
    progress: bool,
) -> Tensor:
    """Fill `out` with results computed from pictures, 8 at a time; the last block is padded.

    Matrix products may round differently for other numbers of rows, so the number is constant.

    Args:
        compute: maps pictures to rows.
        pictures: any number of them.
        out: a row for each.
        label: of the bar.
        progress: whether to show a progress bar in a terminal.
    """
    from tqdm import tqdm

    starts = range(0, len(pictures), BLOCK)
    with torch.no_grad():
        for start in tqdm(starts, desc=label, disable=None if progress else True):
            block = pictures[start : start + BLOCK]
            here = len(block)
            if here < BLOCK:
                padding = block.new_zeros(BLOCK - here, *block.shape[1:])
                block = torch.cat([block, padding])
            out[start : start + here] = compute(block)[:here]
    return out
