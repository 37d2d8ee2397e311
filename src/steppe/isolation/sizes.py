"""Numbers of records at which code may do something else: lengths of axes, and its own constants.

`if len(x) > 37` has 37 among the constants of its function, and `self.most` among the attributes of
its module. What torch and this library run is no code of the user's.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

_OURS = tuple(str(Path(str(file)).parent) for file in (torch.__file__, Path(__file__).parent))


@contextmanager
def code_seen() -> Iterator[set[types.CodeType]]:
    """A block whose Python functions are written down, but for those of torch and this library.

    Nothing is written down while a profiler runs: there can be one at a time.
    """
    seen: set[types.CodeType] = set()

    def note(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code)

    if sys.getprofile() is not None:
        yield seen
        return
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(None)
        for code in [code for code in seen if code.co_filename.startswith(_OURS)]:
            seen.remove(code)


def likely_sizes(
    codes: Iterable[types.CodeType], model: nn.Module, lengths: Iterable[int], most: int
) -> list[int]:
    """One, the lengths of axes, the whole numbers that code and modules name, and the next ones, as
    far as so many records may go through the model at once.

    Args:
        codes: the functions that ran.
        model: of which the user's own modules are asked for numbers.
        lengths: of axes of what goes through the model.
        most: the largest number of records that is worth a try.

    Examples:
        >>> def loss(x):
        ...     return x if len(x) > 37 else 2 * x
        >>> likely_sizes([loss.__code__], nn.Identity(), [8], 64)
        [1, 8, 37, 38, 2, 3]
    """
    found = [constant for code in codes for constant in _constants(code)]
    for module in model.modules():
        if not type(module).__module__.startswith("torch."):
            found += vars(module).values()
            methods = vars(type(module)).values()
            found += [
                n
                for m in methods
                if isinstance(m, types.FunctionType)
                for n in _constants(m.__code__)
            ]
    named = sorted({int(one) for one in found if type(one) in (int, float) and one == one // 1})
    sizes = [size for one in reversed(named) for size in (one, one + 1)]
    return [1, *dict.fromkeys(size for size in (*sorted(lengths), *sizes) if 1 < size <= most)]


def _constants(code: types.CodeType) -> list[Any]:
    return [*code.co_consts, *(n for one in code.co_consts if type(one) is tuple for n in one)]
