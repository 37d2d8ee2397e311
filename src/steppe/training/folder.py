"""The files of a run."""

from __future__ import annotations

import errno
import json
import math
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from steppe._files import single_writer, write_atomically
from steppe.accounting import Statement
from steppe.errors import DataError
from steppe.ledger.chain import storage_error
from steppe.plan import Plan

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunFolder:
    """Where each file of a run lies, and how it is written: whole or not at all.

    Args:
        path: the folder; None makes a new one under `runs/`, named by date and time.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        if path is None:
            now = time.strftime("%Y%m%d-%H%M%S", time.localtime())
            path = Path("runs") / f"{now}-{secrets.token_hex(2)}"
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.toml = self.path / "run.toml"
        self.plan = self.path / "plan.json"
        self.statement = self.path / "statement.json"
        self.ledger = self.path / "ledger.jsonl"
        self.log = self.path / "log.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.store = self.path / "store"
        self.result = self.path / "result.json"
        self.model = self.path / "model.safetensors"
        self.averages = self.path / "averages"

    @property
    def used(self) -> bool:
        """Whether a run has left something here that another one would stumble over."""
        return any(path.exists() for path in (self.config, self.checkpoints, self.store))

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder for one process alone, made closed to other users; a full disk in words."""
        with room_left(self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with single_writer(self.path):
                yield

    def begin(
        self, plan: Plan, statement: Statement, config: Mapping[str, Any], toml: str | None
    ) -> None:
        """Write what is known before the first step.

        Args:
            plan: every public constant.
            statement: what is promised.
            config: the configuration.
            toml: the configuration file, where the run has one.
        """
        write_json(self.plan, {**plan.to_dict(), "digest": plan.digest()})
        self.state(statement)
        if toml is not None:
            write_atomically(self.toml, toml.encode())
        write_json(self.config, config)  # last: where it is, the others are

    def state(self, statement: Statement) -> None:
        """Write what is promised."""
        write_atomically(self.statement, statement.to_json().encode() + b"\n")

    def set_store_aside(self) -> Path:
        """Move a damaged store out of the way; its new name."""
        aside = self.store.with_name(f"store-damaged-{secrets.token_hex(2)}")
        self.store.rename(aside)
        return aside

    def average(self, name: str) -> Path:
        """The file of an average's weights."""
        plain = re.sub(r"[^\w.=-]+", "_", name).strip("_")
        return self.averages / f"{plain}.safetensors"

    def read_config(self) -> dict[str, Any]:
        """What `config.json` says."""
        try:
            config = json.loads(self.config.read_bytes())
        except FileNotFoundError:
            raise DataError(
                f"run={str(self.path)!r}: holds no run; give the folder that training printed."
            ) from None
        except (OSError, ValueError):
            raise DataError(
                f"file={str(self.config)!r}: cannot be read; restore it from a copy."
            ) from None
        if not isinstance(config, dict) or not {"run", "settings", "digest"} <= config.keys():
            raise DataError(f"file={str(self.config)!r}: is no configuration of a run.")
        return config


@contextmanager
def room_left(path: Path) -> Iterator[None]:
    """A full disk in words; other errors of the system as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise storage_error(Path(error.filename or path), error) from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people and programs; a number that is not finite becomes null."""
    text = json.dumps(finite(value), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, text.encode() + b"\n")


def write_weights(path: Path, weights: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write tensors by name as safetensors."""
    from safetensors.torch import save

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    tensors = {name: t.detach().to("cpu", copy=True).contiguous() for name, t in weights.items()}
    write_atomically(path, save(tensors, metadata=dict(about)))


def finite(value: Any) -> Any:
    """The value with null for numbers that JSON cannot hold.

    Examples:
        >>> finite({"loss": float("nan"), "steps": [1, 2.0]})
        {'loss': None, 'steps': [1, 2.0]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
