"""Losses as people write them become one number for each record."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.errors import ConfigurationError, DataError, UnsupportedModelError
from steppe.gradients import objective_of, per_record


def test_functions_and_modules_of_torch() -> None:
    out, target = torch.randn(4, 3), torch.randint(3, (4,))
    wanted = torch.stack([F.cross_entropy(out[i : i + 1], target[i : i + 1]) for i in range(4)])
    criterion = nn.CrossEntropyLoss()
    assert torch.allclose(per_record(F.cross_entropy)(out, target), wanted)
    assert torch.allclose(per_record(criterion)(out, target), wanted)
    assert criterion.reduction == "mean"


def test_tokens_are_averaged_over_their_public_number() -> None:
    out, target = torch.randn(4, 3, 5), torch.randint(3, (4, 5))
    target[0, 2:] = -100  # ignored tokens count zero; the divisor does not depend on them
    values = F.cross_entropy(out, target, reduction="none")
    assert torch.allclose(per_record(F.cross_entropy)(out, target), values.mean(1))


@pytest.mark.parametrize("reduction", ["sum", "batchmean"])
def test_losses_that_add_up_do_so_within_a_record(reduction: str) -> None:
    """Over the records they give torch's own sum or mean of sums."""
    output, target = torch.rand(6, 5).log(), torch.rand(6, 5)
    expected = F.kl_div(output, target, reduction=reduction)
    for loss in (nn.KLDivLoss(reduction=reduction), partial(F.kl_div, reduction=reduction)):
        found = per_record(loss)(output, target)
        torch.testing.assert_close(found.sum() if reduction == "sum" else found.mean(), expected)


def test_views_are_averaged_before_the_clip() -> None:
    model, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.randint(2, (4,))
    shifts = iter([0.0, 1.0])
    losses = objective_of(model, F.cross_entropy, 2, lambda x: x + next(shifts))((x, y))
    wanted = [F.cross_entropy(model(x + s), y, reduction="none") for s in (0.0, 1.0)]
    assert torch.allclose(losses, torch.stack(wanted).mean(0))


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigurationError, match="loss=3: must be a function of"):
        per_record(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="views=2: must be above 1 exactly when `augment`"):
        objective_of(nn.Linear(1, 1), F.mse_loss, views=2)
    with pytest.raises(DataError, match="batch=dict: must be"):
        objective_of(nn.Linear(1, 1), F.mse_loss)({"x": torch.zeros(1)})

    def stubborn(output: torch.Tensor, target: torch.Tensor, reduction: str = "mean"):  # type: ignore[no-untyped-def]
        return (output - target).mean()

    with pytest.raises(UnsupportedModelError, match="must give one value for each record"):
        per_record(stubborn)(torch.zeros(2), torch.zeros(2))


@pytest.mark.parametrize("loss", [F.cross_entropy, nn.CrossEntropyLoss()])
def test_one_class_is_refused_since_its_loss_is_always_zero(loss: Callable[..., Tensor]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"output=1 class: .*F\.mse_loss"):
        per_record(loss)(torch.randn(3, 1), torch.zeros(3, dtype=torch.long))
    with pytest.raises(UnsupportedModelError, match="output=1 class"):
        per_record(loss)(torch.randn(3, 1), torch.rand(3, 1))  # a regression without its loss


def test_views_of_something_else_than_a_tensor_are_refused_in_words() -> None:
    model = nn.Linear(2, 2)
    losses = objective_of(model, F.cross_entropy, 2, lambda x: x)
    with pytest.raises(DataError, match=r"^batch\[0\]=dict: must be a tensor for `augment`; aver"):
        losses(({"x": torch.zeros(3, 2)}, torch.zeros(3).long()))


def test_a_loss_with_nothing_to_train_is_not_traced_and_one_with_weights_is() -> None:
    """What a tracer need not see is as good as seen: the loss counts as made from records."""
    model, balance = nn.Linear(3, 2), torch.rand(2, requires_grad=True)
    named = dict(model.named_parameters()) | {"balance": balance}
    batch = (torch.randn(5, 3), torch.randn(5, 2))

    def balanced(output: Tensor, target: Tensor) -> Tensor:
        return (F.mse_loss(output, target, reduction="none") * balance).mean(1)

    for loss, uses in ((F.mse_loss, 1), (partial(F.huber_loss, delta=0.5), 1), (balanced, 2)):
        engine = ClippedSum(named, objective_of(model, loss), Flat(0.1))
        assert len(engine.passes.trace(engine.objective, batch, len(batch[0])).uses) == uses
        found = torch.zeros(engine.width)
        engine.add_(found, batch)
        torch.testing.assert_close(found, clipped_sum(engine.objective, named, batch, Flat(0.1)))
