"""The errors if isolation is not proven: what was found, what must hold, what to do."""

from __future__ import annotations

from typing import Any

from steppe.errors import IsolationError, UnsupportedModelError
from steppe.gradients import checkpointed
from steppe.isolation.findings import BACKWARD, Asked, Finding
from steppe.utils.formatting import as_said

# By detail of a finding: what is not allowed, and what to do.
_READS = {
    "Python reads a value": (
        "must not be read by Python, which may then do something else, and one record could change "
        "what happens to all",
        "decide with torch.where on each record, and log values outside of model and loss",
    ),
    "a shape that values decide": (
        "must not decide shapes, and one record could change what happens to all",
        "keep all rows, and multiply by the mask or use torch.where",
    ),
    "numbers leave torch": (
        "must stay in tensors, where they can be followed",
        "use torch's operations in place of NumPy's and Python's",
    ),
}


def stopped(finding: Finding) -> IsolationError:
    """The error for a pass that needs a value."""
    rule, remedy = _READS[finding.detail]
    return IsolationError(f"{finding.place}: values made from records {rule}; {remedy}.")


def failed(error: Exception, records: int) -> UnsupportedModelError:
    """The error for a model or loss that failed on synthetic records."""
    if "checkpoint" in str(error):
        return checkpointed()
    return UnsupportedModelError(
        f"records={records}: model and loss must take any number of them, because batches are "
        "drawn at random; take the size of the batch from its tensors, and name the axes to "
        f"squeeze.\n{as_said(error)}"
    )


def forward_mode() -> IsolationError:
    """The error for derivatives that torch cannot compute without values."""
    return IsolationError(
        "torch.func=jvp, jacfwd or hessian: must not be used in model or loss, because torch does "
        "not compute them without values; use torch.autograd.grad(..., create_graph=True) or "
        "finite differences."
    )


def mixes(finding: Finding) -> IsolationError:
    """The error for mixed records in the forward pass or the loss."""
    if finding.kind in _OTHERWISE:
        return _OTHERWISE[finding.kind](finding)
    if finding.layer is None or finding.layer.startswith(BACKWARD):
        return loss_mixes(f" in {finding.place}")
    return layer_mixes(finding.layer, f"{_of(finding)} mixes the records of the batch")


def loss_mixes(where: str) -> IsolationError:
    """The error for mixed records in the loss."""
    return IsolationError(
        f"loss=mixes records{where}: must compare every record's output with its own target alone; "
        "give output and target one shape, since (records, 1) beside (records,) makes all pairs of "
        "records, and take no sum, mean or maximum over the records, also not in augment."
    )


def layer_mixes(layer: str, why: str) -> IsolationError:
    """The error for mixed records in a layer."""
    remedy = (
        "call eval() on it after model.train() to keep the statistics that it has learnt, or put "
        "GroupNorm in its place with steppe.fix(model)"
        if "BatchNorm" in layer.partition(",")[0]  # and not before it
        else "compute along the axes of a record (dim=1 and later), with GroupNorm or LayerNorm in "
        "place of batch statistics"
    )
    return IsolationError(f"layer={layer!r}: must treat every record alone, and {why}; {remedy}.")


def mixes_gradients(finding: Finding, layer: str | None) -> IsolationError:
    """The error for mixed records in the backward pass."""
    if finding.kind in _OTHERWISE:
        return _OTHERWISE[finding.kind](finding)
    where = f" on the way back to {layer}" if layer else ""
    return IsolationError(
        f"gradient=mixes records in {_of(finding)}{where}: a record's gradient must not depend on "
        "other records; in hooks and in backward() of your own, work on every record's row by "
        "itself, as g.flatten(1).norm(dim=1) does."
    )


def no_rule(finding: Finding) -> IsolationError:
    """The error for an operation without a rule, or a tensor of unknown origin."""
    if finding.detail:
        return IsolationError(
            f"{finding.place}: not proven to treat every record alone, since it was given "
            f"{finding.detail}; make every tensor by operations of torch in the pass itself."
        )
    return IsolationError(
        f"{finding.place}: not proven to treat every record alone, since there is no rule for this "
        "operation; write it with other operations of torch."
    )


def keeps(finding: Finding) -> IsolationError:
    """The error for state that outlives the pass."""
    if finding.kind == "carries":
        return IsolationError(
            f"{finding.place}: a pass must not use what an earlier pass made from its records, "
            "because it would carry them out without noise; keep nothing from records in the "
            "model or beside it."
        )
    if finding.detail:
        return IsolationError(
            f"weights or buffers=written by {finding.place}: must not be written in a forward "
            "pass, because they would carry records' values out without noise; take the write out "
            "(max_norm, running statistics), put the layer in eval mode, or use steppe.fix(model)."
        )
    return IsolationError(
        f"buffers=written by {finding.place}: must not change with every forward pass, because the "
        "number of passes depends on how many records were drawn; put these layers in eval mode, "
        "or write the buffer outside of the forward pass."
    )


def kept_unseen() -> IsolationError:
    """The error for unmarked tensors that outlive the pass, such as gradients stored by a hook."""
    return IsolationError(
        "gradients=kept after the pass: what hooks and backward() are given must end with the "
        "pass, because a later one would not know that it is made from records; keep nothing, or "
        "for a log a copy made by torch (g.detach().clone()), which no pass may use."
    )


class PlaceDecides(IsolationError):
    """A loss depends on the position of a record in the batch."""


def place_decides(finding: Finding) -> PlaceDecides:
    """The error for a loss that depends on the position of a record in the batch."""
    return PlaceDecides(
        f"{finding.place}: a record's loss must not depend on its place among the others, and here "
        f"are {finding.detail or 'numbers that differ from record to record'}; treat all records "
        "alike, and do not count positions in the batch."
    )


class NumberDecides(IsolationError):
    """A result depends on the number of records.

    Attributes:
        what: the result.
        asked: the operation to locate, for `trace`; None if it is not known.
    """

    def __init__(self, said: str, what: str, asked: Asked | None) -> None:
        super().__init__(said)
        self.what, self.asked = what, asked

    def at(self, place: str) -> NumberDecides:
        """The same error with a location."""
        return number_decides(f"{self.what} ({place})")

    def __reduce__(self) -> Any:
        return type(self), (str(self), self.what, self.asked)


def number_decides(what: str, asked: Asked | None = None) -> NumberDecides:
    """The error for a result that depends on the number of records."""
    said = (
        f"number of records=decides {what}: a record's loss must not depend on how many records "
        "there are; do not divide by the batch, choose by its size or loop over the records."
    )
    return NumberDecides(said, what, asked)


def seeded() -> IsolationError:
    """A generator that every pass seeds anew."""
    return IsolationError(
        "random numbers=seeded in every pass: must be new in every pass, or have a shape and a "
        "seed that do not depend on the batch, because a record would get those of its place among "
        "the others; seed once before training."
    )


def too_many_paths() -> IsolationError:
    """The error for random numbers that always lead to new paths."""
    return IsolationError(
        "control flow=random, on too many paths: must take few paths, since each is followed "
        "once; let torch.where choose by random numbers in place of Python."
    )


def layers_by_chance(layer: str | None) -> UnsupportedModelError:
    """The error for weights that are used at random."""
    return UnsupportedModelError(
        f"layers=by chance{f', {layer} among them' if layer else ''}: every pass must use the same "
        "weights in the same order; run the layer always, and multiply what it adds by 0 or 1."
    )


def others_losses() -> IsolationError:
    """The error for losses in another order than the records."""
    return IsolationError(
        "loss=of other records: loss i must be made from record i of the batch; keep the records "
        "in their order."
    )


def gradients_of_others(operation: str, layer: str | None) -> IsolationError:
    """The error for gradients in another order than the records."""
    return IsolationError(
        f"gradient={operation} in {layer}: what comes back to a record's row must be made from "
        "that record; keep the records in their order in hooks and in backward()."
    )


def no_axis(operation: str, shape: tuple[int, ...], layer: str | None) -> UnsupportedModelError:
    """The error for a contact without a record axis."""
    where = f" in {layer}" if layer else ""
    return UnsupportedModelError(
        f"operation={operation!r} on {shape}{where}: must have an axis with rows of every record "
        "of the batch, and has none; give the model all records at once in place of a loop."
    )


def _of(finding: Finding) -> str:
    return f"{finding.operation} ({finding.line})" if finding.line else finding.operation


_OTHERWISE = {"no rule": no_rule, "place": place_decides, "carries": keeps}
"""What is said of findings for which it makes no difference where they reach a contact."""
