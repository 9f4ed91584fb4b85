"""The first screen: how much faster, beside what, how sure, and what kind of number each one is."""

from __future__ import annotations

from nnstretch.report.chapters.elements import cautions, figure, headline_section, quiet
from nnstretch.report.charts.curves_and_bars import LatencyBar, latency_bars
from nnstretch.report.format_numbers import accuracy, ms, percent, times
from nnstretch.report.html import Markup, tag
from nnstretch.report.load.data import HeadlineSummary, PlanCost, ReportData


def headline(report_data: ReportData) -> Markup:
    """Return the page's first screen."""
    words = (
        _figures(report_data),
        _split(report_data),
        _verdict(report_data.plan),
        _runs(report_data),
        _accuracy(report_data),
    )
    drawing = None
    if bars := _bars(report_data):
        caption = tag("figcaption", "Predicted latency, with the predictor's error")
        drawing = tag("figure", caption, latency_bars(bars))
    screen = tag("div", tag("div", *words), drawing, class_="hero" if bars else None)
    warnings = cautions(report_data.search, report_data.runs.values())
    return headline_section("headline", screen, warnings)


def _speedups(report_data: ReportData) -> tuple[float | None, float | None]:
    """Return the speed-ups over the fastest single processor and over equal MACs."""
    source = report_data.plan or report_data.summary
    return (source.speedup_vs_fastest, source.speedup_vs_iso_mac) if source else (None, None)


def _figures(report_data: ReportData) -> Markup:
    search = report_data.search
    plan = report_data.plan
    vs_fastest, vs_iso_mac = _speedups(report_data)
    if not (vs_fastest or vs_iso_mac):
        says = (
            "No speed-up is given: search.json and summary.json hold none, or are not in this"
            " folder."
        )
        return tag("p", says, class_="absent")
    where = f" ({search.fastest})" if search and search.fastest else ""
    says_fastest = f"as fast as the original on its fastest single processor{where}"
    says_iso_mac = "as fast as a single-branch network of equal MACs on its fastest processor"
    note_fastest = None
    note_iso_mac = None
    if search and plan:
        latency = f"{_with_error(plan.latency_ms, plan.error_ms)}, predicted"
        note_fastest = f"{_with_error(search.fastest_ms, search.fastest_error_ms)} → {latency}"
        note_iso_mac = f"{ms(plan.iso_mac_latency_ms)} → {latency}"
    return tag(
        "dl",
        figure(times(vs_fastest), says_fastest, note_fastest),
        figure(times(vs_iso_mac), says_iso_mac, note_iso_mac),
        class_="figures",
    )


def _with_error(latency_ms: float | None, error_ms: float | None) -> str:
    return ms(latency_ms) if error_ms is None else f"{ms(latency_ms)} ± {ms(error_ms)}"


def _split(report_data: ReportData) -> Markup | None:
    """Return how much of a speed-up is a smaller network, and how much concurrency."""
    whole, concurrency = _speedups(report_data)
    if not (whole and concurrency):
        return None
    smaller = f"{times(whole)} = {times(whole / concurrency)} from doing less work"
    return quiet(f"{smaller} × {times(concurrency)} from branches that run at the same time.")


def _verdict(plan: PlanCost | None) -> Markup | None:
    """Return whether the gain is larger than what the predictor gets wrong."""
    if plan is None or plan.error_ms is None or plan.iso_mac_latency_ms is None:
        return None
    gain_ms = plan.iso_mac_latency_ms - plan.latency_ms
    share = plan.error_ms / plan.latency_ms if plan.latency_ms else 0.0
    compared = "more than" if gain_ms > plan.error_ms else "no more than"
    off = f"The predictor is usually off by {ms(plan.error_ms)} here ({percent(share)})."
    return quiet(f"{off} The gain over equal MACs, {ms(gain_ms)}, is {compared} that.")


def _runs(report_data: ReportData) -> Markup | None:
    """Compare the medians of two runs whose times are of one kind."""
    original = report_data.runs.get("original")
    branched = report_data.runs.get("branched")
    if original is None or branched is None or original.timing != branched.timing:
        return None
    before_ms = original.latency_ms.get("median")
    after_ms = branched.latency_ms.get("median")
    if not (before_ms and after_ms):
        return None
    how = f", {branched.clock} clock" if branched.clock else ""
    kind = branched.timing or "time unlabelled"
    gain = f"{ms(before_ms)} → {ms(after_ms)}, {times(before_ms / after_ms)}"
    return quiet(f"The exported networks, {kind}: {gain} (medians{how}).")


def _accuracy(report_data: ReportData) -> Markup | None:
    last: list[str] = []
    for network, epochs in report_data.training.items():
        scores = [e.val_accuracy for e in epochs if e.val_accuracy is not None]
        if scores:
            last.append(f"{accuracy(scores[-1])} {network}")
    return quiet(f"Held-out accuracy after training: {', '.join(last)}.") if last else None


def _bars(report_data: ReportData) -> tuple[LatencyBar, ...]:
    search = report_data.search
    plan = report_data.plan
    summary = report_data.summary
    if plan is None:
        return _summary_bars(summary) if summary else ()
    bars: list[LatencyBar] = []
    if search and search.fastest_ms:
        error_ms = search.fastest_error_ms
        if error_ms is None:
            error_ms = _summary_error_ms(search.fastest_ms, summary)
        bars.append(LatencyBar(f"original on {search.fastest}", search.fastest_ms, error_ms, ""))
    iso_ms = plan.iso_mac_latency_ms
    if iso_ms is not None:
        error_ms = _summary_error_ms(iso_ms, summary)
        bars.append(LatencyBar("equal MACs, one branch", iso_ms, error_ms, "iso"))
    return (*bars, LatencyBar("branched", plan.latency_ms, plan.error_ms, "ours"))


def _summary_bars(summary: HeadlineSummary) -> tuple[LatencyBar, ...]:
    bars: list[LatencyBar] = []
    for number, row in enumerate(summary.rows):
        if row.predicted_ms:
            look = "ours" if number else ""
            name = row.network[:26]
            bars.append(LatencyBar(name, row.predicted_ms, row.predicted_error_ms, look))
    return tuple(bars)


def _summary_error_ms(latency_ms: float, summary: HeadlineSummary | None) -> float | None:
    """Return the error of a prediction that the search gives without: the summary's row has it."""
    for row in summary.rows if summary else ():
        if row.predicted_ms and abs(row.predicted_ms - latency_ms) <= 0.001 * latency_ms:
            return row.predicted_error_ms
    return None
