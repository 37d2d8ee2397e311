"""Keywords of Opacus that mean nothing here, or would void the guarantee: say so, never swallow."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from steppe.utils import validation

_MODES = ("hooks", "functorch", "ew", "ghost")
_GONE = {
    "criterion": "the loss stays in your loop; every mode returns (module, optimizer, data_loader)",
    "wrap_model": "the module is never wrapped",
    "rand_on_empty": "empty batches are handled",
    "epsilon_tolerance": "the noise is as little as the budget allows, and ε never above it",
    "alphas": "the orders of the RDP account are fixed, and 'prv' needs none",
    "eps_error": "ε is an upper bound, its error is on the safe side",
    "delta_error": "ε is an upper bound, its error is on the safe side",
}


def check_options(
    poisson_sampling: bool, clipping: str, noise_generator: object, grad_sample_mode: str
) -> None:
    """Refuse the choices that cannot be offered."""
    if poisson_sampling is not True:
        raise validation.fail(
            "poisson_sampling",
            poisson_sampling,
            "the account holds for Poisson sampling only, a shuffled pass costs several times more",
            "leave it out",
        )
    if clipping == "adaptive":
        raise validation.fail(
            "clipping",
            clipping,
            "is not offered through the compatibility layer",
            "use steppe.make_private with Plan(clip=Quantile(...))",
        )
    validation.one_of("clipping", clipping, ("flat", "per_layer"))
    if noise_generator is not None:
        raise validation.fail(
            "noise_generator",
            type(noise_generator).__name__,
            "whoever can seed the noise can subtract it, and a torch generator keeps 32 bits of "
            "its seed",
            "leave it out, noise comes from a cryptographic stream",
        )
    validation.one_of("grad_sample_mode", grad_sample_mode, _MODES)


def check_isolation(isolation: str) -> None:
    """Only what a user's own loop allows."""
    if isolation == "each":
        raise validation.fail(
            "isolation",
            isolation,
            "is not offered through the compatibility layer, where the loop takes the whole batch",
            'use steppe.make_private(isolation="each")',
        )
    validation.one_of("isolation", isolation, ("proven", "probed"))


def refuse_unknown(method: Callable[..., Any], unknown: Mapping[str, Any]) -> None:
    """A misspelt keyword must not pass for its default."""
    for name in unknown:
        if name in _GONE:
            raise TypeError(f"{method.__name__}() has no keyword {name!r}: {_GONE[name]}.")
        known = [
            parameter.name
            for parameter in inspect.signature(method).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        nearest = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(known)}."
        raise TypeError(f"{method.__name__}() has no keyword {name!r}: {hint}")
