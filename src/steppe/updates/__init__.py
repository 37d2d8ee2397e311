"""Place 6, how the weights move: what torch's optimizers do not have.

Imports `plan`, `utils`.
"""

from steppe.updates.decoupled_decay import DecoupledDecay as DecoupledDecay
from steppe.updates.dp_adam import DPAdam as DPAdam
from steppe.updates.update import Update as Update
from steppe.updates.update import update_of as update_of
