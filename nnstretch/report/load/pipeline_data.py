"""Files of a pipeline as frozen values, each None where the file is absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Annotated, Any

from nnstretch.files.decode import tolerant
from nnstretch.files.limits import Only, Range
from nnstretch.trace import Span

LEAST_SIZE, MOST_SIZE = 1e-30, 1e18
"""What is less is not even a remainder of times that were subtracted; quotients stay finite."""


def is_size(value: float) -> bool:
    """Return whether a number that is not negative is 0 or large enough to divide by."""
    return value == 0 or value >= LEAST_SIZE


Size = Annotated[float, Range(0, MOST_SIZE), Only(is_size, f"0 or at least {LEAST_SIZE:g}")]
"""Time, count or share."""

WINDOW = 12
"""Items of a stream that a chart shows."""
StageInputs = tuple[tuple[str, tuple[str, ...]], ...]
"""Stages in order, each with the stages whose outputs it reads."""


def provenance_pairs(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield a provenance of any form as (what, text) pairs."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from provenance_pairs(inner, f"{name}, {key}" if name else key)
    elif isinstance(value, list):
        for inner in value:
            yield from provenance_pairs(inner, name)
    elif value is not None:
        yield name or "latency predictor", str(value)


@dataclass(frozen=True, slots=True)
class StreamTrace:
    """Process of a trace: a span is a stage's work on an item, its task's request."""

    source: str
    """`predicted` or `measured`, as the trace calls it."""
    spans: tuple[Span, ...]
    """In the order of starts, each on its worker."""
    timing: str | None = None
    """Kind of a run's milliseconds, measured or emulated; None where the file does not say."""

    @property
    def items(self) -> tuple[int, ...]:
        """Return the numbers of the items."""
        return tuple(sorted({span.task.request for span in self.spans}))

    @property
    def kind(self) -> str:
        """Return how the times came about: predicted, emulated or measured."""
        return "predicted" if self.source == "predicted" else self.timing or "measured"

    @property
    def service_ms(self) -> dict[str, float]:
        """Return an item's median time at each stage, what overlaps counted once."""
        work_us: dict[str, dict[int, float]] = {}
        until_us: dict[tuple[str, int], float] = {}
        for span in self.spans:
            key = (span.task.subgraph, span.task.request)
            items = work_us.setdefault(span.task.subgraph, {})
            begin_us = max(span.start_us, until_us.get(key, span.start_us))
            fresh_us = max(0.0, span.end_us - begin_us)
            items[span.task.request] = items.get(span.task.request, 0.0) + fresh_us
            until_us[key] = max(span.end_us, until_us.get(key, span.end_us))
        return {stage: median(items.values()) / 1000 for stage, items in work_us.items()}


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """A few items that follow each other, from zero on, and what their stages do meanwhile."""

    stream: StreamTrace
    items: tuple[int, ...]
    spans: tuple[Span, ...]
    others: tuple[Span, ...]
    """Of items before and behind them, cut at the window's borders."""
    length_us: float


@tolerant
@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of a run; times of all items together where they are sums."""

    name: str
    service_ms: Size
    """Median of an item."""
    share_ms: Size
    """Over its replicas."""
    processors: tuple[str, ...] = ()
    failed: Size | None = None
    late: Size | None = None
    busy_ms: Size | None = None
    starved_ms: Size | None = None
    blocked_ms: Size | None = None
    copies_ms: Size | None = None
    """Of an item, to and from a device, beside the compute of others."""


@tolerant
@dataclass(frozen=True, slots=True)
class StreamSummary:
    """What `nnstretch run --mode pipeline --json` says."""

    model: str | None = None
    timing: str | None = None
    items: Size | None = None
    period_ms: Size | None = None
    bottleneck_ms: Size | None = None
    predicted_bottleneck_ms: Size | None = None
    balance: Size | None = None
    efficiency: Size | None = None
    throughput_per_s: Size | None = None
    sequential_throughput_per_s: Size | None = None
    sequential_is: str | None = None
    dispatch_overhead_us: float | None = None
    dilation: Size | None = None
    failed: Size | None = None
    first_error: str | None = None
    latency_ms: dict[str, Size | None] = field(default_factory=dict)
    untimed: tuple[str, ...] = ()
    stages: tuple[StageRow, ...] = ()
    calibrated: bool | None = None
    provenance: object = None
    noisy: str | None = None
    """Why its times are noisy; empty where they are not."""

    @property
    def gain(self) -> float | None:
        """Return throughput over that of the stages one after another."""
        ours, alone = self.throughput_per_s, self.sequential_throughput_per_s
        return ours / alone if ours is not None and alone else None

    @property
    def slowest(self) -> StageRow | None:
        """Return the stage that takes longest, None without stages."""
        return max(self.stages, key=lambda stage: stage.share_ms, default=None)


@tolerant
@dataclass(frozen=True, slots=True)
class SplitStage:
    """A stage as `nnstretch partition` priced it."""

    latency_ms: Size
    processor: str | None = None
    """Of a stage without replicas."""
    processors: tuple[str, ...] = ()
    start: str | None = None
    end: str | None = None
    transfer_in_ms: Size | None = None
    transfer_out_ms: Size | None = None
    error_ms: Size | None = None
    macs: Size | None = None
    params: Size | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class PartitionSummary:
    """What `nnstretch partition --json` says of its best candidate."""

    model: str | None = None
    soc: str | None = None
    stages: tuple[SplitStage, ...] = ()
    bottleneck_ms: Size | None = None
    balance: Size | None = None
    bound_ms: Size | None = None
    proven: bool | None = None
    why_open: str | None = None
    fastest: str | None = None
    single_ms: dict[str, Size | None] = field(default_factory=dict)
    speedup_vs_fastest: Size | None = None
    split_at: str | None = None
    """Between which parts stages were tried: layers, or segments of a plan."""
    calibrated: bool | None = None
    provenance: object = None
    noisy: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineReportData:
    """A pipeline's part of the page."""

    run: StreamSummary | None = None
    split: PartitionSummary | None = None
    streams: tuple[StreamTrace, ...] = ()
    inputs: StageInputs = ()
    """Empty where the trace does not say."""

    @property
    def model(self) -> str | None:
        """Return the model's name, None where no file tells it."""
        names = (source.model for source in (self.run, self.split) if source)
        return next(filter(None, names), None)

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Return where predictions come from as (what, text) pairs, each once."""
        files = [source.provenance for source in (self.split, self.run) if source]
        return tuple(dict.fromkeys(chain.from_iterable(map(provenance_pairs, files))))


def windows_of(streams: Iterable[StreamTrace]) -> tuple[StreamWindow, ...]:
    """Return the same items of every stream, from the middle of what all of them hold."""
    with_spans = [stream for stream in streams if stream.spans]
    if not with_spans:
        return ()
    common = set.intersection(*(set(stream.items) for stream in with_spans))
    shared = _middle(tuple(sorted(common)))
    windows: list[StreamWindow] = []
    for stream in with_spans:
        enough = len(shared) == min(WINDOW, len(stream.items))
        windows.append(_window(stream, shared if enough else _middle(stream.items)))
    return tuple(windows)


def _middle(items: tuple[int, ...]) -> tuple[int, ...]:
    first = max(0, (len(items) - WINDOW) // 2)
    return items[first : first + WINDOW]


def _window(stream: StreamTrace, items: tuple[int, ...]) -> StreamWindow:
    inside = [span for span in stream.spans if span.task.request in items]
    begin_us = min(span.start_us for span in inside)
    end_us = max(span.end_us for span in inside)
    spans = tuple(_moved(s, s.start_us, s.end_us, begin_us) for s in inside)
    others: list[Span] = []
    for span in stream.spans:
        if span.task.request not in items and span.end_us > begin_us and span.start_us < end_us:
            start_us = max(span.start_us, begin_us)
            others.append(_moved(span, start_us, min(span.end_us, end_us), begin_us))
    return StreamWindow(stream, items, spans, tuple(others), end_us - begin_us)


def _moved(span: Span, start_us: float, end_us: float, zero_us: float) -> Span:
    return replace(span, start_us=start_us - zero_us, end_us=end_us - zero_us)
