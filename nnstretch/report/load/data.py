"""Files of a folder as frozen values, fields named as in their JSON; None where one is absent."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated

from nnstretch.files.decode import tolerant
from nnstretch.files.limits import Length, Range
from nnstretch.report.load.pipeline_data import PipelineReportData, Size, provenance_pairs
from nnstretch.report.load.timeline import Timeline

SizeOrNone = Size | None
Loss = Annotated[float, Range(-1e100, 1e100)]


@tolerant
@dataclass(frozen=True, slots=True)
class ReportedBranch:
    """Layers of one processor between two meeting points, in predicted milliseconds."""

    processor: str
    compute_ms: Size
    depth: Annotated[int, Range(0)] | None = None
    width: Annotated[int, Range(0)] | None = None
    macs: SizeOrNone = None
    transfer_in_ms: Size = 0.0
    transfer_out_ms: Size = 0.0
    error_ms: SizeOrNone = None

    @property
    def latency_ms(self) -> float:
        """Return the time of the branch with its transfers, ms."""
        return self.transfer_in_ms + self.compute_ms + self.transfer_out_ms

    @property
    def shape(self) -> str:
        """Return depth × width; empty where the plan keeps the original's."""
        return " × ".join(str(n) for n in (self.depth, self.width) if n is not None)


@tolerant
@dataclass(frozen=True, slots=True)
class ReportedSegment:
    """Segment of a plan with its predicted latency, as search.json has it."""

    start: str
    end: str
    branches: Annotated[tuple[ReportedBranch, ...], Length(1)]
    latency_ms: Size
    merge: str | None = None
    sync_ms: Size = 0.0
    merge_ms: Size = 0.0
    original_ms: SizeOrNone = None

    @property
    def branched(self) -> bool:
        """Return whether the segment has more than one branch."""
        return len(self.branches) > 1

    @property
    def slowest_ms(self) -> float:
        """Return the time of the slowest branch, ms."""
        return max(branch.latency_ms for branch in self.branches)

    def wait_ms(self, branch: ReportedBranch) -> float:
        """Return how long a branch idles until the slowest one arrives, ms."""
        return self.slowest_ms - branch.latency_ms


@tolerant
@dataclass(frozen=True, slots=True)
class PlanCost:
    """Plan of the search with its predicted numbers."""

    latency_ms: Size
    error_ms: SizeOrNone = None
    macs: SizeOrNone = None
    params: SizeOrNone = None
    speedup_vs_fastest: SizeOrNone = None
    iso_mac_latency_ms: SizeOrNone = None
    speedup_vs_iso_mac: SizeOrNone = None
    segments: tuple[ReportedSegment, ...] = ()


@tolerant
@dataclass(frozen=True, slots=True)
class OriginalNetwork:
    """The network before the search, by processor."""

    latency_ms: dict[str, SizeOrNone] = field(default_factory=dict)
    error_ms: dict[str, SizeOrNone] = field(default_factory=dict)
    fastest: str | None = None


@tolerant
@dataclass(frozen=True, slots=True)
class SpaceSummary:
    """How many plans there are, and how often each constraint refused one."""

    log10_size: float | None = None
    refused: dict[str, Size] = field(default_factory=dict)


@tolerant
@dataclass(frozen=True, slots=True)
class SearchSummary:
    """Result of a search: search.json."""

    model: str | None = None
    soc: str | None = None
    processors: tuple[str, ...] = ()
    provenance: object = None
    """Text, an object or a list: it has no fixed form."""
    calibrated: bool | None = None
    """False where no latency of the chip was ever published."""
    noisy: str | None = None
    """Why the chip's profile is noisy; empty where it is not."""
    original: OriginalNetwork = OriginalNetwork()
    space: SpaceSummary = SpaceSummary()
    optimal: bool | None = None
    lower_bound_ms: SizeOrNone = None
    search_s: SizeOrNone = None
    plans: tuple[PlanCost, ...] = ()

    @property
    def fastest(self) -> str | None:
        """Return the processor on which the original is fastest."""
        return self.original.fastest

    @property
    def fastest_ms(self) -> float | None:
        """Return the original's time on the fastest processor, ms."""
        return self.original.latency_ms.get(self.fastest) if self.fastest else None

    @property
    def fastest_error_ms(self) -> float | None:
        """Return the error of that time, ms; None where the file does not say."""
        return self.original.error_ms.get(self.fastest) if self.fastest else None


@tolerant
@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """How busy a run kept a processor."""

    utilisation: Size = 0.0


@tolerant
@dataclass(frozen=True, slots=True)
class RunSummary:
    """Run of a bundle; its clock says whether time was computed or waited for."""

    mode: str | None = None
    clock: str | None = None
    timing: str | None = None
    """Kind of its milliseconds: predicted, emulated or measured."""
    latency_ms: dict[str, SizeOrNone] = field(default_factory=dict)
    critical_path_ms: SizeOrNone = None
    overlap_efficiency: float | None = None
    dilation: SizeOrNone = None
    processors: dict[str, ProcessorUse] = field(default_factory=dict)
    calibrated: bool | None = None
    noisy: str | None = None
    provenance: object = None


@tolerant
@dataclass(frozen=True, slots=True)
class ReportedEpoch:
    """Epoch of a training."""

    epoch: Annotated[float, Range(-1e9, 1e9)] | None = None
    """Its index in the history where the file does not say."""
    train_loss: Loss | None = None
    val_loss: Loss | None = None
    val_accuracy: SizeOrNone = None
    seconds: SizeOrNone = None


@tolerant
@dataclass(frozen=True, slots=True)
class TrainingSummary:
    """Training of a network: training_original.json, original/training.json."""

    history: tuple[ReportedEpoch, ...] = ()


@tolerant
@dataclass(frozen=True, slots=True)
class SummaryRow:
    """Network in the table of summary.json."""

    network: str
    processor: str | None = None
    accuracy: SizeOrNone = None
    macs: SizeOrNone = None
    params: SizeOrNone = None
    predicted_ms: SizeOrNone = None
    predicted_error_ms: SizeOrNone = None
    emulated_ms: SizeOrNone = None


@tolerant
@dataclass(frozen=True, slots=True)
class HeadlineSummary:
    """Headline of a folder: summary.json."""

    title: str | None = None
    rows: tuple[SummaryRow, ...] = ()
    speedup_vs_fastest: SizeOrNone = None
    speedup_vs_iso_mac: SizeOrNone = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceFile:
    """File that a page was made from."""

    name: str
    size_bytes: int
    sha256: str
    commands: tuple[str, ...] = ()
    """Commands that made the file, as it says itself."""


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
        """Return whether a file tells of a network with branches."""
        decoded = (self.summary, self.search, self.runs, self.timelines, self.training)
        return any(decoded) or self.plan_text is not None

    @property
    def plan(self) -> PlanCost | None:
        """Return the best plan of the search: the one that is drawn."""
        return self.search.plans[0] if self.search and self.search.plans else None

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """Return where predictions come from as (what, text) pairs, each once."""
        said = [self.search.provenance] if self.search else []
        said += [run.provenance for run in self.runs.values()]
        pairs = chain.from_iterable(map(provenance_pairs, said))
        return tuple(dict.fromkeys((*pairs, *(self.pipeline.sources if self.pipeline else ()))))

    @property
    def title(self) -> str:
        """Return the page's title."""
        if self.summary and self.summary.title:
            return self.summary.title
        if self.search and self.search.model:
            return self.search.model
        if self.pipeline:
            return self.pipeline.model or "A pipeline"
        return "A stretched network"
