"""The cases in which every record stands alone, though it looks otherwise.

`HONEST` are to be accepted. `HONEST_BY_VALUE` are as honest in what comes out, but ask for values
or move rows on the way, so that a proof from the operations need not take them.
"""

from __future__ import annotations

from cases_that_do_not_but_look import CASES as BUT_LOOK
from cases_that_do_not_by_chance import CASES as BY_CHANCE
from cases_that_do_not_in_backward import CASES as IN_BACKWARD
from cases_that_do_not_in_data import CASES as IN_DATA
from cases_that_do_not_in_layers import CASES as IN_LAYERS
from cases_that_do_not_in_losses import CASES as IN_LOSSES
from cases_that_do_not_in_pictures import CASES as IN_PICTURES
from cases_that_do_not_in_sequences import CASES as IN_SEQUENCES
from cases_that_do_not_in_words import CASES as IN_WORDS

HONEST = (
    *IN_LAYERS,
    *IN_SEQUENCES,
    *IN_WORDS,
    *IN_PICTURES,
    *IN_LOSSES,
    *IN_BACKWARD,
    *IN_DATA,
    *BY_CHANCE,
)
HONEST_BY_VALUE = BUT_LOOK
