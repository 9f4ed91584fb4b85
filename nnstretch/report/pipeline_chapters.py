"""The chapters of a pipeline.

How fast results come, who works on which item when, what each stage does, how it was split.
"""

from __future__ import annotations

from nnstretch.report.chapters import chapter, missing_chapter
from nnstretch.report.charts import svg
from nnstretch.report.charts.gantt_pipeline import gantt_of, slice_table
from nnstretch.report.charts.palette import legend
from nnstretch.report.format_numbers import (
    UNKNOWN,
    amount,
    count,
    digits,
    ms,
    percent,
    plain_ms,
    signed_percent,
    times,
)
from nnstretch.report.headline import speedup_caveat
from nnstretch.report.html import Markup, join, table, tag
from nnstretch.report.load.pipeline import RUN, SPLIT, TRACE
from nnstretch.report.load.pipeline_data import (
    PipelineReportData,
    SplitStage,
    StageRow,
    StreamSummary,
    windows_of,
)

RUN_BY, TRACE_BY = "nnstretch run --mode pipeline --json", "nnstretch run --mode pipeline --trace"
SPLIT_BY = "nnstretch partition --json"
WAITS = (
    ("wait-busy", "busy"),
    ("wait-starved", "starved: waits for an item"),
    ("wait-blocked", "blocked: waits for room behind it"),
)
MEANINGS = (
    ("an item", "What a stage takes for one item, the median."),
    (
        "share",
        (
            "The longer of its compute and its copies, over its replicas: at best a result comes as"
            " often as the largest share."
        ),
    ),
    ("busy", "Share of the time between two results that a worker computes."),
    (
        "starved, blocked",
        "Time, all items together, that a worker waited for an item, or for room behind it.",
    ),
    (
        "efficiency",
        (
            "The largest share over the time between two results: 1 where nothing but the slowest"
            " stage counts."
        ),
    ),
    ("balance", "The mean stage over the slowest; Python stages, which nobody balances, apart."),
    (
        "stages in turn",
        "The same stages, one item after another; its throughput is what a pipeline has to beat.",
    ),
)


def stream_headline(report_data: PipelineReportData) -> Markup:
    """Show results per second, beside what, and how close to what the slowest stage allows."""
    run = report_data.run
    if run is None:
        return tag(
            "section",
            missing_chapter(RUN, RUN_BY),
            speedup_caveat(),
            id="stream-headline",
            aria_label="Headline",
        )
    kind = run.timing or "unlabelled"
    figures = (
        _figure(
            times(run.gain), f"the throughput of the same stages in turn, {kind}", _against(run)
        ),
        _figure(percent(run.efficiency, 0), "of what the slowest stage allows", _bottleneck(run)),
    )
    words = (_forecast(run), _one_item(run), _failures(run))
    return tag(
        "section",
        tag("dl", *figures, class_="figures"),
        *words,
        speedup_caveat(),
        id="stream-headline",
        aria_label="Headline",
    )


def _figure(value: str, says: str, note: str) -> Markup:
    return tag("div", tag("dd", value), tag("dt", says, tag("p", note, class_="quiet")))


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{digits(value)} /s"


def _against(run: StreamSummary) -> str:
    """Return a word that tells two kinds of milliseconds apart where they meet."""
    alone = (
        f" ({run.sequential_is})" if run.sequential_is and run.sequential_is != run.timing else ""
    )
    return (
        f"{_rate(run.sequential_throughput_per_s)}{alone} → {_rate(run.throughput_per_s)}, a result"
        f" every {ms(run.period_ms)}"
    )


def _bottleneck(run: StreamSummary) -> str:
    slowest = run.slowest
    where = f"{slowest.name} on {' | '.join(slowest.processors)}" if slowest else UNKNOWN
    return (
        f"The slowest is {where}: {ms(run.bottleneck_ms)}; balance"
        f" {UNKNOWN if run.balance is None else f'{run.balance:.3f}'}"
    )


def _forecast(run: StreamSummary) -> Markup | None:
    """Return the predicted bottleneck, and how far off it was.

    A prediction is not compared with itself.
    """
    if run.predicted_bottleneck_ms is None:
        return tag(
            "p",
            "Nobody predicted the bottleneck: the bundle has no times of this chip.",
            class_="quiet",
        )
    said = f"Predicted bottleneck: {ms(run.predicted_bottleneck_ms)}"
    if run.timing == "predicted" or not run.bottleneck_ms:
        return tag("p", f"{said}.", class_="quiet")
    if run.slowest and run.slowest.processors == (run.slowest.name,):  # a Python stage
        return tag(
            "p",
            f"{said}, of the stages that have predictions; the slowest, {run.slowest.name}, has"
            " none.",
            class_="quiet",
        )
    off = signed_percent(run.predicted_bottleneck_ms / run.bottleneck_ms - 1)
    return tag(
        "p",
        f"{said}, {off} against {ms(run.bottleneck_ms)} {run.timing or 'unlabelled'}.",
        class_="quiet",
    )


def _one_item(run: StreamSummary) -> Markup:
    median = (
        f"One of {count(run.items)} items takes {ms(run.latency_ms.get('median'))} from end to end"
        f" (p99 {ms(run.latency_ms.get('p99'))})"
    )
    waits = (
        ""
        if run.dispatch_overhead_us is None
        else f"; to be handed on costs {digits(run.dispatch_overhead_us)} µs a stage"
    )
    slowed = (
        ""
        if run.dilation in (None, 1.0)
        else f". The clock was slowed down {digits(run.dilation or 1.0)} times, already divided out"
    )
    return tag("p", f"{median}{waits}{slowed}.", class_="quiet")


def _failures(run: StreamSummary) -> Markup | None:
    if not run.failed:
        return None
    return tag(
        "p",
        tag("strong", f"{count(run.failed)} items failed."),
        f" The first: {run.first_error or UNKNOWN}",
        class_="absent",
    )


def stream_chapter(report_data: PipelineReportData) -> Markup:
    """Return the chapter of the items' timeline."""
    says = (
        "Every worker has a row, every item a colour and a number: follow an item from stage to"
        " stage along its line, or point at it. Where bars of different items stand above each"
        " other, these are computed at the same time. Pale grey are items before and behind those"
        " shown, hatching an idle worker."
    )
    windows = windows_of(report_data.streams)
    title = "Items on their way"
    if not windows:
        return chapter("stream", title, says, missing_chapter(TRACE, TRACE_BY))
    marks = legend([("other", "items that are not in the window"), ("idle", "idle")])
    return chapter(
        "stream", title, says, marks, gantt_of(report_data, windows), slice_table(windows)
    )


def stages_chapter(report_data: PipelineReportData) -> Markup:
    """Return the chapter of the stages."""
    says = "What each stage takes, and what its worker does while others work."
    run = report_data.run
    if run is None or not run.stages:
        return chapter("stages", "The stages", says, missing_chapter(RUN, RUN_BY))
    meanings = tag(
        "dl",
        join(join((tag("dt", name), tag("dd", words))) for name, words in MEANINGS),
        class_="said",
    )
    untimed = (
        tag(
            "p",
            f"Nobody predicted Python stages, they count nothing here: {', '.join(run.untimed)}.",
            class_="quiet",
        )
        if run.untimed
        else None
    )
    return chapter(
        "stages",
        "The stages",
        says,
        _stage_table(run),
        untimed,
        _forecast_table(report_data, run),
        _waits(run),
        tag("h3", "Terms"),
        meanings,
    )


def _stage_table(run: StreamSummary) -> Markup:
    kind = run.timing or "unlabelled"
    header = (
        "stage",
        "on",
        f"an item, {kind} (ms)",
        "of it copies (ms)",
        "share (ms)",
        "busy",
        "starved (ms)",
        "blocked (ms)",
        "late",
        "failed",
    )
    rows = (_stage_row(stage, run) for stage in run.stages)
    return table(f"Stages, {kind} milliseconds", header, rows, text_columns=frozenset({0, 1}))


def _stage_row(stage: StageRow, run: StreamSummary) -> tuple[str, ...]:
    busy = stage.share_ms / run.period_ms if run.period_ms else None
    waits = (plain_ms(stage.starved_ms), plain_ms(stage.blocked_ms))
    name = f"{stage.name} (slowest)" if run.slowest is stage else stage.name
    times_ms = (
        plain_ms(stage.service_ms),
        plain_ms(stage.copies_ms) if stage.copies_ms else "",
        plain_ms(stage.share_ms),
    )
    numbers = (*times_ms, percent(busy, 0), *waits, count(stage.late), count(stage.failed))
    return (name, " | ".join(stage.processors), *numbers)


def _forecast_table(report_data: PipelineReportData, run: StreamSummary) -> Markup | None:
    """Return each stage beside its prediction, where the trace holds both."""
    predicted = next(
        (stream.service_ms for stream in report_data.streams if stream.source == "predicted"), {}
    )
    known = [stage for stage in run.stages if predicted.get(stage.name)]
    if not known or run.timing == "predicted":
        return None
    kind = run.timing or "unlabelled"
    header = ("stage", "predicted (ms)", f"{kind} (ms)", "prediction off by")
    rows = (
        (
            s.name,
            plain_ms(predicted[s.name]),
            plain_ms(s.service_ms),
            _off(predicted[s.name], s.service_ms),
        )
        for s in known
    )
    return table(f"An item at each stage, predicted and {kind}", header, rows)


def _off(predicted_ms: float, found_ms: float) -> str:
    return signed_percent(predicted_ms / found_ms - 1) if found_ms else UNKNOWN


def _waits(run: StreamSummary) -> Markup | None:
    """Show where each worker's time went; a virtual clock does not say."""
    rows = [(stage, _parts(stage)) for stage in run.stages]
    if not any(sum(parts) for _, parts in rows):
        return None
    width, left_px, row_px = 1120.0, 118.0, 26.0
    x = svg.AxisScale(0, 1, left_px, width - 12)
    drawn = join(
        _wait_row(stage, parts, number * row_px, x) for number, (stage, parts) in enumerate(rows)
    )
    spoken = "; ".join(f"{stage.name}: {_spoken(parts)}" for stage, parts in rows)
    title = "Where each worker's time goes"
    drawing = svg.svg(width, row_px * len(rows), title, spoken, drawn, class_="terms")
    return join((tag("h3", title), legend(WAITS), svg.scrolling(drawing, title)))


def _parts(stage: StageRow) -> tuple[float, float, float]:
    return (stage.busy_ms or 0.0, stage.starved_ms or 0.0, stage.blocked_ms or 0.0)


def _spoken(parts: tuple[float, ...]) -> str:
    whole = sum(parts) or 1.0
    return ", ".join(
        f"{name.split(':')[0]} {percent(part / whole, 0)}"
        for (_, name), part in zip(WAITS, parts, strict=True)
    )


def _wait_row(stage: StageRow, parts: tuple[float, ...], top: float, x: svg.AxisScale) -> Markup:
    whole, at = sum(parts) or 1.0, 0.0
    boxes = [
        svg.text(110, top + 16, svg.truncate(stage.name, 106, 12), class_="lane-name", anchor="end")
    ]
    for (look, name), part in zip(WAITS, parts, strict=True):
        tip = f"{stage.name}: {name.split(':')[0]} {ms(part)}, {percent(part / whole, 0)}"
        boxes.append(
            svg.rect(x(at), top + 3, x(at + part / whole) - x(at), 19, class_=look, tip=tip)
        )
        at += part / whole
    return svg.group(*boxes)


def split_chapter(report_data: PipelineReportData) -> Markup:
    """Return the chapter of how the network was divided."""
    says = "All predicted. How the network was divided, and what no division can beat."
    split = report_data.split
    if split is None:
        return chapter("split", "The split", says, missing_chapter(SPLIT, SPLIT_BY))
    header = (
        "stage",
        "processor",
        "from",
        "to",
        "MACs",
        "parameters",
        "predicted (ms)",
        "of it copies (ms)",
        "± (ms)",
    )
    shown = table(
        "Stages, predicted milliseconds",
        header,
        map(_split_row, range(len(split.stages)), split.stages),
        text_columns=frozenset({0, 1, 2, 3}),
    )
    proof = {
        True: "no split between layers is better",
        False: f"not proven best{f': {split.why_open}' if split.why_open else ''}",
        None: UNKNOWN,
    }
    alone = split.single_ms.get(split.fastest) if split.fastest else None
    facts = (
        ("predicted bottleneck", ms(split.bottleneck_ms)),
        ("balance", UNKNOWN if split.balance is None else f"{split.balance:.3f}"),
        ("no pipeline beats", ms(split.bound_ms)),
        (f"on {split.fastest} alone" if split.fastest else "on one processor alone", ms(alone)),
        ("throughput over that", times(split.speedup_vs_fastest)),
        ("certificate", proof[split.proven]),
    )
    listed = tag(
        "dl",
        join(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts),
        class_="facts",
    )
    return chapter("split", "The split", says, listed, shown)


def _split_row(number: int, stage: SplitStage) -> tuple[str, ...]:
    copies = (
        None
        if stage.transfer_in_ms is None and stage.transfer_out_ms is None
        else (stage.transfer_in_ms or 0.0) + (stage.transfer_out_ms or 0.0)
    )
    processors = stage.processors or (stage.processor or "",)
    where = (" | ".join(processors), stage.start or UNKNOWN, stage.end or UNKNOWN)
    return (
        str(number),
        *where,
        amount(stage.macs),
        amount(stage.params),
        plain_ms(stage.latency_ms),
        plain_ms(copies),
        plain_ms(stage.error_ms),
    )
