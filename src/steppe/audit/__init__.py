"""Measurements of the guarantee on real private steps: sensitivity, noise law, sampler law.

Imports `private` and lower layers.
"""

from steppe.audit.battery import battery as battery
from steppe.audit.correlated_law import correlated_noise as correlated_noise
from steppe.audit.correlated_law import several_turns as several_turns
from steppe.audit.neighbouring_runs import control_flow as control_flow
from steppe.audit.neighbouring_runs import release as release
from steppe.audit.noise_law import noise_independence as noise_independence
from steppe.audit.noise_law import noise_law as noise_law
from steppe.audit.replay import micro_batches as micro_batches
from steppe.audit.replay import non_finite_records as non_finite_records
from steppe.audit.replay import sensitivity as sensitivity
from steppe.audit.result import Result as Result
from steppe.audit.sampler_law import sampler_law as sampler_law
from steppe.audit.subject import AuditedRun as AuditedRun
