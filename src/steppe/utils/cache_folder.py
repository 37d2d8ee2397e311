"""Where things are kept that can be made or fetched again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache directory for this library; it may not exist yet."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "steppe"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "steppe"
