"""What is left of batches that were stepped: tensors that must not come back in a later one.

A loss that is divided by a moving average of losses, or a centre of the outputs so far, carries
records from batch to batch without noise.
"""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from steppe.compat.loop_isolation.followed import Followed, as_plain, make_plain
from steppe.compat.loop_isolation.kinds import ITEM, KNOWN, kind_of, writes_by
from steppe.compat.loop_isolation.reads import READ, read
from steppe.compat.loop_isolation.refusals import holds_earlier, holds_read_number
from steppe.compat.loop_isolation.totals import FOLLOW
from steppe.isolation import Finding, line_of_user, refusals
from steppe.utils.batches import tensors_in


class Past:
    """The tensors of earlier batches, what is made from them, and the memory they were written to.

    Args:
        module: whose state must not be written with them.
    """

    is_over = True

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors: dict[int, weakref.ref[Tensor]] = {}
        self._memories: dict[int, Any] = {}  # that were written to
        self._most = 256
        self._last_line = ""
        self._ended = False

    def take(self, tensor: Tensor) -> None:
        """This tensor was made from an earlier batch."""
        if len(self._tensors) > self._most:
            self._tensors = {k: ref for k, ref in self._tensors.items() if ref() is not None}
            self._most = 2 * len(self._tensors) + 256
        make_plain(tensor)
        tensor.__dict__[FOLLOW] = self
        tensor.__class__ = Followed
        self._tensors[id(tensor)] = weakref.ref(tensor)

    def note_written(self, memory: Any) -> None:
        """Records were written to this memory, and so to all tensors that look at it."""
        if len(self._memories) > self._most:
            self._memories = {k: ref for k, ref in self._memories.items() if not ref.expired()}
        self._last_line = line_of_user() or "torch"
        self._memories[memory._cdata] = StorageWeakRef(memory)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor that is not followed looks at memory that was written to."""
        if not self._memories:
            return False
        found = self._memories.get(tensor.untyped_storage()._cdata)
        return found is not None and not found.expired()

    def require_none_in_module(self) -> None:
        """Refuse what the loop has put into the module: written to its state, or as attributes."""
        for module in self._module.modules():
            for name, value in (*vars(module).items(), *module._buffers.items()):
                if type(value) is Followed:
                    raise holds_earlier(f"module.{name}")
                if type(value) in READ:
                    raise holds_read_number(f"module.{name}")
        if not self._memories:
            return
        if any(map(self.holds, (*self._module.parameters(), *self._module.buffers()))):
            raise refusals.keeps(
                Finding("writes", "write", None, self._last_line, "weights or buffers")
            )

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One call of torch with a tensor of an earlier batch, and none of the present one."""
        kind = KNOWN.get(func) or kind_of(func)
        if kind.copies or self._ended:
            made = as_plain(func, args, kwargs)
            if func is Tensor.__deepcopy__ and not self._ended:
                self.take(made)
            return made
        made = func(*args, **kwargs)
        if kind.reads:
            return read(made) if func is ITEM else made
        changed = list(tensors_in(made))
        if kind.writes or (kwargs and writes_by(kwargs)):
            changed += [args[0]] if isinstance(args[0], Tensor) else []
            for tensor in changed:
                self.note_written(tensor.untyped_storage())
        for tensor in changed:
            if type(tensor) in (Tensor, Followed):
                self.take(tensor)
        return made

    def end(self) -> None:
        """The run has ended: what is left are plain tensors."""
        self._ended = True
        for ref in self._tensors.values():
            if (tensor := ref()) is not None:
                make_plain(tensor)
        self._tensors, self._memories = {}, {}
