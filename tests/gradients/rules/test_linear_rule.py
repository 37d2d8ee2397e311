"""Linear layers: the product with few outputs takes another way and gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from steppe.clipping import ClippedSum, Flat
from steppe.clipping.reference import clipped_sum
from steppe.gradients import Kernels, objective_of
from steppe.gradients.rules.linear import product

Batch = tuple[Tensor, Tensor]

NARROW = (263, 4_000, 5)  # records, inputs, outputs; the last group is not full
OTHERS = [(64, 300, 5), (263, 4_000, 40), (70, 20, 5), (7, 300, 5)]


@pytest.fixture(params=[1, 2], autouse=True)
def threads(request: pytest.FixtureRequest) -> None:
    """Groups of records are shared among the threads."""
    torch.set_num_threads(request.param)


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target[:, None]).square().sum(1)


def trained(records: int, inputs: int, outputs: int, bias: bool) -> tuple[nn.Linear, Batch]:
    torch.manual_seed(records)
    batch = torch.randn(records, inputs), torch.randn(records)
    return nn.Linear(inputs, outputs, bias=bias), batch


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [NARROW, *OTHERS])
def test_sum_is_the_references(shape: tuple[int, int, int], bias: bool) -> None:
    model, batch = trained(*shape, bias)
    objective, parameters = objective_of(model, squares), dict(model.named_parameters())
    engine = ClippedSum(parameters, objective, Flat(0.5))
    found = torch.zeros(engine.width)
    engine.add_(found, batch)
    torch.testing.assert_close(found, clipped_sum(objective, parameters, batch, Flat(0.5)))


def test_output_is_the_plain_one_in_values_and_memory_format() -> None:
    model, (x, target) = trained(*NARROW, True)
    seen: list[Tensor] = []

    def objective(batch: tuple[Tensor, Tensor]) -> Tensor:
        output = model(batch[0])
        seen.append(output.detach().view(-1).view_as(output))  # view() needs contiguous memory
        return squares(output, batch[1])

    engine = ClippedSum(dict(model.named_parameters()), objective, Flat())
    engine.add_(torch.zeros(engine.width), (x, target))
    torch.testing.assert_close(seen[0], F.linear(x, model.weight, model.bias).detach())


def test_one_broken_record_stays_alone() -> None:
    model, (x, target) = trained(*NARROW, True)
    x[3, 7] = float("nan")
    objective, parameters = objective_of(model, squares), dict(model.named_parameters())
    engine = ClippedSum(parameters, objective, Flat(0.5))
    found = torch.zeros(engine.width)
    engine.add_(found, (x, target))
    kept = torch.arange(len(x)) != 3
    expected = clipped_sum(objective, parameters, (x[kept], target[kept]), Flat(0.5))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("way", ["gram", "kept"])
def test_data_overwritten_before_the_sum_cannot_say_more_than_the_clip(way: str) -> None:
    """A loader may reuse its memory for the next batch, which torch does not see."""
    torch.manual_seed(0)
    memory = torch.randn(3, 5, 4).numpy()
    layer = nn.Linear(4, 2, bias=False)
    engine = ClippedSum(
        dict(layer.named_parameters()),
        lambda batch: layer(batch[0]).square().flatten(1).sum(1),
        Flat(0.5),
        kernels=Kernels(pinned={"linear 4->2 T=5": way}),
    )
    found = engine.slots((torch.from_numpy(memory),))
    memory *= 1e3
    out = torch.zeros(engine.width)
    engine.add_slots_(out, found, 3)
    assert float(out.norm()) <= 3 * 0.5 * (1 + 1e-6)


@pytest.mark.parametrize(("inputs", "outputs"), [(256, 8), (784, 10), (512, 1), (300, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_records_outputs_do_not_depend_on_how_many_others_there_are(
    inputs: int, outputs: int, bias: bool
) -> None:
    """To the last bit, wherever it stands: what comes behind may make much of a rounding error."""
    torch.manual_seed(0)
    x, weight = torch.randn(140, inputs), torch.randn(outputs, inputs)
    offset = torch.randn(outputs) if bias else None
    among = product(x, weight, offset)
    for records in range(1, 140):
        assert torch.equal(product(x[:records], weight, offset), among[:records])
        assert torch.equal(product(x[records:], weight, offset), among[records:])


def test_one_record_more_takes_no_other_over_a_step() -> None:
    """Records whose activations are zero but for rounding, where a ReLU may go either way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 8, bias=False), nn.ReLU(), nn.Linear(8, 2))
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        model[2].weight.mul_(20.0)
    first = model[0].weight.detach().double()
    engine = ClippedSum(parameters, objective_of(model, F.cross_entropy), Flat(1.0))
    for _ in range(10):
        x = torch.randn(256, dtype=torch.float64)
        edge = (x - torch.linalg.pinv(first) @ (first @ x)).float()
        records = edge.expand(64, 256).clone()
        records[-1] = 0.0
        sums = []
        for number in (63, 64):
            out = torch.zeros(engine.width)
            engine.add_(out, (records[:number], torch.zeros(number, dtype=torch.long)))
            sums.append(out)
        assert torch.linalg.vector_norm(sums[1] - sums[0]) <= 1 + 1e-4
