"""Drafts with their files: ONNX, or LiteRT in float32. int8 is in litert/int8.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from nnstretch.bundle.manifest import Port
from nnstretch.errors import Mismatch
from nnstretch.export.litert.convert import to_litert, to_litert_concat
from nnstretch.export.litert.flatbuffer import with_description
from nnstretch.export.litert.runner import LiteRTRunner
from nnstretch.export.litert.tensor_layout import channels_last
from nnstretch.export.onnx.convert import OnnxRunner, merge_onnx, spec_of, to_onnx
from nnstretch.export.subgraph_specs import ExportRequest, SubgraphSpec, Tensors, reference_tensors


class Runner(Protocol):
    """A file ready to run: float32 in PyTorch's order goes in and comes out, whatever the file
    holds.
    """

    def run(self, *inputs: np.ndarray) -> np.ndarray:
        """Run one inference."""


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """Every sub-graph's file, and what flows between them."""

    files: Mapping[str, bytes]
    """By the name of the draft."""
    ports: Mapping[str, Port]
    """By the name of the tensor."""
    tested: Sequence[Tensors]
    """All tensors of the module on each of the inputs that verify the files; at least one."""
    runner: Callable[[bytes, str], Runner]
    """Makes a runner of a file and the name of its draft."""


def onnx_files(request: ExportRequest, specs: Sequence[SubgraphSpec]) -> ExportedFiles:
    """Export sub-graphs as ONNX. Raises UnsupportedOp where ONNX lacks an operator."""
    values = reference_tensors(specs, request.example)
    ports = {
        name: Port(name, spec_of(value), "NCHW" if value.dim() == 4 else "")
        for name, value in values.items()
    }
    files: dict[str, bytes] = {}
    for number, spec in enumerate(specs):
        request.tell(number, len(specs), spec.name)
        sources, target = [ports[source] for source in spec.sources], ports[spec.target]
        if spec.branch is None:
            files[spec.name] = merge_onnx(sources, target, spec.axis, spec.notes)
        else:
            files[spec.name] = to_onnx(
                spec.branch, values[spec.sources[0]], sources[0], target, spec.notes
            )
    return ExportedFiles(files, ports, [values], lambda data, _: OnnxRunner(data))


def litert_files(request: ExportRequest, specs: Sequence[SubgraphSpec]) -> ExportedFiles:
    """Export sub-graphs as float32 LiteRT.

    Raises UnsupportedOp where LiteRT lacks an operator, Mismatch where a merge is no copy.
    """
    values = reference_tensors(specs, request.example)
    plain = float_files(request, specs, values)
    files = {
        spec.name: with_description(plain[spec.name], file_description(spec.notes))
        for spec in specs
    }
    ports = {
        name: Port(name, spec_of(channels_last(value)), layout_of(value))
        for name, value in values.items()
    }
    exported = ExportedFiles(files, ports, [values], LiteRTRunner)
    check_merges(exported, specs)
    return exported


def float_files(
    request: ExportRequest, specs: Sequence[SubgraphSpec], values: Tensors
) -> dict[str, bytes]:
    """Convert every sub-graph in float32; files by the name of the sub-graph."""
    files = {}
    for number, spec in enumerate(specs):
        request.tell(number, len(specs), spec.name)
        inputs = [values[source] for source in spec.sources]
        name = f"sub-graph {spec.name}"
        files[spec.name] = (
            to_litert_concat(inputs, spec.axis, name)
            if spec.branch is None
            else to_litert(spec.branch, inputs, name)
        )
    return files


def layout_of(value: torch.Tensor) -> str:
    """Return the layout of a tensor inside LiteRT."""
    return "NHWC" if value.dim() == 4 else ""


def file_description(notes: Mapping[str, str]) -> str:
    """Return notes as one line."""
    return "; ".join(f"{key}: {value}" for key, value in notes.items())


def check_merges(exported: ExportedFiles, specs: Sequence[SubgraphSpec]) -> None:
    """Check that every merge writes exactly what it reads, for numbers of all magnitudes. Raises
    Mismatch.
    """
    for spec in specs:
        if spec.branch is None:
            shapes = [exported.tested[0][source].shape for source in spec.sources]
            inputs = [
                random_for_port(exported.ports[source], tuple(shape), seed)
                for seed, (source, shape) in enumerate(zip(spec.sources, shapes, strict=True))
            ]
            merged = exported.runner(exported.files[spec.name], spec.name).run(*inputs)
            if not np.array_equal(merged, np.concatenate(inputs, spec.axis)):
                raise Mismatch(
                    f"sub-graph {spec.name} is no copy of its inputs, LiteRT file, a merge must"
                    " change no bit"
                )


def random_for_port(port: Port, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return random float32 in PyTorch's order that a port can hold."""
    generator = np.random.default_rng(seed)
    if not port.scale:
        return generator.standard_normal(shape).astype(np.float32)
    bounds = np.iinfo(port.spec.dtype)
    codes = generator.integers(bounds.min, bounds.max, shape, endpoint=True)
    return (codes.astype(np.float32) - port.zero_point) * np.float32(port.scale)
