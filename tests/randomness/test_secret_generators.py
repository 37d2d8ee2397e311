"""Random numbers of the user's own code are secret, whatever seed the script has set."""

from __future__ import annotations

import ast
import functools
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import steppe
from global_generators import states
from steppe.errors import MisuseError
from steppe.noise import SecureSource, SeededSource
from steppe.randomness.global_generators import global_generators_kept, seed_global_generators
from steppe.randomness.secret_generators import SecretGenerators, SecretWorker

DRAWS: dict[str, Callable[[], float]] = {
    "torch": lambda: torch.rand(()).item(),
    "torch, normal": lambda: torch.randn(()).item(),
    "python": random.random,
    "python, normal": lambda: random.gauss(0.0, 1.0),
    "numpy": lambda: float(np.random.rand()),
    "numpy, normal": lambda: float(np.random.randn()),
}


@pytest.mark.parametrize("name", DRAWS)
def test_numbers_are_fresh_in_every_block_and_the_generators_are_put_back(name: str) -> None:
    draw, dice = DRAWS[name], SecretGenerators(SecureSource(), "test")
    seed_global_generators(0)
    draw()  # may leave a second normal number for the next call
    before, found = states(), []
    for _ in range(9):
        with dice.hidden():
            found.append(draw())
        assert states() == before
    assert len(set(found)) == 9
    assert draw() not in found


def test_generators_are_put_back_after_an_error() -> None:
    seed_global_generators(0)
    before = states()
    dice = SecretGenerators(SecureSource(), "test")

    def fails() -> None:
        with dice.hidden():
            for draw in DRAWS.values():
                draw()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert states() == before


def test_a_seeded_source_gives_the_same_numbers_again() -> None:
    def numbers(purpose: str = "test") -> list[float]:
        source = SeededSource(3)
        dice = SecretGenerators(source, purpose)
        with dice.hidden():
            found = [draw() for draw in DRAWS.values()]
        assert (source.words(5) == SeededSource(3).words(5)).all(), "the run's own stay as they are"
        return found

    assert numbers() == numbers()
    assert not set(numbers()) & set(numbers("another"))
    assert len(set(numbers())) == len(DRAWS), "each generator has numbers of its own"


def test_all_bits_of_torchs_state_are_drawn() -> None:
    """The same twister in NumPy, from the words that lie in torch's state, gives the same numbers.

    A seed would be 32 bits, which can all be tried.
    """
    with SecretGenerators(SecureSource(), "test").hidden():
        key = torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64)
        found = torch.empty(2000, dtype=torch.int32).random_().numpy()
    twin = np.random.RandomState()
    twin.set_state(("MT19937", key.astype(np.uint32), 624, 0, 0.0))
    words = twin.randint(0, 2**32, size=2000, dtype=np.uint64)
    assert (found == words.astype(np.int64) % 2**31).all()
    assert (key < 2**32).all()
    assert len(set(key.tolist())) > 620


@pytest.mark.parametrize("seeding", [torch.manual_seed, lambda _: torch.set_rng_state(KNOWN)])
def test_a_seed_set_in_a_block_is_gone_in_the_next(seeding: Callable[[int], object]) -> None:
    dice, seeded = SecretGenerators(SecureSource(), "test"), torch.Generator().set_state(KNOWN)
    known = [float(torch.rand((), generator=seeded)) for _ in range(9)]
    found = []
    for number in range(4):
        with dice.hidden():
            if number == 1:
                seeding(7)
            found.append(torch.rand(()).item())
    assert [value in known for value in found] == [False, True, False, False]


KNOWN = torch.Generator().manual_seed(7).get_state()


def test_an_interrupted_block_is_not_repeated() -> None:
    dice, found = SecretGenerators(SecureSource(), "test"), []

    def interrupted() -> None:
        with dice.hidden():
            found.append(torch.rand(()).item())
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            interrupted()
        with dice.hidden():
            found.append(torch.rand(()).item())
            with dice.hidden():
                found.append(torch.rand(()).item())
    assert len(set(found)) == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_process_has_numbers_of_its_own() -> None:
    dice = SecretGenerators(SecureSource(), "test")

    def draw() -> float:
        with dice.hidden():
            return torch.rand(()).item()

    draw()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, repr([draw(), draw()]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = ast.literal_eval(os.read(read, 1000).decode())
    assert not {draw(), draw()} & set(theirs)
    assert len(set(theirs)) == 2


def test_blocks_of_several_threads_take_turns() -> None:
    seed_global_generators(0)
    before, found = states(), []

    def run() -> None:
        dice = SecretGenerators(SecureSource(), "test")
        for _ in range(50):
            with dice.hidden():
                found.append(torch.rand(()).item() + random.random() + np.random.rand())
                time.sleep(1e-4)  # gives the other thread its chance to come between

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert states() == before
    assert len(set(found)) == 150


@pytest.mark.parametrize("draws", [1, 312, 624])
@pytest.mark.parametrize("first", [1, 2, 3, 5, 17, 20])
def test_numpy_and_python_are_secret_whenever_and_however_much_they_are_used(
    first: int, draws: int
) -> None:
    """After so many draws a twister stands where it stood, with other words."""
    dice, found = SecretGenerators(SecureSource(), "test"), []
    for number in range(1, first + 3):
        seed_global_generators(0)
        with dice.hidden():
            if number >= first:
                found += [max(random.random() for _ in range(draws)), np.random.rand(draws).max()]
    assert len(set(found)) == len(found) == 6


def test_another_generator_of_numpys_is_refused_in_words() -> None:
    usual, before = np.random.get_bit_generator(), random.getstate()
    np.random.set_bit_generator(np.random.PCG64(0))
    try:
        with (
            pytest.raises(MisuseError, match=r"^np.random.get_bit_generator\(\)=PCG64: must be MT"),
            SecretGenerators(SecureSource(), "test").hidden(),
        ):
            pass
    finally:
        np.random.set_bit_generator(usual)
    assert random.getstate() == before


def test_a_workers_numbers_come_from_all_bits_of_its_seed() -> None:
    asked: list[tuple[int, int]] = []

    def own(worker: int) -> None:
        asked.append((worker, torch.initial_seed()))
        seed_global_generators(0)

    seeds = [5, 5 + 2**32, 5 + 2**40]
    numbers = []
    with global_generators_kept():
        for seed in seeds:
            torch.manual_seed(seed)
            SecretWorker(own)(3)
            assert torch.initial_seed() == seed
            numbers += [draw() for draw in DRAWS.values()]
    assert len(set(numbers)) == 3 * len(DRAWS), "a seed of 32 bits, or the user's own"
    assert asked == [(3, seed) for seed in seeds], "users' own worker_init_fn read it"


class Noted(nn.Module):
    """Random in the way given; remembers the numbers that its records got."""

    def __init__(self, draw: Callable[[], float] | None = None) -> None:
        super().__init__()
        self.layer, self.draw, self.seen = nn.Linear(4, 2), draw, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        mask = F.dropout(torch.ones(len(x), 4)) if self.draw is None else self.draw() + 1.0
        self.seen.append(torch.as_tensor(mask))
        return self.layer(x * mask)


def steps_of(model: nn.Module, data: Any, steps: int = 3) -> None:
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-3, population=60, batch_size=60, steps=steps)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    if isinstance(model, Noted):
        model.seen.clear()  # by the probe
    for batch in private:
        private.step(batch)


def test_a_rare_draw_of_a_data_set_is_secret_too() -> None:
    """One record in sixty draws, so that most batches read without it would show no use."""

    class Rare(Dataset[tuple[Tensor, int]]):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, row: int) -> tuple[Tensor, int]:
            jitter = float(np.random.rand()) if row == 7 else 0.0
            return torch.full((4,), jitter), row % 2

    np.random.seed(0)
    known = set(np.random.rand(1000).astype(np.float32).tolist())
    np.random.seed(0)
    plan = steppe.Plan(noise_multiplier=1.0, delta=1e-3, population=60, batch_size=6, steps=60)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    private = steppe.make_private(model, optimizer, Rare(), plan, loss=F.cross_entropy)
    seen = []
    for x, y in private:
        seen += x[:, 0].tolist()
        private.step((x, y))
    drawn = {value for value in seen if value}
    assert drawn
    assert not drawn & known


@pytest.mark.parametrize("draw", [None, random.random, np.random.rand])
def test_what_a_model_draws_in_a_step_does_not_follow_the_seed(
    draw: Callable[[], float] | None,
) -> None:
    seen = []
    for _ in range(2):
        seed_global_generators(0)
        model = Noted(draw)
        steps_of(model, (torch.randn(60, 4), torch.randint(2, (60,))))
        seen += model.seen
    assert len(seen) == 6
    assert not any(torch.equal(a, b) for i, a in enumerate(seen) for b in seen[:i])


def noted_mask(masks: list[Tensor], _: nn.Module, x: tuple[Tensor], y: Tensor) -> None:
    masks.append((y == 0) & (x[0] != 0))


def test_dropout_that_comes_after_the_set_up_is_secret() -> None:
    """A step asks what the model is then: a network that drew nothing may begin to."""
    steps: list[Tensor] = []
    for _ in range(2):
        masks: list[Tensor] = []
        seed_global_generators(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 2))
        plan = steppe.Plan(noise_multiplier=1.0, delta=1e-3, population=60, batch_size=60, steps=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = (torch.randn(60, 4), torch.randint(2, (60,)))
        private = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
        batches = iter(private)
        private.step(next(batches))
        model[1] = dropout = nn.Dropout()
        batch = next(batches)
        dropout.register_forward_hook(functools.partial(noted_mask, masks))
        private.step(batch)
        steps.append(masks[-1])  # the others are the probe's
        assert len(steps[-1]) == 60
    assert not torch.equal(*steps)


def test_a_model_that_draws_nothing_needs_no_secret_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rolled = []
    usual = SecretGenerators.hidden
    monkeypatch.setattr(
        SecretGenerators, "hidden", lambda *args: rolled.append(args) or usual(*args)
    )
    data = (torch.randn(60, 4), torch.randint(2, (60,)))
    steps_of(nn.Linear(4, 2), data)
    drawn = len(rolled)  # by the sampler's own
    rolled.clear()
    steps_of(nn.Sequential(nn.Linear(4, 2), nn.Dropout()), data)
    assert len(rolled) == drawn + 3


class Jittered(Dataset[tuple[Tensor, int]]):
    """Records that are read with noise."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.rand(4) + random.random() + float(np.random.rand()), row % 2


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_data_set_draws_does_not_follow_the_seed(workers: int) -> None:
    seen: list[Tensor] = []

    def noted(records: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        return torch.stack([x for x, _ in records]), torch.tensor([y for _, y in records])

    for _ in range(2):
        seed_global_generators(0)
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(
            Jittered(),
            num_workers=workers,
            collate_fn=noted,
            generator=generator,
            worker_init_fn=seed_global_generators if workers else None,
        )
        model = nn.Linear(4, 2)
        plan = steppe.Plan(noise_multiplier=1.0, delta=1e-3, population=60, batch_size=60, steps=2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        private = steppe.make_private(model, optimizer, loader, plan, loss=F.cross_entropy)
        for x, y in private:
            seen.append(x)
            private.step((x, y))
    assert len(torch.cat(seen).unique(dim=0)) == sum(map(len, seen))


def test_a_users_own_numbers_go_on_as_if_there_were_no_private_steps() -> None:
    model, data = Noted(), (torch.zeros(60, 4), torch.zeros(60, dtype=torch.long))
    seed_global_generators(0)
    before = states()
    steps_of(model, data)
    assert states() == before
