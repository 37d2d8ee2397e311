"""What is said of a loop in which records meet."""

from __future__ import annotations

from steppe.errors import IsolationError
from steppe.isolation import Finding, refusals


def mixes_before(finding: Finding) -> IsolationError:
    """Records meet before the module."""
    if finding.kind in ("no rule", "carries"):
        return refusals.mixes(finding)
    return IsolationError(
        f"loop={finding.place} mixes records before the module: row i of what the module gets must "
        "be made from record i alone; take mixup and statistics of the batch out of the loop, and "
        "use constants that are fixed beforehand."
    )


def meets(finding: Finding) -> IsolationError:
    """Records meet in the loss otherwise than in a last sum or mean."""
    if finding.kind in ("no rule", "carries"):
        return refusals.mixes(finding)
    if finding.detail == DIVIDES:
        return token_mean(finding.place)
    if finding.operation.startswith("aten.div"):
        return IsolationError(
            f"loss=divided in {finding.place} by what the records decide together: a token mean of "
            "a padded batch or weights that are normalised over the batch change the gradients of "
            "all records; take steppe.losses.per_record_token_mean(logits, labels).mean(), or "
            "divide by a constant."
        )
    where = f" of {finding.layer}" if finding.layer else ""
    return IsolationError(
        f"loss=mixes records in {finding.place}{where}: must be a mean or sum, at the very end, of "
        "terms that each depend on one record, with weights that no record decides; take the "
        'loss with reduction="none", and then its mean().'
    )


def token_mean(place: str) -> IsolationError:
    """A mean whose divisor the labels decide."""
    return IsolationError(
        f"loss={place} divides by what all labels decide together (tokens that are not ignored, or "
        "class weights): one record changes the gradients of the others; take "
        "steppe.losses.per_record_token_mean(logits, labels, ignore_index=-100).mean() outside of "
        'the module for tokens, or with loss_reduction="sum" a sum over a constant number of them; '
        'for one label a record reduction="none" and then mean().'
    )


def decides(finding: Finding) -> IsolationError:
    """The loop goes by values."""
    line = f" ({finding.line})" if finding.line else ""
    return IsolationError(
        f"loop=decides by a value made from records{line}: one record could change what happens to "
        "all, as with NaN guards and hard examples; decide with torch.where on each record, and "
        "read values with float() for logs alone."
    )


def goes_by_values(line: str) -> IsolationError:
    """The loss comes about in another way than before, in a loop that has read values."""
    return IsolationError(
        f"loop=computes its loss in another way than before, after it read values of the batch "
        f"({line}): one record could change what happens to all, as with NaN guards and hard "
        "examples; read numbers after backward(), decide nothing by them, and take torch.where on "
        "each record."
    )


def changes_always() -> IsolationError:
    """No two steps are alike, so that every batch would have to come twice."""
    return IsolationError(
        "loop=computes its loss in another way at every step: must be the same operations again, "
        "or take turns among a few; draw what changes as numbers in a tensor, or ask for "
        'isolation="probed".'
    )


def holds_read_number(what: str) -> IsolationError:
    """A number that was read from records has a part in the gradients."""
    return IsolationError(
        f"{what}=holds a number that was read from records (item() or float()): must not be made "
        "with what records decide together, because it changes the gradients of all; use "
        "constants, or a tensor with an entry for each record, and read values for logs alone."
    )


def holds_earlier(what: str) -> IsolationError:
    """What was made from earlier batches has a part in the gradients."""
    return IsolationError(
        f"{what}=holds a tensor that was made from records of an earlier batch: must be made from "
        "the present batch alone, because what is kept from step to step carries records without "
        "noise; take out moving averages of losses and outputs, queues and hidden states, or use "
        "constants."
    )


def holds_inner(what: str) -> IsolationError:
    """A tensor that the module has not returned has a part in the loss."""
    return IsolationError(
        f"{what}=holds a tensor from inside of the module, by a hook or an attribute: must be made "
        "from what the module returns, because nothing else of it can be followed; return hidden "
        "features and auxiliary losses from forward()."
    )


def foreign_weight(what: str, shape: tuple[int, ...]) -> IsolationError:
    """A weight that is trained without privacy has a part in the private gradients."""
    return IsolationError(
        f"{what}=a weight of shape {shape} outside of the module: would get a gradient without "
        "clip and noise, and carry it into later batches; use the very module that was given to "
        "make_private, not a copy of it, and make all that is trained (learned factors of losses, "
        "centres, heads) parameters of it, or freeze them with requires_grad_(False)."
    )


def written_behind(line: str) -> IsolationError:
    """Other code has changed a tensor's memory."""
    return IsolationError(
        f"loop=records are written without an operation of torch, after {line} gave their memory "
        "away: must not be written by NumPy or another library, because nothing can follow that; "
        "write to a copy (x.numpy().copy()), or with torch."
    )


def cut_by_records(finding: Finding) -> IsolationError:
    """Rows end where the longest record of the batch does."""
    return IsolationError(
        f"loop=cuts at a length that was read from records in {finding.place}: one record, such as "
        "the longest, must not change the shape that the others get; cut or pad every batch to one "
        "constant length, as pad_to= does, and mask what is behind a record's end."
    )


def shape_by_records(line: str) -> IsolationError:
    """The module gets another shape, in a loop that may have read it off records."""
    return IsolationError(
        f"argument=another shape than before, and values were read from records ({line}): one "
        "record, such as the longest, must not change the shape that the others get; cut or pad "
        "every batch to one constant length, as pad_to= does, or read values after the module ran."
    )


DIVIDES = "by what all labels decide"
