"""The trainer: the loop around the private step, with ledger, checkpoints, averages and resume.

Imports `private`, `ledger`, `averaging`, `data`, `models` and lower layers.
"""

from steppe.runs import Interrupted as Interrupted
from steppe.runs import read_log as read_log
from steppe.runs import read_toml as read_toml
from steppe.training.callbacks import StepInfo as StepInfo
from steppe.training.config import Config as Config
from steppe.training.config import read as read
from steppe.training.config import resume as resume
from steppe.training.config.build import BuiltConfig as BuiltConfig
from steppe.training.config.data import Loaded as Loaded
from steppe.training.config.data import as_columns as as_columns
from steppe.training.config.data import load_data as load_data
from steppe.training.config.data import of_numbers as of_numbers
from steppe.training.config.data import reading as reading
from steppe.training.config.front_end import features as features
from steppe.training.config.front_end import restore_front_end as restore_front_end
from steppe.training.config.keys import CALLED as CALLED
from steppe.training.config.model import make_model as make_model
from steppe.training.config.registry import averages as averages
from steppe.training.config.registry import build as build
from steppe.training.config.registry import check_keys as check_keys
from steppe.training.config.registry import place as place
from steppe.training.config.user_records import own_records as own_records
from steppe.training.evaluation import Evaluation as Evaluation
from steppe.training.evaluation import mean_output_scores as mean_output_scores
from steppe.training.evaluation import vote_scores as vote_scores
from steppe.training.folder import RunFolder as RunFolder
from steppe.training.folder import write_json as write_json
from steppe.training.folder import write_weights as write_weights
from steppe.training.groups import Charging as Charging
from steppe.training.groups import Objective as Objective
from steppe.training.groups import PrivateData as PrivateData
from steppe.training.groups import Saving as Saving
from steppe.training.losses import for_classes as for_classes
from steppe.training.losses import loss_of as loss_of
from steppe.training.outcome import Outcome as Outcome
from steppe.training.outcome import as_lines as as_lines
from steppe.training.outcome import numbers as numbers
from steppe.training.outcome import row as row
from steppe.training.publishing import LAST as LAST
from steppe.training.publishing import meant as meant
from steppe.training.run_averages import OutputAverage as OutputAverage
from steppe.training.run_averages import Snapshots as Snapshots
from steppe.training.run_averages import label as label
from steppe.training.trainer import Trainer as Trainer
