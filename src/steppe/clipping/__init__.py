"""Place 4, the clip: how long a per-example gradient may be, and the sum of clipped gradients.

Imports `gradients` and what lies below it.
"""

from steppe.clipping.automatic import Automatic as Automatic
from steppe.clipping.clip import Clip as Clip
from steppe.clipping.clip import Clipper as Clipper
from steppe.clipping.clip import State as State
from steppe.clipping.engine import ClippedSum as ClippedSum
from steppe.clipping.flat import Flat as Flat
from steppe.clipping.gep import GEP as GEP
from steppe.clipping.per_layer import PerLayer as PerLayer
from steppe.clipping.physical_batches import CEILING as CEILING
from steppe.clipping.physical_batches import fitting_physical_batch as fitting_physical_batch
from steppe.clipping.physical_batches import with_zeros as with_zeros
from steppe.clipping.quantile import Quantile as Quantile
