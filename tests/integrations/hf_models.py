"""Small models of transformers from configurations, and a batch for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

WORDS, LENGTH = 23, 7


@dataclass(frozen=True)
class Family:
    """A model of transformers and its data.

    Args:
        make: builds the model; the argument is the probability of every dropout.
        batch: of so many records, as a collator makes it.
        adapted: the names of the modules that LoRA adapts; none if it is not tried.
        task: of peft.
    """

    make: Callable[[float], nn.Module]
    batch: Callable[[int], dict[str, Tensor]]
    adapted: tuple[str, ...] = ()
    task: str = ""


def text(records: int, labels: str = "class") -> dict[str, Tensor]:
    """Sentences of different lengths, padded on the right, the first one whole."""
    lengths = torch.tensor([LENGTH - i % 4 for i in range(records)], dtype=torch.long)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    words = torch.randint(1, WORDS, (records, LENGTH)) * mask
    batch = {"input_ids": words, "attention_mask": mask}
    if labels == "class":
        batch["labels"] = torch.randint(0, 3, (records,))
    elif labels == "words":
        batch["labels"] = words.masked_fill(mask == 0, -100)
    else:  # of another sentence
        batch["labels"] = torch.randint(1, WORDS, (records, 5))
        batch["labels"][::2, 3:] = -100
    return batch


def pictures(records: int) -> dict[str, Tensor]:
    return {
        "pixel_values": torch.randn(records, 3, 8, 8),
        "labels": torch.randint(0, 3, (records,)),
    }


def bert(dropout: float) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=LENGTH,
            num_labels=3,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def gpt2(dropout: float) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=LENGTH,
            n_embd=16,
            n_layer=1,
            n_head=2,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
        )
    )


def distilbert(dropout: float) -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    return DistilBertForSequenceClassification(
        DistilBertConfig(
            vocab_size=WORDS,
            dim=16,
            n_layers=1,
            n_heads=2,
            hidden_dim=24,
            max_position_embeddings=LENGTH,
            num_labels=3,
            dropout=dropout,
            attention_dropout=dropout,
            seq_classif_dropout=dropout,
        )
    )


def vit(dropout: float) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(
        ViTConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=24,
            image_size=8,
            patch_size=4,
            num_labels=3,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )


def t5(dropout: float) -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=WORDS,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=1,
            num_heads=2,
            dropout_rate=dropout,
            decoder_start_token_id=0,
        )
    )


def llama(dropout: float) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=24,
            max_position_embeddings=LENGTH,
            attention_dropout=dropout,
        )
    )


FAMILIES = {
    "bert": Family(bert, text, ("query", "value"), "SEQ_CLS"),
    "gpt2": Family(gpt2, lambda n: text(n, "words"), ("c_attn",), "CAUSAL_LM"),
    "distilbert": Family(distilbert, text),
    "vit": Family(vit, pictures),
    "t5": Family(t5, lambda n: text(n, "others")),
    "llama": Family(llama, lambda n: text(n, "words"), ("q_proj", "v_proj"), "CAUSAL_LM"),
}


def built(name: str, dropout: float = 0.0, adapter: bool = False) -> nn.Module:
    """A model in training mode, as a script has it."""
    torch.manual_seed(0)
    family = FAMILIES[name]
    model: Any = family.make(dropout)
    if adapter:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(
            r=2,
            lora_alpha=4,
            lora_dropout=dropout,
            target_modules=list(family.adapted),
            task_type=family.task,
            fan_in_fan_out=name == "gpt2",
        )
        model = get_peft_model(model, config)
    return model.train()
