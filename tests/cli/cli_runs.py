"""A small run of the command line that other tests read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CONFIG = """
[data]
place = "own.npz"
classes = 2

[model]
name = "logistic"

[plan]
epsilon = 3.0
delta = 1e-4
population = 1000
batch_size = 100
steps = 12

[optimizer]
name = "SGD"
lr = 1.0

[train]
store_every = 2
"""


def write_project(folder: Path) -> None:
    """Data, a configuration and a module of models."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(1200, 6)).astype(np.float32)
    y = (x[:, 0] + x[:, 1] > 0).astype(np.int64)
    parts = {"x_train": x[:1000], "y_train": y[:1000]}
    np.savez(folder / "own.npz", **parts, x_test=x[1000:], y_test=y[1000:])
    np.savez(folder / "untested.npz", **parts)
    np.savez(folder / "mislabelled.npz", x_train=x, y_train=y + 6)
    np.save(folder / "new.npy", x[1000:1012])
    np.save(folder / "wide.npy", np.zeros((3, 9), np.float32))
    (folder / "table.csv").write_text("age,visits,ill\n20,1,0\n80,9,1\n")
    (folder / "run.toml").write_text(CONFIG)
    (folder / "cli_test_models.py").write_text(
        "from torch import nn\n\n\ndef wide():\n    return nn.Linear(9, 2)\n\n\n"
        "def mixing():\n    return nn.Sequential(nn.Linear(6, 2), nn.Softmax(0))\n\n\n"
        "class Reads(nn.Linear):\n    def forward(self, x):\n        float(x.detach().sum())\n"
        "        return super().forward(x)\n\n\ndef reading():\n    return Reads(6, 2)\n\n\n"
        "def normed():\n    layers = nn.Linear(6, 32), nn.BatchNorm1d(32), nn.Linear(32, 2)\n"
        "    return nn.Sequential(*layers)\n"
    )
