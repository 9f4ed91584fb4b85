"""LiteRT in int8: ranges measured on what reaches each sub-graph, and one scale wherever sub-graphs
touch.

Branches that meet, the merge and whoever reads it hold a tensor alike, so a merge is a copy and no
number is rounded twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from nnstretch.bundle.manifest import Port
from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.export.litert.convert import LiteRTCalibration, Ranges
from nnstretch.export.litert.flatbuffer import file_io, tied_tensors, with_description
from nnstretch.export.litert.runner import LiteRTRunner
from nnstretch.export.litert.tensor_layout import channels_last
from nnstretch.export.onnx.convert import spec_of
from nnstretch.export.subgraph_files import (
    ExportedFiles,
    check_merges,
    file_description,
    float_files,
    layout_of,
)
from nnstretch.export.subgraph_specs import ExportRequest, SubgraphSpec, Tensors, reference_tensors
from nnstretch.graph import TensorSpec

HELD_BYTES = 32_000_000
"""Of activations in memory at a time while ranges are measured, and of those kept to compare with.

At least one inference's.
"""
CHUNK, TESTED = 8, 16
"""Inferences between two openings of a file, and calibration inputs that files are compared on, at
most.
"""

Key = tuple[str, str]
"""A draft and a tensor of its file; or no draft and a tensor of the whole network."""
Form = tuple[str, float, int]
"""Type, scale and zero point."""


def int8_files(request: ExportRequest, specs: Sequence[SubgraphSpec]) -> ExportedFiles:
    """Export sub-graphs as int8. Raises BadInput for calibration inputs that do not fit or whole
    numbers between sub-graphs, UnsupportedOp where an operator has no int8 form or a scale of its
    own.
    """
    reference = reference_tensors(specs, request.example)
    check_int8_tensors(reference, request.plan.model)
    plain = float_files(request, specs, reference)
    watched = {name: LiteRTCalibration(model, f"sub-graph {name}") for name, model in plain.items()}
    tested = calibrate_files(request, specs, watched)
    shared = shared_ranges(specs, watched)
    files = {
        name: with_description(watched[name].quantize(shared[name]), file_description(notes))
        for name, notes in notes_of(specs)
    }
    ports = port_formats(request, specs, files, tested[0])
    exported = ExportedFiles(files, ports, tested, LiteRTRunner)
    check_merges(exported, specs)
    return exported


def check_int8_tensors(values: Tensors, model: str) -> None:
    """Check that what a network or a sub-graph writes has int8 codes. Raises BadInput."""
    for name, value in values.items():
        if not value.is_floating_point():
            raise BadInput(
                f"int8 of a network that writes {spec_of(value).dtype} as {name}, export of"
                f" {model}, whole numbers have no int8 codes; leave argmax and the like out of it"
                " and compute them of what it writes"
            )


def notes_of(specs: Sequence[SubgraphSpec]) -> list[tuple[str, Mapping[str, str]]]:
    """Return the notes of every sub-graph, by name."""
    return [(spec.name, spec.notes) for spec in specs]


def calibrate_files(
    request: ExportRequest, specs: Sequence[SubgraphSpec], watched: Mapping[str, LiteRTCalibration]
) -> list[Tensors]:
    """Show every file what the module hands it on the calibration inputs.

    The first few inferences are kept.

    Raises BadInput when there is no calibration input.
    """
    chunk: list[Tensors] = []
    tested: list[Tensors] = []
    done = 0
    for x in check_inputs(request):
        values = reference_tensors(specs, x)
        chunk.append(values)
        room = max(1, HELD_BYTES // sum(value.nbytes for value in values.values()))
        if len(tested) < min(TESTED, room):
            tested.append(values)
        if len(chunk) >= min(CHUNK, room):
            done += calibrate_file(specs, watched, chunk)
            request.tell(len(specs), len(specs), f"calibrating, {done} inputs")
            chunk = []
    if chunk:
        calibrate_file(specs, watched, chunk)
    if not tested:
        raise BadInput(
            f"no calibration inputs, int8 of {request.plan.model}, ranges of activations are"
            " measured on at least one"
        )
    return tested


def calibrate_file(
    specs: Sequence[SubgraphSpec],
    watched: Mapping[str, LiteRTCalibration],
    chunk: Sequence[Tensors],
) -> int:
    """Run files on one chunk of inputs; return how many inputs there were."""
    for spec in specs:
        watched[spec.name].watch([[values[source] for source in spec.sources] for values in chunk])
    return len(chunk)


def check_inputs(request: ExportRequest) -> Iterator[torch.Tensor]:
    """Yield the calibration inputs, checked. Raises BadInput."""
    for x in () if request.calibration is None else request.calibration:
        if not isinstance(x, torch.Tensor):
            raise BadInput(
                f"calibration input is {type(x).__name__}, export of {request.plan.model}, needed"
                " are tensors of PyTorch"
            )
        if tuple(x.shape) != request.plan.input_shape or x.dtype != torch.float32:
            raise BadInput(
                f"calibration input is {tuple(x.shape)} {x.dtype}, export of {request.plan.model}, "
                f"the network takes {request.plan.input_shape} torch.float32"
            )
        if not x.isfinite().all():
            raise BadInput(
                f"calibration input holds nan or infinity, export of {request.plan.model}, ranges"
                " are measured on finite numbers"
            )
        yield x


def shared_ranges(
    specs: Sequence[SubgraphSpec], watched: Mapping[str, LiteRTCalibration]
) -> dict[str, Ranges]:
    """Return the ranges watched, but one for all tensors that must be held alike: their union.

    Raises UnsupportedOp for a constant.
    """
    groups = SharedScaleGroups()
    for spec in specs:
        io, ranges = file_io(watched[spec.name].model), watched[spec.name].ranges
        for source, name in zip(spec.sources, io.inputs, strict=True):
            groups.tie(("", source), (spec.name, name))
        groups.tie(("", spec.target), (spec.name, io.output))
        if spec.branch is None:
            for source in spec.sources:
                groups.tie(("", spec.target), ("", source))
        for first, second in tied_tensors(watched[spec.name].quantize()):
            if first in ranges and second in ranges:
                groups.tie((spec.name, first), (spec.name, second))
    shared = {name: dict(first.ranges) for name, first in watched.items()}
    for group in groups.boundary_groups():
        members = [(spec, name) for spec, name in group if spec and name in shared[spec]]
        if not members:
            tensors = ", ".join(name for spec, name in group if not spec)
            raise UnsupportedOp(
                f"no int8 form of {tensors}, calibration, no range of it is measured: it does not"
                " depend on its input"
            )
        low = min(float(np.min(shared[spec][name]["min"])) for spec, name in members)
        high = max(float(np.max(shared[spec][name]["max"])) for spec, name in members)
        for member, name in members:
            shared[member][name] = widen_range(shared[member][name], low, high)
    return shared


def widen_range(values: Mapping[str, np.ndarray], low: float, high: float) -> dict[str, np.ndarray]:
    """Return a range with other ends."""
    return {
        **values,
        "min": np.full_like(values["min"], low),
        "max": np.full_like(values["max"], high),
    }


class SharedScaleGroups:
    """Tensors that must be held alike, joined one tie after another."""

    def __init__(self) -> None:
        self._parent: dict[Key, Key] = {}

    def _root(self, key: Key) -> Key:
        while (above := self._parent.setdefault(key, key)) != key:
            key = above
        return key

    def tie(self, first: Key, second: Key) -> None:
        """Let two tensors share one scale."""
        self._parent[self._root(first)] = self._root(second)

    def boundary_groups(self) -> list[list[Key]]:
        """Return groups that reach a tensor between sub-graphs."""
        groups: dict[Key, list[Key]] = {}
        for key in self._parent:
            groups.setdefault(self._root(key), []).append(key)
        return [group for group in groups.values() if any(not spec for spec, _ in group)]


def port_formats(
    request: ExportRequest,
    specs: Sequence[SubgraphSpec],
    files: Mapping[str, bytes],
    values: Tensors,
) -> dict[str, Port]:
    """Return the form in which each tensor flows.

    Raises UnsupportedOp where the files do not hold it alike.
    """
    formats: dict[str, list[tuple[str, Form]]] = {}
    for spec in specs:
        runner = LiteRTRunner(files[spec.name], spec.name)
        forms = [*runner.inputs.values(), runner.output]
        for tensor, how in zip((*spec.sources, spec.target), forms, strict=True):
            # A merge is a copy: what it reads has the form of what it writes.
            at = spec.target if spec.branch is None else tensor
            formats.setdefault(at, []).append((spec.name, port_format(how)))
    for spec in specs:
        if spec.branch is None:
            for source in spec.sources:
                formats[spec.target] += formats[source]
                formats[source] = formats[spec.target]
    for tensor, forms in formats.items():
        require_equal_formats(tensor, forms, request.plan.model)
    return {
        name: quantized_port(name, value, formats[name][0][1]) for name, value in values.items()
    }


def port_format(how: Mapping[str, object]) -> Form:
    """Return type, scale and zero point of a tensor."""
    scale, zero_point = how["quantization"]  # type: ignore[misc]
    return np.dtype(how["dtype"]).name, float(scale), int(zero_point)  # type: ignore[call-overload, has-type]


def require_equal_formats(tensor: str, forms: Sequence[tuple[str, Form]], model: str) -> None:
    """Refuse a tensor that files hold in different formats. Raises UnsupportedOp."""
    # Readers take what they are given, so where only two differ it is the writer that has a scale
    # of its own.
    usual = Counter(form for _, form in reversed(forms)).most_common(1)[0][0]
    for name, form in forms:
        if form != usual:
            raise UnsupportedOp(
                f"sub-graph {name} holds {tensor} as {describe_format(form)}, int8 of {model}, its"
                f" neighbours as {describe_format(usual)}: an operator at that cut has a scale of"
                " its own, end the segment at another cut"
            )


def describe_format(form: Form) -> str:
    """Return a format for messages."""
    dtype, scale, zero_point = form
    return f"{dtype} of scale {scale:.6g} and zero point {zero_point}" if scale else dtype


def quantized_port(name: str, value: torch.Tensor, form: Form) -> Port:
    """Return the port of a tensor in its format."""
    dtype, scale, zero_point = form
    return Port(
        name,
        TensorSpec(tuple(channels_last(value).shape), dtype),
        layout_of(value),
        scale,
        zero_point,
    )
