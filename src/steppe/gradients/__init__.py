"""Place 3, the objective: per-example gradients, and their norms without writing them out.

`tracing` finds every operation in which a weight meets a record (a *contact*), `rules` compute it,
`slots` hold the per-example gradients of each weight, `passes` runs the forward and backward pass
of a physical batch. Imports `randomness`, `utils`, `errors`.
"""

from steppe.gradients.contact import BACKWARD_LEAF as BACKWARD_LEAF
from steppe.gradients.contact import Capture as Capture
from steppe.gradients.contact import Contact as Contact
from steppe.gradients.contact import ContactLayout as ContactLayout
from steppe.gradients.contact import Output as Output
from steppe.gradients.contact import backward_to as backward_to
from steppe.gradients.contact import checkpointed as checkpointed
from steppe.gradients.contact import leaf_ids as leaf_ids
from steppe.gradients.contact import saved_as_they_are as saved_as_they_are
from steppe.gradients.flat_weights import FlatWeights as FlatWeights
from steppe.gradients.kernel_choice import Kernels as Kernels
from steppe.gradients.l2 import Strengths as Strengths
from steppe.gradients.l2 import strength as strength
from steppe.gradients.l2 import strengths as strengths
from steppe.gradients.layout import RecordLayout as RecordLayout
from steppe.gradients.marks import ANY_PASS as ANY_PASS
from steppe.gradients.marks import is_marked as is_marked
from steppe.gradients.marks import made_in_another as made_in_another
from steppe.gradients.marks import mark as mark
from steppe.gradients.marks import unmark as unmark
from steppe.gradients.objective import RecordLosses as RecordLosses
from steppe.gradients.objective import objective_of as objective_of
from steppe.gradients.objective import per_record as per_record
from steppe.gradients.one_at_a_time.each_record import VMAP as VMAP
from steppe.gradients.one_at_a_time.each_record import EachRecord as EachRecord
from steppe.gradients.passes import Objective as Objective
from steppe.gradients.passes import TracedPasses as TracedPasses
from steppe.gradients.passes import check_losses as check_losses
from steppe.gradients.paths import Path as Path
from steppe.gradients.paths import name_of as name_of
from steppe.gradients.paths import on_records as on_records
from steppe.gradients.paths import path_of as path_of
from steppe.gradients.record_gradients import RecordGradients as RecordGradients
from steppe.gradients.record_gradients import WeightSlots as WeightSlots
from steppe.gradients.record_gradients import representable as representable
from steppe.gradients.rules import RULES as RULES
from steppe.gradients.rules.fallback import out_of_place as out_of_place
from steppe.gradients.sequential import PlainSequential as PlainSequential
from steppe.gradients.sequential import plain_sequential as plain_sequential
from steppe.gradients.slots.slot import NO_RECORDS as NO_RECORDS
from steppe.gradients.slots.slot import Slot as Slot
from steppe.gradients.slots.slot import wide as wide
from steppe.gradients.slots.slot import wide_dtype as wide_dtype
from steppe.gradients.torch_only import HOOKS_EVERYWHERE as HOOKS_EVERYWHERE
from steppe.gradients.torch_only import hooks_of as hooks_of
from steppe.gradients.tracing import BackwardCalls as BackwardCalls
from steppe.gradients.tracing import Tracer as Tracer
from steppe.gradients.unchanged_model import differs as differs
from steppe.gradients.unchanged_model import require_steady as require_steady
from steppe.gradients.unchanged_model import same as same
from steppe.gradients.unchanged_model import unchanged as unchanged
from steppe.gradients.value_free import value_free as value_free
