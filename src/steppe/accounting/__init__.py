"""The cost of a run: ε by dp-accounting, calibration, and the privacy statement.

Imports `utils`, `errors`.
"""

from steppe.accounting.calibration import calibrate as calibrate
from steppe.accounting.calibration import calibrate_worst as calibrate_worst
from steppe.accounting.participation import Participation as Participation
from steppe.accounting.pld import check_delta as check_delta
from steppe.accounting.pld import check_steps as check_steps
from steppe.accounting.pld import checked as checked
from steppe.accounting.pld import delta as delta
from steppe.accounting.pld import epsilon as epsilon
from steppe.accounting.pld import epsilon_curve as epsilon_curve
from steppe.accounting.pld import epsilon_on_grid as epsilon_on_grid
from steppe.accounting.pld import smallest_delta as smallest_delta
from steppe.accounting.rdp import rdp_epsilon as rdp_epsilon
from steppe.accounting.segment import ADJACENCIES as ADJACENCIES
from steppe.accounting.segment import LARGEST_NOISE as LARGEST_NOISE
from steppe.accounting.segment import SMALLEST_NOISE as SMALLEST_NOISE
from steppe.accounting.segment import Segment as Segment
from steppe.accounting.segment import Segments as Segments
from steppe.accounting.segment import event as event
from steppe.accounting.segment import merged as merged
from steppe.accounting.segment import with_few_levels as with_few_levels
from steppe.accounting.segment import with_few_rates as with_few_rates
from steppe.accounting.statement import Statement as Statement
from steppe.accounting.statement_text import caution as caution
