"""Which operation takes which path. A new rule is one file here and one line in this table."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from steppe.clipping.rules.fallback import Fallback
from steppe.clipping.rules.linear import linear
from steppe.clipping.rules.recurrent import recurrent, recurrent_cell
from steppe.clipping.tracing import Rules

RULES = Rules(
    fallback=Fallback,
    own={
        F.linear: linear,
        torch.lstm: recurrent,
        torch.gru: recurrent,
        torch.rnn_tanh: recurrent,
        torch.rnn_relu: recurrent,
        torch.lstm_cell: recurrent_cell,
        torch.gru_cell: recurrent_cell,
        torch.rnn_tanh_cell: recurrent_cell,
        torch.rnn_relu_cell: recurrent_cell,
    },
    rewrites={},
)
