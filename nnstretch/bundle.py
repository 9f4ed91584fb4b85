"""A bundle: exported sub-graphs, and the manifest that says how they hang together.

One `.nns` file is a zip: `manifest.json` and one file per sub-graph. Nothing in it is ever
unpickled, and every file's sha256 is checked before a byte of it is used.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from math import prod
from pathlib import Path

from nnstretch.bundlefile import check_name, check_plan_name, decode, digest, member, parse_json, sealed, write_sealed
from nnstretch.errors import BrokenFile, UnknownName
from nnstretch.files import replacing
from nnstretch.graph import ELEMENT_BYTES, TensorSpec
from nnstretch.stages import Pipeline, check_pipeline

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20
QUANTISED = ("int8", "uint8", "int16")
MAX_SCALE = 1e30
MAX_TIME_US = 1e12
"""Eleven days: longer than any sub-graph takes, short enough to add up without overflow."""
MAX_TENSOR_BYTES = 1 << 34
"""16 GiB: more than any activation, so that a forged shape is refused and not allocated."""
MAX_PROCESSORS = 64
"""Each becomes a thread."""
ROLES = ("branch", "merge")
FORMATS = {"onnx": ".onnx", "litert": ".tflite"}
"""Of a sub-graph's file, and how its name ends."""
LAYOUTS = ("", "NCHW", "NHWC")
MAIN = "main"
"""What the first plan of a bundle is called where it has several."""


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor at the edge of a sub-graph."""

    name: str
    """Name of the tensor in the whole network; two ports of one name are connected."""
    spec: TensorSpec
    """Shape in the order of `layout`."""
    layout: str = ""
    """NCHW or NHWC; empty where the tensor is no map."""
    scale: float = 0.0
    """What a step of an integer is worth: real = scale * (q - zero_point); 0 where the numbers are what they say."""
    zero_point: int = 0


@dataclass(frozen=True, slots=True)
class Subgraph:
    """One file that one processor runs."""

    name: str
    processor: str
    file: str
    """Path inside the bundle."""
    sha256: str
    size_bytes: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    role: str = "branch"
    """branch, or merge for what a meeting point computes."""
    format: str = "onnx"
    """Of the file: one of FORMATS."""
    segment: int = 0
    """Which segment of the plan it belongs to, counted from 0."""
    predicted_us: dict[str, float] = field(default_factory=dict)
    """Predicted latency by processor, copies included; empty where no chip was given."""
    error_us: dict[str, float] = field(default_factory=dict)
    max_abs_error: float = 0.0
    """Largest difference from the module, measured at export."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One more plan of a network. Tensors and sub-graphs have its own names; only scales at its edges may differ from the main plan's."""

    name: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    subgraphs: tuple[Subgraph, ...]
    max_abs_error: float
    sync_us: dict[int, float] = field(default_factory=dict)
    plan: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about a bundle but the weights."""

    model: str
    soc: str | None
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    subgraphs: tuple[Subgraph, ...]
    """In an order in which they can run one after another."""
    max_abs_error: float
    """Whole network against the module, measured at export."""
    sync_us: dict[int, float] = field(default_factory=dict)
    """Predicted synchronisation at the end of each branched segment."""
    plan: str = ""
    """The plan as YAML, for readers and reports."""
    format: int = FORMAT
    alternatives: tuple[Alternative, ...] = ()
    """Further plans, predicted for the same chip; not written where there are none."""
    pipeline: Pipeline | None = None
    """How items stream through the sub-graphs; not written where nobody said. `inputs` and `outputs` are then those of the sub-graphs."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A manifest and the bytes it speaks of, all in memory and checked."""

    manifest: Manifest
    files: Mapping[str, bytes]
    """By `Subgraph.file`."""
    name: str = "bundle"
    """Where it was read from, for messages."""


def plans(manifest: Manifest) -> dict[str, Manifest]:
    """Every plan of a bundle as a manifest of its own, by name; the main one first."""
    alone = replace(manifest, alternatives=())
    own = {one.name: {f.name: getattr(one, f.name) for f in fields(one) if f.name != "name"} for one in manifest.alternatives}
    return {MAIN: alone} | {name: replace(alone, **values) for name, values in own.items()}


def every_subgraph(manifest: Manifest) -> tuple[Subgraph, ...]:
    """Of all plans."""
    return (*manifest.subgraphs, *(sub for one in manifest.alternatives for sub in one.subgraphs))


def meeting_points(manifest: Manifest) -> dict[int, str]:
    """Which sub-graph ends each segment and pays for its synchronisation: the merge, else the only branch."""
    members: dict[int, list[Subgraph]] = {}
    for sub in manifest.subgraphs:
        members.setdefault(sub.segment, []).append(sub)
    ends = {segment: [s.name for s in subs if s.role == "merge" or len(subs) == 1] for segment, subs in members.items()}
    return {segment: names[-1] for segment, names in ends.items() if names}


def write_bundle(path: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Write one `.nns`; equal contents make equal files, and what could not be read back is not written."""
    try:
        content = {key: value for key, value in asdict(manifest).items() if value or key not in ("alternatives", "pipeline")}
        text = json.dumps(content, indent=1, allow_nan=False).encode()
        check_manifest(decode_manifest(text))
        promised = {sub.file: sub for sub in every_subgraph(manifest)}
        if promised.keys() != files.keys():
            raise ValueError(f"member {min(promised.keys() ^ files.keys())}, not both promised and given")
        for name, sub in promised.items():
            if (len(files[name]), digest(files[name])) != (sub.size_bytes, sub.sha256):
                raise ValueError(f"member {name}, {len(files[name])} bytes that differ from the manifest's size or sha256")
    except (ValueError, TypeError) as error:
        raise BrokenFile(f"cannot write bundle {path}, {error}") from error
    members = {MANIFEST: text, **{name: files[name] for name in promised}}
    with replacing(path) as aside:
        write_sealed(aside, members)


def read_bundle(path: Path | str) -> Bundle:
    """Read and check a `.nns`; the file may be anyone's, so every refusal is one BrokenFile line."""
    path = Path(path)
    if not path.is_file():
        raise UnknownName(f"unknown bundle {path}, {'a folder' if path.is_dir() else 'no such file'}, expected a .nns file")
    try:
        with sealed(path) as archive:
            return _read(archive, str(path))
    except (ValueError, OSError) as error:
        raise BrokenFile(f"broken bundle {path}, {error}") from error


def _read(archive: zipfile.ZipFile, name: str) -> Bundle:
    entry = archive.NameToInfo.get(MANIFEST)
    if entry is None:
        raise ValueError(f"member {MANIFEST}, it is missing")
    if entry.file_size > MAX_MANIFEST_BYTES:
        raise ValueError(f"member {MANIFEST}, {entry.file_size} bytes, limit {MAX_MANIFEST_BYTES}")
    manifest = decode_manifest(archive.read(entry))
    check_manifest(manifest)
    promised = {sub.file: sub for sub in every_subgraph(manifest)}
    if extra := sorted(set(archive.namelist()) - promised.keys() - {MANIFEST}):
        raise ValueError(f"member {extra[0]}, the manifest does not know it")
    return Bundle(manifest, {f: member(archive, f, sub.size_bytes, sub.sha256) for f, sub in promised.items()}, name)


def decode_manifest(text: bytes) -> Manifest:
    """Raise ValueError for anything that is not exactly a manifest of this format."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"member {MANIFEST}, not JSON ({error})") from error
    found = value.get("format") if isinstance(value, dict) else None
    if type(found) is not int or found != FORMAT:
        raise ValueError(f"member {MANIFEST}, unknown format {str(found)[:20]}, this version reads format {FORMAT}")
    manifest: Manifest = decode(Manifest, value, f"member {MANIFEST}")
    return manifest


def check_manifest(manifest: Manifest) -> None:
    """Raise ValueError unless, in every plan, every name is one thing, every input has a source and times are times."""
    _check_unique("plan", [MAIN, *(one.name for one in manifest.alternatives)])
    for name, plan in plans(manifest).items():
        try:
            _check_plan(plan)
            if name != MAIN:
                check_plan_name(name)
                check_edges(plan, manifest)
        except ValueError as error:
            raise ValueError(f"plan {name[:80]!r}, {error}" if name != MAIN else str(error)) from error
    _check_files(every_subgraph(manifest))


def check_edges(plan: Manifest, main: Manifest) -> None:
    """Raise ValueError unless a plan reads and writes what the main one does: names, shapes, types and layouts; scales may differ."""
    for what, ours, theirs in (("inputs", plan.inputs, main.inputs), ("outputs", plan.outputs, main.outputs)):
        found, wanted = (", ".join(f"{p.name[:80]!r} {form(replace(p, scale=0.0))}" for p in ports) for ports in (ours, theirs))
        if found != wanted:
            raise ValueError(f"its {what} are {found[:200]}, the main plan's {wanted[:200]}")


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
    _check_times(manifest)
    if manifest.pipeline is not None:
        check_pipeline(manifest.pipeline, manifest)


def _check_subgraph(sub: Subgraph) -> None:
    where = f"member {MANIFEST}, sub-graph {sub.name[:80]!r}"
    check_name(sub.file)
    if sub.file == MANIFEST:
        raise ValueError(f"{where}, its file is the manifest itself")
    if not (sub.name and sub.processor and sub.outputs):
        raise ValueError(f"{where}, it needs a name, a processor and outputs")
    if sub.role not in ROLES:
        raise ValueError(f"{where}, unknown role {sub.role[:40]!r}, it is one of {', '.join(ROLES)}")
    if sub.format not in FORMATS:
        raise ValueError(f"{where}, unknown format {sub.format[:40]!r}, it is one of {', '.join(FORMATS)}")
    if sub.size_bytes < 0 or sub.segment < 0:
        raise ValueError(f"{where}, negative size {sub.size_bytes} or segment {sub.segment}")
    _check_ports(where, (*sub.inputs, *sub.outputs))


def _check_ports(where: str, ports: tuple[Port, ...]) -> None:
    for port in ports:
        if port.spec.dtype not in ELEMENT_BYTES or min(port.spec.shape, default=1) < 1:
            raise ValueError(f"{where}, tensor {port.name[:80]!r} of impossible shape {port.spec} or type {port.spec.dtype[:40]!r}")
        if (size_bytes := prod(port.spec.shape) * ELEMENT_BYTES[port.spec.dtype]) > MAX_TENSOR_BYTES:
            raise ValueError(f"{where}, tensor {port.name[:80]!r} of {float(min(size_bytes, 1 << 999)):.1e} bytes, limit {MAX_TENSOR_BYTES}")
        if port.layout not in LAYOUTS or (port.layout and len(port.spec.shape) != 4):
            raise ValueError(
                f"{where}, tensor {port.name[:80]!r} of shape {port.spec} in layout {port.layout[:40]!r}, known are NCHW and NHWC"
            )
        if not 0 <= port.scale < MAX_SCALE or not -128 <= port.zero_point <= 255 or (port.scale and port.spec.dtype not in QUANTISED):
            raise ValueError(
                f"{where}, tensor {port.name[:80]!r} of {port.spec.dtype[:40]}, scale {port.scale}, zero point {port.zero_point}"
            )


def _check_files(subgraphs: tuple[Subgraph, ...]) -> None:
    """Sub-graphs may share a file, but then they agree on what is in it."""
    contents: dict[str, tuple[int, str]] = {}
    for sub in subgraphs:
        if contents.setdefault(sub.file, (sub.size_bytes, sub.sha256)) != (sub.size_bytes, sub.sha256):
            raise ValueError(f"member {MANIFEST}, sub-graph {sub.name[:80]!r} expects other contents of {sub.file} than an earlier one")


def _check_unique(what: str, names: list[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"member {MANIFEST}, {what} {twice[0][:80]!r} is defined {names.count(twice[0])} times")


def _check_wiring(manifest: Manifest, written: Mapping[str, Port]) -> None:
    """Every tensor that is read was written before, with the same shape, type, layout and scale."""
    known = {port.name for port in manifest.inputs}
    readers: list[tuple[str, tuple[Port, ...]]] = [(f"sub-graph {sub.name!r}", sub.inputs) for sub in manifest.subgraphs]
    writes = [sub.outputs for sub in manifest.subgraphs] + [()]
    for (reader, ports), outputs in zip([*readers, ("the network's output", manifest.outputs)], writes, strict=True):
        for port in ports:
            if port.name not in written:
                raise ValueError(f"member {MANIFEST}, {reader} reads {port.name[:80]!r}, which nothing writes")
            if port.name not in known:
                raise ValueError(f"member {MANIFEST}, {reader} reads {port.name[:80]!r} before it is written, a cycle or a wrong order")
            if port != written[port.name]:
                raise ValueError(
                    f"member {MANIFEST}, {reader} reads {port.name[:80]!r} as {form(port)}, it is written as {form(written[port.name])}"
                )
        known |= {port.name for port in outputs}


def form(port: Port) -> str:
    """Shape, type, layout and scale, for messages."""
    quantised = f", scale {port.scale:g}, zero point {port.zero_point}" if port.scale else ""
    return f"{port.spec} {port.spec.dtype}{' ' + port.layout if port.layout else ''}{quantised}"


def _check_times(manifest: Manifest) -> None:
    tables = [(f"sub-graph {sub.name!r}", table) for sub in manifest.subgraphs for table in (sub.predicted_us, sub.error_us)]
    sync = {str(segment): time_us for segment, time_us in manifest.sync_us.items()}
    for where, table in [*tables, ("sync_us", sync)]:
        if wrong := [(key, time_us) for key, time_us in table.items() if not 0 <= time_us < MAX_TIME_US]:
            raise ValueError(f"member {MANIFEST}, {where}, {wrong[0][1]} us for {wrong[0][0][:40]!r} is no time")
    ends = meeting_points(manifest)
    if lost := sorted(segment for segment, time_us in manifest.sync_us.items() if time_us and segment not in ends):
        raise ValueError(f"member {MANIFEST}, sync_us of segment {lost[0]}, no merge there to charge it to")
