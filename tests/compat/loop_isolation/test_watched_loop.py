"""Records meet in the last mean of a user's loop, and nowhere else."""

from __future__ import annotations

import copy
import gc
import io
import json
import threading
from typing import Any

import pytest
import torch
from loop_cases import DO_NOT, MIX, Case
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from compat_loop import Loop, assert_gradients, classification_truth, start, vectors
from steppe.compat import BatchMemoryManager
from steppe.compat.loop_isolation import watched
from steppe.errors import IsolationError

RECORDS = 40


def run(case: Case) -> Loop:
    torch.manual_seed(0)
    loop = start(
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)),
        vectors(RECORDS),
        16,
        sigma=1.0,
        loss_reduction=case.reduction,
    )
    taken = 0
    while taken < case.steps:
        for x, y in loop.loader:
            loop.optimizer.zero_grad()
            case.loss(loop.model, x, y).backward()
            loop.optimizer.step()
            taken += 1
            if taken == case.steps:
                break
    return loop


@pytest.fixture(autouse=True)
def nothing_left() -> Any:
    yield
    assert _get_current_dispatch_mode_stack() == []


@pytest.mark.parametrize("name", MIX)
def test_loops_that_mix_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Batches of one size say nothing about the number of records: so many as not to be all alike.
    monkeypatch.setattr(watched, "_FIRST", MIX[name].steps)
    with pytest.raises(IsolationError, match=MIX[name].message):
        run(MIX[name])


@pytest.mark.parametrize("name", DO_NOT)
def test_loops_that_do_not_mix_run(name: str) -> None:
    loop = run(DO_NOT[name])
    (report,) = loop.engine.isolation
    assert report.isolation == "proven"
    assert report.watched == 2


def test_reads_are_noted() -> None:
    loop = run(DO_NOT["logged"])
    text = str(loop.engine.isolation[0])
    assert "loop_cases.py:" in text
    assert "not proven" in text


def test_the_gradient_is_that_of_an_unwatched_step() -> None:
    loop = start()
    truth = classification_truth(loop.model, vectors(12), 0.5)
    loop.run()
    assert loop.engine.isolation[0].watched == 1
    assert_gradients(loop.model, truth)


def test_tensors_are_plain_in_files_and_after_the_run() -> None:
    loop = start()
    kept = []
    for x, y in loop.loader:
        assert isinstance(x, Tensor)
        loss = loop.backward(x, y)
        saved = io.BytesIO()
        torch.save({"x": x, "loss": loss.detach()}, saved)
        saved.seek(0)
        assert type(torch.load(saved, weights_only=True)["x"]) is Tensor
        assert torch.equal(copy.deepcopy(x), x)
        loop.optimizer.step()
        kept += [x, y, loss, loss.detach() + 1]
        saved = io.BytesIO()
        torch.save(x, saved)
        saved.seek(0)
        assert type(torch.load(saved, weights_only=True)) is Tensor
    loop.engine.detach()
    for tensor in kept:
        assert type(tensor) is Tensor
        assert not vars(tensor)


@pytest.mark.parametrize("how", ["break", "raise", "next", "thread", "close", "detach"])
def test_nothing_stays_when_a_loop_is_left(how: str) -> None:
    loop = start()
    if how == "break":
        for x, _ in loop.loader:
            (x * 2).sum()
            break
    elif how == "raise":

        def failing() -> Tensor:
            for x, _ in loop.loader:
                (x * 2).sum()
                raise KeyError(x)
            return torch.zeros(0)

        with pytest.raises(KeyError) as error:
            failing()
        x = error.value.args[0]
    elif how == "next":
        x, _ = next(iter(loop.loader))
    elif how == "thread":
        thread = threading.Thread(target=lambda: loop.run())
        thread.start()
        thread.join()
        assert loop.engine.isolation[0].watched == 1
        return
    elif how == "close":
        batches = iter(loop.loader)
        x, _ = next(batches)
        batches.close()  # type: ignore[attr-defined]
    else:
        x, _ = next(iter(loop.loader))
        loop.engine.detach()
        assert type(x) is Tensor
        return
    assert _get_current_dispatch_mode_stack() == []
    loop.run()
    assert len(loop.engine.accountant) == 1
    loop.engine.detach()
    assert type(x) is Tensor
    gc.collect()


def test_pieces_are_followed() -> None:
    loop = start(sigma=1.0)
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=5, optimizer=loop.optimizer
    ) as pieces:
        for x, y in pieces:
            loop.backward(x, y)
            loop.optimizer.step()
    assert loop.engine.isolation[0].watched == 2


def test_pieces_that_mix_are_refused() -> None:
    loop = start(sigma=1.0)
    with BatchMemoryManager(
        data_loader=loop.loader, max_physical_batch_size=5, optimizer=loop.optimizer
    ) as pieces:
        x, y = next(iter(pieces))
        loss = F.cross_entropy(loop.model(x), y, reduction="none").max()
        with pytest.raises(IsolationError, match="loss=mixes"):
            loss.backward()


def test_closures_are_followed() -> None:
    loop = start(sigma=1.0)
    for x, y in loop.loader:

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            loop.optimizer.zero_grad()
            return loop.backward(x, y)

        loop.optimizer.step(closure)
    assert loop.engine.isolation[0].watched == 1

    def mixing(x: Tensor = x, y: Tensor = y) -> Tensor:
        loss = F.cross_entropy(loop.model(x), y, reduction="none").amax()
        loss.backward()
        return loss

    for x, y in loop.loader:
        with pytest.raises(IsolationError, match="loss=mixes"):
            loop.optimizer.step(lambda: mixing(x, y))  # noqa: B023
        break


def test_a_label_that_is_ignored_is_refused_in_every_step() -> None:
    data = vectors(RECORDS)
    loop = start(data=data, sigma=1.0)
    loop.run(3)
    data.tensors[1][3] = -100
    with pytest.raises(IsolationError, match="ignore_index=-100"):
        loop.run(1)
    assert len(loop.engine.accountant) == 3


def test_mixing_that_begins_later_is_refused() -> None:
    loop = start(data=vectors(RECORDS), sigma=1.0)
    loop.run(2)

    def go_on() -> None:
        for _ in range(8):
            for x, y in loop.loader:
                F.cross_entropy(loop.model(x), y, reduction="none").max().backward()
                loop.optimizer.step()

    with (
        pytest.warns(UserWarning, match="this batch comes again"),
        pytest.raises(IsolationError, match="loss=mixes"),
    ):
        go_on()
    assert len(loop.engine.accountant) == 2


def test_gradients_that_the_loop_takes_are_refused_by_name() -> None:
    loop = start()
    x, y = loop.batch()
    x.requires_grad_()
    loss = F.cross_entropy(loop.model(x), y)
    with pytest.raises(IsolationError, match=r"loop=torch.autograd.grad \(.*\): gradients that"):
        torch.autograd.grad(loss, x)


def test_a_number_that_was_read_is_one_for_logs() -> None:
    loop = start()
    x, y = loop.batch()
    loss = F.cross_entropy(loop.model(x), y)
    value, count = loss.item(), y.sum().item()
    assert f"{value:.4f}" == f"{float(loss.detach()):.4f}"
    assert json.loads(json.dumps([value, count])) == [float(value), int(count)]
    copied = copy.deepcopy((value, count))
    assert type(copied[0]) is float
    assert type(copied[1]) is int
    loss.backward()
    assert 0 < value < 50  # for the best one so far
    loop.optimizer.step()


def test_probed_follows_nothing() -> None:
    loop = start(sigma=1.0, isolation="probed")
    for x, y in loop.loader:
        F.cross_entropy(loop.model(x), y, reduction="none").max().backward()
        loop.optimizer.step()
    report = loop.engine.isolation[0]
    assert report.watched == 0
    assert "not checked" in str(report)


def test_each_is_refused_with_the_way_on() -> None:
    with pytest.raises(ValueError, match=r'steppe.make_private\(isolation="each"\)'):
        start(isolation="each")
