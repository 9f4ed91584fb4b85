"""What `chip.json` says of a schedule inside one accelerator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from nnstretch.files.decode import tolerant
from nnstretch.files.limits import Length, Range
from nnstretch.report.load.pipeline_data import Size

Text = Annotated[str, Length(0, 300)]
Count = Annotated[int, Range(0)]
Rate = Annotated[float, Range(1e-9, 1e18)]
MOST_ENGINES = 1000


@tolerant
@dataclass(frozen=True, slots=True)
class ChipSummary:
    """Network, machine and rates."""

    model: Text
    accelerator: Text
    batch: Count
    policy: Text
    overlap: Text
    per_cluster: Count
    iterations: Count
    throughput_per_s: Size
    bound_per_s: Size
    bound_by: Text
    assumed: tuple[Text, ...] = ()


@tolerant
@dataclass(frozen=True, slots=True)
class ChipGroup:
    """A group with what all its parts compute, move over DDR and take."""

    name: Text
    first: Text
    last: Text
    operators: Annotated[int, Range(1)]
    parts: Annotated[int, Range(1, 1 << 20)]
    peak_bytes: Size
    macs: Size
    ddr_bytes: Size
    matrix_us: Size
    taken_us: Size


@tolerant
@dataclass(frozen=True, slots=True)
class ChipKernel:
    """One part of a group."""

    name: Text
    group: Count
    start_us: Size
    end_us: Size


@tolerant
@dataclass(frozen=True, slots=True)
class EngineSpan:
    """What one engine does for one layer of one part."""

    engine: Text
    step: Text
    group: Count
    start_us: Size
    end_us: Size
    busy_us: Size


@tolerant
@dataclass(frozen=True, slots=True)
class TensorSpan:
    """A tensor, or a slot of a tile loop, in a buffer."""

    name: Text
    start_us: Size
    end_us: Size
    address: Size
    size_bytes: Size


@tolerant
@dataclass(frozen=True, slots=True)
class ChipBuffer:
    """A buffer, all cores together, with what lies there."""

    name: Text
    size_bytes: Size
    tensors: tuple[TensorSpan, ...]


@tolerant
@dataclass(frozen=True, slots=True)
class ChipSweepRow:
    """Rate at one value of a field; None where nothing fits."""

    value: Text
    throughput_per_s: Size | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class ChipSweep:
    """Rate against a field of the machine."""

    field: Text
    rows: tuple[ChipSweepRow, ...]
    knee: Text | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class ChipView:
    """A schedule of one cluster."""

    format: Annotated[int, Range(1, 1)]
    chip: ChipSummary
    latency_us: Size
    peak_macs_per_us: Rate
    ddr_bytes_per_us: Rate
    groups: Annotated[tuple[ChipGroup, ...], Length(1)]
    kernels: tuple[ChipKernel, ...]
    engines: tuple[EngineSpan, ...]
    buffers: tuple[ChipBuffer, ...]
    sweep: ChipSweep | None = None

    def __post_init__(self) -> None:
        names = {span.engine for span in self.engines}
        if len(names) > MOST_ENGINES:
            raise ValueError(f"{len(names)} engines, a cluster has at most {MOST_ENGINES}")
