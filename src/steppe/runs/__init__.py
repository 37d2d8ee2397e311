"""What every training run needs, private or not: configuration, checkpoints, log and Ctrl-C.

Imports `utils`, `errors`.
"""

from steppe.runs.checkpoint_folder import CheckpointFolder as CheckpointFolder
from steppe.runs.checkpoint_folder import StoredState as StoredState
from steppe.runs.fingerprint import digest as digest
from steppe.runs.fingerprint import dtype_name as dtype_name
from steppe.runs.fingerprint import name_of as name_of
from steppe.runs.fingerprint import of_model as of_model
from steppe.runs.fingerprint import of_optimizer as of_optimizer
from steppe.runs.fingerprint import of_scheduler as of_scheduler
from steppe.runs.fingerprint import require_same as require_same
from steppe.runs.interrupt import Interrupted as Interrupted
from steppe.runs.interrupt import StopRequest as StopRequest
from steppe.runs.log import Log as Log
from steppe.runs.log import read_log as read_log
from steppe.runs.registry import build as build
from steppe.runs.registry import check_keys as check_keys
from steppe.runs.registry import keys_of as keys_of
from steppe.runs.registry import name_and_options as name_and_options
from steppe.runs.registry import optimizers as optimizers
from steppe.runs.registry import schedulers as schedulers
from steppe.runs.registry import unknown as unknown
from steppe.runs.state_format import pack as pack
from steppe.runs.state_format import unpack as unpack
from steppe.runs.toml import read_toml as read_toml
from steppe.runs.toml import write_toml as write_toml
