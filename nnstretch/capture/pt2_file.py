"""A program that torch.export saved -> Graph, without running anything the file says."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nnstretch.capture.captured_network import CapturedNetwork, SizeRange
from nnstretch.capture.checks.pt2_checks import check_archive
from nnstretch.capture.host_process import silence_python
from nnstretch.capture.program_reader import read_program
from nnstretch.errors import BrokenFile, NnstretchError
from nnstretch.files.read import MOST_MODEL_BYTES, as_path, read_bytes
from nnstretch.graph import Graph


def read_pt2(path: Path) -> CapturedNetwork:
    """Read the network in a .pt2 file, at the batch it was saved with, 1 where that may vary.

    Raises UnknownName, BrokenFile, UnsupportedOp or CannotCapture in one line.
    """
    path = as_path(path, "model file")
    data = read_bytes(path, "model file", MOST_MODEL_BYTES)
    try:
        with silence_python(), torch.no_grad():
            check_archive(data, path)
            program = load_program(data)
            captured = read_program(program, 1, re.sub(r"\W", "_", path.stem))
            return replace(captured, size_ranges=size_ranges(program, captured.graph))
    except NnstretchError:
        raise
    except Exception as error:
        # Broad on purpose: a damaged archive fails in the zip reader, in JSON or anywhere in
        # PyTorch's deserializer.
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BrokenFile(
            f"broken torch.export file, {path}, {type(error).__name__}: {reason}"
        ) from error


def size_ranges(program: Any, graph: Graph) -> dict[str, tuple[SizeRange, ...]]:
    """Return what each size of an input may be, by input; open ones by the program's constraints.

    Nothing where inputs were left out of the graph.
    """
    names = set(program.graph_signature.user_inputs)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    shapes = [node.meta["val"].shape for node in inputs if node.name in names]
    if len(shapes) != len(graph.inputs):
        return {}
    ranges: dict[str, tuple[SizeRange, ...]] = {}
    for value, shape in zip(graph.inputs, shapes, strict=True):
        ranges[value.name] = tuple(size_range(program, size) for size in shape)
    return ranges


def size_range(program: Any, size: Any) -> SizeRange:
    """Return the least and the most that a size may be; a batch of 1 is as good as any."""
    if not isinstance(size, torch.SymInt):
        return size, size
    known = program.range_constraints.get(size.node.expr)
    return (1, math.inf) if known is None else (1, float(known.upper))


def load_program(data: bytes) -> Any:
    """Load a program without torch.export.load, which falls back to an older format on failure."""
    from torch.export.pt2_archive._package import load_pt2

    return load_pt2(io.BytesIO(data)).exported_programs["model"]
