"""Place 6, how the weights move: what torch's optimizers do not have.

Imports `plan`, `gradients`, `utils`.
"""

from steppe.updates.decoupled_decay import DecoupledDecay as DecoupledDecay
from steppe.updates.dp_adam import DPAdam as DPAdam
