"""Place 7, which model is published: averages of weights and outputs, checkpoints, intervals.

All of it costs no privacy, except a choice by private data. Imports `randomness`, `utils` and
`errors`.
"""

from steppe.averaging.average import Average as Average
from steppe.averaging.average import AveragedWeights as AveragedWeights
from steppe.averaging.averages import Averages as Averages
from steppe.averaging.checkpoint_average import CheckpointAverage as CheckpointAverage
from steppe.averaging.ema import EMA as EMA
from steppe.averaging.layout import write_checkpoint as write_checkpoint
from steppe.averaging.outputs import OMV as OMV
from steppe.averaging.outputs import OPA as OPA
from steppe.averaging.outputs import Ensemble as Ensemble
from steppe.averaging.outputs import Outputs as Outputs
from steppe.averaging.polynomial import PolynomialDecay as PolynomialDecay
from steppe.averaging.posthoc import GAMMAS as GAMMAS
from steppe.averaging.posthoc import PowerAverages as PowerAverages
from steppe.averaging.posthoc import Reconstruction as Reconstruction
from steppe.averaging.posthoc import Snapshot as Snapshot
from steppe.averaging.posthoc import check_gammas as check_gammas
from steppe.averaging.posthoc import reconstruct as reconstruct
from steppe.averaging.posthoc import stored_snapshots as stored_snapshots
from steppe.averaging.retention import Keep as Keep
from steppe.averaging.selection import Choice as Choice
from steppe.averaging.selection import accuracy as accuracy
from steppe.averaging.selection import best_checkpoints as best_checkpoints
from steppe.averaging.selection import choose as choose
from steppe.averaging.selection import private_choice as private_choice
from steppe.averaging.selection import tune as tune
from steppe.averaging.store import CheckpointStore as CheckpointStore
from steppe.averaging.store import StoredCheckpoints as StoredCheckpoints
from steppe.averaging.store_index import StoreEntry as StoreEntry
from steppe.averaging.swa import SWA as SWA
from steppe.averaging.uncertainty import Prediction as Prediction
from steppe.averaging.uncertainty import Variance as Variance
from steppe.averaging.uncertainty import best_number as best_number
from steppe.averaging.uncertainty import checkpoint_variance as checkpoint_variance
from steppe.averaging.uncertainty import error_bound as error_bound
from steppe.averaging.uncertainty import half_width as half_width
from steppe.averaging.uncertainty import prediction as prediction
from steppe.averaging.window import Window as Window
