"""Place 2, at which weights the gradient is taken.

Imports `utils`.
"""

from steppe.points.here import Here as Here
from steppe.points.point import MovableWeights as MovableWeights
from steppe.points.point import Point as Point
from steppe.points.point import PointRun as PointRun
from steppe.points.sam import SAM as SAM
from steppe.points.sat import SAT as SAT
from steppe.points.sat_momentum import SATMomentum as SATMomentum
