"""The plan, where its milliseconds go, what was searched, and the best plans."""

from __future__ import annotations

from itertools import chain

from nnstretch.report.chapters.elements import chapter, fact_list, missing_files, quiet
from nnstretch.report.charts import svg
from nnstretch.report.charts.curves_and_bars import count_bars
from nnstretch.report.charts.latency_breakdown import TERMS, term_bars, term_table, term_total
from nnstretch.report.charts.palette import legend, processor_legend
from nnstretch.report.charts.plan_diagram import plan_picture
from nnstretch.report.constraint_help import explain_constraint
from nnstretch.report.format_numbers import UNKNOWN, amount, ms, percent, plain_ms, seconds, times
from nnstretch.report.html import Markup, collapsible, join, table, tag
from nnstretch.report.load.data import PlanCost, ReportData, SearchSummary

SEARCH_BY = "nnstretch search --json"


def plan_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the plan."""
    says = (
        "Read it from left to right. Lanes are processors, boxes in a row are depth, their height"
        " grows with the square root of the width (labels: depth × width, and the predicted time of"
        " the branch). Lanes that join at a dot meet there. Below stand the predicted time of the"
        " segment and what the original takes for the same layers."
    )
    text = None
    if report_data.plan_text is not None:
        text = collapsible("plan.yaml", tag("pre", report_data.plan_text))
    segments = report_data.plan.segments if report_data.plan else ()
    if not segments:
        missing = missing_files("search.json with a plan", SEARCH_BY)
        return chapter("plan", "The plan", says, missing, text)
    branches = chain.from_iterable(segment.branches for segment in segments)
    processors = [branch.processor for branch in branches]
    key = legend([*processor_legend(processors), ("meet", "meeting point")])
    return chapter("plan", "The plan", says, key, plan_picture(segments), text)


def terms_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the latency's terms."""
    says = (
        "All predicted. Branches of a segment end together: what one does not compute or copy, it"
        " waits, synchronises or merges."
    )
    title = "Where the milliseconds go"
    segments = report_data.plan.segments if report_data.plan else ()
    if not segments:
        return chapter("terms", title, says, missing_files("search.json with a plan", SEARCH_BY))
    fastest = report_data.search.fastest if report_data.search else None
    drawing = svg.scrolling(term_bars(segments, fastest), "Latency terms")
    total = quiet(term_total(segments))
    numbers = term_table(segments, fastest)
    return chapter("terms", title, says, legend(TERMS), drawing, total, numbers)


def space_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the searched space."""
    says = (
        "How many plans there are, what is proven about the best one, and how often each constraint"
        " refused a candidate."
    )
    title = "What was searched"
    search = report_data.search
    if not search:
        return chapter("space", title, says, missing_files("search.json", SEARCH_BY))
    refused = search.space.refused
    bars = quiet("No constraint refused anything.")
    if refused:
        bars = count_bars(refused, explain_constraint)
    return chapter("space", title, says, fact_list(_space_facts(search)), bars)


def _space_facts(search: SearchSummary) -> tuple[tuple[str, str], ...]:
    size = UNKNOWN
    if search.space.log10_size is not None:
        size = join(("10", tag("sup", f"{search.space.log10_size:.1f}")))
    certificates = {
        True: "proven optimum of the whole space",
        False: "best found, not proven",
        None: UNKNOWN,
    }
    bound = ms(search.lower_bound_ms)
    best_ms = search.plans[0].latency_ms if search.plans else 0.0
    if best_ms and search.lower_bound_ms:
        bound += f", gap {percent(1 - search.lower_bound_ms / best_ms, 2)}"
    return (
        ("plans in the space", size),
        ("certificate", certificates[search.optimal]),
        ("predicted lower bound", bound),
        ("search took", seconds(search.search_s)),
    )


def plans_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the best plans."""
    says = (
        "The best plans in order of predicted latency; plans closer together than the predictor's"
        " error are a tie."
    )
    title = "The best plans"
    plans = report_data.search.plans if report_data.search else ()
    if not plans:
        missing = missing_files("search.json with plans", "nnstretch search --top K --json")
        return chapter("plans", title, says, missing)
    sizes = ("MACs", "parameters")
    compared = ("vs fastest", "equal MACs (ms)", "vs equal MACs")
    header = ("rank", "predicted (ms)", "± (ms)", *sizes, *compared, "branched segments")
    rows = (_plan_row(plan, rank) for rank, plan in enumerate(plans, 1))
    listed = table("Plans by predicted latency", header, rows, text_columns=frozenset({8}))
    return chapter("plans", title, says, listed)


def _plan_row(plan: PlanCost, rank: int) -> tuple[str, ...]:
    branched: list[str] = []
    for segment in plan.segments:
        if segment.branched:
            branches = " | ".join(f"{b.processor} {b.shape}".strip() for b in segment.branches)
            branched.append(f"{segment.end} [{branches}]")
    return (
        str(rank),
        plain_ms(plan.latency_ms),
        plain_ms(plan.error_ms),
        amount(plan.macs),
        amount(plan.params),
        times(plan.speedup_vs_fastest),
        plain_ms(plan.iso_mac_latency_ms),
        times(plan.speedup_vs_iso_mac),
        join(branched, tag("br")) or "none",
    )
