"""What a folder tells: one frozen value per file, each None where the file is absent."""

from __future__ import annotations

from dataclasses import dataclass, field

from nnstretch.report.load.pipeline_data import PipelineReportData
from nnstretch.trace import Span, Trace


@dataclass(frozen=True, slots=True)
class ReportedBranch:
    """What one processor does between two meeting points, in predicted milliseconds."""

    processor: str
    depth: int | None
    width: int | None
    macs: float | None
    params: float | None
    transfer_in_ms: float
    compute_ms: float
    transfer_out_ms: float
    error_ms: float | None

    @property
    def latency_ms(self) -> float:
        """Return the time of the branch with its transfers, ms."""
        return self.transfer_in_ms + self.compute_ms + self.transfer_out_ms

    @property
    def shape(self) -> str:
        """Return depth x width; empty where the plan keeps the original's."""
        return " × ".join(str(n) for n in (self.depth, self.width) if n is not None)


@dataclass(frozen=True, slots=True)
class ReportedSegment:
    """Segment of a plan with its predicted latency, as search.json has it."""

    start: str
    end: str
    merge: str | None
    branches: tuple[ReportedBranch, ...]
    latency_ms: float
    sync_ms: float
    merge_ms: float
    original_ms: float | None

    @property
    def branched(self) -> bool:
        """Return whether the segment has more than one branch."""
        return len(self.branches) > 1

    @property
    def slowest_ms(self) -> float:
        """Return the time of the slowest branch, ms."""
        return max(branch.latency_ms for branch in self.branches)

    def wait_ms(self, branch: ReportedBranch) -> float:
        """Time this branch idles until the slowest one arrives."""
        return self.slowest_ms - branch.latency_ms


@dataclass(frozen=True, slots=True)
class PlanCost:
    """One plan of the search with its predicted numbers."""

    latency_ms: float
    error_ms: float | None
    macs: float | None
    params: float | None
    speedup_vs_fastest: float | None
    iso_mac_latency_ms: float | None
    speedup_vs_iso_mac: float | None
    segments: tuple[ReportedSegment, ...]


@dataclass(frozen=True, slots=True)
class SearchSummary:
    """Result of a search, as search.json has it."""

    model: str | None
    soc: str | None
    processors: tuple[str, ...]
    provenance: tuple[tuple[str, str], ...]
    """(what, text) pairs, flattened."""
    calibrated: bool | None
    """False where no latency of the chip was ever published."""
    original_macs: float | None
    original_params: float | None
    original_ms: dict[str, float]
    """The original network by processor."""
    fastest: str | None
    log10_size: float | None
    refused: dict[str, float]
    optimal: bool | None
    lower_bound_ms: float | None
    search_s: float | None
    plans: tuple[PlanCost, ...]

    @property
    def fastest_ms(self) -> float | None:
        """Return the original's time on the fastest processor, ms."""
        return self.original_ms.get(self.fastest) if self.fastest else None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of a bundle: its clock says whether time was computed or waited for."""

    mode: str | None
    clock: str | None
    timing: str | None
    """What kind of milliseconds these are: predicted, emulated or measured."""
    latency_ms: dict[str, float]
    critical_path_ms: float | None
    overlap_efficiency: float | None
    dilation: float | None
    busy_ms: dict[str, float]
    utilisation: dict[str, float]


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A span, and what it is in the plan."""

    span: Span
    segment: str
    """`s3`: the same for the branches that meet and for their merge."""
    is_merge: bool
    request: int = 0


@dataclass(frozen=True, slots=True)
class Timeline:
    """One request of a trace file, starting at zero."""

    source: str
    """`predicted` or `measured`, as the trace calls it."""
    parts: tuple[TimelineSpan, ...]
    request: int
    requests: int
    """How many requests the file holds; the one of median length is kept."""
    timing: str | None = None
    """What kind of milliseconds a run's are: measured or emulated.

    None where the file does not say.
    """

    @property
    def trace(self) -> Trace:
        """Return the timeline as a trace."""
        return Trace(tuple(part.span for part in self.parts))


@dataclass(frozen=True, slots=True)
class ReportedEpoch:
    """Epoch of a training, as training.json has it."""

    epoch: float
    train_loss: float | None
    val_loss: float | None
    val_accuracy: float | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Network in the table of summary.json."""

    network: str
    processor: str | None
    accuracy: float | None
    macs: float | None
    params: float | None
    predicted_ms: float | None
    predicted_error_ms: float | None
    emulated_ms: float | None


@dataclass(frozen=True, slots=True)
class HeadlineSummary:
    """Headline of a folder, as summary.json has it."""

    title: str | None
    rows: tuple[SummaryRow, ...]
    speedup_vs_fastest: float | None
    speedup_vs_iso_mac: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """File that a page was made from."""

    name: str
    size_bytes: int
    sha256: str
    commands: tuple[str, ...] = ()
    """What the file says it was made with."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything the page may show; `kind` is `original` or `branched`."""

    summary: HeadlineSummary | None = None
    search: SearchSummary | None = None
    runs: dict[str, RunSummary] = field(default_factory=dict)
    timelines: dict[str, tuple[Timeline, ...]] = field(default_factory=dict)
    training: dict[str, tuple[ReportedEpoch, ...]] = field(default_factory=dict)
    plan_text: str | None = None
    files: tuple[SourceFile, ...] = ()
    pipeline: PipelineReportData | None = None

    @property
    def branches(self) -> bool:
        """Return whether anything is told of a branched network."""
        return bool(
            self.summary
            or self.search
            or self.runs
            or self.timelines
            or self.training
            or self.plan_text is not None
        )

    @property
    def plan(self) -> PlanCost | None:
        """Return the best plan of the search: the one that is drawn."""
        return self.search.plans[0] if self.search and self.search.plans else None

    @property
    def title(self) -> str:
        """Return the page's title."""
        named = (
            (self.summary and self.summary.title)
            or (self.search and self.search.model)
            or (self.pipeline and self.pipeline.model)
        )
        return named or ("A pipeline" if self.pipeline else "A stretched network")
