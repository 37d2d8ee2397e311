"""What mixes records is named before the first step, and everything is left as it was."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from steppe.clipping import ClippedSum, Flat
from steppe.errors import IsolationError, MisuseError, UnsupportedModelError
from steppe.gradients.layout import RecordLayout
from steppe.probing import Report, probe

LABELS = torch.zeros(1, dtype=torch.long)


def run(model: nn.Module, example: Tensor) -> Report:
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}

    def objective(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    return probe(model, parameters, objective, (example, LABELS[: len(example)]))


class Centred(nn.Module):
    """Batch normalisation in disguise."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class Remembers(nn.Module):
    """Keeps a running mean of what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.mul_(0.9).add_(x.detach().mean(0))
        return x


class Neighbour(nn.Module):
    """Attends over the batch axis by mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)  # time-major, fed batch-first

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0].mean(1)[:, :3]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(3), r"layer='1 \(BatchNorm1d\)', batch_norm training=True"),
        (nn.BatchNorm1d(3, affine=False, track_running_stats=False), r"layer='1 \(BatchNorm1d\)'"),
        (nn.BatchNorm1d(3).requires_grad_(False), r"written by .* in 1 \(BatchNorm1d\)"),
        (Centred(), r"layer='1 \(Centred\)'"),
        (Remembers(), r"weights or buffers=\['1.seen'\]"),
    ],
)
def test_what_mixes_records_is_refused_by_name(layer: nn.Module, message: str) -> None:
    model = nn.Sequential(nn.Linear(6, 3), layer, nn.Linear(3, 3))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(UnsupportedModelError, match=message):
        run(model, torch.zeros(1, 6))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_code_that_mixes_records_between_two_layers_is_named_and_not_the_next_layer() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            return self.second((h - h.mean(0)) / (1.0 + h.std(0)))

    where = r"^layer='0 \(Block\)': must treat every record alone, and aten\.mean"
    with pytest.raises(IsolationError, match=where):
        run(nn.Sequential(Block()), torch.zeros(1, 6))


def test_attention_over_the_batch_is_refused() -> None:
    with pytest.raises(IsolationError, match="attention"):
        run(Neighbour(), torch.zeros(1, 5, 4))


def test_frozen_statistics_are_an_affine_map() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3), nn.Linear(3, 3)).eval()
    assert len(run(model, torch.zeros(1, 6)).rows) == 3


def test_weights_that_torch_does_not_show_are_refused() -> None:
    class Hidden(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            x, weight = ctx.saved_tensors
            return grad * weight, (grad * x).sum(0)

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return Hidden.apply(x, self.weight)

    with pytest.raises(UnsupportedModelError, match=r"parameters=\['1.weight'\]"):
        run(nn.Sequential(nn.Linear(6, 3), Scale()), torch.zeros(1, 6))


def test_checkpointed_blocks_are_right_or_refused() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=True)

    with pytest.raises(UnsupportedModelError):
        run(nn.Sequential(nn.Linear(6, 6), Block()), torch.zeros(1, 6))


def test_time_major_and_flattened_code_is_understood() -> None:
    class TimeMajor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x.transpose(0, 1))
            return self.b(h.reshape(-1, 3)).view(x.shape[1], -1, 3).mean(0)

    layouts = run(TimeMajor(), torch.zeros(1, 4, 2)).layouts
    assert layouts[0].inputs == (RecordLayout(1, rows=1, rest=(4, 2)),)
    assert layouts[1].inputs == (RecordLayout(0, interleaved=True, rows=4, rest=(3,)),)


def test_no_value_of_the_example_is_read() -> None:
    """An example full of NaN gives the same report as one full of zeros."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5), nn.Linear(3, 3))
    poisoned = torch.full((1, 6), float("nan"))
    assert run(model, poisoned) == run(model, torch.zeros(1, 6))


def test_random_state_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    state = torch.random.get_rng_state()
    run(model, torch.zeros(1, 6))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_masks_and_positive_inputs_are_tried_until_losses_are_finite() -> None:
    class Keeps(nn.Module):
        """Log of the input, and a mask that must be True somewhere."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor, keep: Tensor) -> Tensor:
            scores = (x.log() * self.weight).masked_fill(~keep, float("-inf"))
            return scores.logsumexp(1)

    model = Keeps()
    example = (torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.bool))
    report = probe(model, dict(model.named_parameters()), lambda b: model(*b), example)
    assert report.unused == ()


def test_report_lists_paths_and_unused_weights() -> None:
    model = nn.Sequential(nn.Linear(6, 3))
    model.spare = nn.Parameter(torch.ones(2))
    model.forward = lambda x: model[0](x)  # type: ignore[method-assign]
    report = run(model, torch.zeros(1, 6))
    assert report.unused == ("spare",)
    assert [(row.operation, row.path, row.weights, row.numel) for row in report.rows] == [
        ("linear", "linear", ("0.weight", "0.bias"), 21)
    ]
    assert "spare" in str(report)
    assert "unused" in str(report)


class Written(nn.Module):
    """Keeps what it has seen in a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.add_(x.mean(0))
        return x


class Largest(nn.Module):
    """A buffer that synthetic numbers do not move, but real pixels would."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("largest", torch.full((3,), 10.0))

    def forward(self, x: Tensor) -> Tensor:
        self.largest = torch.maximum(self.largest, x.detach().amax(0))
        return x


class Late(nn.Module):
    """Makes its buffer in the first forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "late"):
            self.register_buffer("late", x.detach().mean(0))
        return x + self.late


@pytest.mark.parametrize("layer", [Written(), Largest(), Late()])
def test_writes_from_records_are_refused_and_undone(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(6, 3), layer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(IsolationError, match=r"must not be written|treat every record alone"):
        run(model, torch.zeros(1, 6))
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert all(not vars(tensor) for tensor in [*model.parameters(), *model.buffers()])


def test_a_frozen_table_with_max_norm_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(50, 4, max_norm=1.0), nn.Flatten(), nn.Linear(8, 3))
    model[0].weight.requires_grad_(False).mul_(5)
    before = model[0].weight.clone()
    with pytest.raises(UnsupportedModelError, match="max_norm"):
        run(model, torch.zeros(1, 2, dtype=torch.long))
    assert torch.equal(model[0].weight, before)


def records_of(objective: Any, parameters: dict[str, Tensor], example: Any) -> Report:
    return probe(nn.Module(), parameters, objective, example)


def weights(*shape: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"w": nn.Parameter(torch.randn(*shape))}


def test_dividing_by_the_batch_is_refused() -> None:
    w = weights(6)
    with pytest.raises(IsolationError, match="how many records there are"):
        records_of(lambda b: (b[0] @ w["w"]).square() / len(b[0]), w, (torch.zeros(1, 6),))


def test_depending_on_the_place_in_the_batch_is_refused() -> None:
    w = weights(6)

    def objective(batch: Any) -> Tensor:
        odd = torch.arange(len(batch[0])) % 2
        return (batch[0] @ w["w"]).square() * (1 + odd)

    with pytest.raises(IsolationError, match="on its place among the others"):
        records_of(objective, w, (torch.zeros(1, 6),))


def test_a_mask_that_trims_the_batch_is_refused() -> None:
    w = weights(4)

    def objective(batch: Any) -> Tensor:
        x, keep = batch
        return (x * w["w"])[:, keep.any(0)].mean(1)

    example = (torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.bool))
    with pytest.raises(UnsupportedModelError):
        records_of(objective, w, example)


@pytest.mark.parametrize("way", ["detached", "hook"])
def test_gradients_that_depend_on_others_are_refused(way: str) -> None:
    w = weights(6)

    def objective(batch: Any) -> Tensor:
        h = batch[0] @ w["w"]
        largest = batch[0].detach().max()
        if way == "detached":
            h = h.detach() + (h - h.detach()) * largest
        else:
            h.register_hook(lambda grad: grad * largest)
        return h.square()

    message = (
        "^loss=mixes records" if way == "detached" else "a record's gradient must not depend on"
    )
    with pytest.raises(IsolationError, match=message):
        records_of(objective, w, (torch.zeros(1, 6),))


def test_mixing_that_happens_by_chance_is_refused() -> None:
    w = weights(6)

    def objective(batch: Any) -> Tensor:
        x = batch[0]
        if torch.rand(()) < 0.5:
            x = 0.5 * (x + x.roll(1, 0))
        return (x @ w["w"]).square()

    with pytest.raises(UnsupportedModelError):
        records_of(objective, w, (torch.zeros(1, 6),))


def test_layers_skipped_by_chance_are_refused() -> None:
    model = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def objective(batch: Any) -> Tensor:
        h = batch[0]
        for layer in model:
            if torch.rand(()) < 0.7:
                h = layer(h)
        return h.square().sum(1)

    with pytest.raises(UnsupportedModelError, match="must use the same weights"):
        records_of(objective, dict(model.named_parameters()), (torch.zeros(1, 4),))


@pytest.mark.parametrize("flattened", [False, True])
def test_dead_units_are_followed_as_live_ones_are(flattened: bool) -> None:
    """Behind dead units no value moves; where the records lie does not depend on values."""
    first, second = nn.Linear(3, 4), nn.Linear(4, 2)
    with torch.no_grad():
        first.bias.fill_(-1e3)
    model = nn.ModuleList([first, second])

    def objective(batch: Any) -> Tensor:
        h = torch.relu(first(batch[0].transpose(0, 1)))
        h = second(h.flatten(0, 1)).unflatten(0, h.shape[:2]) if flattened else second(h)
        return h.square().sum((0, 2))

    example = (torch.zeros(1, 6, 3),)
    layouts = records_of(objective, dict(model.named_parameters()), example).layouts
    flat = RecordLayout(0, interleaved=True, rows=6, rest=(4,))
    assert layouts[1].inputs == (flat if flattened else RecordLayout(1, rows=1, rest=(6, 4)),)


def test_a_step_on_another_path_than_the_probes_is_refused() -> None:
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    order = [0, 1]

    def objective(batch: Any) -> Tensor:
        h = batch[0]
        for i in order:
            h = model[i](h)
        return h.square().sum(1)

    parameters = dict(model.named_parameters())
    report = records_of(objective, parameters, (torch.zeros(1, 4),))
    engine = ClippedSum(parameters, objective, Flat(1.0), layouts=report.layouts)
    out, x = torch.zeros(engine.numel), torch.randn(5, 4)
    engine.add_(out, (x,))
    for other in ([1, 0], [0]):
        order[:] = other
        with pytest.raises(UnsupportedModelError, match="must be the one that the probe saw"):
            engine.add_(out, (x,))


class Trimmed(nn.Module):
    """Cuts a batch to its longest record; all tokens below 50 are words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(60, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        longest = int((x != 50).sum(1).max())
        return self.head(self.words(x[:, :longest]).mean(1))


def test_a_step_on_records_of_another_size_than_the_probes_is_refused() -> None:
    model = Trimmed()
    parameters = dict(model.named_parameters())

    def objective(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    labels = torch.zeros(6, dtype=torch.long)
    example = (torch.zeros(1, 8, dtype=torch.long), LABELS)
    with pytest.raises(IsolationError, match="must not be read by Python"):
        probe(model, parameters, objective, example)
    report = probe(model, parameters, objective, example, isolation="probed")
    engine = ClippedSum(parameters, objective, Flat(1.0), layouts=report.layouts)
    out, x = torch.zeros(engine.numel), torch.randint(50, (6, 8))
    for size in (1, 2, 6):
        engine.physical_batch = size
        engine.add_(out, (x, labels))
    x[:, 5:] = 50
    with pytest.raises(UnsupportedModelError, match="sequences cut to the longest of the batch"):
        engine.add_(out, (x, labels))


class Flattened(nn.Module):
    """All indices in one list, as bags of any length come."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(9, 3, mode="sum")

    def forward(self, x: Tensor) -> Tensor:
        return self.bags(x.flatten(), torch.arange(len(x)) * x.shape[1])


def test_bags_in_one_list_go_on_with_any_number_of_records() -> None:
    model = Flattened()
    parameters = dict(model.named_parameters())

    def objective(batch: Any) -> Tensor:
        return model(batch[0]).square().sum(1)

    example = (torch.zeros(1, 4, dtype=torch.long),)
    report = probe(model, parameters, objective, example)
    assert report.layouts[0].inputs == (RecordLayout(rows=4, rest=()),)
    for size in (None, 2):
        engine = ClippedSum(
            parameters, objective, Flat(1.0), layouts=report.layouts, physical_batch=size
        )
        assert len(engine.add_(torch.zeros(engine.numel), (torch.randint(9, (5, 4)),))) == 5


class Counts(nn.Module):
    """A buffer that knows how many passes there were: records do not move it, their number does."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


@pytest.mark.parametrize(
    "layer",
    [Counts(), nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))],
    ids=["counter", "spectral norm"],
)
def test_buffers_that_move_with_every_pass_are_refused(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 3), layer)
    with pytest.raises(IsolationError, match="must not change with every forward pass"):
        run(model, torch.zeros(1, 4))


def test_a_buffer_that_stays_in_eval_mode_is_accepted() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    run(nn.Sequential(nn.Linear(4, 3), layer).eval(), torch.zeros(1, 4))


class Caches(nn.Module):
    """A buffer that is made in the first pass and stays."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "ramp"):
            self.register_buffer("ramp", torch.linspace(0.0, 1.0, x.shape[1]))
        return x + self.ramp


def test_a_buffer_made_once_is_accepted() -> None:
    run(nn.Sequential(nn.Linear(4, 3), Caches()), torch.zeros(1, 4))


class Hides(nn.Module):
    """Writes a frozen weight in a way that torch does not count."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.centre = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.detach().mean(0)
        if self.way == "in place":
            self.centre.data.mul_(0.9).add_(mean)
        elif self.way == "data":
            self.centre.data = 0.9 * self.centre.data + mean
        else:
            self.centre = nn.Parameter(0.9 * self.centre + mean, requires_grad=False)
        return x


@pytest.mark.parametrize("way", ["in place", "data", "another parameter"])
def test_hidden_writes_to_frozen_weights_are_refused_and_undone(way: str) -> None:
    model = nn.Sequential(nn.Linear(4, 3), Hides(way))
    with pytest.raises(IsolationError, match=r"weights or buffers=\['1.centre'\]"):
        run(model, torch.zeros(1, 4))
    assert model[1].centre.tolist() == [0.0, 0.0, 0.0]


class KeepsMap(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        return x


def test_attributes_made_from_records_are_noted() -> None:
    report = run(nn.Sequential(nn.Linear(4, 3), KeepsMap()), torch.zeros(1, 4))
    assert "attributes 1.last hold tensors made from records" in report.notes[0]


@pytest.mark.parametrize("of", ["torch", "random", "numpy"])
def test_randomness_of_each_kind_is_no_company(of: str) -> None:
    model = nn.Linear(4, 3)
    numbers = {
        "torch": lambda: torch.rand(()).item(),
        "random": random.random,
        "numpy": np.random.random_sample,
    }

    def objective(batch: Any) -> Tensor:
        noise = 1 + 0.1 * numbers[of]()
        return F.cross_entropy(model(batch[0]) * noise, batch[1], reduction="none")

    before = random.getstate(), np.random.get_state()[1].tolist()
    report = probe(model, dict(model.named_parameters()), objective, (torch.zeros(1, 4), LABELS))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert report.notes == ()
    assert report.isolation == "proven"


def test_dividing_by_the_batch_is_refused_where_the_pass_is_random() -> None:
    model = nn.Linear(4, 3)

    def objective(batch: Any) -> Tensor:
        views = batch[0] + 1e-6 * torch.randn_like(batch[0])
        return F.cross_entropy(model(views), batch[1], reduction="none") / len(batch[0])

    with pytest.raises(
        IsolationError, match="how many records there are; do not divide by the batch"
    ):
        probe(model, dict(model.named_parameters()), objective, (torch.zeros(1, 4), LABELS))


class MixesMany(nn.Module):
    """Leaves small batches alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x if len(x) < 4 else x - x.mean(0)


def test_mixing_that_begins_with_more_records_is_refused() -> None:
    with pytest.raises(IsolationError, match=r"1 \(MixesMany\).*aten\.mean"):
        run(nn.Sequential(nn.Linear(4, 3), MixesMany()), torch.zeros(1, 4))


class Demanding(nn.Module):
    """Refuses some inputs, as code that checks them does."""

    def __init__(self, most: float) -> None:
        super().__init__()
        self.layer, self.most = nn.Linear(4, 3), most

    def forward(self, x: Tensor) -> Tensor:
        inside = ((x >= 0) & (x <= self.most)).all()
        torch._assert_async(inside, "pixels lie in [0, 1]\nand nowhere else")
        return self.layer(x)


def test_inputs_that_the_model_takes_are_found() -> None:
    assert run(Demanding(1.0), torch.zeros(1, 4)).layouts


def test_a_model_that_takes_no_made_up_record_is_refused_with_its_own_words() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        run(Demanding(0.0), torch.zeros(1, 4))
    assert str(caught.value) == (
        "The model or its loss failed on 2 synthetic records with the shapes and types of the "
        "data (inputs from N(0, 1) or [0, 1), labels 0 and 1). It must take any number of such "
        "records.\n"
        "RuntimeError: pixels lie in [0, 1]\nand nowhere else"
    )


class Hardest(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).topk(4, dim=0).values


def test_a_model_that_needs_more_records_than_are_made_up_is_told_how_many() -> None:
    with pytest.raises(UnsupportedModelError, match=r"failed on 2 synthetic .* any number of such"):
        run(Hardest(4, 2), torch.zeros(1, 4))


def test_random_numbers_of_its_own_are_named_as_the_reason() -> None:
    own = torch.Generator().manual_seed(0)

    class Jitter(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn(x.shape, generator=own)

    with pytest.raises(UnsupportedModelError):
        run(nn.Sequential(Jitter(), nn.Linear(4, 3)), torch.zeros(1, 4))


def test_a_loop_over_records_is_refused_for_what_it_is() -> None:
    model = nn.Linear(6, 3)

    def objective(batch: Any) -> Tensor:
        return torch.stack([model(x[None]).square().sum() for x in batch[0]])

    with pytest.raises(IsolationError, match=r"number of records=decides which operations run"):
        records_of(objective, dict(model.named_parameters()), (torch.zeros(1, 6),))


def test_a_loss_that_makes_pairs_of_records_is_named() -> None:
    model = nn.Linear(6, 1)

    def objective(batch: Any) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean(1)  # (N, 1) − (N,)

    with pytest.raises(IsolationError, match=r"loss=mixes records in aten.* all pairs of records"):
        probe(model, dict(model.named_parameters()), objective, (torch.zeros(1, 6), torch.zeros(1)))


class FromList(nn.Module):
    """Hides its input from torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tensor(x.tolist()))


def test_records_that_leave_torch_are_refused_with_a_reason() -> None:
    with pytest.raises(UnsupportedModelError, match=r"FromList.*must not be read by Python"):
        run(FromList(), torch.zeros(1, 6))


def test_misuse_inside_the_probe_is_said_once() -> None:
    """A weight that is trained and was not declared: one message and not two."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))

    def objective(batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    half = dict(model[1].named_parameters())
    with pytest.raises(MisuseError, match=r"^weights of shapes="):
        probe(model, half, objective, (torch.zeros(1, 6), LABELS))


class ForThree(nn.Module):
    """Written for batches of three or fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.zeros(3, 1)[: len(x)]


def test_a_model_for_one_number_of_records_is_refused() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"records=\d+: .* must take any number of them"
    ):
        run(ForThree(), torch.zeros(1, 6))


class Rescales(nn.Module):
    """Changes its input in place, as code that is given pixels does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.mul_(2).sub_(1))


def test_a_model_that_changes_its_input_in_place_is_accepted() -> None:
    assert run(Rescales(), torch.zeros(1, 6)).notes == ()


def test_a_loss_over_the_tokens_of_the_batch_is_named_and_no_layer() -> None:
    """A layer that did not move, whose output has no axis for three records, is not to blame."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(5, 8), nn.Embedding(4, 8)
            self.out = nn.Linear(8, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.words(x) + self.places(torch.arange(4)))

    model = Positions()

    def objective(batch: Any) -> Tensor:
        words, _ = batch
        losses = F.cross_entropy(model(words).mT, words, reduction="none")
        return (losses * words).sum(1) / words.sum().clamp(min=1)

    with pytest.raises(IsolationError, match=r"^loss=mixes records"):
        probe(model, dict(model.named_parameters()), objective, (torch.zeros(1, 4).long(), LABELS))


def test_lengths_and_counts_need_not_be_zero() -> None:
    model = nn.Linear(6, 3)

    def objective(batch: Any) -> Tensor:
        x, lengths, labels = batch
        kept = torch.arange(4) < lengths[:, None]
        mean = (x * kept[..., None]).sum(1) / kept.sum(1, keepdim=True)
        return F.cross_entropy(model(mean), labels, reduction="none")

    example = (torch.zeros(1, 4, 6), LABELS, LABELS)
    assert probe(model, dict(model.named_parameters()), objective, example).layouts


def test_autocast_in_a_forward_pass_is_named() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.layer(x).float()

    with pytest.raises(UnsupportedModelError, match=r"autocast=on in the forward pass: must be of"):
        run(Mixed(), torch.zeros(1, 6))


@pytest.mark.parametrize("join", [torch.hstack, torch.column_stack])
def test_a_token_beside_the_features_is_followed(join: Any) -> None:
    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.out = nn.Parameter(torch.randn(1, 2)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(join([x, self.token.expand(len(x), -1)]))

    assert run(Token(), torch.zeros(1, 4)).layouts


def test_rows_that_values_choose_are_refused_where_they_are_chosen() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            chosen = hidden[hidden[:, 0] > 0]
            return self.out(hidden) + self.out(chosen).sum() * 0

    torch.manual_seed(0)
    with pytest.raises(IsolationError, match=r"aten\.index.* in model \(Kept\).*decide shapes"):
        run(Kept(), torch.zeros(1, 6))
