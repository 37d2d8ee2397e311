"""What of a start is trained, and how: heads, frozen parts, BitFit, LoRA, batch statistics, groups.

Imports `data`, `starts`, `models` and lower layers.
"""

from steppe.finetuning.batch_norms import FrozenBatchNorm as FrozenBatchNorm
from steppe.finetuning.batch_norms import fold_batch_norm as fold_batch_norm
from steppe.finetuning.batch_norms import freeze_batch_norm as freeze_batch_norm
from steppe.finetuning.fine_tuning import HEAD as HEAD
from steppe.finetuning.fine_tuning import FineTuning as FineTuning
from steppe.finetuning.freezing import freeze as freeze
from steppe.finetuning.freezing import train_head as train_head
from steppe.finetuning.freezing import train_norm_and_bias as train_norm_and_bias
from steppe.finetuning.freezing import train_only as train_only
from steppe.finetuning.groups import parameter_groups as parameter_groups
from steppe.finetuning.isolated_features import prove_features as prove_features
from steppe.finetuning.lora import LoRA as LoRA
from steppe.finetuning.lora import LoRALinear as LoRALinear
from steppe.finetuning.lora import add_lora as add_lora
from steppe.finetuning.lora import merge_lora as merge_lora
from steppe.finetuning.lora import require_live_lora as require_live_lora
from steppe.finetuning.named_starts import find_start as find_start
from steppe.finetuning.start_weights import load_start as load_start
from steppe.finetuning.start_weights import replace_head as replace_head
from steppe.finetuning.trunk import Trunk as Trunk
from steppe.finetuning.trunk import head_on_features as head_on_features
