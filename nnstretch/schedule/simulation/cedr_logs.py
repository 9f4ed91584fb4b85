"""What happened as the log files of CEDR's daemon: `key: value` pairs, times in ns.

timing_trace.log has a line for each task by its start, schedule_trace.log one for each round with
what deciding took this host, appruntime_trace.log one for each instance of an application.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nnstretch.files.atomic import write_text
from nnstretch.schedule.request import RequestOutcome
from nnstretch.schedule.simulation.simulate import ApplicationRun
from nnstretch.trace import Span


class CedrLogs:
    """Collects lines while a simulation runs, and writes them to `FOLDER/experimentN`."""

    def __init__(self) -> None:
        self._tasks: list[tuple[float, str]] = []
        self._ended: dict[int, int] = {}
        """Tasks of each open instance that have ended."""
        self._rounds: list[str] = []
        self._instances: list[str] = []
        self._ready = 0
        self._overhead_ns = 0

    def on_span(self, span: Span) -> None:
        """Note a task."""
        task = span.task
        number = self._ended.get(task.request, 0)
        self._ended[task.request] = number + 1
        pairs = {
            "app_id": task.request,
            "app_name": task.plan,
            "task_id": number,
            "task_name": task.subgraph,
            "resource_name": span.processor,
            "ref_start_time": nanoseconds(span.start_us),
            "ref_stop_time": nanoseconds(span.end_us),
            "actual_exe_time": nanoseconds(span.end_us) - nanoseconds(span.start_us),
        }
        self._tasks.append((span.start_us, line_of(pairs)))

    def on_round(self, waited: int, began_s: float, ended_s: float) -> None:
        """Note a round of decisions, in times of this host."""
        overhead_ns = nanoseconds((ended_s - began_s) * 1e6)
        self._ready += waited
        self._overhead_ns += overhead_ns
        pairs = {
            "ready_queue_size": waited,
            "ref_start_time": nanoseconds(began_s * 1e6),
            "ref_stop_time": nanoseconds(ended_s * 1e6),
            "sheduling_overhead": f"{overhead_ns} ns",
        }
        self._rounds.append(line_of(pairs))

    def on_outcome(
        self, run: ApplicationRun, number: int, outcome: RequestOutcome, first_us: float
    ) -> None:
        """Note an instance that has ended; one that was given up has no line, as it never ran."""
        self._ended.pop(number, None)
        if outcome.error is not None:
            return
        arrival, start = nanoseconds(outcome.arrived_us), nanoseconds(first_us)
        end = nanoseconds(outcome.ended_us)
        pairs = {
            "app_id": number,
            "app_name": run.application.name,
            "arrival": arrival,
            "start": start,
            "end": end,
            "app_runtime": end - start,
            "app_lifetime": end - arrival,
        }
        self._instances.append(line_of(pairs))

    def write(self, folder: Path) -> Path:
        """Write the files into the first experiment that is not there; return its folder."""
        number = 0
        while (folder / f"experiment{number}").exists():
            number += 1
        experiment = folder / f"experiment{number}"
        experiment.mkdir(parents=True)
        tasks = [line for _, line in sorted(self._tasks, key=lambda entry: entry[0])]
        total = {"total_ready_tasks": self._ready, "total_scheduling_overhead": self._overhead_ns}
        rounds = [*self._rounds, f"{line_of(total)} ns"]
        write_text(experiment / "timing_trace.log", text_of(tasks))
        write_text(experiment / "schedule_trace.log", text_of(rounds))
        write_text(experiment / "appruntime_trace.log", text_of(self._instances))
        return experiment


def line_of(pairs: Mapping[str, object]) -> str:
    """Return a line of a log."""
    return ", ".join(f"{key}: {value}" for key, value in pairs.items())


def text_of(lines: list[str]) -> str:
    """Return lines as the text of a file."""
    return "".join(f"{line}\n" for line in lines)


def nanoseconds(time_us: float) -> int:
    """Return whole nanoseconds."""
    return round(time_us * 1000)
