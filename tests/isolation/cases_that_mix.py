"""The cases in which one record moves what the others give."""

from __future__ import annotations

from cases_that_mix_by_chance import CASES as BY_CHANCE
from cases_that_mix_by_memory import CASES as BY_MEMORY
from cases_that_mix_by_place import CASES as BY_PLACE
from cases_that_mix_in_backward import CASES as IN_BACKWARD
from cases_that_mix_in_constants import CASES as IN_CONSTANTS
from cases_that_mix_in_data import CASES as IN_DATA
from cases_that_mix_in_forward import CASES as IN_FORWARD
from cases_that_mix_in_losses import CASES as IN_LOSSES
from cases_that_mix_in_some_sizes import CASES as IN_SOME_SIZES
from cases_that_mix_in_some_values import CASES as IN_SOME_VALUES
from cases_that_mix_in_state import CASES as IN_STATE
from cases_that_mix_in_wrong_axes import CASES as IN_WRONG_AXES

MIXING = (
    *IN_FORWARD,
    *IN_WRONG_AXES,
    *IN_LOSSES,
    *IN_BACKWARD,
    *IN_STATE,
    *IN_SOME_VALUES,
    *IN_SOME_SIZES,
    *IN_DATA,
    *BY_CHANCE,
    *BY_MEMORY,
    *BY_PLACE,
    *IN_CONSTANTS,
)
