"""`TrainingArguments` of transformers: what a private run respects, and what it refuses by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from steppe.clipping import Flat
from steppe.noise import Correlated
from steppe.plan import Plan
from steppe.utils import validation

# Fields of `Plan` that TrainingArguments decide.
_DECIDED = {
    "batch_size": "per_device_train_batch_size × gradient_accumulation_steps",
    "steps": "max_steps",
    "epochs": "num_train_epochs",
}
_FIELDS = tuple(name for name in Plan.__dataclass_fields__ if name not in _DECIDED)

_FEWER = "use a smaller per_device_train_batch_size and more gradient_accumulation_steps"


def _is_set(value: Any) -> bool:
    return bool(value)


# Name, whether a value is refused, why, and what to do instead.
_REFUSED: tuple[tuple[str, Callable[[Any], bool], str, str], ...] = (
    (
        "train_sampling_strategy",
        lambda value: value not in ("random", "sequential"),
        "chooses the records of a batch by their lengths, and the account assumes Poisson sampling",
        'leave it at "random"',
    ),
    (
        "group_by_length",
        _is_set,
        "chooses the records of a batch by their lengths, and the account assumes Poisson sampling",
        "leave it out",
    ),
    (
        "dataloader_drop_last",
        _is_set,
        "drops records, and the account assumes that every drawn batch is stepped",
        "leave it out; Poisson batches have no last one",
    ),
    (
        "label_smoothing_factor",
        lambda value: value != 0,
        "averages over the tokens of all records, which mixes them",
        "set it to 0, and give compute_loss_func with one smoothed loss for each record",
    ),
    (
        "auto_find_batch_size",
        _is_set,
        "starts again with another batch size after an error, which the account does not know",
        _FEWER,
    ),
    (
        "fp16",
        _is_set,
        "scales losses and skips steps by values of the gradient, which depend on records",
        "leave it out",
    ),
    (
        "bf16",
        _is_set,
        "runs the model under autocast, which the proof and the clip do not cover",
        "leave it out, or load the model itself in bfloat16",
    ),
    ("deepspeed", _is_set, "trains by steps of its own, without noise", "leave it out"),
    ("fsdp", _is_set, "spreads the model over processes", "train in one process"),
    ("parallelism_config", _is_set, "spreads the model over processes", "train in one process"),
    (
        "activation_checkpointing",
        _is_set,
        "computes layers twice, and their per-example gradients would count twice",
        _FEWER,
    ),
    ("gradient_checkpointing", _is_set, "computes layers twice", _FEWER),
    (
        "torch_compile",
        _is_set,
        "hides the operations of the model",
        "leave it out, and compile the model after training",
    ),
    (
        "use_liger_kernel",
        _is_set,
        "replaces layers by kernels whose operations cannot be followed",
        "leave it out",
    ),
    (
        "neftune_noise_alpha",
        lambda value: value is not None,
        "adds noise in a hook, whose random numbers do not count for privacy",
        "leave it out, and use dropout",
    ),
    (
        "include_num_input_tokens_seen",
        lambda value: value not in (False, "no"),
        "writes the number of tokens that were drawn, which depends on records, into the log",
        'leave it at "no"',
    ),
    (
        "debug",
        _is_set,
        "ends the run where values of private records overflow, and prints them",
        "leave it out, and look for overflow on public data",
    ),
    (
        "optim",
        lambda value: any(word in str(value).lower() for word in ("lomo", "layerwise")),
        "moves weights during the backward pass, before the gradients are clipped and noised",
        'use "adamw_torch" or "sgd"',
    ),
    (
        "n_gpu",
        lambda value: value > 1,
        "would spread every batch over several devices",
        "show one device (CUDA_VISIBLE_DEVICES=0)",
    ),
    (
        "world_size",
        lambda value: value > 1,
        "processes would each sample all records and report their own ε",
        "train in one process",
    ),
)


def check_arguments(arguments: Any) -> None:
    """Refuse `TrainingArguments` under which ε would be wrong, by name.

    Args:
        arguments: `transformers.TrainingArguments`.
    """
    for name, is_refused, rule, remedy in _REFUSED:
        value = getattr(arguments, name, None)
        if value is not None and is_refused(value):
            raise validation.fail(name, str(getattr(value, "value", value)), rule, remedy)


def batch_of(arguments: Any) -> int:
    """The logical batch: the expected number of records in a step."""
    parts = validation.positive_integer(
        "gradient_accumulation_steps", arguments.gradient_accumulation_steps
    )
    return parts * validation.positive_integer(
        "per_device_train_batch_size", arguments.per_device_train_batch_size
    )


def steps_in_pass(arguments: Any, population: int) -> int:
    """The steps of one pass over the data on average, as `Trainer` counts them."""
    return math.ceil(population / batch_of(arguments))


def plan_of(arguments: Any, given: Mapping[str, Any], records: int) -> Plan:
    """The plan of a run.

    Args:
        arguments: they decide the batch and the number of steps. `max_grad_norm` is C, the bound of
            each record's gradient, unless the plan has a clip.
        given: the other fields of `steppe.Plan`.
        records: the length of the data, read if no population is declared.
    """
    _check_fields(given)
    fields = dict(given)
    if "clip" not in fields:
        hint = "1.0 is a common bound of each record's gradient; or give a clip in plan="
        fields["clip"] = Flat(validation.positive("max_grad_norm", arguments.max_grad_norm, hint))
    population = fields.get("population") or records
    steps = arguments.max_steps
    if steps <= 0:
        epochs = validation.positive("num_train_epochs", arguments.num_train_epochs)
        steps = math.ceil(epochs * steps_in_pass(arguments, population))
    plan = Plan(batch_size=batch_of(arguments), steps=steps, **fields)
    return plan if plan.population is not None else plan.for_population(records)


def _check_fields(given: Any) -> None:
    if not isinstance(given, Mapping):
        rule = "must be a dict of fields of steppe.Plan"
        remedy = 'write plan={"epsilon": 3.0, "delta": 1e-5}'
        raise validation.fail("plan", type(given).__name__, rule, remedy)
    for name, where in _DECIDED.items():
        if name in given:
            rule = f"is decided by TrainingArguments ({where})"
            raise validation.fail(f"plan[{name!r}]", given[name], rule, "set it there alone")
    for name in given:
        if name not in _FIELDS:
            rule = f"is no field of steppe.Plan; they are {', '.join(_FIELDS)}"
            raise validation.fail("plan", name, rule, "check the spelling")
    if isinstance(noise := given.get("noise"), Correlated):
        rule = (
            "keeps noise that later steps take back, and every checkpoint folder of transformers, "
            "which may be kept and published, would contain it"
        )
        remedy = "leave it out for independent noise, or train with steppe.Trainer"
        raise validation.fail("plan['noise']", noise, rule, remedy)
