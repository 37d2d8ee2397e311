from __future__ import annotations

import pytest
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

from compat_loop import assert_gradients, classification_truth, images, small_cnn, start, vectors
from steppe.compat import BatchMemoryManager
from steppe.errors import ConfigurationError, MisuseError


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop, optim.Adagrad])
@pytest.mark.parametrize("largest", [1, 4, 5, 10, 100])
def test_pieces_equal_the_whole(make, largest: int) -> None:
    """k physical batches are one logical batch (#692): one step, one gradient, one charge."""
    model, data = nn.Linear(5, 2), vectors(10)
    truth = classification_truth(model, data, clip=0.5)
    optimizer = make(model.parameters(), lr=0.1)
    loop = start(model, data, optimizer=optimizer)
    before = model.weight.detach().clone()
    seen = []
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=largest, optimizer=loop.optimizer
    ) as pieces:
        for x, y in pieces:
            assert torch.equal(before, model.weight)
            seen.append(len(x))
            loop.optimizer.zero_grad()
            loop.backward(x, y)
            loop.optimizer.step()
    assert sum(seen) == 10
    assert max(seen) <= largest
    assert len(loop.engine.accountant) == 1
    assert_gradients(model, truth)
    assert not torch.equal(before, model.weight)


def test_pieces_of_a_network_over_many_steps() -> None:
    """Every mode of the loop, with Poisson batches and empty ones."""
    model = small_cnn()
    loop = start(model, images(40), 2, sigma=1.0)
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=2, optimizer=loop.optimizer
    ) as pieces:
        for _ in range(2):
            for x, y in pieces:
                loop.backward(x, y)
                loop.optimizer.step()
    assert len(loop.engine.accountant) == 40
    assert all(p.isfinite().all() for p in model.parameters())


def test_nothing_is_left_over_when_left_early() -> None:
    """Left early, a stale flag and an un-noised sum remained (1.6.0, live)."""
    model, data = nn.Linear(5, 2), vectors(10)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    manager = BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=3, optimizer=loop.optimizer
    )
    with manager as pieces:
        for place, (x, y) in enumerate(pieces):
            loop.backward(x, y)
            loop.optimizer.step()
            if place == 1:
                break
    assert len(loop.engine.accountant) == 0
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(MisuseError, match="no drawn batch waits"):
        loop.optimizer.step()
    loop.run()
    assert_gradients(model, truth)
    assert len(loop.engine.accountant) == 1


def test_nothing_is_left_over_when_left_between_backward_and_step() -> None:
    model, data = nn.Linear(5, 2), vectors(10)
    truth = classification_truth(model, data, clip=0.5)
    loop = start(model, data)
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=3, optimizer=loop.optimizer
    ) as pieces:
        x, y = next(iter(pieces))
        loop.backward(x, y)
    loop.run()
    assert_gradients(model, truth)


def test_weights_stand_still_between_pieces_under_momentum_and_decay() -> None:
    model = nn.Linear(5, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    loop = start(model, vectors(10), optimizer=optimizer)
    loop.run()  # momentum is there now, and the last gradient still in .grad
    before = model.weight.detach().clone()
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=5, optimizer=loop.optimizer
    ) as pieces:
        x, y = next(iter(pieces))
        loop.backward(x, y)
        loop.optimizer.step()
        assert torch.equal(before, model.weight)


def test_a_piece_may_not_be_left_out() -> None:
    loop = start(data=vectors(10))
    with (
        BatchMemoryManager(
            data_loader=loop.loader, max_physical_batch_size=3, optimizer=loop.optimizer
        ) as pieces,
        pytest.raises(MisuseError, match="a batch was drawn and not stepped"),
    ):
        for _ in pieces:
            pass


def test_pieces_have_no_length() -> None:
    """A number that is up to chance would mislead schedulers; the steps of a pass are known."""
    loop = start(data=vectors(10), batch_size=5)
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=3, optimizer=loop.optimizer
    ) as pieces:
        assert pieces
        with pytest.raises(
            TypeError, match=r"len=unknown: .* use len\(\) of the loader that make_pr"
        ):
            len(pieces)
    assert len(loop.loader) == 2


def test_wrong_partners_are_refused() -> None:
    loop, other = start(), start()
    with pytest.raises(ConfigurationError, match="optimizer='SGD': must be the optimizer of the"):
        BatchMemoryManager(
            data_loader=loop.loader, max_physical_batch_size=3, optimizer=other.optimizer
        )
    with pytest.raises(ConfigurationError, match="data_loader='list': must be the loader that"):
        BatchMemoryManager(data_loader=[], max_physical_batch_size=3, optimizer=loop.optimizer)
    with pytest.raises(ConfigurationError, match="max_physical_batch_size=0: must be a whole"):
        BatchMemoryManager(
            data_loader=loop.loader, max_physical_batch_size=0, optimizer=loop.optimizer
        )


def test_parts_of_different_draws_are_not_added_up() -> None:
    """Of ten passes at once, each would add the same record to one sum: ten times the clip."""
    loop = start(nn.Linear(5, 2), vectors(3))
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=1, optimizer=loop.optimizer
    ) as pieces:
        passes = [iter(pieces) for _ in range(10)]
        for one in passes:
            loop.backward(*next(one))
            loop.optimizer.step()
        for one in passes[:-1]:
            with pytest.raises(MisuseError, match="parts of a drawn batch must follow one another"):
                next(one)
        for x, y in passes[-1]:
            loop.backward(x, y)
            loop.optimizer.step()
    assert len(loop.engine.accountant) == 1


def test_a_part_does_not_go_without_those_before_it() -> None:
    loop = start(nn.Linear(5, 2), vectors(3))
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=1, optimizer=loop.optimizer
    ) as pieces:
        left = iter(pieces)
        loop.backward(*next(left))
        loop.optimizer.step()
    with pytest.raises(MisuseError, match="the block was left"):
        next(left)
    loop.run()
    assert len(loop.engine.accountant) == 1


def test_a_draw_that_was_left_half_way_comes_again_whole() -> None:
    data = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60, dtype=torch.long))
    loop = start(nn.Linear(1, 2), data, 30)
    manager = BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=4, optimizer=loop.optimizer
    )
    with manager as pieces:
        x, y = next(iter(pieces))
        loop.backward(x, y)
        loop.optimizer.step()
    again, _ = loop.batch()
    assert torch.equal(again[: len(x)], x)
    with manager as pieces:
        found = []
        for part, y in pieces:
            loop.backward(part, y)
            loop.optimizer.step()
            found.append(part)
            if len(loop.engine.accountant):
                break
    assert torch.equal(torch.cat(found), again)
