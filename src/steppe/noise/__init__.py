"""Place 5, the noise: Gaussian, constant or on a schedule.

Imports `randomness`, `utils`, `errors`. The sources of randomness are re-exported here.
"""

from steppe.noise.gaussian import Gaussian as Gaussian
from steppe.noise.noise import Noise as Noise
from steppe.noise.schedules import ExponentialSchedule as ExponentialSchedule
from steppe.noise.schedules import NoiseSchedule as NoiseSchedule
from steppe.noise.schedules import PolynomialSchedule as PolynomialSchedule
from steppe.noise.schedules import StepSchedule as StepSchedule
from steppe.noise.schedules import TimeSchedule as TimeSchedule
from steppe.randomness import SecureSource as SecureSource
from steppe.randomness import SeededSource as SeededSource
from steppe.randomness import Source as Source
from steppe.randomness import as_source as as_source
