"""Large batches in physical batches, where Opacus has them."""

from steppe.compat.memory_manager import BatchMemoryManager as BatchMemoryManager
