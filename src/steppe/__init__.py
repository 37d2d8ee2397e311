"""Steppe: differentially private training with the most accuracy a privacy budget can buy."""

from steppe.clipping import Flat as Flat
from steppe.clipping import Kernels as Kernels
from steppe.clipping import fix as fix
from steppe.clipping import inspect as inspect
from steppe.noise import Gaussian as Gaussian
from steppe.noise import SecureSource as SecureSource
from steppe.noise import SeededSource as SeededSource
from steppe.plan import Plan as Plan
from steppe.points import Here as Here
from steppe.private import Private as Private
from steppe.private import make_private as make_private
from steppe.sampling import CappedPoisson as CappedPoisson
from steppe.sampling import Poisson as Poisson
