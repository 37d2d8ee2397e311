"""Language models in a user's loop: means over tokens, and batches of records of any length."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import steppe
from compat_loop import QUIET
from steppe.compat import PrivacyEngine
from steppe.errors import DataError, IsolationError, SteppeError

LENGTH, WORDS = 64, 11


class Text(Dataset[list[int]]):
    """15 records of 4 tokens and one of 64."""

    def __init__(self, lengths: list[int]) -> None:
        generator = torch.Generator().manual_seed(0)
        self._records = [
            torch.randint(1, WORDS, (n,), generator=generator).tolist() for n in lengths
        ]

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, row: int) -> list[int]:
        return self._records[row]


def to_longest(records: list[list[int]]) -> dict[str, Tensor]:
    """What tokenizers do."""
    longest = max(map(len, records))

    def filled(value: int) -> Tensor:
        return torch.tensor([[*r, *[value] * (longest - len(r))] for r in records])

    return {"input_ids": filled(0), "labels": filled(-100)}


class Causal(nn.Module):
    """A language model in the manner of transformers, with an object for an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(LENGTH, 8)
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, WORDS)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        h = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        h = h + torch.tanh(self.mix(h.cumsum(1) / LENGTH))
        logits, loss = self.head(h), None
        if labels is not None:
            shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
            loss = F.cross_entropy(
                logits.view(-1, WORDS).float(), shifted.view(-1), ignore_index=-100
            )
        return SimpleNamespace(loss=loss, logits=logits)


PADDED: dict[str, Any] = {"pad_to": LENGTH, "pad_value": {"input_ids": 0, "labels": -100}}


def started(lengths: list[int], model: nn.Module | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    model = model or Causal()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch_size = options.pop("batch_size", len(lengths))
    loader = DataLoader(Text(lengths), batch_size=batch_size, collate_fn=to_longest)
    return PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=options.pop("sigma", QUIET),
        max_grad_norm=20.0,
        **options,
    )


RAGGED = [4] * 15 + [LENGTH]


def inside(model: Any, batch: Any) -> Tensor:
    loss: Tensor = model(**batch).loss
    return loss


def flattened(model: Any, batch: Any) -> Tensor:
    logits = model(batch["input_ids"]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())


def masked(model: Any, batch: Any) -> Tensor:
    logits = model(batch["input_ids"]).logits
    each = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    mask = (batch["labels"] != -100).float()
    return (each * mask).sum() / mask.sum()


def by_attention(model: Any, batch: Any) -> Tensor:
    logits = model(batch["input_ids"]).logits
    mask = batch["input_ids"] > 0
    each = F.cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
    return each[mask].mean()


def own(model: Any, batch: Any) -> Tensor:
    logits = model(batch["input_ids"]).logits
    return steppe.losses.per_record_token_mean(logits, batch["labels"], shift=True).mean()


def train(made: Any, loss: Any, passes: int = 1) -> None:
    model, optimizer, loader = made
    for _ in range(passes):
        for batch in loader:
            loss(model, batch).backward()
            optimizer.step()


@pytest.mark.parametrize("loss", [inside, flattened, masked, by_attention])
def test_a_mean_over_the_tokens_of_a_padded_batch_is_refused(loss: Any) -> None:
    made = started(RAGGED, **PADDED)
    model = made[0]
    weights = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(IsolationError) as refused:
        train(made, loss)
    if loss is not by_attention:
        assert "steppe.losses.per_record_token_mean(logits, labels" in str(refused.value)
    assert all(map(torch.equal, weights, model.parameters()))


def test_the_mean_over_each_records_tokens_is_private() -> None:
    model, optimizer, loader = started(RAGGED, **PADDED)
    for batch in loader:
        assert batch["labels"].shape == (16, LENGTH)
        own(model, batch).backward()
        optimizer.step()
    released = torch.cat([p.grad.flatten() for p in model.parameters()])
    plain = Causal()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():  # back to where the step began
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            one.add_(other.grad, alpha=0.1)
    total = torch.zeros_like(released)
    for record in Text(RAGGED):  # type: ignore[attr-defined]
        batch = to_longest([record])
        gradients = torch.autograd.grad(
            own(plain, batch), list(plain.parameters()), allow_unused=True
        )
        flat = torch.cat([g.flatten() for g in gradients if g is not None])
        total += flat * min(1.0, 20.0 / float(flat.norm()))
    torch.testing.assert_close(released, total / 16, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("loss", [inside, flattened, masked, own])
def test_records_of_one_length_may_have_any_of_these_means(loss: Any) -> None:
    train(started([LENGTH] * 16, **PADDED), loss, 3)


def test_a_short_record_that_comes_later_is_refused() -> None:
    made = started([LENGTH] * 16, **PADDED)
    train(made, flattened, 3)
    data = made[2].dataset._records
    data[0] = data[0][:5]
    with pytest.raises(IsolationError, match="per_record_token_mean"):
        train(made, flattened)


def _longest(batch: Any) -> int:
    return int((batch["input_ids"] > 0).sum(1).max())


def _longest_of_list(batch: Any) -> int:
    return int(max((batch["input_ids"] > 0).sum(1).tolist()))


@pytest.mark.parametrize("longest", [_longest, _longest_of_list])
def test_a_cut_at_the_longest_record_of_the_batch_is_refused(longest: Any) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        short = {key: value[:, : longest(batch)] for key, value in batch.items()}
        return own(model, short)

    with pytest.raises(IsolationError, match="cuts at a length that was read from records"):
        train(started([4] * 15 + [9], **PADDED), loss)


def test_a_shape_that_changes_after_a_read_is_refused() -> None:
    def rounded(model: Any, batch: Any) -> Tensor:
        length = -(-_longest(batch) // 8) * 8  # as for tensor cores
        return own(model, {key: value[:, :length] for key, value in batch.items()})

    with pytest.raises(IsolationError, match="another shape than before, and values were read"):
        train(started([4] * 15 + [20], batch_size=8, **PADDED), rounded, passes=15)


def test_reads_for_logs_and_a_constant_cut_run() -> None:
    read: list[Any] = []

    def loss(model: Any, batch: Any) -> Tensor:
        read.append((_longest(batch), _longest_of_list(batch)))
        return own(model, {key: value[:, :6] for key, value in batch.items()})

    train(started(RAGGED, **PADDED), loss, passes=3)
    halves = [(4, 4), (LENGTH, LENGTH)]  # of the first batch, before all of it comes again
    assert read == [(LENGTH, LENGTH), *halves, *[(LENGTH, LENGTH)] * 3]


def test_without_a_declared_length_padding_is_refused() -> None:
    with pytest.raises(DataError, match=r"=shape or type .*, or give pad_to= and pad_value= to "):
        started(RAGGED)


def test_a_record_beyond_the_declared_length_is_refused() -> None:
    with pytest.raises(DataError, match="longer than pad_to=32"):
        started(RAGGED, pad_to=32, pad_value=0)


def test_only_named_tensors_are_padded() -> None:
    *_, loader = started([4, 4], pad_to={"input_ids": 6}, pad_value=0, sigma=1.0)
    batch = next(iter(loader))
    assert batch["input_ids"].shape[1:] == (6,)
    assert batch["labels"].shape[1:] == (4,)


@pytest.mark.parametrize("given", [{"pad_to": 4}, {"pad_value": 0}, {"pad_to": 0, "pad_value": 0}])
def test_length_and_value_are_both_declared(given: Any) -> None:
    with pytest.raises((SteppeError, ValueError), match="pad_"):
        started([4, 4], **given)


def test_a_tensor_without_a_value_is_named() -> None:
    with pytest.raises(ValueError, match=r"data\['labels'\]"):
        started([4, 3], pad_to=5, pad_value={"input_ids": 0})


class Classifier(Causal):
    """One label a record, and the loss inside."""

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(input_ids).logits.mean(1)
        loss = None if labels is None else F.cross_entropy(logits, labels[:, 0])
        return SimpleNamespace(loss=loss, logits=logits)


def test_a_mean_inside_the_module_over_one_label_a_record_is_accepted() -> None:
    model, optimizer, loader = started([LENGTH] * 16, Classifier(), **PADDED)
    for _ in range(3):
        for batch in loader:
            batch["labels"] = batch.pop("labels")[:, :1]
            with_loss = model(**batch)
            assert with_loss.loss.ndim == 0
            with_loss.loss.backward()
            optimizer.step()


def test_empty_batches_go_through_a_model_that_answers_with_an_object() -> None:
    torch.manual_seed(0)
    model = Causal()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(Text([LENGTH] * 8), batch_size=1, collate_fn=to_longest),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    sizes = set()
    for _ in range(4):
        for batch in loader:
            sizes.add(len(batch["labels"]))
            own(model, batch).backward()
            optimizer.step()
    assert 0 in sizes


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
@pytest.mark.parametrize("loss", [inside, own])
def test_gpt2(loss: Any) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    settings = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        vocab_size=WORDS, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, **settings
    )
    made = started(RAGGED, GPT2LMHeadModel(config), **PADDED)

    if loss is own:
        train(made, loss)
        return
    with pytest.raises(IsolationError, match="per_record_token_mean"):
        train(made, loss)
