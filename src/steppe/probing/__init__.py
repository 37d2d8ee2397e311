"""Checks of a user's model before and during a run.

The proof of isolation, a comparison of per-example gradients with autograd's, and the layer table.
Imports `clipping`, `isolation` and what lies below them.
"""

from steppe.probing.cache import LOOK_AGAIN as LOOK_AGAIN
from steppe.probing.cache import ProbeCache as ProbeCache
from steppe.probing.fixer import fix as fix
from steppe.probing.inspect import inspect as inspect
from steppe.probing.model_state import form_of as form_of
from steppe.probing.model_state import state_of as state_of
from steppe.probing.observed_pass import ProbedModel as ProbedModel
from steppe.probing.placeholder_loss import squared_outputs as squared_outputs
from steppe.probing.probe import probe as probe
from steppe.probing.report import ISOLATION as ISOLATION
from steppe.probing.report import KINDS as KINDS
from steppe.probing.report import Report as Report
from steppe.probing.synthetic import synthetic as synthetic
from steppe.probing.unsupported_modules import require_uncompiled as require_uncompiled
