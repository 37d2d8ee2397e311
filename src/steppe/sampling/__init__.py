from steppe.sampling._records import Records as Records
from steppe.sampling.data import records as records
from steppe.sampling.labels import check_labels as check_labels
from steppe.sampling.periodic import Periodic as Periodic
from steppe.sampling.poisson import CappedPoisson as CappedPoisson
from steppe.sampling.poisson import Poisson as Poisson
from steppe.sampling.sampler import Draw as Draw
from steppe.sampling.sampler import Sampler as Sampler
