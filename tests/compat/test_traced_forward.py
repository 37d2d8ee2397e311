"""What is random in a traced pass is secret, and whatever changes in the module is probed again."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from compat_loop import Loop, start, vectors
from global_generators import states
from steppe.compat import traced_forward
from steppe.errors import IsolationError, UnsupportedModelError
from steppe.probing import ProbeCache, cache
from steppe.randomness.global_generators import seed_global_generators

RECORDS = 30  # no number of records that a probe makes up


class Noted(nn.Module):
    """A layer behind dropout that remembers its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.masks = nn.Linear(5, 2), list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        mask = F.dropout(torch.ones(x.shape), training=self.training)
        if len(x) == RECORDS:
            self.masks.append(mask)
        return self.layer(x * mask)


def test_dropout_of_a_traced_pass_does_not_follow_the_seed() -> None:
    masks = []
    for _ in range(2):
        model = Noted()
        loop = start(model, vectors(RECORDS))
        for _ in range(3):
            seed_global_generators(0)
            loop.run()
        masks += model.masks
    assert len(masks) == 6
    assert not any(torch.equal(a, b) for place, a in enumerate(masks) for b in masks[:place])


def test_dropout_outside_the_traced_pass_follows_the_seed() -> None:
    model = Noted()
    loop = start(model, vectors(RECORDS))
    loop.run()
    x = torch.ones(RECORDS, 5)
    for _ in range(2):
        seed_global_generators(0)
        model(x)
    assert torch.equal(*model.masks[-2:])


class Jittered(Dataset[tuple[Tensor, int]]):
    """Records that are read with noise."""

    def __len__(self) -> int:
        return RECORDS

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.rand(5) + random.random() + float(np.random.rand()), row % 2


def test_what_a_data_set_draws_does_not_follow_the_seed() -> None:
    seen = []
    for _ in range(2):
        loop = start(data=Jittered())
        for _ in range(3):
            seed_global_generators(0)
            x, _ = loop.batch()
            seen.append(x)
    rows = torch.cat(seen)
    assert len(rows) == 6 * RECORDS
    assert len(rows.unique(dim=0)) == len(rows)


@pytest.mark.parametrize("data", [vectors(RECORDS), Jittered()], ids=["tensors", "jittered"])
def test_generators_of_the_user_are_as_they_were(data: Any) -> None:
    loop = start(Noted(), data)
    seed_global_generators(0)
    before = states()
    loop.run(3)
    assert states() == before


def test_generators_are_as_they_were_after_a_failed_pass() -> None:
    class Failing(Noted):
        def forward(self, x: Tensor) -> Tensor:
            output = super().forward(x)
            if len(x) == RECORDS:
                raise KeyError
            return output

    loop = start(Failing(), vectors(RECORDS))
    x, _ = loop.batch()
    seed_global_generators(0)
    before = states()
    with pytest.raises(KeyError):
        loop.model(x)
    assert states() == before


def test_nothing_of_an_interrupted_pass_is_left_at_the_next() -> None:
    """Hooks do not follow Ctrl-C, so the pass ends when another begins."""

    class Interrupted(Noted):
        def forward(self, x: Tensor) -> Tensor:
            real = not isinstance(x, FakeTensor)
            if real and len(x) == RECORDS and not self.masks:
                super().forward(x)
                raise KeyboardInterrupt
            return super().forward(x)

    loop = start(Interrupted(), vectors(RECORDS))
    seed_global_generators(0)
    before = states()
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    loop.run()
    assert torch.overrides._get_current_function_mode() is None
    assert states() == before
    assert len(loop.engine.accountant) == 1


def test_an_empty_batch_leaves_the_generators_alone_too() -> None:
    """Otherwise the next number of the user tells whether a batch was empty."""
    loop = start(Noted(), TensorDataset(torch.zeros(40, 5), torch.zeros(40).long()), 1, sigma=1.0)
    seed_global_generators(0)
    before, empty = states(), 0
    for x, y in loop.loader:
        loop.backward(x, y)
        loop.optimizer.step()
        empty += len(x) == 0
        assert states() == before
    assert empty


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def centre_output(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return output - output.mean(0)


def centre_input(module: nn.Module, inputs: Any) -> Any:
    return (inputs[0] - inputs[0].mean(0),)


def centre_gradient(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    return tuple(None if g is None else g - g.mean(0) for g in inputs)


CHANGES: dict[str, Callable[[Any], object]] = {
    "forward hook": lambda m: m[1].register_forward_hook(centre_output),
    "forward hook of the whole": lambda m: m.register_forward_hook(centre_output),
    "forward pre-hook": lambda m: m[2].register_forward_pre_hook(centre_input),
    "layer": lambda m: m.__setitem__(1, Centred()),
    "forward": lambda m: setattr(m[1], "forward", Centred().forward),
}


def three_layers() -> Loop:
    return start(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)))


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_the_first_batch_is_probed(name: str) -> None:
    loop = three_layers()
    loop.run()
    CHANGES[name](loop.model)
    with pytest.raises(IsolationError):
        loop.run()
    assert len(loop.engine.accountant) == 1


def test_a_backward_hook_added_after_the_first_batch_is_probed() -> None:
    """It changes gradients and no output, so that the engine's would differ from autograd's."""
    loop = three_layers()
    loop.run()
    loop.model[1].register_full_backward_hook(centre_gradient)
    with pytest.raises(UnsupportedModelError):
        loop.run()
    assert len(loop.engine.accountant) == 1


def test_an_unchanged_module_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each of its settings, and at the passes at which every model is looked at again."""
    monkeypatch.setattr(traced_forward, "LOOK_AGAIN", {7})
    calls = []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return probe(*args, **options)

    probe = cache.probe
    monkeypatch.setattr(cache, "probe", counted)
    again = []

    def counted_again(self: ProbeCache) -> None:
        again.append(self)
        look_again(self)

    look_again = ProbeCache.look_again
    monkeypatch.setattr(ProbeCache, "look_again", counted_again)
    loop = three_layers()
    loop.run(3)
    assert len(calls) == 1
    handle = loop.model[1].register_forward_hook(lambda module, inputs, output: None)
    loop.run(2)
    assert len(calls) == 2
    handle.remove()
    loop.run(2)
    assert len(calls) == 2, "as it was in the beginning"
    assert not again
    loop.run(2)
    assert len(again) == 1
    assert len(calls) == 2


def test_mixing_that_begins_with_many_records_is_refused() -> None:
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0) if len(x) >= 16 else x

    loop = start(nn.Sequential(nn.Linear(5, 5), Centred(), nn.Linear(5, 3)), vectors(RECORDS))
    with pytest.raises(IsolationError, match=r"\(Centred\)': must treat every record alone"):
        loop.run()


class Switched(nn.Module):
    """Gives its hidden layer as well, once it is told to, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(5, 3), nn.Linear(3, 2)
        self.all = False

    def forward(self, x: Tensor) -> Any:
        hidden = torch.tanh(self.hidden(x))[:, None]
        out = self.head(hidden[:, 0])
        return (hidden, out) if self.all else (out,)


def test_a_model_may_give_more_outputs_in_mid_run() -> None:
    loop = start(Switched())
    for step in range(3):
        loop.model.all = step > 0
        for x, y in loop.loader:
            F.cross_entropy(loop.model(x)[-1], y).backward()
            loop.optimizer.step()
    assert len(loop.engine.accountant) == 3
