"""Training with PyTorch Lightning: a recipe, its data, and `fit`.

Names load on first use, so that reading a recipe or the command line's help costs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Epoch": "records",
    "Recipe": "recipe",
    "TrainResult": "fitting",
    "branched_network": "branching",
    "evaluate": "fitting",
    "fit": "fitting",
    "held_out": "data.loading",
    "load_recipe": "reading",
    "load_weights": "weights",
    "recipe_yaml": "reading",
    "save_weights": "weights",
    "started": "branching",
    "unfit": "weights",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nnstretch.train' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"nnstretch.train.{_HOMES[name]}"), name)
    return value
