"""A stretched network leaves PyTorch.

One verified file per sub-graph in one bundle, or one file of the whole.

bundle.py          module + plan -> bundle
subgraph_specs.py  sub-graphs to export, before they have files
subgraph_files.py  sub-graphs with their files
verify.py          files against the module
single_file.py     whole network as one file
onnx/              modules -> ONNX
litert/            modules -> .tflite
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nnstretch._callable_package import callable_verb

if TYPE_CHECKING:
    from nnstretch.export.bundle import export

callable_verb(__name__)
__all__ = ["export"]


def __getattr__(name: str) -> Any:
    if name == "export":
        from nnstretch.export.bundle import export

        globals()["export"] = export
        return export
    raise AttributeError(f"module 'nnstretch.export' has no attribute {name!r}")
