"""The loss of each record for models of transformers, whose own loss is a mean over the batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from steppe.losses import per_record_token_mean
from steppe.utils import validation

LABELS = "labels"


def record_losses(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """One loss for each record of a batch, as the model's own loss would be for that record alone.

    Args:
        model: of transformers, with a head for classification, regression, token classification,
            masked or causal language modelling, or sequence to sequence; also adapted by peft.
        batch: what a collator makes: inputs by name, and `labels`.

    Returns:
        A tensor of shape (records,). Language models: the mean over each record's own tokens.

    Guarantees:
        Entry i is made from record i alone, if the model treats every record alone.
    """
    inputs = dict(batch)
    labels = inputs.pop(LABELS, None)
    if labels is None:
        raise validation.missing(
            "labels", "name them so in the data set, or override record_losses", "are required"
        )
    plain = _unwrapped(model)
    to_decoder = getattr(plain, "prepare_decoder_input_ids_from_labels", None)
    given = "decoder_input_ids" in inputs or "decoder_inputs_embeds" in inputs
    if to_decoder is not None and not given:
        inputs["decoder_input_ids"] = to_decoder(labels)
    output = model(**inputs)
    logits = output["logits"] if isinstance(output, Mapping) else output[0]
    return losses_of_logits(plain, logits, labels)


def losses_of_logits(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    """One loss for each record, from logits and labels."""
    if logits.ndim == 3 and labels.ndim == 2:
        return per_record_token_mean(logits, labels, shift=_is_causal(model))
    if logits.ndim == 2 and len(labels.shape) in (1, 2):
        return _classification(model, logits, labels)
    raise validation.fail(
        "logits, labels",
        f"{logits.ndim} and {labels.ndim} axes",
        "must be those of a classifier (records, classes) or of a model of tokens (records, "
        "tokens, classes)",
        "override record_losses(model, batch) to return one loss for each record",
    )


def _classification(model: nn.Module, logits: Tensor, labels: Tensor) -> Tensor:
    problem = getattr(getattr(model, "config", None), "problem_type", None)
    if problem == "multi_label_classification" or (problem is None and _is_multi_label(labels)):
        each = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none")
        return each.mean(1)
    if problem == "regression" or (problem is None and logits.shape[1] == 1):
        targets = labels.to(logits.dtype).reshape(logits.shape)
        return F.mse_loss(logits, targets, reduction="none").mean(1)
    return F.cross_entropy(logits, labels.reshape(-1).long(), reduction="none")


def _is_multi_label(labels: Tensor) -> bool:
    return labels.ndim == 2 and labels.is_floating_point()


def _unwrapped(model: nn.Module) -> Any:
    """The model that peft has adapted, or the model itself."""
    base = getattr(model, "get_base_model", None)
    return model if base is None else base()


def _is_causal(model: nn.Module) -> bool:
    """Whether the labels of a position are the inputs of the next one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    return any(kind.__name__ in known for kind in type(model).__mro__)
