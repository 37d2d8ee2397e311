"""Events to ε, calibration and the privacy statement, on dp-accounting."""

from steppe.accounting.calibration import calibrate as calibrate
from steppe.accounting.calibration import calibrate_worst as calibrate_worst
from steppe.accounting.pld import delta as delta
from steppe.accounting.pld import epsilon as epsilon
from steppe.accounting.pld import epsilon_curve as epsilon_curve
from steppe.accounting.rdp import rdp_epsilon as rdp_epsilon
from steppe.accounting.segment import ADJACENCIES as ADJACENCIES
from steppe.accounting.segment import Segment as Segment
from steppe.accounting.segment import Segments as Segments
from steppe.accounting.segment import event as event
from steppe.accounting.statement import Statement as Statement
