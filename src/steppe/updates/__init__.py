from steppe.updates.dp_adam import DPAdam as DPAdam
