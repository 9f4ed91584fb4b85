"""Stretch a network into parallel branches for the processors of one chip, and run it.

`import nnstretch` loads neither torch nor ONNX Runtime; each name below brings its own when it is
first used. Type checkers and editors see every name with its signature.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnstretch.capture import capture as capture
    from nnstretch.capture.model_spec import load_model as load_model
    from nnstretch.export import export as export
    from nnstretch.export.quantize import quantize as quantize
    from nnstretch.partition.connect import PipelineConfig as PipelineConfig
    from nnstretch.predict.load_soc import load_soc as load_soc
    from nnstretch.profile import profile as profile
    from nnstretch.run.pipelines.pipeline import Pipeline as Pipeline
    from nnstretch.run.server import Server as Server
    from nnstretch.run.session import Session as Session
    from nnstretch.stretch import stretch as stretch
    from nnstretch.stretch.search.search import search as search

__version__ = "0.1.0"

_HOMES = {
    "Pipeline": "nnstretch.run.pipelines.pipeline",
    "PipelineConfig": "nnstretch.partition.connect",
    "Server": "nnstretch.run.server",
    "Session": "nnstretch.run.session",
    "capture": "nnstretch.capture",
    "export": "nnstretch.export",
    "load_model": "nnstretch.capture.model_spec",
    "load_soc": "nnstretch.predict.load_soc",
    "profile": "nnstretch.profile",
    "quantize": "nnstretch.export.quantize",
    "search": "nnstretch.stretch.search.search",
    "stretch": "nnstretch.stretch",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nnstretch' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
