"""What the vision transformer refuses."""

from __future__ import annotations

import pytest

from steppe import models
from steppe.errors import ConfigurationError


def test_patch_must_divide_the_image() -> None:
    with pytest.raises(ConfigurationError, match=r"patch=5: must divide size=32; choose a divisor"):
        models.create("vit", patch=5)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigurationError, match=r"heads=5: must divide width=192; choose"):
        models.create("vit", heads=5)
