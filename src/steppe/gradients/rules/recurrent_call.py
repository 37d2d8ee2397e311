"""Read the arguments of torch's recurrent functions into one form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from steppe.errors import UnsupportedModelError
from steppe.gradients.contact import Contact
from steppe.gradients.layout import RecordLayout
from steppe.gradients.marks import is_marked
from steppe.gradients.rules.recurrent_cell import CellWeights, RecurrentCell, States
from steppe.gradients.rules.recurrent_gru import GRU
from steppe.gradients.rules.recurrent_lstm import LSTM
from steppe.gradients.rules.recurrent_plain import ReluRNN, TanhRNN

_KINDS: dict[str, type[RecurrentCell]] = {
    "lstm": LSTM,
    "gru": GRU,
    "rnn_tanh": TanhRNN,
    "rnn_relu": ReluRNN,
}
_SEQUENCE = ("input", "hx", "params", "has_biases", "num_layers", "dropout", "train",
             "bidirectional", "batch_first")  # fmt: skip
_CELL = ("input", "hx", "w_ih", "w_hh", "b_ih", "b_hh")


@dataclass(frozen=True)
class RecurrentCall:
    """One call of a recurrent function, whatever its signature.

    Args:
        kind: LSTM, GRU or one of the plain ones.
        x: the input as given: `(T, N, I)`, `(N, T, I)` or, for a single-step cell, `(N, I)`.
        start: the initial states as given, `(layers · directions, N, ·)` or `(N, ·)`.
        weights: one entry for each layer and direction, directions innermost.
        directions: 1 or 2.
        dropout: probability between layers; 0 outside training.
        batch_first: whether records come before time in `x`.
        single: whether this is a single-step cell.
    """

    kind: type[RecurrentCell]
    x: Tensor
    start: States
    weights: list[CellWeights]
    directions: int = 1
    dropout: float = 0.0
    batch_first: bool = False
    single: bool = False

    @property
    def roles(self) -> States:
        """The arguments that are not weights."""
        return (self.x, *self.start)

    def axis(self, role: int) -> int:
        """The axis of records in the given argument."""
        return 0 if self.single or (role == 0 and self.batch_first) else 1


def sequence_call(contact: Contact) -> RecurrentCall:
    """Read a call of `torch.lstm`, `gru`, `rnn_tanh` or `rnn_relu`.

    Packed sequences are refused: their rows belong to different records at every step.
    """
    given = dict(zip(_SEQUENCE, contact.args, strict=False)) | contact.kwargs
    second = given.get("batch_sizes", given.get("hx"))
    if isinstance(second, Tensor) and not second.is_floating_point():
        raise UnsupportedModelError(
            f"{contact.name} input=PackedSequence: must be a padded tensor, so that every record "
            "keeps a row of its own; use the padded batch and mask the loss behind each record's "
            "end."
        )
    hx, x = given["hx"], given["input"]
    start = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    weights = _grouped(contact.name, given["params"], bool(given["has_biases"]), start)
    return RecurrentCall(
        _KINDS[contact.name],
        x,
        start,
        weights,
        directions=2 if given["bidirectional"] else 1,
        dropout=float(given["dropout"]) if given["train"] else 0.0,
        batch_first=bool(given["batch_first"]),
    )


def cell_call(contact: Contact) -> RecurrentCall:
    """Read a call of `torch.lstm_cell`, `gru_cell` or a plain cell: a sequence of one step."""
    given = dict(zip(_CELL, contact.args, strict=False)) | contact.kwargs
    hx = given["hx"]
    start = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    weights = CellWeights(given["w_ih"], given["w_hh"], given.get("b_ih"), given.get("b_hh"))
    kind = _KINDS[contact.name.removesuffix("_cell")]
    return RecurrentCall(kind, given["input"], start, [weights], single=True)


def _grouped(name: str, flat: Sequence[Tensor], biases: bool, start: States) -> list[CellWeights]:
    """The flat list of weights, by layer and direction."""
    projected = name == "lstm" and start[0].shape[-1] != start[1].shape[-1]
    size = 2 + 2 * biases + projected
    found = []
    for first in range(0, len(flat), size):
        w_ih, w_hh, *rest = flat[first : first + size]
        w_hr = rest.pop() if projected else None
        b_ih, b_hh = rest or (None, None)
        found.append(CellWeights(w_ih, w_hh, b_ih, b_hh, w_hr))
    return found


def places_among(roles: States, inputs: Sequence[Tensor]) -> list[int | None]:
    """For each argument its place among the inputs made from records; None for the others."""
    free = list(range(len(inputs)))
    places: list[int | None] = []
    for tensor in roles:
        place = next((i for i in free if inputs[i] is tensor), None)
        if place is not None:
            free.remove(place)
        places.append(place)
    return places


def time_major_layout(contact: Contact, call: RecurrentCall) -> RecordLayout:
    """Where the records lie in time-major tensors; refuses where time and records are mixed."""
    interleaved = False
    for role, tensor in enumerate(call.roles):
        axis = call.axis(role)
        if tensor.shape[axis] % contact.records:
            raise UnsupportedModelError(
                f"{contact.name} batch axis={tensor.shape[axis]} rows: must be a multiple of the "
                f"{contact.records} records; check batch_first, and give a batched (3-D) input."
            )
        place = places_among(call.roles, contact.inputs)[role]
        if place is None:
            continue
        layout = contact.input_layout(place)
        if contact.layouts is not None and layout.axis != axis:
            raise UnsupportedModelError(
                f"{contact.name} record axis={layout.axis}: must be {axis}, or the layer would "
                "carry its state from one record to the next; set batch_first to match the input."
            )
        interleaved = interleaved or layout.interleaved
    return RecordLayout(axis=1, interleaved=interleaved)


def cells_of(call: RecurrentCall) -> list[RecurrentCell]:
    """One cell for each layer and direction."""
    h_start = call.start[0]
    constant = not is_marked(h_start) and not h_start.requires_grad
    from_zero = constant and not bool(h_start.any())
    return [
        call.kind(weights, reverse=bool(place % call.directions), from_zero=from_zero)
        for place, weights in enumerate(call.weights)
    ]
