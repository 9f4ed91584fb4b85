"""The chapters of the page: each shows what its files tell, or says which file is not there."""

from __future__ import annotations

from nnstretch.report.charts import svg
from nnstretch.report.charts.curves_and_bars import Curve, count_bars, curves
from nnstretch.report.charts.gantt import gantt, rows_of, span_table
from nnstretch.report.charts.latency_breakdown import TERMS, term_bars, term_table, term_total
from nnstretch.report.charts.palette import legend, processor_legend
from nnstretch.report.charts.plan_diagram import plan_picture
from nnstretch.report.constraint_help import explain_constraint
from nnstretch.report.format_numbers import (
    UNKNOWN,
    accuracy,
    amount,
    count,
    digits,
    ms,
    percent,
    plain_ms,
    seconds,
    tick,
    times,
)
from nnstretch.report.html import Markup, collapsible, join, table, tag
from nnstretch.report.load.data import PlanCost, ReportData, RunSummary, SummaryRow


def chapter(name: str, title: str, says: str, *content: str | None) -> Markup:
    """Return a chapter with its title and first sentence."""
    return tag("section", tag("h2", title), tag("p", says, class_="lead"), *content, id=name)


def missing_chapter(files: str, made_by: str) -> Markup:
    """Return the line about files that the folder lacks."""
    return tag(
        "p",
        "Not in this folder: ",
        tag("code", files),
        f". It is what {made_by} writes.",
        class_="absent",
    )


def summary_chapter(report_data: ReportData) -> Markup:
    """Return the summary."""
    says = "The networks side by side. Each latency column holds one kind of number."
    if not report_data.summary:
        return chapter("summary", "Summary", says, missing_chapter("summary.json", "the demo"))
    header = (
        "network",
        "runs on",
        "accuracy",
        "MACs",
        "parameters",
        "predicted (ms)",
        "predictor's error (ms)",
        "emulated (ms)",
    )
    shown = table(
        "Networks compared",
        header,
        map(_summary_row, report_data.summary.rows),
        text_columns=frozenset({0, 1}),
    )
    notes = join(
        tag("p", note, class_="quiet")
        for note in (*report_data.summary.notes, *_disagreements(report_data))
    )
    return chapter("summary", "Summary", says, shown, notes)


def _summary_row(row: SummaryRow) -> tuple[str, ...]:
    error = UNKNOWN if row.predicted_error_ms is None else f"± {row.predicted_error_ms:,.3f}"
    work = (accuracy(row.accuracy), amount(row.macs), amount(row.params))
    return (
        row.network,
        row.processor or UNKNOWN,
        *work,
        plain_ms(row.predicted_ms),
        error,
        plain_ms(row.emulated_ms),
    )


def _disagreements(report_data: ReportData) -> list[str]:
    """Return where two files that speak of one speed-up disagree."""
    summary, plan = report_data.summary, report_data.plan
    if not (summary and plan):
        return []
    pairs = (
        ("the fastest single processor", summary.speedup_vs_fastest, plan.speedup_vs_fastest),
        ("equal MACs", summary.speedup_vs_iso_mac, plan.speedup_vs_iso_mac),
    )
    return [
        f"summary.json says {times(ours)} over {what}, the first plan of search.json says"
        f" {times(theirs)}."
        for what, ours, theirs in pairs
        if ours and theirs and abs(ours / theirs - 1) > 0.01
    ]


def plan_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the plan."""
    says = (
        "Read it from left to right. Lanes are processors, boxes in a row are depth, their height"
        " grows with the square root of the width (labels: depth × width, and the predicted time of"
        " the branch). Lanes that join at a dot meet there. Below stand the predicted time of the"
        " segment and what the original takes for the same layers."
    )
    if not report_data.plan or not report_data.plan.segments:
        return chapter(
            "plan",
            "The plan",
            says,
            missing_chapter("search.json with a plan", "nnstretch search --json"),
            _plan_text(report_data),
        )
    used = [
        branch.processor for segment in report_data.plan.segments for branch in segment.branches
    ]
    marks = legend([*processor_legend(used), ("meet", "meeting point")])
    return chapter(
        "plan",
        "The plan",
        says,
        marks,
        plan_picture(report_data.plan.segments),
        _plan_text(report_data),
    )


def _plan_text(report_data: ReportData) -> Markup | None:
    return (
        None
        if report_data.plan_text is None
        else collapsible("plan.yaml", tag("pre", report_data.plan_text))
    )


def gantt_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of predicted and measured timelines."""
    says = (
        "One inference of each network on one time axis. A dashed line with a diamond is a meeting"
        " point, hatching an idle processor."
    )
    rows = rows_of(report_data.timelines, report_data.runs)
    missing = [
        f"trace_{kind}.json"
        for kind in ("original", "branched")
        if not report_data.timelines.get(kind)
    ]
    note = missing_chapter(", ".join(missing), "nnstretch run --trace") if missing else None
    if not rows:
        return chapter("timeline", "Who computes when", says, note, run_table(report_data))
    ran = [name for row in rows for name in row.timeline.trace.processors]
    processors = tuple(
        dict.fromkeys([*(report_data.search.processors if report_data.search else ()), *ran])
    )
    marks = legend(
        [
            *processor_legend(processors),
            ("merge", "synchronise and merge"),
            ("meet", "meeting point"),
            ("idle", "idle"),
        ]
    )
    drawing = svg.scrolling(gantt(rows, processors), "Gantt chart")
    many = [
        f"{r.kind} {r.timeline.source}: request {r.timeline.request} of {r.timeline.requests}"
        for r in rows
        if r.timeline.requests > 1
    ]
    chosen = (
        tag("p", f"Shown is the request of median length ({'; '.join(many)}).", class_="quiet")
        if many
        else None
    )
    return chapter(
        "timeline",
        "Who computes when",
        says,
        marks,
        drawing,
        chosen,
        note,
        span_table(rows),
        run_table(report_data),
    )


def run_table(report_data: ReportData) -> Markup | None:
    """Return the table of runs, None without a run."""
    if not report_data.runs:
        return missing_chapter("run_original.json, run_branched.json", "nnstretch run --json")
    kinds = dict.fromkeys(run.timing for run in report_data.runs.values())
    shown = join(_runs_of_kind(report_data, timing) for timing in kinds)
    words = (
        "Overlap is the efficiency that the run itself reports; dilation is the factor by which a"
        " slow host stretches an emulated chip's time, already divided out."
    )
    return join((tag("h3", "The runs"), shown, tag("p", words, class_="quiet")))


def _runs_of_kind(report_data: ReportData, timing: str | None) -> Markup:
    """Return runs whose milliseconds are of one kind; other kinds get a table of their own."""
    header = (
        "network",
        "mode",
        "clock",
        "median",
        "p90",
        "p99",
        "critical path",
        "overlap",
        "dilation",
        "busy",
    )
    rows = (_run_row(kind, run) for kind, run in report_data.runs.items() if run.timing == timing)
    caption = f"Runs of the exported networks, {timing or 'unlabelled'} milliseconds"
    return table(caption, header, rows, text_columns=frozenset({0, 1, 2, 9}))


def _run_row(kind: str, run: RunSummary) -> tuple[str, ...]:
    shares = ", ".join(
        f"{name} {percent(use.utilisation, 0)}" for name, use in run.processors.items()
    )
    latency = (plain_ms(run.latency_ms.get(name)) for name in ("median", "p90", "p99"))
    dilation = UNKNOWN if run.dilation is None else f"{digits(run.dilation)}×"
    said = (run.mode or UNKNOWN, run.clock or UNKNOWN)
    return (
        kind,
        *said,
        *latency,
        plain_ms(run.critical_path_ms),
        percent(run.overlap_efficiency, 0),
        dilation,
        shares or UNKNOWN,
    )


def terms_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the latency's terms."""
    says = (
        "All predicted. Branches of a segment end together: what one does not compute or copy, it"
        " waits, synchronises or merges."
    )
    if not report_data.plan or not report_data.plan.segments:
        return chapter(
            "terms",
            "Where the milliseconds go",
            says,
            missing_chapter("search.json with a plan", "nnstretch search --json"),
        )
    fastest = report_data.search.fastest if report_data.search else None
    drawing = svg.scrolling(term_bars(report_data.plan.segments, fastest), "Latency terms")
    total = tag("p", term_total(report_data.plan.segments), class_="quiet")
    return chapter(
        "terms",
        "Where the milliseconds go",
        says,
        legend(TERMS),
        drawing,
        total,
        term_table(report_data.plan.segments, report_data.search),
    )


def space_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the searched space."""
    says = (
        "How many plans there are, what is proven about the best one, and how often each constraint"
        " refused a candidate."
    )
    search = report_data.search
    if not search:
        return chapter(
            "space",
            "What was searched",
            says,
            missing_chapter("search.json", "nnstretch search --json"),
        )
    size = (
        UNKNOWN
        if search.space.log10_size is None
        else join(("10", tag("sup", f"{search.space.log10_size:.1f}")))
    )
    proof = {
        True: "proven optimum of the whole space",
        False: "best found, not proven",
        None: UNKNOWN,
    }[search.optimal]
    bound = (
        UNKNOWN
        if search.lower_bound_ms is None
        else f"{ms(search.lower_bound_ms)}{_gap(report_data)}"
    )
    took = seconds(search.search_s)
    facts = (
        ("plans in the space", size),
        ("certificate", proof),
        ("predicted lower bound", bound),
        ("search took", took),
    )
    listed = tag(
        "dl",
        join(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts),
        class_="facts",
    )
    bars = (
        count_bars(search.space.refused, explain_constraint)
        if search.space.refused
        else tag("p", "No constraint refused anything.", class_="quiet")
    )
    return chapter("space", "What was searched", says, listed, bars)


def _gap(report_data: ReportData) -> str:
    """Return how far the best plan may still be from the best possible one."""
    plan, bound_ms = (
        report_data.plan,
        report_data.search.lower_bound_ms if report_data.search else None,
    )
    return f", gap {percent(plan.latency_ms / bound_ms - 1, 2)}" if plan and bound_ms else ""


def training_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the training."""
    says = (
        "The original, and the branched network that starts from its weights; held-out accuracy and"
        " loss after every epoch."
    )
    if not any(report_data.training.values()):
        files = "training_original.json, training_branched.json"
        return chapter("training", "Training", says, missing_chapter(files, "nnstretch train"))
    right = _curves(report_data, "val_accuracy", "held-out", "")
    loss = (
        *_curves(report_data, "val_loss", "held-out", ""),
        *_curves(report_data, "train_loss", "training", " faded"),
    )
    both = (("Accuracy, held-out", right, _spell_share), ("Loss", loss, tick))
    charts = join(curves(title, "epoch", lines, spell) for title, lines, spell in both if lines)
    return chapter(
        "training",
        "Training",
        says,
        tag("div", charts, class_="pair"),
        _training_table(report_data),
    )


def _spell_share(value: float) -> str:
    return f"{100 * value:.4g}%" if value <= 1 else f"{value:.4g}%"


def _curves(report_data: ReportData, field: str, which: str, look: str) -> tuple[Curve, ...]:
    found = {
        kind: tuple((e.epoch or 0.0, v) for e in epochs if (v := getattr(e, field)) is not None)
        for kind, epochs in report_data.training.items()
    }
    return tuple(
        Curve(f"{kind}, {which}", f"{kind}{look}", points)
        for kind, points in found.items()
        if points
    )


def _training_table(report_data: ReportData) -> Markup:
    def row(kind: str) -> tuple[str, ...]:
        epochs = report_data.training[kind]
        scores = [e.val_accuracy for e in epochs if e.val_accuracy is not None]
        spent = [e.seconds for e in epochs if e.seconds is not None]
        last = scores[-1] if scores else None
        return (
            kind,
            count(len(epochs)),
            accuracy(last),
            accuracy(max(scores, default=None)),
            seconds(sum(spent)) if spent else UNKNOWN,
        )

    rows = [row(kind) for kind in report_data.training if report_data.training[kind]]
    return table(
        "Training in numbers",
        ("network", "epochs", "accuracy at the end", "best accuracy", "time"),
        rows,
    )


def plans_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of the best plans."""
    says = (
        "The best plans in order of predicted latency; plans closer together than the predictor's"
        " error are a tie."
    )
    plans = report_data.search.plans if report_data.search else ()
    if not plans:
        return chapter(
            "plans",
            "The best plans",
            says,
            missing_chapter("search.json with plans", "nnstretch search --top K --json"),
        )
    compared = ("vs fastest", "equal MACs (ms)", "vs equal MACs")
    header = (
        "rank",
        "predicted (ms)",
        "± (ms)",
        "MACs",
        "parameters",
        *compared,
        "branched segments",
    )
    rows = (_plan_row(plan, i) for i, plan in enumerate(plans, 1))
    return chapter(
        "plans",
        "The best plans",
        says,
        table("Plans by predicted latency", header, rows, text_columns=frozenset({8})),
    )


def _plan_row(plan: PlanCost, rank: int) -> tuple[str, ...]:
    branched = [
        f"{s.end} [{' | '.join(f'{b.processor} {b.shape}'.strip() for b in s.branches)}]"
        for s in plan.segments
        if s.branched
    ]
    numbers = (amount(plan.macs), amount(plan.params), times(plan.speedup_vs_fastest))
    iso = (plain_ms(plan.iso_mac_latency_ms), times(plan.speedup_vs_iso_mac))
    return (
        str(rank),
        plain_ms(plan.latency_ms),
        plain_ms(plan.error_ms),
        *numbers,
        *iso,
        join(branched, tag("br")) or "none",
    )


def provenance_chapter(report_data: ReportData) -> Markup:
    """Return the chapter of sources and commands."""
    says = (
        "Where the latency predictor comes from, the commands as the files give them, and the files"
        " this page was made of."
    )
    told = report_data.search.sources if report_data.search else ()
    items = join(join((tag("dt", name), tag("dd", words))) for name, words in told)
    source = (
        tag("dl", items, class_="said")
        if told
        else tag("p", "No provenance is given.", class_="quiet")
    )
    given = [(file.name, command) for file in report_data.files for command in file.commands]
    listed = "\n\n".join(f"# {name}\n{command}" for name, command in given)
    commands = tag("pre", listed) if given else tag("p", "No command is given.", class_="quiet")
    rows = (
        (file.name, count(file.size_bytes), tag("code", file.sha256)) for file in report_data.files
    )
    files = collapsible(
        "Files",
        table("Files read", ("file", "bytes", "SHA-256"), rows, text_columns=frozenset({0, 2})),
    )
    return chapter(
        "provenance",
        "Provenance and commands",
        says,
        source,
        tag("h3", "Commands"),
        commands,
        files,
    )
