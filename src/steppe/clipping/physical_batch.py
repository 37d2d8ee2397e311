"""How many records go through the model at once, where nobody said."""

from __future__ import annotations

# What one physical batch keeps alive should stay near the last-level cache: small networks run
# faster so than on the whole batch. But every piece also passes over all weights once, which is
# paid for by this many times their size in activations. More than the ceiling only costs memory.
_CACHE = 32 * 2**20
_PASSES = 32
CEILING = 320 * 2**20


def fitting_physical_batch(bytes_per_record: int, bytes_of_weights: int) -> int:
    """The physical batch for a model, a power of two, from public sizes alone.

    The same for every batch of a run: layers that prepare themselves for a shape do so once.

    Args:
        bytes_per_record: activations and output gradients that one record keeps alive, and
            whatever else the clip holds for it.
        bytes_of_weights: size of the trained weights.

    Examples:
        >>> fitting_physical_batch(500_000, 900_000)  # a small convolutional network
        64
        >>> fitting_physical_batch(3_000, 30_000)  # logistic regression: any batch at once
        8192
        >>> fitting_physical_batch(10**9, 10**9)
        1
    """
    budget = min(CEILING, max(_CACHE, _PASSES * bytes_of_weights))
    records = max(1, budget // max(1, bytes_per_record))
    return 1 << (int(records).bit_length() - 1)
