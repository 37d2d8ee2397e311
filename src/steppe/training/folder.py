"""The files of a run."""

from __future__ import annotations

import errno
import json
import re
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from steppe.accounting import Statement
from steppe.errors import DataError, MisuseError
from steppe.ledger import storage_error
from steppe.plan import Plan
from steppe.utils import validation
from steppe.utils.files import single_writer, unwritable, write_atomically
from steppe.utils.files import write_json as write_json
from steppe.utils.weight_files import as_safetensors

# Errors of writing files. Other errors may come from the user's own code.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


class RunFolder:
    """The paths of a run's files. Files are written completely or not at all.

    Args:
        path: the folder; None makes a new one under `runs/`, named by date and time.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        if path is None:
            now = time.strftime("%Y%m%d-%H%M%S", time.localtime())
            path = Path("runs") / f"{now}-{secrets.token_hex(2)}"
        remedy = 'write run="runs/first", say'
        self.path = validation.path("run", path, remedy)
        if path == "":
            raise validation.fail("run", path, "must name a folder", remedy)
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
        self.published = self.path / "published.safetensors"
        self.front_end = self.path / "front-end.safetensors"

    @property
    def how_to_resume(self) -> str:
        """The command or call that resumes the run in this folder."""
        if not self.toml.exists():
            return f"Trainer(…, run={str(self.path)!r}).resume()"
        if given := ", ".join(f"{name}=…" for name in self.needs_python):
            own = f"steppe.training.read({str(self.toml)!r})"
            return f"{own}.trainer({str(self.path)!r}, {given}).resume()"
        return f"steppe resume {shlex.quote(str(self.path))}"

    @property
    def needs_python(self) -> tuple[str, ...]:
        """The arguments that this run was given in Python and that no file contains, by name."""
        config = self.read_config() if self.config.exists() else {}
        return tuple(config.get("python_only", ()))

    def require_free(self) -> None:
        """Require a folder without another run."""
        self._refuse_a_file()
        if any(path.exists() for path in (self.config, self.checkpoints, self.store)):
            raise MisuseError.about(
                "run",
                str(self.path),
                "contains a run already",
                f"resume it with `{self.how_to_resume}`, or name another folder",
            )

    def _refuse_a_file(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            remedy = "name a folder, new or empty"
            raise validation.fail("run", str(self.path), "is a file", remedy)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, for this user only, and lock it for this process.

        A full or read-only disk becomes an error about the run.
        """
        self._refuse_a_file()
        with _room_left(self):
            self._make()
            with single_writer(self.path):
                yield

    def _make(self) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            rule = f"cannot be made ({error.strerror})"
            remedy = "name a folder in a place where you may write"
            raise validation.fail("run", str(self.path), rule, remedy) from error

    def begin(
        self,
        plan: Plan,
        statement: Statement,
        config: Mapping[str, Any],
        toml: str | None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write what is known before the first step.

        Args:
            plan: every public constant.
            statement: the privacy statement.
            config: the configuration.
            toml: the text of the configuration file, if there is one.
            constants: of a front-end that does not learn, by name; None without.
        """
        write_json(self.plan, {**plan.to_dict(), "digest": plan.digest()})
        self.state(statement)
        if toml is not None:
            write_atomically(self.toml, toml.encode())
        if constants:
            write_weights(self.front_end, constants, {"model": "front-end"}, None)
        write_json(self.config, config)  # last: if it exists, the others do

    def state(self, statement: Statement) -> None:
        """Write the privacy statement."""
        write_atomically(self.statement, statement.to_json().encode() + b"\n")

    def set_store_aside(self) -> Path:
        """Rename a damaged store; returns its new path."""
        aside = self.store.with_name(f"store-damaged-{secrets.token_hex(2)}")
        self.store.rename(aside)
        return aside

    def average(self, name: str) -> Path:
        """The file of an average's weights."""
        plain = re.sub(r"[^\w.=-]+", "_", name).strip("_")
        return self.averages / f"{plain}.safetensors"

    def read_config(self) -> dict[str, Any]:
        """The content of `config.json`."""
        try:
            config = json.loads(self.config.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            raise DataError.about(
                "run", str(self.path), "contains no run", "give the folder that training printed"
            ) from None
        except (OSError, ValueError):
            raise DataError.about(
                "file", str(self.config), "cannot be read", "restore it from a copy"
            ) from None
        if not isinstance(config, dict) or not {"run", "settings", "digest"} <= config.keys():
            raise DataError.about("file", str(self.config), "is not the configuration of a run")
        return config


@contextmanager
def _room_left(folder: RunFolder) -> Iterator[None]:
    """Turn errors of writing to the folder into our own; errors about other files are unchanged."""
    path = folder.path
    try:
        yield
    except OSError as error:
        named = Path(error.filename) if isinstance(error.filename, str) else None
        inside = named is not None and named.resolve().is_relative_to(path.resolve())
        if error.errno not in _NO_ROOM and not inside:
            raise
        if not folder.config.exists():  # no run has begun
            raise unwritable("run", named or path, error) from error
        raise storage_error(named or path, error) from error


def write_weights(
    path: Path,
    weights: Mapping[str, Tensor],
    about: Mapping[str, str],
    not_private_reason: str | None,
) -> None:
    """Write tensors by name as safetensors, with metadata."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_atomically(path, as_safetensors(weights, about, not_private_reason))
