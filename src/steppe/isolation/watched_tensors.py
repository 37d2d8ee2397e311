"""What a watch knows of tensors: their owners, and which of them share memory.

The owners of a tensor are stored on it. Tensors over one memory are registered together, so that a
write through one of them is seen through all. Findings name the operation, the layer and the line.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from steppe.gradients import is_marked
from steppe.isolation.findings import BACKWARD, OWNED, Finding, Owned
from steppe.isolation.owners import FREE, MIXED, TYPE, everywhere
from steppe.isolation.schemas import storage_of
from steppe.isolation.where import layer_on_the_way_back, line_of_user


class WatchedTensors(TorchDispatchMode):
    """The tensors of one pass.

    Args:
        records: the batch size.
        layer: gives the module that is running.

    Attributes:
        findings: the reasons why the pass is not proven; mixed tensors that are not used do not
            count.
    """

    passes = 0

    def __init__(self, records: int, layer: Callable[[], str | None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        WatchedTensors.passes += 1
        self.number = WatchedTensors.passes
        self.records = records
        self.findings: list[Finding] = []
        self._layer = layer
        self._exposed: dict[int, Any] = {}  # memories that other libraries look at
        # Storages that were made in this pass, with all tensors that use each.
        self._born: dict[int, tuple[Any, list[weakref.ref[Tensor]]]] = {}

    def own(self, tensor: Tensor, owners: Tensor, origin: Finding | None = None) -> None:
        """Set the owners of a tensor."""
        if origin is not None and not bool((owners == MIXED).any()):
            origin = None
        setattr(tensor, OWNED, Owned(owners, self.number, origin, _memory(tensor)))

    def adopt(self, tensor: Tensor, owners: Tensor) -> None:
        """Register a tensor of the batch. It may be written to, because it ends with the pass."""
        self._register(tensor)
        self.own(tensor, owners)

    def owned(self, tensor: Tensor) -> Owned | None:
        """What is known about a tensor made from records; None for one that is free."""
        found: Owned | None = getattr(tensor, OWNED, None)
        if found is None:
            return None
        if found.watch != self.number:
            finding = self.note("carries", None, "a tensor of an earlier pass")
        elif found.memory != _memory(tensor):
            finding = self.note("no rule", None, "a tensor whose numbers were exchanged by `.data`")
        else:
            return found
        self.own(tensor, everywhere(tensor.ndim, MIXED), finding)
        return self.owned(tensor)

    def owners(self, tensor: Tensor) -> Tensor:
        """The owners of a tensor; `FREE` if there are none."""
        found = self.owned(tensor)
        return everywhere(tensor.ndim, FREE) if found is None else found.owners

    # Findings

    def note(self, kind: str, func: Any, detail: str = "") -> Finding:
        """Report a finding at the current location."""
        finding = self.found(kind, func, detail)
        if kind != "mixes":
            self.findings.append(finding)
        return finding

    def found(self, kind: str, func: Any, detail: str = "") -> Finding:
        """A finding at the current location, which matters only if the result is used."""
        name = "tensor" if func is None else str(func).removesuffix(".default")
        layer = self._layer()
        if layer is None and torch._C._current_autograd_node() is not None:
            back = layer_on_the_way_back()
            layer = BACKWARD if back is None else f"{BACKWARD} on the way back to {back}"
        return Finding(kind, _SAID.get(name, name), layer, line_of_user(), detail)

    def place(self) -> str | None:
        """The layer and line that are running, as text; None if neither is the user's."""
        found = self.found("place", None)
        return ", ".join(part for part in (found.layer, found.line) if part) or None

    # Memory

    def is_new(self, tensor: Tensor) -> bool:
        """Whether the memory of a tensor was made in this pass."""
        return storage_of(tensor)._cdata in self._born

    def memory(self, tensor: Tensor) -> Tensor:
        """The owners of the whole memory of a tensor, as far as other tensors use it."""
        size = storage_of(tensor).nbytes() // tensor.element_size()
        # Memory that no remaining tensor uses may have any owner.
        memory = torch.full((size,), MIXED, dtype=TYPE, device="cpu")
        for other in (*self._looking_at(tensor), tensor):
            if other.numel():
                memory.as_strided(*place_in_memory(other)).copy_(
                    self.owners(other).expand(other.shape)
                )
        return memory

    def _looking_at(self, tensor: Tensor) -> list[Tensor]:
        entry = self._born.get(storage_of(tensor)._cdata)
        alive = [] if entry is None else [ref() for ref in entry[1]]
        return [other for other in alive if other is not None]

    def _register(self, tensor: Tensor, sources: Sequence[Tensor] = ()) -> None:
        """Remember which memory a result uses."""
        if tensor.layout != torch.strided:
            return
        storage = storage_of(tensor)
        key = storage._cdata
        entry = self._born.get(key)
        if entry is not None:
            entry[1].append(weakref.ref(tensor))
        elif not any(storage_of(source)._cdata == key for source in sources):
            self._born[key] = (storage, [weakref.ref(tensor)])

    def _was_exchanged(self, tensor: Tensor) -> bool:
        """Whether a constant looks at memory of this pass that it was not made to look at."""
        if hasattr(tensor, OWNED) or tensor.layout != torch.strided:
            return False
        born = storage_of(tensor)._cdata in self._born
        return born and not any(other is tensor for other in self._looking_at(tensor))

    def _seen_through(self, memory: Any, twin: Any) -> None:
        """Tensors that share the memory of a fake tensor change with it."""
        if (entry := self._born.get(memory._cdata)) is not None:
            self._born[twin._cdata] = (twin, entry[1])

    def expose(self, tensor: Tensor) -> None:
        """Remember a memory that code has come to see by other ways than torch."""
        if tensor.layout == torch.strided:
            storage = storage_of(tensor)
            self._exposed[storage._cdata] = storage

    def _require_unseen(self, func: Any, tensor: Tensor) -> None:
        """Note records that are written where NumPy, or another tensor of NumPy's, would see them.

        Guarantees:
            Only what torch has allocated itself has a size that it may change.
        """
        if isinstance(tensor, FakeTensor) or not tensor.numel():
            return
        storage = storage_of(tensor)
        if storage._cdata in self._exposed or not storage.resizable():
            self.note("reads", func, "numbers leave torch")

    def unmarked(self) -> list[weakref.ref[Tensor]]:
        """Tensors made from records without a mark, which a later pass would not recognise."""
        seen = (ref for _, made in self._born.values() for ref in made)
        return [
            ref
            for ref in seen
            if (one := ref()) is not None and hasattr(one, OWNED) and not is_marked(one)
        ]


def place_in_memory(tensor: Tensor) -> tuple[Any, Any, int]:
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def _memory(tensor: Tensor) -> int | None:
    return storage_of(tensor)._cdata if tensor.layout == torch.strided else None


# The name that users know.
_SAID = {"aten._local_scalar_dense": "item(), bool() or float()", "tensor": "a tensor"}
