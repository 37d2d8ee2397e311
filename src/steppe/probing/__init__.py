"""What is checked of a user's model before and during a run.

A proof of isolation, a comparison with autograd, and the layer table. Imports `clipping`,
`isolation` and what lies below them.
"""

from steppe.probing.cache import LOOK_AGAIN as LOOK_AGAIN
from steppe.probing.cache import ProbeCache as ProbeCache
from steppe.probing.cache import form_of as form_of
from steppe.probing.cache import state_of as state_of
from steppe.probing.fixer import fix as fix
from steppe.probing.observed_pass import ProbedModel as ProbedModel
from steppe.probing.placeholder_loss import squared_outputs as squared_outputs
from steppe.probing.probe import ISOLATION as ISOLATION
from steppe.probing.probe import inspect as inspect
from steppe.probing.probe import probe as probe
from steppe.probing.probe import require_uncompiled as require_uncompiled
from steppe.probing.report import Report as Report
from steppe.probing.synthetic import synthetic as synthetic
