"""Export: a verified file for each sub-graph in one bundle, or one file of the whole network.

bundle.py          module + plan -> bundle
subgraph_specs.py  sub-graphs to export, before they have files
subgraph_files.py  sub-graphs with their files
verify.py          files against the module
single_file.py     whole network as one file
onnx/              modules -> ONNX
litert/            modules -> .tflite
cpp/               a network as C++ that builds without Python
int8_accuracy.py   labels that judge int8
quantize.py        one int8 file, judged against float
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch._interpreter import lazy_names, make_callable

if TYPE_CHECKING:
    from nnstretch.export.bundle import export

__all__ = ["export"]
__getattr__ = lazy_names(__name__, {"export": "bundle"})
make_callable(__name__)
