"""What a private loop may be made from, and what is refused at once."""

from typing import Any

import pytest
import torch
from private_cases import N, parts, private
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import steppe
from steppe.clipping import ClippedSum, Flat
from steppe.errors import ConfigurationError, DataError, MisuseError, UnsupportedModelError
from steppe.private.private import example_for
from steppe.probing.model_state import form_of
from steppe.records import as_records


def test_population_left_out_is_read_once_and_said() -> None:
    loop = private(population=None)
    assert loop.plan.population == N
    assert "length" in str(loop.statement())
    assert loop.plan.population_source == "data"


def test_seeded_runs_are_stamped() -> None:
    model, optimizer, data, plan = parts()
    source = steppe.SeededSource(1)
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, source=source)
    assert "NOT PRIVATE" in str(loop.statement())


def test_a_data_loader_keeps_its_collate_function() -> None:
    model, optimizer, data, plan = parts()

    def doubled(rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        return 2 * torch.stack([r[0] for r in rows]), torch.stack([r[1] for r in rows])

    loader = DataLoader(TensorDataset(*data), batch_size=20, shuffle=True, collate_fn=doubled)
    loop = steppe.make_private(model, optimizer, loader, plan, loss=F.cross_entropy)
    batch = next(iter(loop))
    assert all(any(torch.equal(row, 2 * x) for x in data[0]) for row in batch[0][:3])


def test_optimizer_and_model_must_agree() -> None:
    model, _, data, plan = parts()
    few = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"optimizer lacks \['2.weight', '2.bias'\]"):
        steppe.make_private(model, few, data, plan, loss=F.cross_entropy)
    other = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ConfigurationError, match="holds 1 weights that are not the model's"):
        steppe.make_private(model, other, data, plan, loss=F.cross_entropy)
    newton = torch.optim.LBFGS(model.parameters())
    with pytest.raises(ConfigurationError, match="optimizer='LBFGS'"):
        steppe.make_private(model, newton, data, plan, loss=F.cross_entropy)
    with pytest.raises(ConfigurationError, match="no trainable weights"):
        steppe.make_private(model.requires_grad_(False), few, data, plan, loss=F.cross_entropy)


def test_capped_batches_need_the_true_population() -> None:
    model, optimizer, data, plan = parts(
        sampling=steppe.CappedPoisson(), adjacency="zero-out", population=N + 1
    )
    with pytest.raises(ConfigurationError, match="population=201: must be the length of the data"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    loop = private(sampling=steppe.CappedPoisson(cap=21), adjacency="zero-out")
    for batch in loop:
        assert len(batch[0]) <= 21
        loop.step(batch)


def test_loss_or_objective_but_not_both() -> None:
    model, optimizer, data, plan = parts()
    with pytest.raises(ConfigurationError, match="`loss` or `objective` is required"):
        steppe.make_private(model, optimizer, data, plan)
    with pytest.raises(UnsupportedModelError, match="loss=one number for the whole batch"):
        steppe.make_private(model, optimizer, data, plan, loss=lambda o, t: o.mean())


def test_labels_are_checked_before_the_first_step_where_classes_are_declared() -> None:
    model, optimizer, data, plan = parts()
    data[1][17] = 3
    with pytest.raises(DataError, match="labels=int64: must be whole numbers from 0 to 2"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, classes=3)
    data[1][17] = 0
    steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy, classes=3)


@pytest.mark.parametrize("bound", [1e-46, 1e39])
def test_noise_beyond_float32_is_refused_before_the_first_step(bound: float) -> None:
    with pytest.raises(ConfigurationError, match=r"must lie in the range of torch\.float32"):
        private(clip=steppe.Flat(bound))


def test_complex_weights_are_refused() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return (x.to(torch.complex64) @ self.turn).abs()

    _, _, data, plan = parts()
    model = Turned()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"'turn'=.*must be real.*torch\.view_as_complex"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


def test_weights_made_in_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        model = nn.Linear(6, 3)
    _, _, data, plan = parts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match="'weight'='made in inference_mode'"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


class _Follows(torch.optim.Optimizer):
    """Has no learning rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.1 * parameter.grad)


class _Asks(_Follows):
    def step(self, closure: Any) -> None:  # type: ignore[override]
        closure()


class _Rests(_Follows):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        pass


def test_an_optimizer_without_a_learning_rate() -> None:
    model, _, data, plan = parts()
    optimizer = _Follows(model.parameters())
    loop = steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
    for batch in loop:
        loop.step(batch)
    model, _, data, plan = parts()
    idle = steppe.make_private(model, _Rests(model.parameters()), data, plan, loss=F.cross_entropy)
    with pytest.raises(MisuseError, match="must move in the first step"):
        idle.step(next(iter(idle)))


def test_an_optimizer_that_needs_a_closure_is_refused_at_set_up() -> None:
    model, _, data, plan = parts()
    with pytest.raises(ConfigurationError, match=r"optimizer='_Asks'.*needs closure"):
        steppe.make_private(model, _Asks(model.parameters()), data, plan, loss=F.cross_entropy)


def test_a_scheduler_made_before_does_not_look_like_a_closure() -> None:
    model, optimizer, data, plan = parts()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan": {}}, "plan='dict': must be a steppe.Plan"),
        ({"plan": None}, "plan='NoneType': must be a steppe.Plan"),
        ({"model": lambda x: x}, "model='function': must be a torch nn.Module"),
        ({"kernels": "fast"}, "kernels='fast': must be steppe.Kernels or None"),
        ({"loss": nn.CrossEntropyLoss}, r"loss='CrossEntropyLoss': must be an instance; write"),
        ({"loss": None, "objective": 5}, "objective=5: must be a function of"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(change: dict[str, Any], message: str) -> None:
    model, optimizer, data, plan = parts()
    given = {"model": model, "optimizer": optimizer, "data": data, "plan": plan}
    with pytest.raises(ConfigurationError, match=message):
        steppe.make_private(**(given | {"loss": F.cross_entropy} | change))


def test_made_up_records_lie_where_the_weights_are() -> None:
    """Data stay on the host, and the loop moves its batches."""
    model = nn.Linear(3, 2, device="meta")
    engine = ClippedSum(dict(model.named_parameters()), lambda batch: model(batch[0]), Flat(1.0))
    rows = as_records([(torch.zeros(3), {"y": torch.tensor(0)})] * 2)
    assert form_of(example_for(engine, rows)) == form_of(
        [torch.zeros(0, 3, device="meta"), {"y": torch.zeros(0, dtype=torch.long, device="meta")}]
    )


def test_a_lazy_layer_is_named() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, data, plan = parts()
    with pytest.raises(ConfigurationError, match=r"^weight '0.weight'='not made yet': must exist"):
        steppe.make_private(model, optimizer, data, plan, loss=F.cross_entropy)
