"""Checks of keyword arguments. Keywords without a meaning here are errors, never ignored."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from steppe.utils import validation

_MODES = ("hooks", "functorch", "ew", "ghost")
_GONE = {
    "rand_on_empty": "empty batches are handled",
    "noise_scheduler": "σ is a constant of the account; schedules are steppe.Plan's",
    "grad_clip_scheduler": "C is a constant of the account; use clipping='adaptive'",
    "torch_save_kwargs": "the file is safetensors and JSON, because a pickle can run code",
    "torch_load_kwargs": "the file is safetensors and JSON, because a pickle can run code",
    "alphas": "the orders of the RDP account are fixed, and 'prv' needs none",
    "eps_error": "ε is an upper bound, its error is on the safe side",
    "delta_error": "ε is an upper bound, its error is on the safe side",
}


def check_options(
    poisson_sampling: bool, clipping: str, noise_generator: object, grad_sample_mode: str
) -> None:
    """Reject choices that are not supported."""
    if poisson_sampling is not True:
        raise validation.fail(
            "poisson_sampling",
            poisson_sampling,
            "must be True: the account assumes Poisson sampling, and a shuffled pass costs "
            "several times more",
            "leave it out",
        )
    validation.one_of("clipping", clipping, ("flat", "per_layer", "adaptive"))
    if noise_generator is not None:
        raise validation.fail(
            "noise_generator",
            type(noise_generator).__name__,
            "must be None: whoever knows the seed can subtract the noise, and a torch generator "
            "keeps only 32 bits of it",
            "leave it out; noise comes from a cryptographic stream",
        )
    validation.one_of("grad_sample_mode", grad_sample_mode, _MODES)


def check_isolation(isolation: str) -> None:
    """Check that a user's own loop supports this kind of isolation."""
    if isolation == "each":
        raise validation.fail(
            "isolation",
            isolation,
            "is not offered by steppe.compat, whose loop processes the whole batch",
            'use steppe.make_private(isolation="each")',
        )
    validation.one_of("isolation", isolation, ("proven", "probed"))


def refuse_unknown(
    method: Callable[..., Any], further: Mapping[str, Any], accepted: Sequence[str] = ()
) -> dict[str, Any]:
    """The further keywords that are accepted. Unknown ones, perhaps misspelt, are rejected."""
    for name in further:
        if name in accepted:
            continue
        if name in _GONE:
            raise TypeError(f"{method.__name__}() has no keyword {name!r}: {_GONE[name]}.")
        known = [
            parameter.name
            for parameter in inspect.signature(method).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        ]
        known += accepted
        nearest = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(known)}."
        raise TypeError(f"{method.__name__}() has no keyword {name!r}: {hint}")
    return dict(further)
