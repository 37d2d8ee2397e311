"""What is to be known about an exported model, as data and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from steppe.trained.model import TrainedModel
from steppe.utils.formatting import rounded_up

_SCORES = ("accuracy", "loss")


def card(model: TrainedModel, file: str, public: bool) -> dict[str, Any]:
    """What a program needs to use the model, and a person to judge it.

    Args:
        model: the model.
        file: the name of its file.
        public: whether the scores on held-out records may be shown.
    """
    inputs = model.inputs
    return {
        "steppe": version("steppe"),
        "file": file,
        "weights": model.name,
        "network": model.run.network_name,
        "data": model.run.data_name,
        "inputs": {
            "type": inputs.kind,
            "shape": ["records", *inputs.shape],
            "bytes": inputs.of_bytes,
            **inputs.settings,
        },
        "classes": model.classes,
        "target_bounds": model.run.target_bounds,
        "scores": _scores(model) if public or model.run.is_public else None,
        "caution": model.caution,
        "privacy": model.privacy,
    }


def _scores(model: TrainedModel) -> dict[str, float] | None:
    """The scores on held-out records, as the run measured them."""
    rows = [row for row in model.run.result.get("table", ()) if row["model"] == model.name]
    found = {name: row[name] for row in rows for name in _SCORES if row.get(name) is not None}
    return found or None


def markdown(about: Mapping[str, Any]) -> str:
    """A short page for people, from the card."""
    privacy = about["privacy"]
    promise = f"(ε, δ) = ({rounded_up(privacy['epsilon'])}, {privacy['delta']:g})"
    parts = [
        f"# {about['weights']} of {about['data']}",
        *([f"**{about['caution']}**"] if about["caution"] else []),
        *([f"Trained with differential privacy: {promise}."] if privacy["private"] else []),
        "## How to load it",
        f"```python\n{_loading(about)}\n```",
        "## Inputs and outputs",
        _inputs(about["inputs"]),
        _outputs(about["classes"], about["target_bounds"]),
        *_shown_scores(about["scores"]),
        "## Privacy statement",
        "\n".join(f"- **{title}:** {text}" for title, text in privacy.get("items", {}).items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _loading(about: Mapping[str, Any]) -> str:
    file = about["file"]
    if file.endswith(".pt2"):
        lines = ["import torch", "", f'model = torch.export.load("{file}").module()']
    elif file.endswith(".onnx"):
        session = f'session = onnxruntime.InferenceSession("{file}")'
        run = '(outputs,) = session.run(None, {"records": records})'
        lines = ["import onnxruntime", "", session, run]
    else:
        lines = ["from safetensors.torch import load_file", *_network(about["network"])]
        lines.append(f'model.load_state_dict(load_file("{file}"))')
    return "\n".join(lines)


def _network(network: Mapping[str, Any]) -> list[str]:
    if "factory" in network:
        module, _, name = network["factory"].partition(":")
        return [f"from {module} import {name}", "", f"model = {name}()"]
    if "name" in network:
        given = "".join(f", {key}={value!r}" for key, value in network.items() if key != "name")
        name = json.dumps(network["name"])
        return ["from steppe import models", "", f"model = models.create({name}{given})"]
    return ["", f"model = ...  # the network that was trained, a {network['class']}"]


def _inputs(inputs: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, inputs["shape"]))
    parts = [f"The model takes {inputs['type']} of shape ({shape})."]
    if inputs["bytes"]:
        parts.append("Bytes are divided by 255; colours are the first axis after records.")
    if "columns" in inputs:
        parts.append("They are made of these columns, in this order:")
        parts.append(_columns(inputs))
    elif "bounds" in inputs:
        ends = "[−1, 1]" if len(inputs["shape"]) == 2 else "[0, 1]"
        parts.append(f"Values are cut to the bounds in card.json and scaled to {ends}.")
    if "missing" in inputs:
        parts.append("A missing number counts as the middle of its bounds.")
    return "\n\n".join(parts)


def _columns(inputs: Mapping[str, Any]) -> str:
    bounds, categories = inputs.get("bounds", {}), inputs.get("categories", {})
    lines = []
    for name in inputs["columns"]:
        if name in categories:
            texts = ", ".join(categories[name])
            lines.append(f"- `{name}`: an input of 0 or 1 for each of {texts}")
        elif name in bounds:
            low, high = bounds[name]
            lines.append(f"- `{name}`: cut to {low:g} to {high:g} and scaled to [−1, 1]")
        else:
            lines.append(f"- `{name}`: as it is")
    return "\n".join(lines)


def _outputs(classes: list[Any] | None, bounds: tuple[float, float] | None) -> str:
    if classes is None and bounds is not None:
        low, high = bounds
        return f"It answers with numbers: −1 stands for {low:g}, 1 for {high:g}."
    if classes is None:
        return "It answers with numbers."
    names = ", ".join(map(str, classes))
    return f"It answers with one logit for each class: {names}."


def _shown_scores(scores: Mapping[str, float] | None) -> list[str]:
    if scores is None:
        return []
    found = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
    return ["## Scores", f"On held-out records: {found}."]
