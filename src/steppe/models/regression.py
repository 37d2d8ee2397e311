"""One linear layer: logistic and linear regression."""

from __future__ import annotations

from torch import nn

from steppe.utils import validation


def logistic_regression(features: int = 784, classes: int = 10) -> nn.Module:
    """Multinomial logistic regression: a logit a class, for cross-entropy.

    Args:
        features: numbers in one record, whatever their shape.
        classes: number of labels.

    Examples:
        >>> import torch
        >>> logistic_regression()(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    validation.positive_integer("features", features)
    validation.positive_integer("classes", classes)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def linear_regression(features: int = 256, bias: bool = True) -> nn.Module:
    """Linear regression to one number for each record.

    The output has the shape of the target, `(records,)`: a trailing axis of length one would be
    broadcast against it by the squared error and mix the records.

    Args:
        features: numbers in one record, whatever their shape.
        bias: whether there is an intercept.

    Examples:
        >>> import torch
        >>> linear_regression(4)(torch.zeros(3, 4)).shape
        torch.Size([3])
    """
    validation.positive_integer("features", features)
    return nn.Sequential(nn.Flatten(), nn.Linear(features, 1, bias=bias), nn.Flatten(0))
