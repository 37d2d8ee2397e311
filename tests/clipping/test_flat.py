"""One bound on the whole gradient: what it accepts, stores and does."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from steppe.clipping import Flat
from steppe.errors import ConfigurationError


@pytest.mark.parametrize("bound", [np.float32(0.25), np.float64(0.25), Fraction(1, 4), 0.25])
def test_any_real_number_is_stored_as_a_float(bound: Any) -> None:
    clip = Flat(bound)
    assert type(clip.bound) is float
    assert clip == Flat(0.25)
    assert clip.sensitivity == 0.25


@pytest.mark.parametrize("bound", [0, -1.0, float("nan"), float("inf"), "1", True, None, 10**400])
def test_other_bounds_are_refused(bound: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"^Flat\.bound=.*; a common start is 0\.1 to 1\.$"
    ):
        Flat(bound)


def test_clipped_norms_stay_within_the_bound() -> None:
    norms = torch.tensor([0.0, 0.1, 0.5, 3.0, float("inf"), float("nan")])
    factors = Flat(0.5).factors(norms)
    assert factors[:-1].tolist() == pytest.approx([1.0, 1.0, 1.0, 0.5 / 3.0, 0.0])
    assert factors[-1].isnan(), "a sum leaves such a record out, whatever its factor"
