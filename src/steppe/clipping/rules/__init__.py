"""Which operation takes which path. A new rule is one file here and one line in this table."""

from __future__ import annotations

from torch.nn import functional as F

from steppe.clipping.rules.fallback import Fallback
from steppe.clipping.rules.linear import linear
from steppe.clipping.tracing import Rules

RULES = Rules(
    fallback=Fallback,
    own={
        F.linear: linear,
    },
    rewrites={},
)
