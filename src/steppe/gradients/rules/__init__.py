"""The table of rules. A new rule is one file here and one line in this table."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from steppe.gradients.rules.add_cat import addition, joining
from steppe.gradients.rules.attention import multi_head_attention_forward
from steppe.gradients.rules.biased_attention import scaled_dot_product_attention
from steppe.gradients.rules.convolution import convolution, transposed_convolution
from steppe.gradients.rules.embedding import embedding, embedding_bag
from steppe.gradients.rules.fallback import Fallback
from steppe.gradients.rules.layer_normalisation import layer_norm, rms_norm
from steppe.gradients.rules.linear import addmm, linear, matmul
from steppe.gradients.rules.normalisation import batch_norm, group_norm, instance_norm
from steppe.gradients.rules.projections import packed_projections, projections
from steppe.gradients.rules.recurrent import recurrent, recurrent_cell
from steppe.gradients.rules.value_checks import gaussian_nll_loss
from steppe.gradients.tracing import Rules

RULES = Rules(
    fallback=Fallback,
    own={
        F.linear: linear,
        torch.matmul: matmul,
        Tensor.matmul: matmul,  # also `x @ weight`
        torch.mm: matmul,
        Tensor.mm: matmul,
        torch.addmm: addmm,
        Tensor.addmm: addmm,
        torch.add: addition,
        Tensor.add: addition,
        torch.cat: joining,
        torch.conv1d: convolution,
        torch.conv2d: convolution,
        torch.conv3d: convolution,
        torch.conv_transpose1d: transposed_convolution,
        torch.conv_transpose2d: transposed_convolution,
        torch.conv_transpose3d: transposed_convolution,
        projections: packed_projections,
        F.embedding: embedding,
        F.embedding_bag: embedding_bag,
        F.group_norm: group_norm,
        F.layer_norm: layer_norm,
        F.rms_norm: rms_norm,
        F.instance_norm: instance_norm,
        F.batch_norm: batch_norm,
        torch.lstm: recurrent,
        torch.gru: recurrent,
        torch.rnn_tanh: recurrent,
        torch.rnn_relu: recurrent,
        torch.lstm_cell: recurrent_cell,
        torch.gru_cell: recurrent_cell,
        torch.rnn_tanh_cell: recurrent_cell,
        torch.rnn_relu_cell: recurrent_cell,
    },
    rewrites={
        F.multi_head_attention_forward: multi_head_attention_forward,
        F.scaled_dot_product_attention: scaled_dot_product_attention,
    },
    unchecked={F.gaussian_nll_loss: gaussian_nll_loss},
)
