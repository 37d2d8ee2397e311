"""Every bad input is refused before any budget is spent, by a message that says what to do.

The numbers are those of the project's table of bad inputs. Configuration is refused; a value of a
private record never is, because an error that one record causes is itself a release.

Rows that need a file or a whole run are measured elsewhere: 29 in `test_private.py` (declared
classes), 33 in `sampling/test_shared_records.py`, 37 to 39 in `training/test_resuming.py`,
`training/test_checkpoints.py` and `test_private.py` (states), 44 in `ledger/test_chain.py`, 45 in
`accounting/test_statement_text.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

import steppe
from steppe.accounting.rdp import rdp_epsilon
from steppe.errors import (
    BudgetExhausted,
    ConfigurationError,
    DataError,
    IsolationError,
    MisuseError,
    PrivacyWarning,
    UnsupportedModelError,
)
from steppe.noise import as_source

N = 64
# `name=value: rule; remedy.` or `name` rule; the remedy may be in the rule.
SHAPE = re.compile(r"^(.+?: .+|`.+?` .+)\.$", re.DOTALL)


def inputs() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, 6), torch.randint(3, (N,))


def plan(**constants: Any) -> steppe.Plan:
    settings: dict[str, Any] = {
        "delta": 1e-5,
        "noise_multiplier": 1.0,
        "population": N,
        "batch_size": 8,
        "steps": 4,
    }
    return steppe.Plan(**(settings | constants))


def private(
    model: nn.Module | None = None,
    data: Any = None,
    optimizer: Callable[[nn.Module], Any] | None = None,
    constants: dict[str, Any] | None = None,
    **options: Any,
) -> steppe.Private:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    made = optimizer(model) if optimizer else torch.optim.SGD(model.parameters(), lr=0.1)
    if "objective" not in options:
        options.setdefault("loss", F.cross_entropy)
    data = inputs() if data is None else data
    return steppe.make_private(model, made, data, plan(**(constants or {})), **options)


def refused(call: Callable[[], Any], error: type[Exception], *words: str) -> None:
    """The call raises this error, in the house's shape, with these words in this order."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) is error
    assert SHAPE.match(message), message
    assert re.search(".*".join(re.escape(word) for word in words), message, re.DOTALL), message


# --- the plan: rows 1 to 15, 43 --------------------------------------------------------------


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        ({"epsilon": 0, "noise_multiplier": None}, ("epsilon=0", "above 0", "0.5 to 8")),
        ({"epsilon": -1, "noise_multiplier": None}, ("epsilon=-1", "above 0", "0.5 to 8")),
        ({"epsilon": math.nan, "noise_multiplier": None}, ("epsilon=nan", "NaN", "0.5 to 8")),
        ({"epsilon": math.inf, "noise_multiplier": None}, ("epsilon=inf", "finite", "0.5 to 8")),
        ({"epsilon": "2", "noise_multiplier": None}, ("epsilon='2'", "real number", "0.5 to 8")),
        ({"delta": 0}, ("delta=0", "between 0 and 1", "1e-5")),
        ({"delta": -0.1}, ("delta=-0.1", "between 0 and 1", "1e-5")),
        ({"delta": math.nan}, ("delta=nan", "NaN", "1e-5")),
        ({"delta": 1}, ("delta=1", "between 0 and 1", "1e-5")),
        ({"delta": 2}, ("delta=2", "between 0 and 1", "1e-5")),
        ({"steps": 0}, ("steps=0", "whole number", "at least 1")),
        ({"steps": -3}, ("steps=-3", "whole number", "at least 1")),
        ({"steps": 2.5}, ("steps=2.5", "whole number", "at least 1")),
        ({"steps": None, "epochs": 0}, ("epochs=0", "above 0")),
        ({"steps": None, "epochs": math.nan}, ("epochs=nan", "NaN")),
        ({"noise_multiplier": 0}, ("noise_multiplier=0", "above 0", "0.5 to 5")),
        ({"noise_multiplier": -1}, ("noise_multiplier=-1", "above 0", "0.5 to 5")),
        ({"noise_multiplier": math.nan}, ("noise_multiplier=nan", "NaN", "0.5 to 5")),
        ({"epsilon": 1.0}, ("epsilon=1.0", "together with noise_multiplier=1.0", "calibrates")),
        ({"noise_multiplier": None}, ("`epsilon` or `noise_multiplier` is required", "calibrates")),
        ({"epochs": 2}, ("steps=4", "together with epochs=2", "floor")),
        ({"clip": 1.0}, ("clip=1.0", "must be a Clip", "Flat(1.0)")),
        ({"batch_size": N + 1}, ("batch_size=65.0", "population of 64", "smaller batch")),
        ({"batch_size": 0}, ("batch_size=0", "above 0")),
        ({"batch_size": math.nan}, ("batch_size=nan", "NaN")),
        ({"population": 0}, ("population=0", "whole number", "at least 1")),
        ({"adjacency": "swap"}, ("adjacency='swap'", "one of 'add-remove'")),
        (
            {"sampling": steppe.CappedPoisson()},
            ("adjacency='add-remove'", "capped batch", "adjacency='zero-out'"),
        ),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_rows_1_to_15_constants_of_the_plan(constants: dict[str, Any], words: tuple[str]) -> None:
    refused(lambda: plan(**constants), ConfigurationError, *words)


@pytest.mark.parametrize("bound", [0, -1, math.nan, math.inf])
def test_rows_11_to_13_bound_of_the_clip(bound: float) -> None:
    refused(lambda: steppe.Flat(bound), ConfigurationError, f"Flat.bound={bound}", "0.1 to 1")


def test_row_6_delta_above_one_over_the_population() -> None:
    with pytest.warns(PrivacyWarning, match=r"delta=0.02: is not below 1/population=0.0156.*use"):
        plan(delta=0.02)


def test_row_43_rdp_does_not_know_replace_one() -> None:
    segments = plan(adjacency="replace-one").segments()
    refused(
        lambda: rdp_epsilon(segments, 1e-5, "replace-one"),
        ConfigurationError,
        "adjacency='replace-one'",
        "is not covered by the RDP accountant",
        "use steppe.accounting.epsilon",
    )
    assert plan(adjacency="replace-one").statement().rdp_epsilon is None


def test_unknown_names_are_refused() -> None:
    with pytest.raises(TypeError, match="max_grad_nrom"):
        plan(max_grad_nrom=5)
    with pytest.raises(TypeError, match="poison_sampling"):
        private(poison_sampling=False)


# --- the data: rows 14 to 19, 28 to 32 -------------------------------------------------------


class _Numbered(Dataset[Any]):
    """A data set that can be asked for a record but not for its length."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = inputs()
        return x[index], y[index]


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(*inputs(), strict=True)


class _Named(Dataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, str]:
        return torch.zeros(6), "cat"


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*inputs()), **options)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (lambda: (torch.zeros(0, 6), torch.zeros(0)), ("data=no records", "empty", "at least one")),
        (lambda: _Numbered(), ("data=_Numbered", "must have __len__", "add it")),
        (lambda: _Stream(), ("data=_Stream", "any record by its index", "map-style")),
        (lambda: DataLoader(_Stream()), ("data=_Stream", "any record by its index", "map-style")),
        (lambda: loader(drop_last=True), ("drop_last=True", "plan's sampler", "leave drop_last")),
        (
            lambda: loader(sampler=WeightedRandomSampler([1.0] * N, N)),
            ("sampler=WeightedRandomSampler", "plan's sampler alone", "leave the sampler out"),
        ),
        (
            lambda: loader(batch_sampler=[[0, 1], [2, 3]]),
            ("batch_sampler=list", "plan's sampler alone", "give batch_size instead"),
        ),
        (
            lambda: loader(
                batch_sampler=type("Own", (BatchSampler,), {})(
                    SequentialSampler(range(N)), 4, False
                )
            ),
            ("batch_sampler=Own", "plan's sampler alone", "give batch_size instead"),
        ),
        (
            lambda: (inputs()[0], inputs()[1][:5]),
            ("data[1]=array of shape (5,)", "as many entries as data[0]", "each record"),
        ),
        (
            lambda: (inputs()[0].numpy(), np.array(["cat"] * N)),
            ("data[1]=array of type <U3", "numbers", "by a constant mapping"),
        ),
        (lambda: _Named(), ("data[1]=str", "must become a tensor", "encode it as numbers")),
        (
            lambda: Subset(TensorDataset(*inputs()), [0, 1, 1]),
            ("data=Subset with repeated indices", "protected k times less", "remove"),
        ),
    ],
    ids=[
        "15 no records",
        "16 no length",
        "17 stream",
        "17 loader of a stream",
        "18 drop_last",
        "18 weighted sampler",
        "18 batch sampler",
        "18 own batch sampler",
        "28 columns of different length",
        "28 text in an array",
        "28 text in a data set",
        "32 a record twice",
    ],
)
def test_rows_15_to_32_data(data: Callable[[], Any], words: tuple[str]) -> None:
    refused(lambda: private(data=data()), DataError, *words)


def test_row_19_a_shuffled_loader_is_sampled_by_the_plan() -> None:
    run = private(data=loader(shuffle=True, batch_size=8), constants={"steps": 30})
    sizes = set()
    for batch in run:
        sizes.add(len(batch[0]))
        run.step(batch)
    assert len(sizes) > 3, "batches of a shuffled loader have one size"


def test_row_30_one_class_is_no_error() -> None:
    run = private(data=(inputs()[0], torch.zeros(N, dtype=torch.long)))
    for batch in run:
        run.step(batch)
    assert run.steps_done == 4


class _Watched(TorchDispatchMode):
    """Notes every operation of torch that reads a value of some tensors: neither views nor
    selections of no record do."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__()
        self._memory = {t.untyped_storage().data_ptr() for t in tensors}
        self.reads: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.numel()]
        says = any(not isinstance(t, Tensor) or t.numel() for t in tree_leaves(made))
        if says and not func.is_view and any(self._is_watched(tensor) for tensor in given):
            self.reads.append(str(func))
        return made

    def _is_watched(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._memory


class _Rows(Dataset[Any]):
    """Map-style: the form of the data is that of its first record."""

    def __init__(self, *columns: Tensor) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return tuple(column[index] for column in self.columns)


def _forms(run: steppe.Private) -> list[Any]:
    """Where the records lie in each operation, without the identities of weights."""
    return [(found.operation, found.inputs, found.outputs) for found in run.report().layouts]


def test_row_31_making_a_run_reads_no_value() -> None:
    """No class, range or vocabulary is taken from the records."""
    x, y = inputs()
    with _Watched(x, y) as watched:
        private(data=(x, y))
        assert watched.reads == []
        y.max()
        assert watched.reads == ["aten.max.default"], "the watch sees what it should"


@pytest.mark.parametrize("form", [lambda x, y: (x, y), _Rows], ids=["arrays", "map-style"])
def test_row_31_nothing_that_is_said_depends_on_a_value(form: Callable[..., Any]) -> None:
    """Neither do other inputs and labels, nonsense even, show in what a run says before it."""
    x, y = inputs()
    others = torch.full_like(x, math.nan), torch.full_like(y, 10**6)
    first, second = (private(data=form(*columns)) for columns in ((x, y), others))
    assert first.plan == second.plan
    assert str(first.statement()) == str(second.statement())
    assert str(first.report()) == str(second.report())
    assert _forms(first) == _forms(second)
    assert first.engine.physical_batch == second.engine.physical_batch


# --- the model: rows 20 to 24 ----------------------------------------------------------------


class _Centred(nn.Module):
    """Batch normalisation by hand: no layer of that name to look for."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lift(x)
        return h - h.mean(0)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad * weight, (grad * x).sum(0)


class _Hidden(nn.Module):
    """A weight inside an autograd function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(_Product.apply(x, self.weight))


class _Remembering(nn.Module):
    """A buffer that collects a statistic of the records."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().mean(0)
        return self.head(x)


def _normed(**options: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.Linear(5, 3))


def test_row_20_batch_normalisation() -> None:
    with pytest.raises(UnsupportedModelError, match=r"BatchNorm1d|running_mean") as caught:
        private(_normed())
    assert re.search(r"GroupNorm|steppe\.fix", str(caught.value))
    private(steppe.fix(_normed()))


@pytest.mark.parametrize("options", [{"affine": False}, {"track_running_stats": False}])
def test_row_20_batch_normalisation_in_other_forms(options: dict[str, bool]) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        private(_normed(**options))
    assert SHAPE.match(str(caught.value))


def test_row_20_frozen_batch_normalisation_in_training_mode() -> None:
    model = _normed()
    model[1].requires_grad_(False)
    kept = [p for p in model.parameters() if p.requires_grad]
    refused(
        lambda: private(model, optimizer=lambda _: torch.optim.SGD(kept, lr=0.1)),
        IsolationError,
        "buffers=written by aten.add_.Tensor in 1 (BatchNorm1d)",
        "must not change with every forward pass",
        "put these layers in eval mode",
    )


def test_row_21_operation_across_the_batch() -> None:
    refused(
        lambda: private(_Centred()),
        IsolationError,
        "layer='model (_Centred)'",
        "must treat every record alone",
        "compute along the axes of a record",
    )


def test_row_22_weight_that_torch_does_not_show() -> None:
    refused(
        lambda: private(_Hidden()),
        UnsupportedModelError,
        "parameters=['weight']",
        "ordinary torch operations",
        "write that block with torch operations",
    )


def test_row_23_tied_weights_are_supported() -> None:
    first, last = nn.Linear(6, 6), nn.Linear(6, 6)
    last.weight = first.weight
    run = private(nn.Sequential(first, nn.Tanh(), last, nn.Linear(6, 3)))
    for batch in run:
        run.step(batch)
    assert run.steps_done == 4


def test_row_24_buffer_that_collects_statistics() -> None:
    model = _Remembering()
    refused(
        lambda: private(model),
        IsolationError,
        "buffers=['seen']",
        "must not be written in a forward pass",
        "eval mode",
    )
    assert not model.seen.any(), "the probe left its traces"


class _Secretive(nn.Module):
    """The same statistic in a plain attribute, which then shifts the next records."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.seen = torch.zeros(6)

    def forward(self, x: Tensor) -> Tensor:
        output = self.head(x - self.seen)
        self.seen = self.seen + x.detach().mean(0)
        return output


def test_row_24_attribute_that_carries_records_over() -> None:
    refused(
        lambda: private(_Secretive()),
        IsolationError,
        "aten.sub.Tensor in model (_Secretive)",
        "must not use what an earlier pass made from its records",
        "keep nothing from records in the model or beside it",
    )


# --- the loss: rows 25 to 27 -----------------------------------------------------------------


def _released(x: Tensor, y: Tensor) -> Tensor:
    """What a full batch releases in one step from a fixed seed."""
    run = private(
        data=(x, y), constants={"batch_size": N, "steps": 1}, source=steppe.SeededSource(5)
    )
    for batch in run:
        run.step(batch)
    return torch.cat([p.grad.flatten() for p in run.model.parameters()])


def _with_values(value: float, where: int | slice) -> Tensor:
    """What is released when one record holds a value at some places."""
    x, y = inputs()
    x[3, where] = value
    return _released(x, y)


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
def test_rows_25_and_26_values_that_no_gradient_survives(value: float) -> None:
    """Such a record says nothing: not in the release, and not by an error."""
    released = _with_values(value, 0)
    assert torch.isfinite(released).all()
    assert float((released - _released(*inputs())).norm()) <= (1 + 1e-5) / N
    assert torch.equal(released, _with_values(value, slice(0, 2))), "two such records differ"


@pytest.mark.parametrize("value", [1e18, 1e30, 3e38], ids=str)
def test_rows_25_and_26_values_whose_squares_overflow(value: float) -> None:
    """Such a record says no more than any other, beside one that says nothing."""
    released = _with_values(value, 0)
    assert torch.isfinite(released).all()
    assert float((released - _with_values(math.nan, 0)).norm()) <= (1 + 1e-5) / N


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda o, t: F.cross_entropy(o, t),
            ("loss=one number for the whole batch", "one loss for each", "'none'"),
        ),
        (lambda o, t: o.square(), ("loss=a tensor of 2 axes", "one loss for each", "'none'")),
        (lambda o, t: torch.zeros(len(t)), ("loss=constant", "computed from the records", "batch")),
    ],
    ids=["mean over the batch", "no mean over outputs", "constant"],
)
def test_row_27_loss_without_a_value_for_each_record(loss: Any, words: tuple[str]) -> None:
    refused(lambda: private(loss=loss), UnsupportedModelError, *words)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"loss": None}, ("`loss` or `objective` is required", "F.cross_entropy")),
        ({"loss": "mse"}, ("loss='mse'", "function of (output, target)", "F.cross_entropy")),
        ({"constants": {"views": 2}}, ("views=2", "`augment`", "both or none")),
        ({"augment": lambda x: x}, ("views=1", "`augment`", "both or none")),
        (
            {"constants": {"views": 2}, "augment": 5},
            ("augment=5", "a function", "pass the function"),
        ),
        (
            {"constants": {"views": 2}, "loss": None, "objective": len},
            ("views=2", "is for loss=", "inside your objective"),
        ),
        (
            {"augment": len, "loss": None, "objective": len},
            ("augment=<built-in", "is for loss=", "inside your objective"),
        ),
        ({"physical_batch": 0}, ("physical_batch=0", "whole number", "at least 1")),
    ],
    ids=[
        "no loss",
        "name of a loss",
        "views alone",
        "augment alone",
        "augment is no function",
        "views beside an objective",
        "augment beside an objective",
        "physical batch",
    ],
)
def test_row_27_options_of_the_objective(options: dict[str, Any], words: tuple[str]) -> None:
    refused(lambda: private(**options), ConfigurationError, *words)


# --- randomness: rows 34, 35, 42 -------------------------------------------------------------


@pytest.mark.parametrize("source", [torch.Generator(), 7], ids=["generator", "seed"])
@pytest.mark.parametrize(
    "use",
    [
        as_source,
        lambda source: private(source=source),
    ],
    ids=["as_source", "make_private"],
)
def test_row_34_randomness_behind_a_seed(use: Callable[[Any], Any], source: Any) -> None:
    words = ("source=", "must not be a", "SeededSource(seed) for a test")
    refused(lambda: use(source), ConfigurationError, *words)


def test_row_34_a_seeded_run_says_so() -> None:
    run = private(source=steppe.SeededSource(1))
    assert "NOT PRIVATE" in str(run.statement())
    assert "NOT PRIVATE" not in str(private().statement())


def test_row_35_a_seed_of_torch_reaches_neither_coins_nor_noise() -> None:
    """Two processes that start from one seed, as ranks and restarted scripts do."""
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        run = private(constants={"batch_size": 32})
        batch = next(iter(run))
        run.step(batch)
        runs.append((batch[0], torch.cat([p.grad.flatten() for p in run.model.parameters()])))
    (first, noise), (second, other) = runs
    assert first.shape != second.shape or not torch.equal(first, second)
    assert not (noise == other).any()


def test_row_42_noise_is_never_drawn_in_half_precision() -> None:
    refused(
        lambda: steppe.SecureSource().fill_normal_(torch.empty(4, dtype=torch.bfloat16), 1.0),
        ConfigurationError,
        "dtype=torch.bfloat16",
        "float32 or float64",
        "convert the released vector",
    )
    x, y = inputs()
    run = private(nn.Linear(6, 3).bfloat16(), data=(x.bfloat16(), y))
    assert run._step.mechanism.dtype == torch.float32
    for batch in run:
        run.step(batch)
    assert run.steps_done == 4


def test_row_42_weights_of_two_precisions() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3).double())
    before = [weight.detach().clone() for weight in model.parameters()]
    run = private(model, objective=lambda m, batch: m[1](m[0](batch[0]).double()).sum(1))
    for batch in run:
        run.step(batch)
    assert run.steps_done == 4
    for weight, old in zip(model.parameters(), before, strict=True):
        assert weight.dtype == old.dtype
        assert (weight != old).any()


# --- optimizer and loop: rows 36, 40, 41 -----------------------------------------------------


def test_row_36_training_past_the_plan() -> None:
    run = private(constants={"steps": 2})
    for batch in run:
        run.step(batch)
    with pytest.warns(UserWarning, match="no batch is left: all 2 steps of the plan are taken"):
        assert list(run) == []
    refused(
        lambda: run.step(batch),
        BudgetExhausted,
        "steps=3",
        "the plan has 2 steps",
        "new plan with more steps",
    )
    assert run.steps_done == 2


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda m: torch.optim.SGD(m[0].parameters(), 0.1), ("lacks ['2.weight'", "build it from")),
        (
            lambda m: torch.optim.SGD(nn.Linear(6, 3).parameters(), 0.1),
            ("lacks ['0.weight'", "must hold every trainable weight", "build it from"),
        ),
        (
            lambda m: torch.optim.SGD([*m.parameters(), nn.Parameter(torch.zeros(2))], 0.1),
            ("holds 1 weights that are not the model's", "model's own", "fix(model)"),
        ),
        (
            lambda m: torch.optim.LBFGS(m.parameters()),
            ("optimizer='LBFGS'", "once per step", "SGD"),
        ),
        (lambda m: torch.optim.SparseAdam(m.parameters()), ("optimizer='SparseAdam'", "noise")),
        (
            lambda m: torch.optim.SGD(m.parameters(), 0.1, differentiable=True),
            ("optimizer.differentiable=True", "refuses to update", "leave it out"),
        ),
        (lambda m: "sgd", ("optimizer='str'", "torch.optim.Optimizer", "pass one")),
    ],
    ids=[
        "lacks some",
        "another model's",
        "holds strangers",
        "asks twice",
        "takes sparse ones",
        "wants a graph of its steps",
        "no optimizer",
    ],
)
def test_row_40_optimizer_and_model_disagree(optimizer: Any, words: tuple[str]) -> None:
    refused(lambda: private(optimizer=optimizer), ConfigurationError, *words)


def test_row_40_nothing_to_train() -> None:
    model = nn.Linear(6, 3).requires_grad_(False)
    refused(lambda: private(model), ConfigurationError, "no trainable weights", "requires_grad")


def test_row_41_an_optimizer_that_moves_nothing() -> None:
    """The wrong optimizer is stepped: found at the first step, not after a whole run."""
    run = private()
    run.optimizer.step = lambda closure=None: None  # type: ignore[method-assign]
    batch = next(iter(run))
    with pytest.raises(MisuseError, match=r"parameters=\['0.weight'.*must move.*learning rate"):
        run.step(batch)
    assert run.steps_done == 1, "a step that released a gradient is charged"


def test_row_41_gradients_of_the_users_own_backward_are_refused() -> None:
    """The lines of a plain loop left beside the private step; others are in test_private.py."""
    run = private()
    x, y = next(iter(run))
    run.optimizer.zero_grad()
    F.cross_entropy(run.model(x), y).backward()
    refused(
        lambda: run.step((x, y)),
        MisuseError,
        "gradient of '0.weight'",
        "private steps must be the only ones",
        "remove your own backward()",
    )
    assert run.steps_done == 0


@pytest.mark.parametrize("kind", ["twice", "skipped", "half", "undrawn"])
def test_a_batch_is_stepped_once_and_whole(kind: str) -> None:
    run = private(constants={"batch_size": 32})
    batches = iter(run)
    batch = next(batches)
    expected = 0
    if kind == "twice":
        run.step(batch)
        expected = 1
        refused(lambda: run.step(batch), MisuseError, "must be the batch just drawn", "iterate")
    elif kind == "skipped":
        refused(lambda: next(batches), MisuseError, "step=1", "drawn and not stepped", "also an")
    elif kind == "half":
        half = tuple(column[:3] for column in batch)
        refused(lambda: run.step(half), MisuseError, "fewer records", "each record once")
    else:
        refused(lambda: private().step(batch), MisuseError, "must be the batch just drawn")
    assert run.steps_done == expected
