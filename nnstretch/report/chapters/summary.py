"""Networks side by side, and where the numbers come from."""

from __future__ import annotations

from nnstretch.report.chapters.elements import chapter, definition_list, missing_files, quiet
from nnstretch.report.format_numbers import UNKNOWN, accuracy, amount, count, plain_ms, times
from nnstretch.report.html import Markup, collapsible, join, table, tag
from nnstretch.report.load.data import ReportData, SummaryRow


def summary_chapter(report_data: ReportData) -> Markup:
    """Return the chapter that compares the networks."""
    says = "The networks side by side. Each latency column holds one kind of number."
    title = "Summary"
    if not report_data.summary:
        return chapter("summary", title, says, missing_files("summary.json", "the demo"))
    latencies = ("predicted (ms)", "predictor's error (ms)", "emulated (ms)")
    header = ("network", "runs on", "accuracy", "MACs", "parameters", *latencies)
    rows = map(_summary_row, report_data.summary.rows)
    networks = table("Networks compared", header, rows, text_columns=frozenset({0, 1}))
    notes = map(quiet, (*report_data.summary.notes, *_disagreements(report_data)))
    return chapter("summary", title, says, networks, join(notes))


def _summary_row(row: SummaryRow) -> tuple[str, ...]:
    error = UNKNOWN if row.predicted_error_ms is None else f"± {row.predicted_error_ms:,.3f}"
    return (
        row.network,
        row.processor or UNKNOWN,
        accuracy(row.accuracy),
        amount(row.macs),
        amount(row.params),
        plain_ms(row.predicted_ms),
        error,
        plain_ms(row.emulated_ms),
    )


def _disagreements(report_data: ReportData) -> list[str]:
    """Return where two files that speak of one speed-up disagree."""
    summary = report_data.summary
    plan = report_data.plan
    if not (summary and plan):
        return []
    compared = (
        ("the fastest single processor", summary.speedup_vs_fastest, plan.speedup_vs_fastest),
        ("equal MACs", summary.speedup_vs_iso_mac, plan.speedup_vs_iso_mac),
    )
    sentences: list[str] = []
    for what, in_summary, in_plan in compared:
        if in_summary and in_plan and abs(in_summary / in_plan - 1) > 0.01:
            first = f"summary.json says {times(in_summary)} over {what}"
            sentences.append(f"{first}, the first plan of search.json says {times(in_plan)}.")
    return sentences


def provenance_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of sources, commands and files."""
    says = (
        "Where the latency predictor comes from, the commands as the files give them, and the files"
        " this page was made of."
    )
    sources = report_data.sources
    source = definition_list(sources) if sources else quiet("No provenance is given.")
    listed: list[str] = []
    rows: list[tuple[str, ...]] = []
    for file in report_data.files:
        listed.extend(f"# {file.name}\n{command}" for command in file.commands)
        rows.append((file.name, count(file.size_bytes), tag("code", file.sha256)))
    commands = tag("pre", "\n\n".join(listed)) if listed else quiet("No command is given.")
    header = ("file", "bytes", "SHA-256")
    files = collapsible("Files", table("Files read", header, rows, text_columns=frozenset({0, 2})))
    content = (source, tag("h3", "Commands"), commands, files)
    return chapter("provenance", "Provenance and commands", says, *content)
