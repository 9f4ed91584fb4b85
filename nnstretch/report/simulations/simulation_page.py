"""The page of one simulation: who computes when, queues, decisions, applications."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from nnstretch.report.chapters.elements import chapter, definition_list, quiet
from nnstretch.report.charts import svg
from nnstretch.report.charts.bar_chart import Bar, BarGroup, bar_chart
from nnstretch.report.charts.gantt_schedule import TimeWindow, schedule_gantt
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.format_numbers import count, digits, plain_ms
from nnstretch.report.html import Markup, table
from nnstretch.report.page_shell import page_header, page_of_chapters
from nnstretch.report.simulations.sweep_page import UNCALIBRATED, UNENDED, WHY_UNENDED
from nnstretch.report.simulations.sweep_pictures import decision_times, over_time_points
from nnstretch.report.simulations.views import ApplicationView, SimulationView
from nnstretch.trace import Trace

LATENCIES = ("mean (ms)", "p50", "p95", "p99", "execution (ms)")
HEADS = ("application", "ended", *LATENCIES, "missed", *UNENDED)


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """The run of a simulation, the first of several, that a Gantt chart draws."""

    trace: Trace
    """Of the window at least."""
    makespan_us: float
    last_end_us: float
    """Of all tasks, in the window or not."""
    window: TimeWindow


def simulation_page(view: SimulationView, drawn: DrawnRun | None = None) -> str:
    """Return the whole page; without a run it shows no Gantt chart."""
    chapters = [("applications", "Applications", applications_chapter(view))]
    if drawn is not None:
        says = f"Colours tell instances apart; what no bar covers is idle time.{first_run(view)}"
        drawing = svg.scrolling(simulation_gantt(view, drawn), "Gantt chart")
        chapters.append(("timeline", "Timeline", chapter("timeline", "Timeline", says, drawing)))
    chapters.append(("processors", "Processors", processors_chapter(view)))
    if view.open.over_time is not None and view.open.over_time.mean:
        chapters.append(("queue", "Queue", queue_chapter(view)))
    decisions = decision_times({view.policy: list(view.rounds)})
    if decisions is not None:
        says = f"What a round of decisions took on the host that simulated.{first_run(view)}"
        chapters.append(
            ("decisions", "Decisions", chapter("decisions", "Decisions", says, decisions))
        )
    chapters.append(("provenance", "Provenance", provenance_chapter(view)))
    name = workload_name(view)
    eyebrow = " · ".join(part for part in (name, view.soc, view.policy) if part)
    header = page_header(eyebrow, "Networks that arrive at run time")
    return page_of_chapters(f"{name} under {view.policy}", header, chapters)


def workload_name(view: SimulationView) -> str:
    """Return the name of the workload's file without its folder and ending."""
    return PurePath(view.workload or "workload").stem


def all_runs(view: SimulationView) -> str:
    """Return the sentence of numbers over several replications, nothing for one."""
    return "" if view.replications == 1 else f" Means of {view.replications} replications."


def first_run(view: SimulationView) -> str:
    """Return the sentence of drawings of the first of several replications, nothing for one."""
    if view.replications == 1:
        return ""
    return f" Drawn is the first of {view.replications} replications."


def simulation_gantt(view: SimulationView, drawn: DrawnRun) -> Markup:
    """Draw what runs when in a window of the simulation."""
    makespan = f"makespan {digits(drawn.makespan_us / 1000)} ms"
    title = f"{workload_name(view)}, {view.policy}: {makespan}"
    if view.replications > 1:
        title += f", first of {view.replications} replications"
    processors = tuple(view.utilisation)
    return schedule_gantt(title, drawn.trace, processors, drawn.window, drawn.last_end_us)


def applications_chapter(view: SimulationView) -> Markup:
    """Return latencies of each application."""
    says = f"Latencies from arrival to end; {digits(view.throughput_per_s)} instances a second."
    says += f" {WHY_UNENDED}{all_runs(view)}"
    if view.replications > 1:
        says += " Instances are counted over all of them."
    rows = map(_application_row, view.apps)
    latencies = table("Applications", HEADS, rows)
    caution = quiet(UNCALIBRATED) if view.calibrated is False else None
    return chapter("applications", "Applications", says, latencies, caution)


def _application_row(app: ApplicationView) -> tuple[str, ...]:
    latency = app.latency_ms
    of_all = f"{count(app.ended)} of {count(app.arrived)}"
    times_ms = latency.mean, latency.p50, latency.p95, latency.p99, app.execution_ms
    cells = (plain_ms(time_ms if app.ended else None) for time_ms in times_ms)
    counts = map(count, (app.deadline_misses, app.refused, app.dropped))
    return app.name, of_all, *cells, *counts


def processors_chapter(view: SimulationView) -> Markup:
    """Return how busy each processor is."""
    says = f"Share of the makespan in which each processor works.{all_runs(view)}"
    groups = [BarGroup(name, (Bar(100 * share),)) for name, share in view.utilisation.items()]
    drawing = bar_chart("Utilisation", "%", (view.policy,), groups)
    return chapter("processors", "Processors", says, drawing)


def queue_chapter(view: SimulationView) -> Markup:
    """Return open instances over time."""
    says = f"Instances that have arrived and not ended; at most {count(view.open.most)}."
    says += first_run(view)
    assert view.open.over_time is not None
    line = ChartLine(view.policy, tuple(over_time_points(view.open.over_time)))
    upward = ChartAxis("open, mean of each step")
    drawing = line_chart("Open instances over time", ChartAxis("ms"), upward, [line])
    return chapter("queue", "Queue", says, drawing)


def provenance_chapter(view: SimulationView) -> Markup:
    """Return where the numbers come from."""
    says = "The workload, what its costs were taken from, and the seed."
    facts = [("workload", workload_name(view)), ("seed", str(view.seed))]
    if view.soc is not None:
        facts.append(("chip", view.soc))
    if view.provenance:
        facts.append(("costs", view.provenance))
    return chapter("provenance", "Provenance", says, definition_list(facts))
