"""Stretch a network into parallel branches for the processors of one chip, and run it.

`import nnstretch` loads neither torch nor ONNX Runtime; each name below brings its own when first
used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "capture": "nnstretch.capture",
    "load_soc": "nnstretch.predict",
    "search": "nnstretch.stretch.search.search",
    "stretch": "nnstretch.stretch",
    "export": "nnstretch.export",
    "Session": "nnstretch.run",
    "Pipeline": "nnstretch.run",
}
__all__ = ["Pipeline", "Session", "capture", "export", "load_soc", "search", "stretch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nnstretch' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
