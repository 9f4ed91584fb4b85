"""Rules of a manifest that bind several of its fields; limits of a field are in its type.

The file may be anyone's, so every rule is checked before anything is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from nnstretch.bundle.archive import MANIFEST, check_name, check_plan_name
from nnstretch.bundle.manifest import (
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
from nnstretch.pipeline import PipelineStage

QUANTIZED = ("int8", "uint8", "int16")
MAX_TENSOR_BYTES = 1 << 34
"""16 GiB: more than any activation, so that a forged shape is refused and not allocated."""
SHARE_LIMIT = 1 + 1e-9
"""Share of the whole that the sum of its rounded parts may be."""
MAX_PROCESSORS = 64
"""Each becomes a thread."""


def check_manifest(manifest: Manifest) -> None:
    """Raise ValueError unless names are unique and inputs have sources in every plan."""
    _check_unique("plan", [MAIN, *(alternative.name for alternative in manifest.alternatives)])
    for name, plan in plans_by_name(manifest).items():
        try:
            _check_plan(plan)
            if name != MAIN:
                check_plan_name(name)
                check_edges(plan, manifest)
        except ValueError as error:
            where = "" if name == MAIN else f"plan {name[:80]!r}, "
            raise ValueError(f"{where}{error}") from error
    _check_files(all_subgraphs(manifest))
    _check_processors(manifest)


def check_edges(plan: Manifest, main: Manifest) -> None:
    """Raise ValueError unless a plan's inputs and outputs are the main one's; scales may differ."""
    ends = {"inputs": (plan.inputs, main.inputs), "outputs": (plan.outputs, main.outputs)}
    for what, (ports, main_ports) in ends.items():
        described = _describe_unscaled(ports)
        wanted = _describe_unscaled(main_ports)
        if described != wanted:
            raise ValueError(f"its {what} are {described[:200]}, the main plan's {wanted[:200]}")


def _describe_unscaled(ports: tuple[Port, ...]) -> str:
    texts = [f"{port.name[:80]!r} {describe_port(replace(port, scale=0.0))}" for port in ports]
    return ", ".join(texts)


def _check_plan(manifest: Manifest) -> None:
    _check_ports(f"member {MANIFEST}", manifest.inputs)
    written = list(manifest.inputs)
    for sub in manifest.subgraphs:
        _check_subgraph(sub)
        written += sub.outputs
    _check_unique("sub-graph", [sub.name for sub in manifest.subgraphs])
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
        tensor = f"{where}, tensor {port.name[:80]!r}"
        size_bytes = port.spec.size_bytes
        if size_bytes > MAX_TENSOR_BYTES:
            shown = float(min(size_bytes, 1 << 999))
            raise ValueError(f"{tensor} of {shown:.1e} bytes, limit {MAX_TENSOR_BYTES}")
        if port.layout and len(port.spec.shape) != 4:
            raise ValueError(
                f"{tensor} of shape {port.spec} in layout {port.layout}, needed are 4 axes"
            )
        if port.scale and port.spec.dtype not in QUANTIZED:
            raise ValueError(
                f"{tensor} of {port.spec.dtype} with scale {port.scale}, only"
                f" {', '.join(QUANTIZED)} have one"
            )


def _check_files(subgraphs: tuple[Subgraph, ...]) -> None:
    """Check that sub-graphs that share a file agree on what is in it."""
    contents: dict[str, tuple[int, str]] = {}
    for sub in subgraphs:
        content = (sub.size_bytes, sub.sha256)
        if contents.setdefault(sub.file, content) != content:
            raise ValueError(
                f"member {MANIFEST}, sub-graph {sub.name[:80]!r} expects other contents of"
                f" {sub.file} than an earlier one"
            )


def _check_processors(manifest: Manifest) -> None:
    """Check how many processors all plans and replicas name, those of predicted times included."""
    subgraphs = all_subgraphs(manifest)
    names = set(chain.from_iterable(sub.possible_processors for sub in subgraphs))
    if manifest.pipeline is not None:
        names.update(*(stage.replica_names for stage in manifest.pipeline.stages if not stage.call))
    if len(names) > MAX_PROCESSORS:
        raise ValueError(f"member {MANIFEST}, {len(names)} processors, limit {MAX_PROCESSORS}")


def _check_unique(what: str, names: list[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(
            f"member {MANIFEST}, {what} {twice[0][:80]!r} is defined {names.count(twice[0])} times"
        )


def _check_wiring(manifest: Manifest, written: Mapping[str, Port]) -> None:
    """Check that every tensor is written before it is read, and read as it is written."""
    known = set(manifest.input_names)
    for sub in manifest.subgraphs:
        for port in sub.inputs:
            _check_read(port, f"sub-graph {sub.name!r}", written, known)
        known.update(sub.output_names)
    for port in manifest.outputs:
        _check_read(port, "the network's output", written, known)


def _check_read(port: Port, reader: str, written: Mapping[str, Port], known: set[str]) -> None:
    where = f"member {MANIFEST}, {reader} reads {port.name[:80]!r}"
    if port.name not in written:
        raise ValueError(f"{where}, which nothing writes")
    if port.name not in known:
        raise ValueError(f"{where} before it is written, a cycle or a wrong order")
    if port != written[port.name]:
        raise ValueError(
            f"{where} as {describe_port(port)}, it is written as"
            f" {describe_port(written[port.name])}"
        )


def _check_copies(stage: PipelineStage, manifest: Manifest) -> None:
    where = f"member {MANIFEST}, stage {stage.name[:80]!r}"
    subs = subgraphs_of_stage(stage, manifest)
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
        most_us = -1.0 if name not in places or whole_us is None else whole_us * SHARE_LIMIT
        if not (min(times_us) >= 0 and sum(times_us) <= most_us):
            raise ValueError(
                f"{where}, copies of {times_us[0]} and {times_us[1]} us on {name[:40]!r}, which are"
                " part of no predicted time there"
            )


def _check_sync(manifest: Manifest) -> None:
    charged = {segment for segment, time_us in manifest.sync_us.items() if time_us}
    if lost := sorted(charged - segment_ends(manifest).keys()):
        raise ValueError(
            f"member {MANIFEST}, sync_us of segment {lost[0]}, no merge there to charge it to"
        )
