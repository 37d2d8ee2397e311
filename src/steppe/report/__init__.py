"""One self-contained HTML page for a run or a comparison of runs, and the README's picture.

Imports `training`, `flatness`, `accounting`, `utils` and other lower layers.
"""

from steppe.report.calibration import Bin as Bin
from steppe.report.calibration import Calibration as Calibration
from steppe.report.calibration import calibration as calibration
from steppe.report.extras import add_flatness as add_flatness
from steppe.report.extras import add_gradient_norms as add_gradient_norms
from steppe.report.extras import add_intervals as add_intervals
from steppe.report.page import write as write
from steppe.report.picture import picture as picture
