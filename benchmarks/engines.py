"""One interface over every way to take a training step: `setup(case, batch) -> step()`.

A step does the whole work on the same batch: forward, backward, clip, noise, update. Plain training
leaves out clip and noise and is the measure of the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from benchmarks import engine_steppe, settings
from benchmarks.cases import Case, record_losses
from steppe.utils.validation import fail

Batch = tuple[Tensor, Tensor]
Step = Callable[[], None]
Setup = Callable[[Case, Batch], Step]

VMAP_CHUNKS = (16, 32, 64)


def plain(case: Case, batch: Batch) -> Step:
    """Training without privacy, as everyone writes it."""
    model = case.new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    (inputs, target), loss = batch, case.loss

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(inputs), target).backward()
        optimizer.step()

    return step


def plain_micro(case: Case, batch: Batch) -> Step:
    """Training without privacy that accumulates micro-batches: the honest peer of large batches."""
    model = case.new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    pieces = _pieces(case, batch)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for inputs, target in pieces:
            share = len(target) / case.batch
            (case.loss(model(inputs), target) * share).backward()
        optimizer.step()

    return step


def opacus(mode: str, case: Case, batch: Batch) -> Step:
    """Opacus in one of its modes, with its own replacements for layers it cannot run."""
    # Imported late: a machine without this peer can still measure the rest.
    from opacus.grad_sample import get_gsm_class
    from opacus.optimizers import get_optimizer_class
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    size = len(batch[1])
    options: dict[str, Any] = {"loss_reduction": "mean"}
    if mode == "functorch":
        options["force_functorch"] = True
    if mode == "ghost":
        options |= {"max_grad_norm": settings.CLIP, "use_ghost_clipping": True}
    model = get_gsm_class(mode)(_opacus_model(case), **options)
    optimizer = get_optimizer_class(clipping="flat", distributed=False, grad_sample_mode=mode)(
        optimizer=torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE),
        noise_multiplier=settings.NOISE_MULTIPLIER,
        max_grad_norm=settings.CLIP,
        expected_batch_size=size,
    )
    pieces = _pieces(case, batch)

    def backward(inputs: Tensor, target: Tensor) -> None:
        output = model(inputs)
        if mode == "ghost":
            losses = record_losses(output, target)
            DPTensorFastGradientClipping(model, optimizer, losses, "mean").backward()
        else:
            case.loss(output, target).backward()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        for inputs, target in pieces[:-1]:
            backward(inputs, target)
            optimizer.signal_skip_step(do_skip=True)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        backward(*pieces[-1])
        optimizer.signal_skip_step(do_skip=False)
        optimizer.step()

    return step


def _opacus_model(case: Case) -> nn.Module:
    from opacus.validators import ModuleValidator

    model = case.new_model()
    return model if ModuleValidator.is_valid(model) else ModuleValidator.fix(model)


def opacus_replacements(case: Case) -> list[str]:
    """The layers that Opacus cannot run and puts its own in place of, such as DPLSTM for LSTM."""
    before = {name: type(module).__name__ for name, module in case.new_model().named_modules()}
    after = {name: type(module).__name__ for name, module in _opacus_model(case).named_modules()}
    return sorted(
        {
            f"{after[name]} in place of {kind}"
            for name, kind in before.items()
            if after.get(name, kind) != kind
        }
    )


def vmap_grad(case: Case, batch: Batch, chunk: int) -> Step:
    """Per-record gradients by `torch.func`, `chunk` records at a time."""
    model = case.new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.LEARNING_RATE)
    parameters = dict(model.named_parameters())
    detached = {name: parameter.detach() for name, parameter in parameters.items()}
    pieces = list(zip(*(tensor.split(chunk) for tensor in batch), strict=True))

    def loss(weights: dict[str, Tensor], record: Tensor, target: Tensor) -> Tensor:
        output = functional_call(model, weights, (record[None],))
        return record_losses(output, target[None]).sum()

    per_record = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        total = {name: torch.zeros_like(weight) for name, weight in detached.items()}
        for inputs, target in pieces:
            gradients = per_record(detached, inputs, target)
            squares = [g.flatten(1).square().sum(1) for g in gradients.values()]
            factors = (settings.CLIP / (torch.stack(squares).sum(0).sqrt() + 1e-6)).clamp(max=1.0)
            for name, gradient in gradients.items():
                total[name].view(-1).addmv_(gradient.flatten(1).t(), factors)
        for name, parameter in parameters.items():
            noise = torch.empty_like(parameter).normal_(
                std=settings.NOISE_MULTIPLIER * settings.CLIP
            )
            parameter.grad = total[name].add_(noise).div_(len(batch[1]))
        optimizer.step()

    return step


def fastest_vmap_chunk(case: Case) -> int:
    """The best chunk size by a short trial; a peer deserves its best setting."""
    batch = case.new_batch(min(case.batch, max(VMAP_CHUNKS)))
    fitting = [size for size in VMAP_CHUNKS if size <= case.batch]
    seconds: dict[int, float] = {}
    for size in fitting:
        step = vmap_grad(case, batch, size)
        step()
        start = time.perf_counter()
        step()
        seconds[size] = time.perf_counter() - start
    return min(seconds, key=seconds.__getitem__)


def _pieces(case: Case, batch: Batch) -> list[Batch]:
    inputs, target = batch
    size = case.physical or len(target)
    return list(zip(inputs.split(size), target.split(size), strict=True))


OPACUS_MODES = ("hooks", "functorch", "ew", "ghost")
_WITHOUT_OPTIONS: dict[str, Setup] = {
    "plain": plain,
    "plain-micro": plain_micro,
    **{f"opacus-{mode}": partial(opacus, mode) for mode in OPACUS_MODES},
}
_STEPPE = {
    "steppe": engine_steppe.default,
    "steppe-whole": engine_steppe.whole,
    "steppe-micro": engine_steppe.micro,
}
NAMES = ("plain", "plain-micro", *_STEPPE, *(f"opacus-{mode}" for mode in OPACUS_MODES), "vmap")


def setup(
    name: str, case: Case, batch: Batch, vmap_chunk: int, pinned: Mapping[str, str] | None = None
) -> Step:
    """Build the engine called `name` and return its step.

    Args:
        name: one of `NAMES`.
        case: model and batch.
        batch: what every step works on.
        vmap_chunk: records at a time, for "vmap".
        pinned: the ways that layers take, for our own engine; it chooses them itself unless given.
    """
    if name == "vmap":
        return vmap_grad(case, batch, vmap_chunk)
    if name in _STEPPE:
        return _STEPPE[name](case, batch, pinned)
    return _WITHOUT_OPTIONS[name](case, batch)


def select(names: Sequence[str] | None) -> list[str]:
    """Names of engines, plain training always among them because it is the measure.

    Examples:
        >>> select(["vmap"])
        ['plain', 'vmap']
    """
    wanted = set(NAMES) if names is None else {"plain", *names}
    for name in sorted(wanted - set(NAMES)):
        raise fail("engines", name, f"must be one of {', '.join(NAMES)}", "choose again")
    return [name for name in NAMES if name in wanted]


def applies(engine: str, case: Case) -> bool:
    """Whether an engine says something about this case that no other engine says."""
    if engine == "plain-micro":
        return case.physical is not None
    if engine == "steppe-micro":
        return case.micro is not None
    if engine == "steppe-whole":
        return engine_steppe.chosen(case) != physical_batch(engine, case, 0)
    return True


def physical_batch(engine: str, case: Case, vmap_chunk: int) -> int:
    """How many records an engine takes through the model at once."""
    whole = case.batch if engine == "plain" else case.physical or case.batch
    own = {
        "steppe": lambda: engine_steppe.chosen(case),
        "steppe-micro": lambda: case.micro or whole,
        "vmap": lambda: vmap_chunk,
    }
    return own[engine]() if engine in own else whole
