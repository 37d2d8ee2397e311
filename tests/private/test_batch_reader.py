"""Which records the loop offers when something came between a draw and its step."""

import re
from typing import Any

import pytest
import torch
from private_cases import N, parts, private
from torch import Tensor
from torch.nn import functional as F

import steppe
from silent import Silent
from steppe.errors import DataError, MisuseError, SteppeError


def test_accumulated_parts_are_one_step() -> None:
    sums = []
    for split in (False, True):
        model, optimizer, data, plan = parts(noise=Silent())
        source = steppe.SeededSource(3)
        loop = steppe.make_private(
            model, optimizer, data, plan, loss=F.cross_entropy, source=source
        )
        for batch in loop:
            if split:
                half = len(batch[0]) // 2
                loop.accumulate(tuple(t[:half] for t in batch))
                loop.accumulate(tuple(t[half:] for t in batch))
                loop.step()
            else:
                loop.step(batch)
        sums.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.allclose(*sums, rtol=1e-4, atol=1e-6)


def test_take_gives_an_epoch_at_a_time() -> None:
    loop = private()
    for _ in range(3):
        for batch in loop.batches(2):
            loop.step(batch)
        with torch.no_grad():
            loop.model.eval()
            loop.model(torch.zeros(1, 6))
            loop.model.train()
    assert len(loop) == 0


def test_a_drawn_batch_must_be_stepped_once_and_whole() -> None:
    loop = private()
    batches = iter(loop)
    batch = next(batches)
    with pytest.raises(MisuseError, match="records: must be the batch just drawn"):
        loop.step(tuple(torch.cat([t, t[:1]]) for t in batch))
    with pytest.raises(MisuseError, match="a batch was drawn and not stepped"):
        next(batches)
    assert loop.steps_done == 0
    loop.step(batch)
    with pytest.raises(MisuseError, match="must be the batch just drawn"):
        loop.step(batch)


def test_a_read_error_offers_the_same_draw_again() -> None:
    class Flaky(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.fail = False
            self.asked: list[int] = []

        def __len__(self) -> int:
            return N

        def __getitem__(self, i: int) -> tuple[Tensor, int]:
            self.asked.append(i)
            if self.fail:
                raise OSError("network file system hiccup")
            return torch.full((6,), float(i)), i % 3

    model, optimizer, _, plan = parts(batch_size=50)
    data = Flaky()
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    loop.step(next(iter(loop)))
    data.fail, data.asked = True, []
    with pytest.raises(OSError, match="hiccup"):
        next(iter(loop))
    first = data.asked[0]
    data.fail = False
    batch = next(iter(loop))
    assert int(batch[0][0, 0]) == first
    loop.step(batch)
    for batch in loop:
        loop.step(batch)
    assert loop.steps_done == 6


def test_a_premature_step_keeps_the_accumulated_parts() -> None:
    loop = private()
    batch = next(iter(loop))
    half = len(batch[0]) // 2
    loop.accumulate(tuple(t[:half] for t in batch))
    with pytest.raises(MisuseError, match="must be the batch just drawn"):
        loop.step()
    loop.accumulate(tuple(t[half:] for t in batch))
    loop.step()
    assert loop.steps_done == 1


def test_parts_that_are_no_batch_or_too_many_do_not_stay() -> None:
    loop = private()
    batch = next(iter(loop))
    with pytest.raises(DataError):
        loop.accumulate(5)
    loop.accumulate(batch)
    loop.accumulate(batch)
    with pytest.raises(MisuseError, match="must be the batch just drawn") as caught:
        loop.step()
    assert str(len(batch[0])) not in str(caught.value)  # how many were drawn is private
    loop.step(batch)
    assert loop.steps_done == 1


def test_an_interrupt_before_the_charge_keeps_draws_and_steps_together() -> None:
    """The draw of a step belongs to the number of the step, whatever happened before."""
    asked: list[int] = []

    class Noted(steppe.Poisson):
        def begin(self, *arguments: Any) -> Any:
            draw = super().begin(*arguments)

            def noted(step: int, source: Any) -> Tensor:
                asked.append(step)
                return draw(step, source)

            return noted

    run = private(sampling=Noted())
    charge = run._step._charge

    def interrupted() -> float:
        raise KeyboardInterrupt

    run._step._charge = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.step(next(iter(run)))
    run._step._charge = charge
    for batch in run:
        run.step(batch)
    assert run.steps_done == run.plan.total_steps
    assert asked == list(range(run.plan.total_steps))


def test_a_loop_that_was_left_is_offered_the_same_draw() -> None:
    run = private()
    run.step(next(iter(run)))
    left, _ = next(iter(run))
    before = left.clone()
    left.mul_(0.0)
    ((again, labels),) = run.batches(1)
    assert torch.equal(again, before), "read anew, not as the loop left it"
    run.step((again, labels))
    assert run.steps_done == 2


def test_no_error_tells_how_many_records_were_drawn() -> None:
    run = private(batch_size=50)
    x, y = next(iter(run))
    with pytest.raises(SteppeError) as caught:
        run.step((x, y[1:]))
    assert not {str(len(x)), str(len(x) - 1)} & set(re.findall(r"\d+", str(caught.value)))
