"""Weights as safetensors files with metadata."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def as_safetensors(
    weights: Mapping[str, Tensor], about: Mapping[str, str], not_private_reason: str | None
) -> bytes:
    """Weights and metadata as the bytes of a safetensors file.

    Args:
        weights: tensors by name; two names may look at one piece of memory.
        about: becomes the file's metadata.
        not_private_reason: why they are not private, for the metadata; None if they are.
    """
    from safetensors.torch import save

    tensors, seen = {}, set()
    for name, weight in weights.items():
        tensor = weight.detach().to("cpu").contiguous()
        memory = tensor.untyped_storage().data_ptr()
        # The file is one copy already; safetensors refuses memory that two names share.
        tensors[name] = tensor.clone() if memory in seen else tensor
        seen.add(memory)
    stamp = {} if not_private_reason is None else {"not_private_reason": not_private_reason}
    return save(tensors, metadata={**about, **stamp})
