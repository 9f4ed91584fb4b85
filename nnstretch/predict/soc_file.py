"""What `soc.json` holds, and the nouns it stands for."""

from __future__ import annotations

import re
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any

from nnstretch.files.limits import Length, OneOf, Only, Range
from nnstretch.graph import ELEMENT_BYTES
from nnstretch.plan import Name
from nnstretch.predict.roofline import AtLeastOne
from nnstretch.predict.sampled_range import Amount, RelativeError
from nnstretch.soc import BranchedError, Link, Neighbour, Processor, Soc

SOC_FORMAT = 1
PROCESSOR_KINDS = ("cpu", "gpu", "dsp", "npu")
FILE_KEYS = {"enqueue_us": "handover_us", "copies_overlap_compute": "copies_beside"}
"""Fields of a processor that `soc.json` calls otherwise."""
WholeCount = Annotated[float, Range(1, 1 << 53), Only(float.is_integer, "a whole number")]
FileName = Annotated[
    str,
    Only(
        re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*").fullmatch,
        "letters, digits, _, . and -: it names a file",
    ),
]


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One direction of a link."""

    fixed_us: Amount
    us_per_kib: Amount


@dataclass(frozen=True, slots=True)
class ProcessorRow:
    """A processor; what has a default need not be said."""

    name: FileName
    kind: Annotated[str, OneOf(PROCESSOR_KINDS)]
    queue_depth: WholeCount
    asynchronous: bool
    copy_in: LinkRow
    copy_out: LinkRow
    sync_us: Amount
    memory_bytes: WholeCount | None = None
    power_w: Amount | None = None
    handover_us: Amount = 0.0
    blocks_host: bool = False
    copies_beside: bool | None = None

    def __post_init__(self) -> None:
        if self.asynchronous and (self.handover_us > self.sync_us or self.blocks_host):
            raise ValueError(
                f"asynchronous with handover_us {self.handover_us:g} of sync_us {self.sync_us:g}"
                f" and blocks_host {self.blocks_host}, a queue does not block its host, and its"
                " synchronisation contains the hand-over"
            )


@dataclass(frozen=True, slots=True)
class ContentionRow:
    """How much slower processors compute at once."""

    processors: Annotated[tuple[str, ...], Length(2)]
    factor: AtLeastOne


@dataclass(frozen=True, slots=True)
class NeighbourRow:
    """What one processor loses in a fork with another."""

    processor: FileName
    beside: FileName
    busy_factor: AtLeastOne = 1.0
    copy_in: LinkRow = LinkRow(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class BranchedErrorRow:
    """How far off branched networks were."""

    relative_error: RelativeError
    interval_factor: AtLeastOne


@dataclass(frozen=True, slots=True)
class SocFile:
    """A chip; predictors have files of their own."""

    format: int
    name: Name
    dtype: Annotated[str, OneOf(tuple(ELEMENT_BYTES))]
    calibrated: bool
    provenance: str
    processors: Annotated[tuple[ProcessorRow, ...], Length(1)]
    merge: LinkRow
    contention: Annotated[tuple[ContentionRow, ...], Length()]
    neighbours: Annotated[tuple[NeighbourRow, ...], Length()] = ()
    branched_error: BranchedErrorRow | None = None

    def __post_init__(self) -> None:
        names = [processor.name for processor in self.processors]
        if len(set(names)) != len(names):
            raise ValueError(f"processors are {names}, needed is each named once")
        together: list[set[str]] = []
        for i, row in enumerate(self.contention):
            if not set(row.processors) <= set(names):
                raise ValueError(f"contention[{i}] is of {list(row.processors)}, known are {names}")
            together.append(set(row.processors))
            if len(together[i]) < len(row.processors) or together[i] in together[:i]:
                raise ValueError(
                    f"contention[{i}] is of {list(row.processors)}, needed are processors that"
                    " differ, each set of them once"
                )
        pairs = [(row.processor, row.beside) for row in self.neighbours]
        for i, pair in enumerate(pairs):
            if not set(pair) <= set(names) or pair[0] == pair[1] or pair in pairs[:i]:
                raise ValueError(
                    f"neighbours[{i}] is of {pair[0]} beside {pair[1]}, needed are two of {names},"
                    " each pair once"
                )


def soc_document(soc: Soc) -> dict[str, Any]:
    """Return a chip as JSON data."""
    contention = sorted((sorted(names), factor) for names, factor in soc.contention.items())
    document: dict[str, Any] = {
        "format": SOC_FORMAT,
        "name": soc.name,
        "dtype": soc.dtype,
        "calibrated": soc.calibrated,
        "provenance": soc.provenance,
        "processors": [processor_document(processor) for processor in soc.processors],
        "merge": asdict(soc.merge),
        "contention": [{"processors": names, "factor": factor} for names, factor in contention],
    }
    if soc.neighbours:
        document["neighbours"] = [asdict(neighbour) for neighbour in soc.neighbours]
    if soc.branched_error is not None:
        document["branched_error"] = asdict(soc.branched_error)
    return document


def processor_document(processor: Processor) -> dict[str, Any]:
    """Return a processor's fields under their names in the file, without those at their default.

    Earlier versions read no processor without `memory_bytes`: it is always written.
    """
    values = {FILE_KEYS.get(name, name): value for name, value in asdict(processor).items()}
    for field in fields(ProcessorRow):
        is_optional = field.default is not MISSING and field.name != "memory_bytes"
        if is_optional and values[field.name] == field.default:
            del values[field.name]
    return values


def processor_of(row: ProcessorRow) -> Processor:
    """Return the processor that a row of the file describes."""
    return Processor(
        name=row.name,
        kind=row.kind,
        queue_depth=int(row.queue_depth),
        copy_in=link_of(row.copy_in),
        copy_out=link_of(row.copy_out),
        sync_us=row.sync_us,
        asynchronous=row.asynchronous,
        memory_bytes=None if row.memory_bytes is None else int(row.memory_bytes),
        power_w=row.power_w,
        enqueue_us=row.handover_us,
        blocks_host=row.blocks_host,
        copies_overlap_compute=row.copies_beside,
    )


def link_of(row: LinkRow) -> Link:
    """Return the link that a row of the file describes."""
    return Link(row.fixed_us, row.us_per_kib)


def neighbour_of(row: NeighbourRow) -> Neighbour:
    """Return the neighbour that a row of the file describes."""
    return Neighbour(row.processor, row.beside, row.busy_factor, link_of(row.copy_in))


def branched_error_of(row: BranchedErrorRow | None) -> BranchedError | None:
    """Return the error of branched networks that a row of the file describes."""
    return None if row is None else BranchedError(row.relative_error, row.interval_factor)
