"""A stretched network leaves PyTorch: a file per sub-graph, ONNX or LiteRT, in one bundle, or one file of the whole; verified."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch.verbs import callable_verb

if TYPE_CHECKING:
    from nnstretch.export.network import export

callable_verb(__name__)
__all__ = ["export"]


def __getattr__(name: str) -> Any:
    if name == "export":
        from nnstretch.export.network import export

        globals()["export"] = export
        return export
    raise AttributeError(f"module 'nnstretch.export' has no attribute {name!r}")
