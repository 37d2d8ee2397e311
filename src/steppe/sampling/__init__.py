from steppe.sampling.poisson import CappedPoisson as CappedPoisson
from steppe.sampling.poisson import Poisson as Poisson
