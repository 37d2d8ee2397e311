"""Records one at a time: isolated by construction, whatever model and loss do with a batch.

Each record goes through the model as a batch of one, so that the user's code has no other record to
look at. `torch.func.vmap` does that for many at once, and there code reads no values. Where vmap
cannot, because the code reads values or writes in place, every record has a forked process of its
own: what the code keeps from it in memory goes with that process.
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
        model: where they are.

    Attributes:
        way: "vmap" or "one by one", once it is chosen.
        why: why not vmap, in torch's words where they are torch's; empty where it is vmap.

    Guarantees:
        A record's row depends on that record, the weights, random numbers of its own and what the
        code held before the step. By vmap, code reads no value. A tensor kept from another pass
        raises `IsolationError` when it is used, and a write to a weight or buffer raises it too.
        Code that would be handed the whole batch is refused: modes, kernels, kinds of tensors and
        vmap rules of its own. One by one, a record has a process of its own and a secret seed of
        its own, so that no number, list, exception or seed reaches the next. Not followed are
        memory, files and sockets that processes share, threads, records that the code held before,
        and, by vmap, C++ extensions, code that takes vmap's tensors apart, and counters of passes
        that a search of the objective and the model at set-up does not reach.
    """

    def __init__(self, parameters: Mapping[str, Tensor], model: nn.Module) -> None:
        self._parameters, self._model = parameters, model
        self.way = self.why = ""

    def choose(self, objective: Objective, example: Any) -> str:
        """Try both ways at set-up; weights, buffers and random numbers stay as they were.

        Args:
            objective: maps a batch to one loss for each record.
            example: synthetic records, two or more.

        Returns:
            The way: vmap where it works, gives the gradients of autograd, and every pass finds what
            the one before found.
        """
        require_no_modes()
        _load()
        for _, tensor in _state(self._model):
            if pass_of(tensor) is not None:  # an earlier set-up, which put the value back
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
            # By value: `.data` hides writes from torch's count of them.
            require_steady(self._model, objective, first, _SEED)
            try:
                found = self._in_passes(objective, by_vmap, example)
            except Exception as error:  # whatever torch or the model says
                self.way, self.why = ONE_BY_ONE, first_line(error)
            else:
                self.way, self.why = VMAP, ""
                # Where random numbers move gradients, the ways draw different ones.
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
        """The gradients by vmap, if the next pass finds all as this one did.

        How many passes there are depends on how many records were drawn. What they leave behind
        stays in a process of its own where there can be one.
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
        """Every record in a process of its own, as many at once as torch may use threads."""
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
        """Why records cannot have processes of their own, if so."""
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
    """In place of a process, for synthetic records where there can be none."""

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
    """As bytes, which also hold types that NumPy does not know."""
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
    """Whether gradients are the same up to a part of the largest number; None stands for zeros."""
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
    """Refuse writes to weights and buffers, and others in their places.

    Args:
        model: where they are.
        by_value: whether to compare values too, since `.data` hides writes from torch's count.
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
    """What is loaded at its first use, so that every process of its own does not do that again."""
    with global_generators_kept():
        give_numbers_of(0)
        vmap(grad(torch.sum))(torch.zeros(1, 1))
