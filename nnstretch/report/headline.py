"""The first screen: how much faster, beside what, how sure, and what kind of number each one is."""

from __future__ import annotations

from nnstretch.report.charts.curves_and_bars import LatencyBar, latency_bars
from nnstretch.report.format_numbers import accuracy, ms, percent, times
from nnstretch.report.html import Markup, join, tag
from nnstretch.report.load.data import PlanCost, ReportData, SearchSummary, SummaryRow

KINDS = (
    ("Predicted", "is added up from a latency predictor and shown with its error."),
    (
        "Emulated",
        (
            "is a run that computes the true values on this host while every processor takes its"
            " predicted time."
        ),
    ),
    ("Measured", "is read from a clock while a run takes its time."),
)
HONEST_START = "Three kinds of milliseconds, never mixed in one column. "
HONEST_END = "Where processors are emulated, no number was taken on the chip itself."


def headline(report_data: ReportData) -> Markup:
    """Return the page's first screen."""
    figures = tag(
        "dl", _against_fastest(report_data), _against_iso_mac(report_data), class_="figures"
    )
    if not any(speedups(report_data)):
        figures = tag(
            "p",
            "No speed-up is given: search.json and summary.json hold none, or are not in this"
            " folder.",
            class_="absent",
        )
    bars = _bars(report_data)
    drawing = (
        tag(
            "figure",
            tag("figcaption", "Predicted latency, with the predictor's error"),
            latency_bars(bars),
        )
        if bars
        else None
    )
    shown = tag(
        "div",
        tag(
            "div",
            figures,
            _split(report_data),
            _verdict(report_data),
            _runs(report_data),
            _accuracy(report_data),
        ),
        drawing,
        class_="hero" if bars else None,
    )
    return tag(
        "section",
        shown,
        _uncalibrated(report_data),
        speedup_caveat(),
        id="headline",
        aria_label="Headline",
    )


def _uncalibrated(report_data: ReportData) -> Markup | None:
    if not (report_data.search and report_data.search.calibrated is False):
        return None
    says = (
        f"The chip {report_data.search.soc or ''} is not calibrated: no latency of it was ever"
        " published, its numbers derive from specifications."
    )
    return tag("p", tag("strong", says), class_="absent")


def speedup_caveat() -> Markup:
    """Explain what the kinds of milliseconds are."""
    kinds = join(join((tag("strong", kind), f" {says} ")) for kind, says in KINDS)
    return tag("p", HONEST_START, kinds, HONEST_END, class_="honest")


def speedups(report_data: ReportData) -> tuple[float | None, float | None]:
    """Return the speed-ups of the drawn plan over the fastest single processor, and over the
    network of equal MACs.
    """
    speedup_source = report_data.plan or report_data.summary
    return (
        (speedup_source.speedup_vs_fastest, speedup_source.speedup_vs_iso_mac)
        if speedup_source
        else (None, None)
    )


def _figure(value: float | None, says: str, *more: str | None) -> Markup:
    notes = join(tag("p", note, class_="quiet") for note in more if note)
    return tag("div", tag("dd", times(value)), tag("dt", says, notes))


def _against_fastest(report_data: ReportData) -> Markup:
    search, plan = report_data.search, report_data.plan
    where = f" ({search.fastest})" if search and search.fastest else ""
    says = f"as fast as the original on its fastest single processor{where}"
    if not (search and plan):
        return _figure(speedups(report_data)[0], says)
    return _figure(
        speedups(report_data)[0], says, f"{ms(search.fastest_ms)} → {_with_error(plan)}, predicted"
    )


def _against_iso_mac(report_data: ReportData) -> Markup:
    plan = report_data.plan
    more = f"{ms(plan.iso_mac_latency_ms)} → {_with_error(plan)}, predicted" if plan else None
    return _figure(
        speedups(report_data)[1],
        "as fast as a single-branch network of equal MACs on its fastest processor",
        more,
    )


def _with_error(plan: PlanCost) -> str:
    return (
        ms(plan.latency_ms)
        if plan.error_ms is None
        else f"{ms(plan.latency_ms)} ± {ms(plan.error_ms)}"
    )


def _split(report_data: ReportData) -> Markup | None:
    """Return how much of a speed-up is a smaller network, and how much concurrency."""
    whole, concurrency = speedups(report_data)
    if not (whole and concurrency):
        return None
    less = times(whole / concurrency)
    words = (
        f"{times(whole)} = {less} from doing less work × {times(concurrency)} from branches that"
        " run at the same time."
    )
    return tag("p", words, class_="quiet")


def _verdict(report_data: ReportData) -> Markup | None:
    """Return whether the gain is larger than what the predictor gets wrong."""
    plan = report_data.plan
    if not plan or plan.error_ms is None or plan.iso_mac_latency_ms is None:
        return None
    gain_ms, share = (
        plan.iso_mac_latency_ms - plan.latency_ms,
        plan.error_ms / plan.latency_ms if plan.latency_ms else 0.0,
    )
    compared = "more than" if gain_ms > plan.error_ms else "no more than"
    off = f"The predictor is usually off by {ms(plan.error_ms)} here ({percent(share)})."
    return tag(
        "p", f"{off} The gain over equal MACs, {ms(gain_ms)}, is {compared} that.", class_="quiet"
    )


def _runs(report_data: ReportData) -> Markup | None:
    """Return the runs' own medians in a sentence of their own; two kinds of number are never
    compared.
    """
    medians = [
        report_data.runs[kind].latency_ms.get("median")
        for kind in ("original", "branched")
        if kind in report_data.runs
    ]
    if (
        len(medians) < 2
        or not (medians[0] and medians[1])
        or len({run.timing for run in report_data.runs.values()}) > 1
    ):
        return None
    branched = report_data.runs["branched"]
    how = f", {branched.clock} clock" if branched.clock else ""
    kind = branched.timing or "time unlabelled"
    words = (
        f"The exported networks, {kind}: {ms(medians[0])} → {ms(medians[1])},"
        f" {times(medians[0] / medians[1])} (medians{how})."
    )
    return tag("p", words, class_="quiet")


def _accuracy(report_data: ReportData) -> Markup | None:
    last = {
        kind: [e.val_accuracy for e in epochs if e.val_accuracy is not None]
        for kind, epochs in report_data.training.items()
    }
    told = [f"{accuracy(scores[-1])} {kind}" for kind, scores in last.items() if scores]
    return (
        tag("p", f"Held-out accuracy after training: {', '.join(told)}.", class_="quiet")
        if told
        else None
    )


def _bars(report_data: ReportData) -> tuple[LatencyBar, ...]:
    search, plan = report_data.search, report_data.plan
    if not plan:
        return (
            tuple(
                _summary_bar(row, i)
                for i, row in enumerate(report_data.summary.rows)
                if row.predicted_ms
            )
            if report_data.summary
            else ()
        )
    bars = (
        [
            LatencyBar(
                _original_name(search),
                search.fastest_ms,
                _error_of(search.fastest_ms, report_data),
                "",
            )
        ]
        if search and search.fastest_ms
        else []
    )
    if plan.iso_mac_latency_ms is not None:
        bars.append(
            LatencyBar(
                "equal MACs, one branch",
                plan.iso_mac_latency_ms,
                _error_of(plan.iso_mac_latency_ms, report_data),
                "iso",
            )
        )
    return (*bars, LatencyBar("branched", plan.latency_ms, plan.error_ms, "ours"))


def _summary_bar(row: SummaryRow, number: int) -> LatencyBar:
    return LatencyBar(
        row.network[:26], row.predicted_ms or 0.0, row.predicted_error_ms, "ours" if number else ""
    )


def _original_name(search: SearchSummary | None) -> str:
    return f"original on {search.fastest}" if search and search.fastest else "original"


def _error_of(latency_ms: float, report_data: ReportData) -> float | None:
    """Return the error of the prediction; the search gives none for other networks.

    The summary may, in the row of the same latency.
    """
    rows = report_data.summary.rows if report_data.summary else ()
    near = (
        row
        for row in rows
        if row.predicted_ms and abs(row.predicted_ms - latency_ms) <= 0.001 * latency_ms
    )
    return next((row.predicted_error_ms for row in near), None)
