"""A plain PyTorch loop made private: `make_private`, the object that it returns, and its checks.

Imports `step`, `plan`, `probing`, `records` and what lies below them.
"""

from steppe.private.batch_reader import BatchReader as BatchReader
from steppe.private.make import make_private as make_private
from steppe.private.private import Private as Private
from steppe.private.public_step import refuse_noise_aware as refuse_noise_aware
from steppe.private.setup_checks import require_one_process as require_one_process
from steppe.private.setup_checks import trained_parameters as trained_parameters
from steppe.private.setup_checks import warn_of_unused as warn_of_unused
from steppe.private.step_checks import refuse_coarse_products as refuse_coarse_products
from steppe.private.step_checks import refuse_modes as refuse_modes
from steppe.private.step_checks import require_movement as require_movement
