"""Whether a module can be trained privately, asked of the engine as in Opacus."""

from __future__ import annotations

from typing import Any

from torch import nn

from steppe.compat.module_validator import ModuleValidator


class Compatibility:
    """The questions about modules that a `PrivacyEngine` answers. Only types of layers are looked
    at; `make_private` looks at what they do."""

    def is_compatible(
        self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None
    ) -> bool:
        """Whether the module has no layer that is known to mix records.

        Args:
            module: the model.
            optimizer, data_loader: accepted; nothing of them is looked at before `make_private`.
        """
        del optimizer, data_loader
        return ModuleValidator.is_valid(module)

    def validate(
        self, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None
    ) -> None:
        """As `is_compatible`, but raises an `IsolationError`."""
        del optimizer, data_loader
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy without layers that cannot be trained privately, see `steppe.fix`."""
        return ModuleValidator.fix(module)
