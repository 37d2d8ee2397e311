from steppe.sampling._records import Records as Records
from steppe.sampling.data import records as records
from steppe.sampling.loader import PrivateLoader as PrivateLoader
from steppe.sampling.poisson import CappedPoisson as CappedPoisson
from steppe.sampling.poisson import Poisson as Poisson
