"""The mean over each record's own tokens."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import steppe
from steppe.losses import per_record_token_mean


@pytest.mark.parametrize("shift", [False, True])
def test_equals_the_mean_of_each_record_alone(shift: bool) -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 6, 5), torch.randint(5, (4, 6))
    labels[0, 2:] = labels[2, 5:] = -100
    found = per_record_token_mean(logits, labels, shift=shift)
    for i in range(4):
        x, y = (logits[i, :-1], labels[i, 1:]) if shift else (logits[i], labels[i])
        torch.testing.assert_close(found[i], F.cross_entropy(x, y))


def test_a_record_without_tokens_is_zero() -> None:
    labels = torch.full((2, 3), -1)
    labels[1] = 0
    logits = torch.zeros(2, 3, 4, requires_grad=True)
    found = per_record_token_mean(logits, labels, ignore_index=-1)
    found.sum().backward()
    assert found[0] == 0
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_flattened_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must have shapes \(records, tokens, classes\)"):
        per_record_token_mean(torch.zeros(6, 4), torch.zeros(6, dtype=torch.long))


def test_the_name_that_messages_give() -> None:
    assert steppe.losses.per_record_token_mean is per_record_token_mean
