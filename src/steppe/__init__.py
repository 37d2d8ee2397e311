"""Steppe: differentially private training with the most accuracy a privacy budget can buy."""

from steppe.citations import citation as citation
from steppe.clipping import Flat as Flat
from steppe.clipping import Kernels as Kernels
from steppe.clipping import fix as fix
from steppe.clipping import inspect as inspect
from steppe.noise import ExponentialSchedule as ExponentialSchedule
from steppe.noise import Gaussian as Gaussian
from steppe.noise import PolynomialSchedule as PolynomialSchedule
from steppe.noise import SecureSource as SecureSource
from steppe.noise import SeededSource as SeededSource
from steppe.noise import StepSchedule as StepSchedule
from steppe.noise import TimeSchedule as TimeSchedule
from steppe.plan import Plan as Plan
from steppe.points import SAM as SAM
from steppe.points import SAT as SAT
from steppe.points import Here as Here
from steppe.points import SATMomentum as SATMomentum
from steppe.private import Private as Private
from steppe.private import make_private as make_private
from steppe.sampling import CappedPoisson as CappedPoisson
from steppe.sampling import Poisson as Poisson
from steppe.updates import DPAdam as DPAdam
