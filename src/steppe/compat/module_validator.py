"""Checks and replacements of layers by type, as in Opacus."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from steppe.errors import IsolationError
from steppe.probing import fix


class ModuleValidator:
    """Finds and replaces layers that mix records.

    Only the types of layers are checked here. The operations of the module are checked before the
    first private step.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False))
        >>> ModuleValidator.is_valid(model)
        False
        >>> ModuleValidator.validate(ModuleValidator.fix(model))
        []
    """

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[IsolationError]:
        """The layers that cannot be trained privately.

        Batch normalisation in eval mode inside a module in train mode is frozen on purpose and is
        allowed. Whether a layer has weights, or whether they are trained, makes no difference.

        Args:
            module: the model.
            strict: raise instead of returning.

        Returns:
            One error for each such layer.
        """
        errors = [
            _error(name, layer)
            for name, layer in module.named_modules()
            if _mixes(layer) and (layer.training or not module.training)
        ]
        if strict and errors:
            raise IsolationError("\n".join(str(error) for error in errors))
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether `validate` finds nothing."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module) -> nn.Module:
        """A copy that can be trained privately, see `steppe.fix`; trained scales are kept."""
        return fix(module)


def _mixes(layer: nn.Module) -> bool:
    if isinstance(layer, _InstanceNorm):
        return bool(layer.track_running_stats)
    return isinstance(layer, _BatchNorm)


def _error(name: str, layer: nn.Module) -> IsolationError:
    return IsolationError(
        f"layer={name or 'module'!r} ({type(layer).__name__}): must treat every record alone, and "
        "keeps statistics of the batch; replace it with ModuleValidator.fix(module), or put it in "
        "eval mode after module.train()."
    )
