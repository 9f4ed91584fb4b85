"""Whether a manifest holds together.

The file may be anyone's, so every rule is checked before anything is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod

from nnstretch.bundle.archive import MANIFEST, check_name, check_plan_name
from nnstretch.bundle.manifest import (
    LAYOUTS,
    MAIN,
    Manifest,
    Port,
    Subgraph,
    all_subgraphs,
    describe_port,
    plans_by_name,
    segment_ends,
)
from nnstretch.bundle.pipeline_view import subgraphs_of_stage
from nnstretch.bundle.validate_pipeline import check_pipeline
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.pipeline import PipelineStage

QUANTISED = ("int8", "uint8", "int16")
MAX_SCALE = 1e30
MAX_TENSOR_BYTES = 1 << 34
"""16 GiB: more than any activation, so that a forged shape is refused and not allocated."""
ROUNDING = 1e-9
"""Share by which a sum may exceed what it is part of."""
MAX_KIND = 40
"""Characters of a kind of processor."""
MAX_PROCESSORS = 64
"""Each becomes a thread."""


def check_manifest(manifest: Manifest) -> None:
    """Raise ValueError unless, in every plan, every name is one thing, every input has a source and
    times are times.
    """
    _check_unique("plan", [MAIN, *(alternative.name for alternative in manifest.alternatives)])
    for name, plan in plans_by_name(manifest).items():
        try:
            _check_plan(plan)
            if name != MAIN:
                check_plan_name(name)
                check_edges(plan, manifest)
        except ValueError as error:
            raise ValueError(
                f"plan {name[:80]!r}, {error}" if name != MAIN else str(error)
            ) from error
    _check_files(all_subgraphs(manifest))
    for name, kind in manifest.processor_kinds.items():
        if not kind or len(kind) > MAX_KIND or not kind.isprintable():
            raise ValueError(f"processor {name[:80]!r}, {kind[:80]!r} is no kind of processor")


def check_edges(plan: Manifest, main: Manifest) -> None:
    """Raise ValueError unless a plan reads and writes what the main one does.

    Names, shapes, types and layouts; scales may differ.
    """
    for what, ours, theirs in (
        ("inputs", plan.inputs, main.inputs),
        ("outputs", plan.outputs, main.outputs),
    ):
        described, wanted = (
            ", ".join(f"{p.name[:80]!r} {describe_port(replace(p, scale=0.0))}" for p in ports)
            for ports in (ours, theirs)
        )
        if described != wanted:
            raise ValueError(f"its {what} are {described[:200]}, the main plan's {wanted[:200]}")


def _check_plan(manifest: Manifest) -> None:
    _check_ports(f"member {MANIFEST}", manifest.inputs)
    for sub in manifest.subgraphs:
        _check_subgraph(sub)
    _check_unique("sub-graph", [sub.name for sub in manifest.subgraphs])
    if (processors := len({sub.processor for sub in manifest.subgraphs})) > MAX_PROCESSORS:
        raise ValueError(f"member {MANIFEST}, {processors} processors, limit {MAX_PROCESSORS}")
    written = [*manifest.inputs, *(port for sub in manifest.subgraphs for port in sub.outputs)]
    _check_unique("tensor", [port.name for port in written])
    if not (manifest.inputs and manifest.outputs and manifest.subgraphs):
        raise ValueError(f"member {MANIFEST}, a network needs inputs, outputs and sub-graphs")
    _check_wiring(manifest, {port.name: port for port in written})
    _check_sync(manifest)
    if manifest.pipeline is not None:
        check_pipeline(manifest.pipeline, manifest)
        for stage in manifest.pipeline.stages:
            _check_copies(stage, manifest)


def _check_subgraph(sub: Subgraph) -> None:
    where = f"member {MANIFEST}, sub-graph {sub.name[:80]!r}"
    check_name(sub.file)
    if sub.file == MANIFEST:
        raise ValueError(f"{where}, its file is the manifest itself")
    if not (sub.name and sub.processor and sub.outputs):
        raise ValueError(f"{where}, it needs a name, a processor and outputs")
    _check_ports(where, (*sub.inputs, *sub.outputs))


def _check_ports(where: str, ports: tuple[Port, ...]) -> None:
    for port in ports:
        if port.spec.dtype not in ELEMENT_BYTES or min(port.spec.shape, default=1) < 1:
            raise ValueError(
                f"{where}, tensor {port.name[:80]!r} of impossible shape {port.spec} or type"
                f" {port.spec.dtype[:40]!r}"
            )
        if (
            size_bytes := prod(port.spec.shape) * ELEMENT_BYTES[port.spec.dtype]
        ) > MAX_TENSOR_BYTES:
            raise ValueError(
                f"{where}, tensor {port.name[:80]!r} of {float(min(size_bytes, 1 << 999)):.1e}"
                f" bytes, limit {MAX_TENSOR_BYTES}"
            )
        if port.layout not in LAYOUTS or (port.layout and len(port.spec.shape) != 4):
            raise ValueError(
                f"{where}, tensor {port.name[:80]!r} of shape {port.spec} in layout"
                f" {port.layout[:40]!r}, known are NCHW and NHWC"
            )
        if (
            not 0 <= port.scale < MAX_SCALE
            or not -128 <= port.zero_point <= 255
            or (port.scale and port.spec.dtype not in QUANTISED)
        ):
            raise ValueError(
                f"{where}, tensor {port.name[:80]!r} of {port.spec.dtype[:40]}, scale {port.scale},"
                f" zero point {port.zero_point}"
            )


def _check_files(subgraphs: tuple[Subgraph, ...]) -> None:
    """Check that sub-graphs that share a file agree on what is in it."""
    contents: dict[str, tuple[int, str]] = {}
    for sub in subgraphs:
        if contents.setdefault(sub.file, (sub.size_bytes, sub.sha256)) != (
            sub.size_bytes,
            sub.sha256,
        ):
            raise ValueError(
                f"member {MANIFEST}, sub-graph {sub.name[:80]!r} expects other contents of"
                f" {sub.file} than an earlier one"
            )


def _check_unique(what: str, names: list[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"member {MANIFEST}, {what} {twice[0][:80]!r} is defined {names.count(twice[0])} times"
        )


def _check_wiring(manifest: Manifest, written: Mapping[str, Port]) -> None:
    """Check that every tensor is written before it is read, with the same shape, type, layout and
    scale.
    """
    known = {port.name for port in manifest.inputs}
    readers: list[tuple[str, tuple[Port, ...]]] = [
        (f"sub-graph {sub.name!r}", sub.inputs) for sub in manifest.subgraphs
    ]
    writes = [sub.outputs for sub in manifest.subgraphs] + [()]
    for (reader, ports), outputs in zip(
        [*readers, ("the network's output", manifest.outputs)], writes, strict=True
    ):
        for port in ports:
            if port.name not in written:
                raise ValueError(
                    f"member {MANIFEST}, {reader} reads {port.name[:80]!r}, which nothing writes"
                )
            if port.name not in known:
                raise ValueError(
                    f"member {MANIFEST}, {reader} reads {port.name[:80]!r} before it is written, a"
                    " cycle or a wrong order"
                )
            if port != written[port.name]:
                raise ValueError(
                    f"member {MANIFEST}, {reader} reads {port.name[:80]!r} as"
                    f" {describe_port(port)}, it is written as {describe_port(written[port.name])}"
                )
        known |= {port.name for port in outputs}


def _check_copies(stage: PipelineStage, manifest: Manifest) -> None:
    where, subs = (
        f"member {MANIFEST}, stage {stage.name[:80]!r}",
        subgraphs_of_stage(stage, manifest),
    )
    if not (stage.copy_in_us or stage.copy_out_us):
        return
    if len(subs) != 1 or stage.copy_in_us.keys() != stage.copy_out_us.keys():
        raise ValueError(
            f"{where}, copies are of one sub-graph, in and out for the same processors"
        )
    places = stage.replica_names or (subs[0].processor,)
    for name, in_us in stage.copy_in_us.items():
        times_us = (in_us, stage.copy_out_us[name])
        whole_us = subs[0].predicted_us.get(name)
        if (
            name not in places
            or whole_us is None
            or not (min(times_us) >= 0 and sum(times_us) <= whole_us * (1 + ROUNDING))
        ):
            raise ValueError(
                f"{where}, copies of {times_us[0]} and {times_us[1]} us on {name[:40]!r}, which are"
                " part of no predicted time there"
            )


def _check_sync(manifest: Manifest) -> None:
    ends = segment_ends(manifest)
    if lost := sorted(
        segment for segment, time_us in manifest.sync_us.items() if time_us and segment not in ends
    ):
        raise ValueError(
            f"member {MANIFEST}, sync_us of segment {lost[0]}, no merge there to charge it to"
        )
