from steppe.clipping.engine import ClippedSum as ClippedSum
from steppe.clipping.flat import Flat as Flat
