"""A pipeline: who works on which item when, what each stage does, how it was split."""

from __future__ import annotations

from nnstretch.report.chapters.elements import (
    chapter,
    definition_list,
    fact_list,
    missing_files,
    quiet,
)
from nnstretch.report.chapters.pipeline_headline import RUN_BY
from nnstretch.report.charts.gantt_pipeline import slice_table, stream_gantt
from nnstretch.report.charts.palette import legend
from nnstretch.report.charts.worker_time import worker_time
from nnstretch.report.format_numbers import (
    UNKNOWN,
    amount,
    count,
    ms,
    percent,
    plain_ms,
    signed_percent,
    times,
)
from nnstretch.report.html import Markup, table, tag
from nnstretch.report.load.pipeline import RUN, SPLIT, TRACE
from nnstretch.report.load.pipeline_data import (
    PartitionSummary,
    PipelineReportData,
    SplitStage,
    StageRow,
    StreamSummary,
    windows_of,
)

TRACE_BY = "nnstretch run --mode pipeline --trace"
SPLIT_BY = "nnstretch partition --json"
MEANINGS = (
    ("an item", "What a stage takes for one item, the median."),
    (
        "share",
        "The longer of its compute and its copies, over its replicas: at best a result comes as"
        " often as the largest share.",
    ),
    ("busy", "Share of the time between two results that a worker computes."),
    (
        "starved, blocked",
        "Time, all items together, that a worker waited for an item, or for room behind it.",
    ),
    (
        "efficiency",
        "The largest share over the time between two results: 1 where nothing but the slowest"
        " stage counts.",
    ),
    (
        "balance",
        "The mean of the network's stages over the slowest of them; nobody balances Python stages.",
    ),
    (
        "stages in turn",
        "The same stages, one item after another; its throughput is what a pipeline has to beat.",
    ),
)


def stream_chapter(report_data: PipelineReportData) -> Markup:
    """Return the chapter of the items' timeline."""
    says = (
        "Every worker has a row, every item a colour and a number: follow an item from stage to"
        " stage along its line, or point at it. Where bars of different items stand above each"
        " other, these are computed at the same time. Pale grey are items before and behind those"
        " shown, hatching an idle worker."
    )
    title = "Items on their way"
    windows = windows_of(report_data.streams)
    if not windows:
        return chapter("stream", title, says, missing_files(TRACE, TRACE_BY))
    key = legend([("other", "items that are not in the window"), ("idle", "idle")])
    drawing = stream_gantt(windows, report_data.inputs)
    return chapter("stream", title, says, key, drawing, slice_table(windows))


def stages_chapter(report_data: PipelineReportData) -> Markup:
    """Return the chapter of the stages."""
    says = "What each stage takes, and what its worker does while others work."
    title = "The stages"
    run = report_data.run
    if run is None or not run.stages:
        return chapter("stages", title, says, missing_files(RUN, RUN_BY))
    untimed = None
    if run.untimed:
        names = ", ".join(run.untimed)
        untimed = quiet(f"Nobody predicted Python stages, they count nothing here: {names}.")
    numbers = (_stage_table(run), untimed, _forecast_table(report_data, run))
    terms = (tag("h3", "Terms"), definition_list(MEANINGS))
    return chapter("stages", title, says, *numbers, worker_time(run.stages), *terms)


def _stage_table(run: StreamSummary) -> Markup:
    kind = run.timing or "unlabelled"
    item = (f"an item, {kind} (ms)", "of it copies (ms)", "share (ms)")
    waits = ("busy", "starved (ms)", "blocked (ms)")
    header = ("stage", "on", *item, *waits, "late", "failed")
    rows = (_stage_row(stage, run) for stage in run.stages)
    return table(f"Stages, {kind} milliseconds", header, rows, text_columns=frozenset({0, 1}))


def _stage_row(stage: StageRow, run: StreamSummary) -> tuple[str, ...]:
    return (
        f"{stage.name} (slowest)" if run.slowest is stage else stage.name,
        " | ".join(stage.processors),
        plain_ms(stage.service_ms),
        plain_ms(stage.copies_ms) if stage.copies_ms else "",
        plain_ms(stage.share_ms),
        percent(stage.share_ms / run.period_ms if run.period_ms else None, 0),
        plain_ms(stage.starved_ms),
        plain_ms(stage.blocked_ms),
        count(stage.late),
        count(stage.failed),
    )


def _forecast_table(report_data: PipelineReportData, run: StreamSummary) -> Markup | None:
    """Return each stage beside its prediction, where the trace holds both."""
    predictions = (s.service_ms for s in report_data.streams if s.source == "predicted")
    predicted_ms = next(predictions, {})
    rows: list[tuple[str, ...]] = []
    for stage in run.stages:
        if stage_ms := predicted_ms.get(stage.name):
            off = UNKNOWN
            if stage.service_ms:
                off = signed_percent(stage_ms / stage.service_ms - 1)
            rows.append((stage.name, plain_ms(stage_ms), plain_ms(stage.service_ms), off))
    if not rows or run.timing == "predicted":
        return None
    kind = run.timing or "unlabelled"
    header = ("stage", "predicted (ms)", f"{kind} (ms)", "prediction off by")
    return table(f"An item at each stage, predicted and {kind}", header, rows)


def split_chapter(report_data: PipelineReportData) -> Markup:
    """Return the chapter of how the network was divided."""
    says = "All predicted. How the network was divided, and what no division can beat."
    split = report_data.split
    if split is None:
        return chapter("split", "The split", says, missing_files(SPLIT, SPLIT_BY))
    ends = ("stage", "processor", "from", "to")
    latencies = ("predicted (ms)", "of it copies (ms)", "± (ms)")
    header = (*ends, "MACs", "parameters", *latencies)
    rows = (_split_row(number, stage) for number, stage in enumerate(split.stages))
    caption = "Stages, predicted milliseconds"
    stages = table(caption, header, rows, text_columns=frozenset({0, 1, 2, 3}))
    return chapter("split", "The split", says, fact_list(_split_facts(split)), stages)


def best_of(split_at: str | None) -> str:
    """Return what is proven of a division into stages."""
    if split_at == "segments":
        return "no grouping of the plan's segments is better"
    return "no split between layers is better"


def _split_facts(split: PartitionSummary) -> tuple[tuple[str, str], ...]:
    why_open = f": {split.why_open}" if split.why_open else ""
    certificates = {
        True: best_of(split.split_at),
        False: f"not proven best{why_open}",
        None: UNKNOWN,
    }
    single_ms = split.single_ms.get(split.fastest) if split.fastest else None
    return (
        ("predicted bottleneck", ms(split.bottleneck_ms)),
        ("balance", UNKNOWN if split.balance is None else f"{split.balance:.3f}"),
        ("no split between layers beats", ms(split.bound_ms)),
        (f"on {split.fastest or 'one processor'} alone", ms(single_ms)),
        ("throughput over that", times(split.speedup_vs_fastest)),
        ("certificate", certificates[split.proven]),
    )


def _split_row(number: int, stage: SplitStage) -> tuple[str, ...]:
    copies_ms = None
    if stage.transfer_in_ms is not None or stage.transfer_out_ms is not None:
        copies_ms = (stage.transfer_in_ms or 0.0) + (stage.transfer_out_ms or 0.0)
    return (
        str(number),
        " | ".join(stage.processors or (stage.processor or "",)),
        stage.start or UNKNOWN,
        stage.end or UNKNOWN,
        amount(stage.macs),
        amount(stage.params),
        plain_ms(stage.latency_ms),
        plain_ms(copies_ms),
        plain_ms(stage.error_ms),
    )
