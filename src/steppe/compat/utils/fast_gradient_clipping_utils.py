"""Losses of ghost clipping have no counterpart: yours stays as it is."""

from steppe.compat.absent import refusing

_PLAIN = (
    "is not offered, because the loss stays a plain one; call criterion(output, target).backward()"
)

__getattr__ = refusing(
    __name__,
    {"DPLossFastGradientClipping": _PLAIN, "DPTensorFastGradientClipping": _PLAIN},
)
