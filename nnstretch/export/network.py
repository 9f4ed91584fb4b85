"""Module + plan -> bundle: every branch and every meeting point a file, checked on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from nnstretch.bundle import Manifest, Port, Subgraph, write_bundle
from nnstretch.errors import BadInput
from nnstretch.export.subgraphs import difference, merge_onnx, run_onnx, spec_of, to_onnx
from nnstretch.plan import Plan, Segment
from nnstretch.planfile import plan_text
from nnstretch.soc import Soc
from nnstretch.trial import SegmentCost, Trial

Progress = Callable[[int, int, str], None]


class Meeting(Protocol):
    """A segment of a stretched network (stretch/module.py)."""

    axis: int
    branches: nn.ModuleList

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """One file to be, with what it must compute."""

    subgraph: Subgraph
    data: bytes


def export(
    module: nn.Module,
    plan: Plan,
    path: Path | str,
    *,
    trial: Trial | None = None,
    soc: Soc | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Manifest:
    """Write a stretched network (`nnstretch.stretch(...)`) as a bundle and return its manifest.

    `trial` and `soc` add the predicted latency of every sub-graph, which emulation needs. Each file is
    run by ONNX Runtime and compared with the module on a random input, and so is the whole; raises
    Mismatch where they differ by more than rounding, UnsupportedOp where ONNX lacks an operator.
    """
    segments = list(getattr(module, "segments", ()))
    if len(segments) != len(plan.segments):
        raise BadInput(
            f"module has {len(segments)} segments and its plan {len(plan.segments)}, export of {plan.model}, stretch the module with this plan first"
        )
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            return written(segments, module, plan, Path(path), trial, soc, seed, progress)
    finally:
        for m, training in modes.items():
            m.training = training


def written(
    segments: list[Meeting],
    module: nn.Module,
    plan: Plan,
    path: Path,
    trial: Trial | None,
    soc: Soc | None,
    seed: int,
    progress: Progress | None,
) -> Manifest:
    example = torch.randn(plan.input_shape, generator=torch.Generator().manual_seed(seed))
    host = host_of(plan, soc)
    pieces: list[Piece] = []
    x, actual = example, example.numpy()
    for number, (meeting, segment) in enumerate(zip(segments, plan.segments, strict=True)):
        if progress:
            progress(number, len(segments), f"{segment.start} -> {segment.end}")
        cost = trial.segments[number] if trial else None
        for piece in segment_pieces(number, meeting, segment, x, host, cost, number == len(segments) - 1):
            pieces.append(piece)
        x = meeting(x)
        actual = chained([p for p in pieces if p.subgraph.segment == number], actual)
    error = difference(module(example).numpy(), actual, f"bundle of {plan.model}")
    manifest = Manifest(
        model=plan.model,
        soc=soc.name if soc else None,
        inputs=(Port("input", spec_of(example)),),
        outputs=(Port("output", spec_of(x)),),
        subgraphs=tuple(p.subgraph for p in pieces),
        max_abs_error=error,
        sync_us={i: s.sync_us for i, s in enumerate(trial.segments) if s.sync_us > 0} if trial else {},
        plan=plan_text(plan),
    )
    write_bundle(path, manifest, {p.subgraph.file: p.data for p in pieces})
    return manifest


def host_of(plan: Plan, soc: Soc | None) -> str:
    """Who merges: the chip's CPU, or the first processor of the plan."""
    if soc is not None:
        return next((p.name for p in soc.processors if p.kind == "cpu"), soc.processors[0].name)
    return "cpu" if "cpu" in plan.processors else plan.processors[0]


def chained(pieces: list[Piece], actual: torch.Tensor | object) -> object:
    """Run the files of one segment on what the files before it wrote."""
    outputs = {pieces[0].subgraph.inputs[0].name: actual}
    for piece in pieces:
        outputs[piece.subgraph.outputs[0].name] = run_onnx(piece.data, {p.name: outputs[p.name] for p in piece.subgraph.inputs})
    return outputs[pieces[-1].subgraph.outputs[0].name]


def segment_pieces(
    number: int, meeting: Meeting, segment: Segment, x: torch.Tensor, host: str, cost: SegmentCost | None, last: bool
) -> Iterator[Piece]:
    source = Port("input" if segment.start == "input" else segment.start, spec_of(x))
    end = "output" if last else segment.end
    outputs: list[Port] = []
    for i, (module, branch) in enumerate(zip(meeting.branches, segment.branches, strict=True)):
        y = module(x)
        target = Port(f"{end}@{branch.processor}" if segment.branched else end, spec_of(y))
        outputs.append(target)
        notes = {"processor": branch.processor, "branch": str(branch), "segment": str(segment)}
        predicted = cost.branches[i].latency_us if cost else None
        if predicted is not None:
            notes["predicted_ms"] = f"{predicted / 1000:.3f}"
        data = to_onnx(module, x, source, target, notes)
        name = f"s{number}.{branch.processor}"
        error = difference(y.numpy(), run_onnx(data, {source.name: x.numpy()}), f"sub-graph {name}")
        yield piece_of(
            name, branch.processor, data, (source,), target, number, "branch", predicted, cost.branches[i].error_us if cost else None, error
        )
    if segment.branched:
        merged = meeting(x)
        data = merge_onnx(outputs, Port(end, spec_of(merged)), meeting.axis)
        yield piece_of(
            f"s{number}.merge",
            host,
            data,
            tuple(outputs),
            Port(end, spec_of(merged)),
            number,
            "merge",
            cost.merge_us if cost else None,
            0.0,
            0.0,
        )


def piece_of(
    name: str,
    processor: str,
    data: bytes,
    inputs: tuple[Port, ...],
    output: Port,
    segment: int,
    role: str,
    predicted: float | None,
    off: float | None,
    error: float,
) -> Piece:
    subgraph = Subgraph(
        name=name,
        processor=processor,
        file=f"subgraphs/{name}.onnx",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
        inputs=inputs,
        outputs=(output,),
        role=role,
        segment=segment,
        predicted_us={processor: predicted} if predicted is not None else {},
        error_us={processor: off} if predicted is not None and off is not None else {},
        max_abs_error=error,
    )
    return Piece(subgraph, data)
