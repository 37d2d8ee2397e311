"""Steppe: differentially private training with the most accuracy a privacy budget can buy.

A public name is loaded when it is first used, so that `import steppe` and `steppe --help` do not
wait for torch. It is written twice: as an import for type checkers, and with its home in `_HOMES`,
which is also what `from steppe import *` brings.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steppe import losses as losses
    from steppe.averaging import EMA as EMA
    from steppe.averaging import OMV as OMV
    from steppe.averaging import OPA as OPA
    from steppe.averaging import SWA as SWA
    from steppe.averaging import Averages as Averages
    from steppe.averaging import CheckpointStore as CheckpointStore
    from steppe.averaging import PolynomialDecay as PolynomialDecay
    from steppe.averaging import PowerAverages as PowerAverages
    from steppe.averaging import Window as Window
    from steppe.citations import citation as citation
    from steppe.clipping import GEP as GEP
    from steppe.clipping import Automatic as Automatic
    from steppe.clipping import Flat as Flat
    from steppe.clipping import PerLayer as PerLayer
    from steppe.clipping import Quantile as Quantile
    from steppe.finetuning import load_start as load_start
    from steppe.gradients import Kernels as Kernels
    from steppe.ledger import Ledger as Ledger
    from steppe.noise import BISR as BISR
    from steppe.noise import BLT as BLT
    from steppe.noise import BandedToeplitz as BandedToeplitz
    from steppe.noise import BandInvMF as BandInvMF
    from steppe.noise import Dense as Dense
    from steppe.noise import ExponentialSchedule as ExponentialSchedule
    from steppe.noise import Gaussian as Gaussian
    from steppe.noise import PolynomialSchedule as PolynomialSchedule
    from steppe.noise import SecureSource as SecureSource
    from steppe.noise import SeededSource as SeededSource
    from steppe.noise import SqrtToeplitz as SqrtToeplitz
    from steppe.noise import StepSchedule as StepSchedule
    from steppe.noise import TimeSchedule as TimeSchedule
    from steppe.noise import Tree as Tree
    from steppe.plan import Plan as Plan
    from steppe.points import SAM as SAM
    from steppe.points import SAT as SAT
    from steppe.points import Here as Here
    from steppe.points import SATMomentum as SATMomentum
    from steppe.pretraining import pretrain as pretrain
    from steppe.private import Private as Private
    from steppe.private import make_private as make_private
    from steppe.probing import fix as fix
    from steppe.probing import inspect as inspect
    from steppe.sampling import CappedPoisson as CappedPoisson
    from steppe.sampling import CyclicPoisson as CyclicPoisson
    from steppe.sampling import FixedOrder as FixedOrder
    from steppe.sampling import Periodic as Periodic
    from steppe.sampling import Poisson as Poisson
    from steppe.trained import load as load
    from steppe.training import Trainer as Trainer
    from steppe.updates import DecoupledDecay as DecoupledDecay
    from steppe.updates import DPAdam as DPAdam

_HOMES = {
    "EMA": "steppe.averaging",
    "OMV": "steppe.averaging",
    "OPA": "steppe.averaging",
    "SWA": "steppe.averaging",
    "Averages": "steppe.averaging",
    "CheckpointStore": "steppe.averaging",
    "PolynomialDecay": "steppe.averaging",
    "PowerAverages": "steppe.averaging",
    "Window": "steppe.averaging",
    "citation": "steppe.citations",
    "GEP": "steppe.clipping",
    "Automatic": "steppe.clipping",
    "Flat": "steppe.clipping",
    "load_start": "steppe.finetuning",
    "Kernels": "steppe.gradients",
    "PerLayer": "steppe.clipping",
    "Quantile": "steppe.clipping",
    "fix": "steppe.probing",
    "inspect": "steppe.probing",
    "Ledger": "steppe.ledger",
    "BISR": "steppe.noise",
    "BLT": "steppe.noise",
    "BandedToeplitz": "steppe.noise",
    "BandInvMF": "steppe.noise",
    "Dense": "steppe.noise",
    "ExponentialSchedule": "steppe.noise",
    "Gaussian": "steppe.noise",
    "PolynomialSchedule": "steppe.noise",
    "SecureSource": "steppe.noise",
    "SeededSource": "steppe.noise",
    "SqrtToeplitz": "steppe.noise",
    "StepSchedule": "steppe.noise",
    "TimeSchedule": "steppe.noise",
    "Tree": "steppe.noise",
    "Plan": "steppe.plan",
    "SAM": "steppe.points",
    "SAT": "steppe.points",
    "Here": "steppe.points",
    "SATMomentum": "steppe.points",
    "pretrain": "steppe.pretraining",
    "Private": "steppe.private",
    "make_private": "steppe.private",
    "CappedPoisson": "steppe.sampling",
    "CyclicPoisson": "steppe.sampling",
    "FixedOrder": "steppe.sampling",
    "Periodic": "steppe.sampling",
    "Poisson": "steppe.sampling",
    "DecoupledDecay": "steppe.updates",
    "load": "steppe.trained",
    "Trainer": "steppe.training",
    "DPAdam": "steppe.updates",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "losses":  # a module of its own, by the name that messages give it
        return _import_module("steppe.losses")
    if name not in _HOMES:
        raise AttributeError(f"module 'steppe' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
