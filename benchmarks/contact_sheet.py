"""`python -m benchmarks.contact_sheet` draws the sheets of procedural pictures in the docs."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from steppe.procedural import pictures

_FOLDER = Path(__file__).parent.parent / "docs" / "results"


def sheet(found: Tensor, columns: int, gap: int = 2) -> Image.Image:
    """One picture of many, row by row.

    Args:
        found: (count, 1 or 3, size, size) in [0, 1]; count is a multiple of `columns`.
        columns: pictures in a row.
        gap: white pixels between two pictures.
    """
    count, channels, size = found.shape[:3]
    cell, rows = size + gap, count // columns
    whole = torch.full((channels, rows * cell + gap, columns * cell + gap), 255, dtype=torch.uint8)
    for number, picture in enumerate((found * 255).round().to(torch.uint8)):
        top, left = number // columns * cell + gap, number % columns * cell + gap
        whole[:, top : top + size, left : left + size] = picture
    array = whole.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if channels == 1 else array)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=_FOLDER)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for name, channels in (("colour", 3), ("grey", 1)):
        found = pictures(given.rows * given.columns, given.size, channels, given.seed)
        path = given.folder / f"procedural-{name}.png"
        sheet(found, given.columns).save(path, optimize=True)
        print(f"{path}: {path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
