"""The loop around the private step: account, checkpoints, evaluation, averages, resume."""

from steppe.training.config import Config as Config
from steppe.training.config import read as read
from steppe.training.config import resume as resume
from steppe.training.interrupt import Interrupted as Interrupted
from steppe.training.kept import FromStore as FromStore
from steppe.training.kept import Snapshots as Snapshots
from steppe.training.log import read_log as read_log
from steppe.training.moment import Moment as Moment
from steppe.training.outcome import Outcome as Outcome
from steppe.training.trainer import Trainer as Trainer
