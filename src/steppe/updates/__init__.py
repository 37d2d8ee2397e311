from steppe.updates.decoupled_decay import DecoupledDecay as DecoupledDecay
from steppe.updates.dp_adam import DPAdam as DPAdam
