"""What is kept of the first run of a simulation, and the files that are written of it."""

from __future__ import annotations

import argparse
from math import inf
from typing import TYPE_CHECKING, Any

from nnstretch.errors import BadInput, Mismatch

if TYPE_CHECKING:
    from nnstretch.schedule.request import Request
    from nnstretch.schedule.simulation.settings import SimulationSettings
    from nnstretch.schedule.simulation.simulate import ApplicationRun, SimulationResult
    from nnstretch.trace import Span, Trace


def window_us(text: str | None) -> tuple[float, float]:
    """Return start and end of START:END in ms; all of the time for None. Raises BadInput."""
    if text is None:
        return 0.0, inf
    start, colon, end = text.partition(":")
    try:
        start_us, end_us = float(start or "0") * 1000, float(end or "inf") * 1000
    except ValueError:
        start_us = end_us = -1.0
    if not colon or not 0 <= start_us < end_us:
        raise BadInput(f"--window is {text}, command line, write START:END in ms, such as 0:10000")
    return start_us, end_us


class Watcher:
    """Keeps of the first run what --trace, --log, --check and pictures need, and nothing else."""

    def __init__(self, args: argparse.Namespace) -> None:
        from nnstretch.schedule.simulation.cedr_logs import CedrLogs
        from nnstretch.schedule.simulation.round_times import RoundTimes

        self._args = args
        self._logs = None if args.log is None else CedrLogs()
        self._rounds = None if args.report is None else RoundTimes()
        self._draws = args.report is not None or args.svg is not None
        self._window_us = window_us(args.window)
        self._whole = args.trace is not None or args.check
        self._spans: list[Span] = []
        """All where a trace or a check needs them, else those of the window."""
        self._arrived_us: dict[int, float] = {}
        """Of instances that ended."""
        keeps_spans = self._whole or self._draws or self._logs is not None
        self.on_span = self._keep_span if keeps_spans else None
        self.on_outcome = self._keep_outcome if args.check or self._logs is not None else None
        times_rounds = self._logs is not None or self._rounds is not None
        self.on_round = self._keep_round if times_rounds else None

    def _keep_span(self, span: Span) -> None:
        start_us, end_us = self._window_us
        if self._whole or (self._draws and span.end_us >= start_us and span.start_us <= end_us):
            self._spans.append(span)
        if self._logs is not None:
            self._logs.on_span(span)

    def _keep_outcome(
        self, run: ApplicationRun, number: int, outcome: Request, first_us: float
    ) -> None:
        if self._args.check and outcome.error is None:
            self._arrived_us[number] = outcome.arrived_us
        if self._logs is not None:
            self._logs.on_outcome(run, number, outcome, first_us)

    def _keep_round(self, waited: int, began_s: float, ended_s: float) -> None:
        if self._logs is not None:
            self._logs.on_round(waited, began_s, ended_s)
        if self._rounds is not None:
            self._rounds.on_round(waited, began_s, ended_s)

    def write(self, settings: SimulationSettings, run: SimulationResult) -> dict[str, Any]:
        """Write traces and logs of the run, and check.

        Raises BadInput for a window after the end, Mismatch where the run is no schedule.
        """
        from nnstretch.run.perfetto import TraceLabels, write_traces

        if self._draws and self._window_us[0] > run.last_end_us:
            raise BadInput(
                f"--window {self._args.window}, command line, the last task ends at"
                f" {run.last_end_us / 1000:g} ms"
            )
        result: dict[str, Any] = {}
        if self._args.trace is not None:
            labels = TraceLabels(self._args.workload.stem, {})
            write_traces(self._args.trace, {settings.policy: self._trace()}, labels, "modelled")
            result["trace"] = str(self._args.trace)
        if self._logs is not None:
            result["log"] = str(self._logs.write(self._args.log))
        if self._args.check:
            result["checked_tasks"] = self._check(settings)
        return result

    def draw(self, result: dict[str, Any], run: SimulationResult) -> dict[str, Any]:
        """Write the page of a result with the Gantt chart of the run, and return their names."""
        from nnstretch.files.atomic import write_text
        from nnstretch.files.decode import decode
        from nnstretch.report.charts.gantt_schedule import TimeWindow
        from nnstretch.report.simulations.simulation_page import (
            DrawnRun,
            simulation_gantt,
            simulation_page,
        )
        from nnstretch.report.simulations.views import SimulationView
        from nnstretch.report.style import stand_alone

        if not self._draws:
            return {}
        rounds = [] if self._rounds is None else self._rounds.rows()
        view: SimulationView = decode(SimulationView, result | {"rounds": rounds}, "result")
        window, files = TimeWindow(*self._window_us), {}
        drawn = DrawnRun(self._trace(), run.makespan_us, run.last_end_us, window)
        if self._args.report is not None:
            write_text(self._args.report, simulation_page(view, drawn))
            files["report"] = str(self._args.report)
        if self._args.svg is not None:
            write_text(self._args.svg, stand_alone(simulation_gantt(view, drawn)))
            files["svg"] = str(self._args.svg)
        return files

    def _trace(self) -> Trace:
        from nnstretch.trace import Trace

        return Trace(tuple(self._spans))

    def _check(self, settings: SimulationSettings) -> int:
        from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
        from nnstretch.task_graph import TaskGraph
        from nnstretch.trace import Trace

        spans = tuple(span for span in self._spans if span.task.request in self._arrived_us)
        tasks = tuple(span.task for span in spans)
        if not tasks:
            return 0
        arrivals_us = {task.name: self._arrived_us[task.request] for task in tasks}
        graph = TaskGraph("", tasks, settings.processors, settings.times_us, settings.transfers_us)
        for fault in schedule_faults(Trace(spans), graph, arrivals_us):
            raise Mismatch(f"{settings.policy} made no schedule of {self._args.workload}, {fault}")
        return len(spans)
