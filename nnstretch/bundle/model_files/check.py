"""The one check of a sub-graph's file before a runtime sees it."""

from __future__ import annotations

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.check_onnx import check_onnx
from nnstretch.bundle.model_files.check_tflite import check_tflite
from nnstretch.errors import BrokenFile, one_line

CHECKS = {"onnx": check_onnx, "litert": check_tflite}
"""By format of the file."""


def check_file(subgraph: Subgraph, data: bytes, bundle: str) -> None:
    """Check a file against its manifest. Raises BrokenFile; nothing of the file is run."""
    where = member_label(subgraph, bundle)
    try:
        CHECKS[subgraph.format](data, subgraph, where)
    except ValueError as error:
        raise BrokenFile(f"{where}, {one_line(error)[:400]}") from error


def member_label(subgraph: Subgraph, bundle: str) -> str:
    """Return the beginning of every refusal of a file."""
    return f"broken bundle {bundle}, member {subgraph.file}"
