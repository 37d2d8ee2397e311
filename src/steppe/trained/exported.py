"""Files of a trained model for other programs, each with a card that says what it is."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from steppe.errors import SteppeError, UnsupportedModelError
from steppe.trained.card import card, markdown
from steppe.trained.model import TrainedModel
from steppe.utils import validation
from steppe.utils.files import write_atomically, writing
from steppe.utils.formatting import finite, first_line
from steppe.utils.weight_files import as_safetensors

# The file of each format.
FORMATS = {"safetensors": "model.safetensors", "torch": "model.pt2", "onnx": "model.onnx"}
CARD, PAGE = "card.json", "README.md"
_FOR_ONNX = ("onnx", "onnxscript")
_SHARED = 0o644  # an export is made to be given away


def export(
    model: TrainedModel, folder: str | Path, format: str = "safetensors", *, public: bool = False
) -> Path:
    """Write a model for other programs: the weights or a program, and a card about it.

    A program has the inputs of `model.module`, with any number of records, and contains the fixed
    front-end. No file contains a pickle or a path on this machine.

    Args:
        model: from `load`.
        folder: where to write; a new folder, or an empty one.
        format: "safetensors" for the weights with the names of the network, "torch" for a program
            of `torch.export`, "onnx" for a program in ONNX, which needs the extra `onnx`.
        public: whether the scores on the run's held-out records may be shown in the card. Those of
            a public data set are shown in any case.

    Returns:
        The file of the model.

    Guarantees:
        Post-processing: no privacy cost. If the run is not private, every file says so.
    """
    name = FORMATS[validation.one_of("format", format, list(FORMATS))]
    if format == "onnx":
        _require_onnx()
    path = Path(folder)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise validation.fail("folder", path, "is there already", "name a new folder")
    about = finite(card(model, name, public))
    data = _data(model, format, about)
    about["sha256"] = hashlib.sha256(data).hexdigest()
    with writing("folder", path):
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(path / name, data, _SHARED)
        text = json.dumps(about, indent=2, ensure_ascii=False, allow_nan=False)
        write_atomically(path / CARD, text.encode() + b"\n", _SHARED)
        write_atomically(path / PAGE, markdown(about).encode(), _SHARED)
    return path / name


def _data(model: TrainedModel, format: str, about: Mapping[str, Any]) -> bytes:
    if format == "safetensors":
        stamp = {"model": model.name, "plan": model.run.plan_digest}
        reason = model.privacy.get("not_private_reason")
        return as_safetensors(model.module.state_dict(), stamp, reason)
    program = _program(model)
    text = json.dumps(about, ensure_ascii=False)
    return _as_onnx(program, text) if format == "onnx" else _as_torch(program, text)


def _program(model: TrainedModel) -> ExportedProgram:
    """The module as one graph, for any number of records."""
    kind = getattr(torch, model.inputs.kind)
    made_up = torch.zeros(2, *model.inputs.shape, dtype=kind)
    try:
        with torch.no_grad():
            program = torch.export.export(
                model.module, (made_up,), dynamic_shapes=({0: Dim("records")},)
            )
    except SteppeError:
        raise
    except Exception as error:  # the user's network may do anything
        rule = f"cannot be exported: {type(error).__name__}: {first_line(error).rstrip('.')}"
        remedy = "export safetensors, or write the network so that torch.export accepts it"
        raise UnsupportedModelError.about("model", model.name, rule, remedy) from error
    for graph in (module for module in program.graph_module.modules() if hasattr(module, "graph")):
        for node in graph.graph.nodes:
            node.meta.pop("stack_trace", None)  # names files of this machine
    program.example_inputs = None  # would be pickled
    return program


def _as_torch(program: ExportedProgram, about: str) -> bytes:
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={CARD: about})
    return file.getvalue()


def _as_onnx(program: ExportedProgram, about: str) -> bytes:
    with _quiet():
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["records"],
            output_names=["outputs"],
            verbose=False,
        )
    if made is None:  # for type checkers: without dynamo nothing is returned
        raise UnsupportedModelError("torch.onnx made no program.")
    made.model.metadata_props[CARD] = about
    return made.model_proto.SerializeToString()


def _require_onnx() -> None:
    absent = [name for name in _FOR_ONNX if find_spec(name) is None]
    if absent:
        rule = f"needs {' and '.join(absent)}"
        remedy = 'install the extra: pip install "steppe[onnx]"'
        raise validation.fail("format", "onnx", rule, remedy)


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside the block the exporter does not speak of torchvision, and of itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(before)
