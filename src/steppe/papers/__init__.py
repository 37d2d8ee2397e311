"""The papers' tables and figures as commands: `python -m steppe.papers list`.

May import every room except `cli`. Only `cli` imports it.
"""

from steppe.papers.experiment import Column as Column
from steppe.papers.experiment import Constants as Constants
from steppe.papers.experiment import Experiment as Experiment
from steppe.papers.experiment import ExperimentRun as ExperimentRun
from steppe.papers.overview import listed as listed
from steppe.papers.overview import shown as shown
from steppe.papers.results import Results as Results
