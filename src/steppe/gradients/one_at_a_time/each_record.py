"""Processes records one at a time: isolated by construction, for any model and loss.

Each record passes through the model as a batch of one, so that the user's code sees no other
record. `torch.func.vmap` does this for many records at once; there code cannot read values. If vmap
does not accept the code, because it reads values or writes in place, every record has its own
forked process, which ends with everything that the code stored in memory.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.utils.stateless import _reparametrize_module

from steppe.errors import IsolationError, MisuseError, UnsupportedModelError
from steppe.gradients.one_at_a_time.by_vmap import (
    mark,
    one_pass,
    pass_of,
    require_no_modes,
    require_torchs_kernels,
)
from steppe.gradients.one_at_a_time.kept_state import changed, kept_state
from steppe.gradients.one_at_a_time.own_process import HERE, OwnProcess
from steppe.gradients.record_gradients import WeightSlots
from steppe.gradients.slots.slot import Materialised
from steppe.gradients.unchanged_model import require_steady, same, unchanged
from steppe.randomness import give_numbers_of, global_generators_kept, seed_global_generators
from steppe.utils.batches import count, each, rows, tensors_in, version
from steppe.utils.formatting import first_line
from steppe.utils.module_modes import without_dropout

Objective = Callable[[Any], Tensor]
Gradients = list[Tensor | None]
Sent = tuple[np.ndarray[Any, Any], torch.dtype, tuple[int, ...]]
VMAP, ONE_BY_ONE = "vmap", "one by one"
_SEED = 20_245


class EachRecord:
    """Per-record gradients from passes in which the user's code sees one record at a time.

    Args:
        parameters: the weights to train, by name.
        model: contains them.

    Attributes:
        way: "vmap" or "one by one", after `choose`.
        why: the reason against vmap, in torch's words if torch gave it; empty for vmap.

    Guarantees:
        A record's row depends on that record, the weights, its own random numbers and the state of
        the code before the step. By vmap, code reads no value. Using a tensor stored from another
        pass raises `IsolationError`, and so does a write to a weight or buffer. Code that would
        receive the whole batch is rejected: user-defined modes, kernels, tensor types and vmap
        rules. One by one, each record has its own process and secret seed, so no number, list,
        exception or seed reaches the next record. Not covered: memory, files and sockets that
        processes share, threads, records that the code held before, and, by vmap, C++ extensions,
        code that unpacks vmap's tensors, and pass counters that the search of objective and model
        at set-up does not reach.
    """

    def __init__(self, parameters: Mapping[str, Tensor], model: nn.Module) -> None:
        self._parameters, self._model = parameters, model
        self.way = self.why = ""

    def choose(self, objective: Objective, example: Any) -> str:
        """Try both ways at set-up, and restore weights, buffers and random state.

        Args:
            objective: maps a batch to one loss for each record.
            example: synthetic records, two or more.

        Returns:
            The way: vmap if it works, gives autograd's gradients, and leaves the same state for
                every pass.
        """
        require_no_modes()
        _load()
        for _, tensor in _state(self._model):
            if pass_of(tensor) is not None:  # from an earlier set-up, which restored the value
                mark(tensor, None)
        one_by_one, by_vmap = [
            functools.partial(self._tried, way, objective, example) for way in (ONE_BY_ONE, VMAP)
        ]
        with global_generators_kept(), without_dropout(self._model), unchanged(self._model):
            wanted = one_by_one(_SEED)
            if not any(gradient is not None for gradient in wanted):
                raise UnsupportedModelError(
                    f"parameters={list(self._parameters)[:3]}: some trained weight must reach the "
                    "loss, and none does; use them in the forward pass without detach()."
                )
            steady = _close(one_by_one(_SEED + 1), wanted, 0.0)
            first = each(torch.clone, rows(example, slice(0, 1)))
            # By value, because torch does not count writes through `.data`.
            require_steady(self._model, objective, first, _SEED)
            try:
                found = self._in_passes(objective, by_vmap, example)
            except Exception as error:  # whatever error torch or the model raises
                self.way, self.why = ONE_BY_ONE, first_line(error)
            else:
                self.way, self.why = VMAP, ""
                # If gradients depend on random numbers, the two ways draw different ones.
                if steady and not _close(found, wanted, 2e-3):
                    self.way, self.why = ONE_BY_ONE, "vmap gives other gradients than autograd"
        if self.way == ONE_BY_ONE:
            self._require_processes(example)
        return self.way

    def slots(self, objective: Objective, batch: Any, records: int) -> WeightSlots:
        """One slot for each trained weight that a physical batch used."""
        if not self.way:
            raise MisuseError("way=unknown: must be chosen at set-up; call choose() once before.")
        if records == 0:
            return []
        require_no_modes()
        if self.way == VMAP:
            found = self._by_vmap(objective, batch)
        else:
            self._require_processes(batch)
            found = self._one_by_one(objective, batch, OwnProcess)
        return [
            (p, Materialised(g)) for p, g in zip(self._trained, found, strict=True) if g is not None
        ]

    @property
    def _trained(self) -> list[Tensor]:
        return [p for p in self._parameters.values() if p.requires_grad]

    def _tried(self, way: str, objective: Objective, example: Any, seed: int) -> Gradients:
        seed_global_generators(seed)
        if way == VMAP:
            return self._by_vmap(objective, example)
        begin = OwnProcess if self._no_processes(example) is None else _Here
        return self._one_by_one(objective, example, begin, by_value=True)

    def _in_passes(
        self, objective: Objective, by_vmap: Callable[[int], Gradients], example: Any
    ) -> Gradients:
        """The gradients by vmap, if the state after a pass is the same as before it.

        The number of passes depends on how many records were drawn. If possible, the trial runs in
        its own process, so that it leaves nothing behind.
        """

        def run() -> list[Sent | None]:
            by_vmap(_SEED)  # the first pass may make tables
            before = kept_state(self._model, objective)
            found = by_vmap(_SEED)
            if moved := changed(before, kept_state(self._model, objective)):
                raise IsolationError(f"kept={moved[:3]}: changes with every pass.")
            return [_sent(gradient) for gradient in found]

        begin = OwnProcess if self._no_processes(example) is None else _Here
        return [_received(gradient) for gradient in begin(run).result()]

    def _by_vmap(self, objective: Objective, batch: Any) -> Gradients:
        names = {id(p): name for name, p in self._model.named_parameters()}
        if any(p._backward_hooks or id(p) not in names for p in self._trained):
            raise UnsupportedModelError("weights=with hooks: go one by one; vmap takes copies.")
        require_torchs_kernels()
        weights = {names[id(p)]: p.detach() for p in self._trained}

        def loss_of(weights: dict[str, Tensor], *tensors: Tensor) -> Tensor:
            left = iter(tensors)
            record = each(lambda _: next(left).unsqueeze(0), batch)
            with _reparametrize_module(self._model, weights, tie_weights=True):
                return _one_loss(objective(record))

        with _untouched(self._model), warnings.catch_warnings(), one_pass() as apart:
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            tensors = [apart.own(tensor) for tensor in tensors_in(batch)]
            dims = (None, *[0] * len(tensors))
            found = vmap(grad(loss_of), dims, randomness="different")(weights, *tensors)
        # A weight that no record uses has zeros that are the same for all and of no pass.
        return [g if pass_of(g) or bool(g[0].any()) else None for g in found.values()]

    def _one_by_one(
        self, objective: Objective, batch: Any, begin: Any, by_value: bool = False
    ) -> Gradients:
        """Every record in its own process, as many at once as torch may use threads."""
        trained, records, found = self._trained, count(batch), dict[int, Tensor]()
        seeds = torch.randint(2**63 - 1, (records,), device="cpu").tolist()
        running: deque[Any] = deque()

        def gradients_of(i: int) -> list[Sent | None]:
            give_numbers_of(seeds[i])
            record = each(torch.clone, rows(batch, slice(i, i + 1)))
            with _untouched(self._model, by_value):
                return [_sent(gradient) for gradient in _gradients(objective, record, trained)]

        try:
            begun = 0
            for i in range(records):
                while begun < min(records, i + torch.get_num_threads()):
                    running.append(begin(functools.partial(gradients_of, begun)))
                    begun += 1
                for j, sent in enumerate(running.popleft().result()):
                    if (gradient := _received(sent)) is not None:
                        if j not in found:
                            found[j] = trained[j].new_zeros(records, *trained[j].shape)
                        found[j][i] = gradient
        finally:
            for process in running:
                process.end()
        return [found.get(j) for j in range(len(trained))]

    def _no_processes(self, batch: Any) -> str | None:
        """Why records cannot have their own processes; None if they can."""
        held = [tensor for _, tensor in _state(self._model)]
        for tensor in (*held, *tensors_in(batch)):
            if tensor.device.type != "cpu":
                return f"device={tensor.device.type}"
        if any(tensor.is_shared() for tensor in held):
            return "weights or buffers=shared between processes"
        return None if HERE else "system=without fork"

    def _require_processes(self, batch: Any) -> None:
        if reason := self._no_processes(batch):
            raise UnsupportedModelError(
                f"{reason}: must be a CPU of a system that forks, with memory of its own, where "
                f"vmap does not take a model ({self.why[:150].rstrip('.')}), so that every record "
                "has a process; write what vmap takes, without reading values or writing in place."
            )


class _Here:
    """Replaces a process for synthetic records if there can be none."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run = run

    def result(self) -> Any:
        with global_generators_kept():
            return self._run()

    def end(self) -> None:
        pass


def _gradients(objective: Objective, record: Any, trained: list[Tensor]) -> Gradients:
    """The gradients of a batch of one; None for a weight that its loss does not use."""
    with torch.enable_grad():
        loss = _one_loss(objective(record))
        if not loss.requires_grad:
            return [None] * len(trained)
        found = torch.autograd.grad(loss, trained, allow_unused=True)
        return [g.to_dense() if g is not None and g.is_sparse else g for g in found]


def _sent(gradient: Tensor | None) -> Sent | None:
    """A tensor as bytes, which work for types that NumPy does not have."""
    if gradient is None:
        return None
    content = gradient.detach().cpu().clone(memory_format=torch.contiguous_format).reshape(-1)
    return content.view(torch.uint8).numpy(), gradient.dtype, tuple(gradient.shape)


def _received(sent: Sent | None) -> Tensor | None:
    return None if sent is None else torch.from_numpy(sent[0]).view(sent[1]).reshape(sent[2])


def _one_loss(losses: Any) -> Tensor:
    if not isinstance(losses, Tensor) or losses.shape not in ((1,), ()):
        many = isinstance(losses, Tensor)
        form = "more than one number" if many else type(losses).__name__
        raise UnsupportedModelError(
            f"loss={form}: must be one number where the batch is one record; use reduction='none' "
            "and average over everything but the records."
        )
    return losses.reshape(())


def _close(found: Gradients, wanted: Gradients, tolerance: float) -> bool:
    """Whether gradients are equal up to a share of the largest number; None means zeros."""
    for pair in zip(found, wanted, strict=True):
        given = [g for g in pair if g is not None and g.numel()]
        if given:
            a, b = (torch.zeros_like(given[0]) if g is None else g for g in pair)
            most = tolerance and max(tolerance, 8 * torch.finfo(b.dtype).eps)
            size = float(b.nan_to_num(0.0, 0.0, 0.0).abs().max())
            if not torch.allclose(a, b, rtol=most, atol=most * size, equal_nan=True):
                return False
    return True


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return itertools.chain(model.named_parameters(), model.named_buffers())


@contextmanager
def _untouched(model: nn.Module, by_value: bool = False) -> Iterator[None]:
    """Reject writes to weights and buffers, and their replacement.

    Args:
        model: contains them. by_value: whether to compare values too, because torch does not count
            writes through `.data`.
    """
    held = dict(_state(model))
    before = {name: (id(t), version(t)) for name, t in held.items()}
    values = {name: t.detach().clone() for name, t in held.items()} if by_value else {}
    try:
        yield
    finally:
        now = {name: (id(t), version(t)) for name, t in _state(model) if pass_of(t) is None}
        names = [name for name in {**before, **now} if now.get(name) != before.get(name)]
        names += [name for name, value in values.items() if not same(held[name].detach(), value)]
        if names:
            raise IsolationError(
                f"weights or buffers={names[:3]}: must not be written in a forward pass or the "
                "loss, and were; take the write out (running statistics, counters, max_norm), put "
                "the layer in eval mode, or use steppe.fix(model). After a step do not publish the "
                "model."
            )


@functools.cache
def _load() -> None:
    """Load what is loaded at first use, so that not every process loads it again."""
    with global_generators_kept():
        give_numbers_of(0)
        vmap(grad(torch.sum))(torch.zeros(1, 1))
