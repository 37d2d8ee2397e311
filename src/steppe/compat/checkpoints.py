"""Checkpoints of module, optimizer and accountant in one file: tensors and JSON, no pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from steppe.compat.accountant import Accountant
from steppe.compat.hooked_run import HookedRun
from steppe.compat.keywords import refuse_unknown
from steppe.errors import DataError
from steppe.runs import pack, unpack
from steppe.utils.files import write_atomically, writing
from steppe.utils.weight_files import as_safetensors

_KEY = "steppe.compat"
_PARTS = ("module_state_dict", "privacy_accountant_state_dict")


class Checkpoints:
    """What a `PrivacyEngine` writes to a file and reads from it."""

    _accountant: Accountant
    _runs: list[HookedRun]

    def save_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: nn.Module,
        optimizer: Optimizer | None = None,
        checkpoint_dict: Mapping[str, Any] | None = None,
        module_state_dict_kwargs: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> None:
        """Write the states of module, optimizer and accountant to a safetensors file.

        Args:
            path: the file. It appears whole or not at all.
            module, optimizer: their states are saved.
            checkpoint_dict: more to save: numbers, text, tensors, and lists and dicts of them.
            module_state_dict_kwargs: for `module.state_dict()`.
        """
        refuse_unknown(self.save_checkpoint, unknown)
        state: dict[str, Any] = dict(checkpoint_dict or {})
        state["module_state_dict"] = module.state_dict(**(module_state_dict_kwargs or {}))
        state["privacy_accountant_state_dict"] = self._accountant.state_dict()
        if optimizer is not None:
            state["optimizer_state_dict"] = optimizer.state_dict()
        for run in self._runs:
            if run.module is module and run.clip_state():
                state["clip_state_dict"] = run.clip_state()
        write_checkpoint(path, state)

    def load_checkpoint(
        self,
        *,
        path: str | os.PathLike[str],
        module: nn.Module,
        optimizer: Optimizer | None = None,
        module_load_dict_kwargs: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> dict[str, Any]:
        """Load what `save_checkpoint` wrote, after `make_private` and before the first step.

        The steps before the interruption count against the budget.

        Args:
            path: the file. Files of `torch.save` are rejected, because reading them can run code.
            module, optimizer: receive their states.
            module_load_dict_kwargs: for `module.load_state_dict()`.

        Returns:
            All that the file contains.
        """
        refuse_unknown(self.load_checkpoint, unknown)
        state = read_checkpoint(path)
        for name in _PARTS if optimizer is None else (*_PARTS, "optimizer_state_dict"):
            if name not in state:
                raise DataError(f"path={str(path)!r}: must contain {name!r}; save it as well.")
        self._accountant.load_state_dict(state["privacy_accountant_state_dict"])
        module.load_state_dict(state["module_state_dict"], **(module_load_dict_kwargs or {}))
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer_state_dict"])
        for run in self._runs:
            if run.module is module and "clip_state_dict" in state:
                run.load_clip_state(state["clip_state_dict"])
        return state


def write_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a nest of numbers, text and tensors as a safetensors file.

    Args:
        path: the file. It appears whole or not at all.
        state: what to write.
    """
    tensors: dict[str, Tensor] = {}
    packed = pack("checkpoint", dict(state), tensors)
    data = as_safetensors(tensors, {_KEY: json.dumps(packed)}, None)
    target = Path(path)
    with writing("path", target):
        write_atomically(target, data)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write_checkpoint` wrote.

    Args:
        path: the file. Files of `torch.save` are rejected, because reading them can run code.
    """
    from safetensors import SafetensorError, safe_open

    source = Path(path)
    if not source.is_file():
        raise DataError(f"path={str(path)!r}: must be a file that save_checkpoint wrote.")
    try:
        with safe_open(source, framework="pt") as file:
            about = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError:
        about = None
    if about is None:
        raise DataError(
            f"path={str(path)!r}: must be a file that save_checkpoint of steppe.compat wrote; "
            "files of torch.save are not read, because they can run code. Load an old one "
            "yourself with torch.load(path, weights_only=True), and its parts with "
            "load_state_dict()."
        )
    made: dict[str, Any] = unpack(json.loads(about), tensors)
    return made
