"""Place 5, the noise: Gaussian, constant or on a schedule, or correlated over the steps.

Imports `accounting` (how often a record takes part), `randomness`, `utils`, `errors`. The sources
of randomness are re-exported here.
"""

from steppe.noise.band_inv_mf import BandInvMF as BandInvMF
from steppe.noise.banded_toeplitz import BandedToeplitz as BandedToeplitz
from steppe.noise.bisr import BISR as BISR
from steppe.noise.blt import BLT as BLT
from steppe.noise.correlated import Correlated as Correlated
from steppe.noise.correlated import CorrelatedRun as CorrelatedRun
from steppe.noise.dense import Dense as Dense
from steppe.noise.factor import Factor as Factor
from steppe.noise.gaussian import Gaussian as Gaussian
from steppe.noise.noise import Noise as Noise
from steppe.noise.noise import NoiseRun as NoiseRun
from steppe.noise.schedules import ExponentialSchedule as ExponentialSchedule
from steppe.noise.schedules import NoiseSchedule as NoiseSchedule
from steppe.noise.schedules import PolynomialSchedule as PolynomialSchedule
from steppe.noise.schedules import StepSchedule as StepSchedule
from steppe.noise.schedules import TimeSchedule as TimeSchedule
from steppe.noise.sqrt_toeplitz import SqrtToeplitz as SqrtToeplitz
from steppe.noise.tree import Tree as Tree
from steppe.noise.workload import prefix_sum as prefix_sum
from steppe.randomness import SecureSource as SecureSource
from steppe.randomness import SeededSource as SeededSource
from steppe.randomness import Source as Source
from steppe.randomness import as_source as as_source
