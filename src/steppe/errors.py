"""What can go wrong, by name.

Every message has the same four parts: the name, the value, the rule it breaks and what to do.
Configuration errors are raised before any budget is spent.
"""

from __future__ import annotations


class SteppeError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigurationError(SteppeError, ValueError):
    """A public constant of the run breaks a rule."""


class UnsupportedModelError(SteppeError, ValueError):
    """The model cannot be trained privately as it is; the message names the layer."""


class IsolationError(UnsupportedModelError):
    """One record's output depends on another record, so no per-record bound exists."""


class DataError(SteppeError, ValueError):
    """The data set or the batch does not have the declared form."""


class BudgetExhausted(SteppeError, RuntimeError):
    """The plan's last step has been taken; one more would cost more than was declared."""


class MisuseError(SteppeError, RuntimeError):
    """Calls in an order that would void the guarantee."""


class StorageError(SteppeError, RuntimeError):
    """A file of the run cannot be written; what was written before is whole."""


class PrivacyWarning(UserWarning):
    """The run is allowed, but its guarantee is weaker than its reader may think."""
