"""How much memory is free."""

from __future__ import annotations

from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def free_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system does not say.

    Examples:
        >>> found = free_memory()
        >>> found is None or found > 0
        True
    """
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return None
    return None
