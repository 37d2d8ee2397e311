"""A record's gradient is that of all passes of the module on a batch, and is clipped once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compat_loop import Loop, assert_gradients, clipped_mean, images, small_cnn, start, vectors
from steppe.errors import IsolationError

CLIP = 0.5


def two_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Real rows and made-up ones, as of a discriminator."""
    return F.cross_entropy(model(x), y) + F.cross_entropy(
        model(x.flip(1) + 1), torch.zeros(len(x), dtype=torch.long)
    )


def one_after_another(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(torch.cat([model(x), x[:, :3]], 1)), y)


@pytest.mark.parametrize("loss", [two_losses, one_after_another])
@pytest.mark.parametrize("backwards", [1, 2])
def test_the_gradient_is_the_clipped_mean_of_both_passes(loss: object, backwards: int) -> None:
    model, data = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)), vectors(9)
    x, y = data.tensors
    truth = clipped_mean(
        model,
        [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))],
        lambda m, record: loss(m, *record),  # type: ignore[operator]
        CLIP,
        len(x),
    )
    loop = start(model, data, clip=CLIP)
    a, b = loop.batch()
    order = [(x == row).all(1).nonzero().item() for row in a.as_subclass(Tensor)]
    assert sorted(order) == list(range(9))
    total = loss(model, a, b)  # type: ignore[operator]
    for _ in range(backwards):
        (total / backwards).backward(retain_graph=True)
    loop.optimizer.step()
    assert_gradients(model, truth)


def test_a_convolutional_network_with_two_views() -> None:
    model, data = small_cnn(), images(9)

    def views(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (F.cross_entropy(m(x), y) + F.cross_entropy(m(x.flip(3)), y)) / 2

    x, y = data.tensors
    records = [(x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    truth = clipped_mean(model, records, lambda m, record: views(m, *record), CLIP, len(x))
    loop = start(model, data, clip=CLIP)
    views(model, *loop.batch()).backward()
    loop.optimizer.step()
    assert_gradients(model, truth)


def run(loop: Loop, steps: int, first: int = 0) -> None:
    for number in range(first, first + steps):
        x, y = loop.batch()
        noise, label = torch.randn(len(x), 5), torch.zeros(len(x), dtype=torch.long)
        loss = F.cross_entropy(loop.model(x), y) + F.cross_entropy(loop.model(noise), label)
        if number == 3:
            loss = loss + F.cross_entropy(loop.model(x.roll(1, 0)), y)
        loss.backward()
        loop.optimizer.step()


def test_every_pass_is_followed() -> None:
    loop = start(data=vectors(40), batch_size=20, sigma=1.0)
    run(loop, 3)
    with pytest.warns(UserWarning, match="comes again"):
        run(loop, 1, 3)
    with pytest.raises(IsolationError, match="argument=2 axes: row i"):
        run(loop, 1, 3)
    assert len(loop.engine.accountant) == 3


def test_records_that_meet_in_the_second_pass_are_refused() -> None:
    loop = start(sigma=1.0)
    x, y = loop.batch()
    out = loop.model(x)
    with pytest.raises(IsolationError, match="before the module"):
        loop.model(x - x.mean(0))
    del out, y
