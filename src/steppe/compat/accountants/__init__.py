"""Accountants by the names that Opacus has for them."""

from __future__ import annotations

from steppe.compat.absent import refusing
from steppe.compat.accountant import Accountant as IAccountant
from steppe.compat.accountant import create_accountant as create_accountant

__all__ = ["IAccountant", "PRVAccountant", "RDPAccountant", "create_accountant"]


class PRVAccountant(IAccountant):
    """The tight account: dp-accounting's PLD.

    Examples:
        >>> accountant = PRVAccountant()
        >>> accountant.step(noise_multiplier=1.1, sample_rate=0.01)
        >>> accountant.mechanism(), len(accountant)
        ('prv', 1)
    """

    def __init__(self) -> None:
        super().__init__("prv")


class RDPAccountant(IAccountant):
    """The looser second opinion: dp-accounting's RDP."""

    def __init__(self) -> None:
        super().__init__("rdp")


__getattr__ = refusing(
    __name__,
    {
        "GaussianAccountant": "is not offered, because its approximation reports less ε than is "
        "spent; use PRVAccountant"
    },
)
