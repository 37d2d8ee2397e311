"""Batch sizes at which code may behave differently: lengths of axes, and constants in the code.

`if len(x) > 37` has 37 among the constants of its function, and `self.most` among the attributes of
its module. Code of torch and of this library does not count.
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
    """A block that records which Python functions run, except those of torch and this library.

    It records nothing while a profiler runs, because Python allows only one.
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
    """The batch sizes to try: 1, lengths of axes, integers in code and modules, and the next ones.

    Args:
        codes: of the functions that ran.
        model: attributes of its modules are searched for integers, except of torch's.
        lengths: of axes of tensors in the model.
        most: the largest batch size to try.

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
