"""The first screen of a pipeline: results per second, beside what, and what bounds them."""

from __future__ import annotations

from nnstretch.report.chapters.elements import (
    cautions,
    figure,
    headline_section,
    missing_files,
    quiet,
)
from nnstretch.report.format_numbers import (
    UNKNOWN,
    count,
    digits,
    ms,
    percent,
    signed_percent,
    times,
)
from nnstretch.report.html import Markup, tag
from nnstretch.report.load.pipeline import RUN
from nnstretch.report.load.pipeline_data import PipelineReportData, StreamSummary

RUN_BY = "nnstretch run --mode pipeline --json"


def pipeline_headline(report_data: PipelineReportData) -> Markup:
    """Show results per second, beside what, and how close to what the slowest stage allows."""
    run = report_data.run
    warnings = cautions(report_data.split, (run,))
    if run is None:
        return headline_section("stream-headline", missing_files(RUN, RUN_BY), warnings)
    kind = run.timing or "unlabelled"
    says = f"the throughput of the same stages in turn, {kind}"
    gain = figure(times(run.gain), says, _throughputs(run))
    allows = "of what the slowest stage allows"
    efficiency = figure(percent(run.efficiency, 0), allows, _bottleneck(run))
    figures = tag("dl", gain, efficiency, class_="figures")
    words = (quiet(_forecast(run)), quiet(_one_item(run)), warnings, _failures(run))
    return headline_section("stream-headline", figures, *words)


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{digits(value)} /s"


def _throughputs(run: StreamSummary) -> str:
    """Compare throughputs; a word tells two kinds of milliseconds apart where they meet."""
    differs = run.sequential_is and run.sequential_is != run.timing
    kind = f" ({run.sequential_is})" if differs else ""
    rates = f"{_rate(run.sequential_throughput_per_s)}{kind} → {_rate(run.throughput_per_s)}"
    return f"{rates}, a result every {ms(run.period_ms)}"


def _bottleneck(run: StreamSummary) -> str:
    slowest = run.slowest
    where = f"{slowest.name} on {' | '.join(slowest.processors)}" if slowest else UNKNOWN
    balance = UNKNOWN if run.balance is None else f"{run.balance:.3f}"
    slowest_is = f"The slowest is {where}: {ms(run.bottleneck_ms)}"
    return f"{slowest_is}; balance of the network's stages {balance}"


def _forecast(run: StreamSummary) -> str:
    """Return the predicted bottleneck, and how far off it was; never compared with itself."""
    if run.predicted_bottleneck_ms is None:
        return "Nobody predicted the bottleneck: the bundle has no times of this chip."
    predicted = f"Predicted bottleneck: {ms(run.predicted_bottleneck_ms)}"
    if run.timing == "predicted" or not run.bottleneck_ms:
        return f"{predicted}."
    slowest = run.slowest
    if slowest and slowest.processors == (slowest.name,):  # a Python stage
        of_others = f"of the stages that have predictions; the slowest, {slowest.name}, has none"
        return f"{predicted}, {of_others}."
    off = signed_percent(run.predicted_bottleneck_ms / run.bottleneck_ms - 1)
    return f"{predicted}, {off} against {ms(run.bottleneck_ms)} {run.timing or 'unlabelled'}."


def _one_item(run: StreamSummary) -> str:
    median = ms(run.latency_ms.get("median"))
    p99 = ms(run.latency_ms.get("p99"))
    words = f"One of {count(run.items)} items takes {median} from end to end (p99 {p99})"
    if run.dispatch_overhead_us is not None:
        words += f"; to be handed on costs {digits(run.dispatch_overhead_us)} µs a stage"
    if run.dilation not in (None, 1.0):
        slowed = f"slowed down {digits(run.dilation or 1.0)} times, already divided out"
        words += f". The clock was {slowed}"
    return f"{words}."


def _failures(run: StreamSummary) -> Markup | None:
    if not run.failed:
        return None
    failed = tag("strong", f"{count(run.failed)} items failed.")
    return tag("p", failed, f" The first: {run.first_error or UNKNOWN}", class_="absent")
