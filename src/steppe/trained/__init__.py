"""Using what was trained: a run's models, ready for new records, and files for other programs."""

from steppe.trained.exported import FORMATS as FORMATS
from steppe.trained.exported import export as export
from steppe.trained.inputs import Inputs as Inputs
from steppe.trained.model import TrainedModel as TrainedModel
from steppe.trained.model import load as load
from steppe.trained.outputs import Intervals as Intervals
from steppe.trained.outputs import output_intervals as output_intervals
from steppe.trained.outputs import outputs as outputs
from steppe.trained.run import TrainedRun as TrainedRun
