"""The loader with Poisson sampling, by the name that Opacus has for it."""

from steppe.compat.loader import PoissonLoader as DPDataLoader

__all__ = ["DPDataLoader"]
