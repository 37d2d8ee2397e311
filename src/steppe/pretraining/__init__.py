"""Noise-tolerant starts, trained on public data: no privacy, and no privacy cost.

Imports `data`, `starts`, `runs`, `models`, `procedural` and lower layers, and no private part.
"""

from steppe.pretraining.amp import AMP as AMP
from steppe.pretraining.asam import ASAM as ASAM
from steppe.pretraining.augment import crop_and_flip as crop_and_flip
from steppe.pretraining.augment import strong_view as strong_view
from steppe.pretraining.batches import Batches as Batches
from steppe.pretraining.config import PretrainingConfig as PretrainingConfig
from steppe.pretraining.config import read_pretraining as read_pretraining
from steppe.pretraining.config import resume_pretraining as resume_pretraining
from steppe.pretraining.data import PublicData as PublicData
from steppe.pretraining.data import drawn_pictures as drawn_pictures
from steppe.pretraining.dp_adapter import DPAdapter as DPAdapter
from steppe.pretraining.kept_perturbation import KeptPerturbation as KeptPerturbation
from steppe.pretraining.mean_perturbation import MeanPerturbation as MeanPerturbation
from steppe.pretraining.method import Gradients as Gradients
from steppe.pretraining.method import Method as Method
from steppe.pretraining.method import MethodRun as MethodRun
from steppe.pretraining.method import StatelessRun as StatelessRun
from steppe.pretraining.objectives import Contrastive as Contrastive
from steppe.pretraining.objectives import Labels as Labels
from steppe.pretraining.objectives import PublicObjective as PublicObjective
from steppe.pretraining.outcome import PretrainingOutcome as PretrainingOutcome
from steppe.pretraining.perturbation import Ascent as Ascent
from steppe.pretraining.public_run import pretrain as pretrain
from steppe.pretraining.sam import SAM as SAM
from steppe.pretraining.standard import Standard as Standard
