"""Data sets as bytes, the order in which training sees them, and how an image becomes what a network sees."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Batch": "loading",
    "Dataset": "images",
    "Images": "images",
    "InMemory": "images",
    "Pictures": "loading",
    "held_out": "loading",
    "open_data": "loading",
    "prepared": "loading",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nnstretch.train.data' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"nnstretch.train.data.{_HOMES[name]}"), name)
    return value
