"""Place 1, who takes part: the samplers, and the protocol that a plan asks of them.

Imports `accounting` (how often a record takes part), `randomness`, `utils`, `errors`.
"""

from steppe.sampling.cyclic_poisson import CyclicPoisson as CyclicPoisson
from steppe.sampling.fixed_order import FixedOrder as FixedOrder
from steppe.sampling.periodic import Periodic as Periodic
from steppe.sampling.poisson import CappedPoisson as CappedPoisson
from steppe.sampling.poisson import Poisson as Poisson
from steppe.sampling.sampler import Draw as Draw
from steppe.sampling.sampler import Sampler as Sampler
