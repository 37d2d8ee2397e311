"""No noise at all: a choice at place 5 that only tests may make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

import steppe


@dataclass(frozen=True)
class Silent(steppe.Gaussian):
    """Adds nothing, so that a step can be compared with plain training. Nothing is private here."""

    def start_(self, buffer: Tensor, std: float, source: Any) -> Tensor:
        return buffer.zero_()

    def finish_(self, buffer: Tensor, std: float, sensitivity: float, source: Any) -> Tensor:
        return buffer
