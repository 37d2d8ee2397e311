"""Ways by which numbers of records could come out of sight of the proof, each used to mix them."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.isolation import prove
from steppe.probing import probe

Way = Callable[[Tensor], Any]


def other_data(x: Tensor) -> Tensor:
    y = x * 0
    y.data = x.roll(1, 0)
    return y


def by_memory(x: Tensor) -> Tensor:
    part = (x * 1.0).detach()[:1]
    return part.as_strided(tuple(x.shape), (4, 1), 0)


def by_set(x: Tensor) -> Tensor:
    return x.clone().set_(x.roll(1, 0))


def as_gradient(x: Tensor) -> Tensor:
    p = torch.zeros_like(x, requires_grad=True)
    p.grad = x.detach().clone()
    return p.grad


def counted(x: Tensor) -> Tensor:
    table = torch.ones(9, 4, requires_grad=True)
    words = (x.detach() > 0).long()
    (found,) = torch.autograd.grad(F.embedding(words, table).sum(), table)
    return found


def written_to_zeros(x: Tensor) -> Tensor:
    y = torch.zeros(tuple(x.shape))
    y[:] = x.detach().roll(1, 0)
    return y


def out_of_sight(x: Tensor) -> Tensor:
    ranks = torch.zeros(len(x), dtype=torch.long)
    torch.linalg.matrix_rank(x[:, :, None] * x[:, None], hermitian=True, out=ranks)
    return ranks


def into_out(x: Tensor) -> Tensor:
    out = torch.zeros(4)
    torch.sum(x.detach(), 0, out=out)
    return out


# Each gives something of all records; its mean is what every record's loss is multiplied by.
WAYS: dict[str, Way] = {
    "a parameter of it": lambda x: nn.Parameter(x.detach(), requires_grad=False),
    "a parameter that is trained": lambda x: nn.Parameter(x.detach()),
    "a buffer": lambda x: nn.Buffer(x.detach()),
    "another class": lambda x: x.as_subclass(torch.Tensor),
    "a copy": copy.copy,
    "a deep copy": lambda x: copy.deepcopy(x.detach()),
    "the constructor": torch.Tensor,
    "as_tensor": torch.as_tensor,
    "new_tensor": lambda x: x.new_tensor(x),
    "data": lambda x: x.data,
    "other data": other_data,
    "set": by_set,
    "memory": by_memory,
    "storage": lambda x: torch.empty(0).set_(x.untyped_storage(), 0, x.shape, x.stride()),
    "dlpack": lambda x: torch.from_dlpack(x.detach()),
    "NumPy": lambda x: torch.from_numpy(x.detach().numpy()),
    "a list": lambda x: torch.tensor(x.detach().tolist()),
    "a gradient": as_gradient,
    "counts of words": counted,
    "written to zeros": written_to_zeros,
    "nested": lambda x: torch.nested.nested_tensor(list(x.detach())).to_padded_tensor(0.0),
    "sparse": lambda x: x.detach().to_sparse().to_dense(),
    "vmap": torch.func.vmap(lambda row: row * 2.0),
    "functional gradient": torch.func.grad(lambda x: (x * x).sum()),
    "foreach": lambda x: torch._foreach_add([x, x.flip(0)], 1.0)[0],
    "histogram": lambda x: torch.histc(x.detach(), 4, -3, 3),
    "pairs": torch.pdist,
    "out": into_out,
    "out that is written out of sight": out_of_sight,
    "renorm": lambda x: torch.renorm(x, 2.0, 1, 1.0)[:1],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WAYS)
def test_what_was_made_from_all_records_does_not_come_back_unseen(name: str) -> None:
    layer, way = nn.Linear(4, 3), WAYS[name]

    def losses(batch: Any) -> Tensor:
        return layer(batch[0]).sum(1) * way(batch[0]).float().mean()

    with pytest.raises((IsolationError, UnsupportedModelError)):
        prove(nn.ModuleList([layer]), losses, (torch.zeros(1, 4),))


def test_weights_of_classes_from_the_batch_are_seen_in_the_loss() -> None:
    layer = nn.Linear(4, 3)

    def losses(batch: Any) -> Tensor:
        weight = F.one_hot(batch[1], 3).sum(0).float()
        return F.cross_entropy(layer(batch[0]), batch[1], weight=weight, reduction="none")

    with pytest.raises(IsolationError, match=r"aten\.sum"):
        prove(layer, losses, (torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)))


class Loudest(torch.autograd.Function):
    """Its gradient is multiplied by the largest number of what was saved on the way there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, what: str) -> Tensor:
        y = x.tanh()
        ctx.what, ctx.beside = what, x.detach()
        ctx.save_for_backward(x if what == "input" else y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (saved,) = ctx.saved_tensors
        return grad * (ctx.beside if ctx.what == "attribute" else saved).abs().max(), None


@pytest.mark.parametrize("what", ["input", "output", "attribute"])
def test_what_a_function_saved_is_known_on_the_way_back(what: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    def losses(batch: Any) -> Tensor:
        return model[1](Loudest.apply(model[0](batch[0]), what)).square().sum(1)

    with pytest.raises(IsolationError, match=r"gradient=mixes records in aten\.max"):
        prove(model, losses, (torch.zeros(1, 4),))


class OwnTanh(torch.autograd.Function):
    """Saves what it returns, as honest functions do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return grad * (1 - y * y)


def test_an_honest_function_that_saves_what_it_returns_is_proven() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    def losses(batch: Any) -> Tensor:
        return model[1](OwnTanh.apply(model[0](batch[0]))).square().sum(1)

    report = probe(model, dict(model.named_parameters()), losses, (torch.zeros(1, 4),))
    assert report.isolation == "proven"


def test_a_tensor_from_another_thread_is_refused() -> None:
    layer = nn.Linear(4, 3)

    def losses(batch: Any) -> Tensor:
        made: list[Tensor] = []
        thread = threading.Thread(target=lambda: made.append(batch[0] - batch[0].mean(0)))
        thread.start()
        thread.join()
        return layer(batch[0] + made[0]).sum(1)

    with pytest.raises(
        IsolationError, match="given a tensor made out of sight, as in another thre"
    ):
        prove(layer, losses, (torch.zeros(1, 4),))


def test_rows_bounded_each_by_its_own_norm_are_proven() -> None:
    layer = nn.Linear(4, 3)
    prove(layer, lambda b: torch.renorm(layer(b[0]), 2.0, 0, 1.0).sum(1), (torch.zeros(1, 4),))
    prove(layer, lambda b: (torch.ones(3) @ layer(b[0]).T).view(-1), (torch.zeros(1, 4),))


def test_state_is_as_it_was_after_a_refusal() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(IsolationError):
        prove(model, lambda b: model(b[0]).sum(1), (torch.zeros(1, 4),))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Curved(nn.Module):
    """Uses the curvature of a function of each record, by forward-mode derivatives."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        curved = torch.func.vmap(torch.func.hessian(lambda row: self.a(row).tanh().sum()))
        return self.b(curved(x).diagonal(dim1=1, dim2=2)).squeeze(1)


def test_forward_mode_derivatives_are_refused_by_name() -> None:
    """Some end the process on fake tensors."""
    model = Curved()
    with pytest.raises(IsolationError, match=r"^torch.func=jvp, jacfwd or hessian: must not be"):
        prove(model, lambda batch: model(batch[0]).square(), (torch.randn(3, 4),))
