"""What happened as the log files of CEDR's daemon: `key: value` pairs, times in ns.

timing_trace.log has a line for each task by its start, schedule_trace.log one for each round with
what deciding took this host, appruntime_trace.log one for each instance of an application.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nnstretch.files.atomic import write_text
from nnstretch.files.workload.service_record import RecordedRequest
from nnstretch.schedule.request import Request
from nnstretch.schedule.simulation.simulate import ApplicationRun
from nnstretch.trace import Span


class CedrLogs:
    """Collects lines while networks run or are simulated, and writes `FOLDER/experimentN`."""

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
        times_us = span.start_us, span.end_us
        self._note_task(task.request, task.plan, task.subgraph, span.processor, times_us)

    def _note_task(
        self, request: int, name: str, task: str, processor: str, times_us: tuple[float, float]
    ) -> None:
        start_us, end_us = times_us
        number = self._ended.get(request, 0)
        self._ended[request] = number + 1
        pairs = {
            "app_id": request,
            "app_name": name,
            "task_id": number,
            "task_name": task,
            "resource_name": processor,
            "ref_start_time": nanoseconds(start_us),
            "ref_stop_time": nanoseconds(end_us),
            "actual_exe_time": nanoseconds(end_us) - nanoseconds(start_us),
        }
        self._tasks.append((start_us, line_of(pairs)))

    def on_request(self, request: RecordedRequest) -> None:
        """Note a request that a server has ended, with its tasks; it has a line of its own where it
        was answered.
        """
        number, name = request.request, request.application
        for task in request.tasks:
            times_us = task.start_us, task.end_us
            self._note_task(number, name, task.task, task.processor, times_us)
        self._ended.pop(number, None)
        if request.end == "answered":
            first_us = min(task.start_us for task in request.tasks)
            self._note_instance(number, name, request.arrived_us, first_us, request.ended_us)

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
        self, run: ApplicationRun, number: int, outcome: Request, first_us: float
    ) -> None:
        """Note an instance that has ended; one that was given up has no line, as it never ran."""
        self._ended.pop(number, None)
        if outcome.error is None:
            name = run.application.name
            self._note_instance(number, name, outcome.arrived_us, first_us, outcome.ended_us)

    def _note_instance(
        self, number: int, name: str, arrived_us: float, first_us: float, ended_us: float
    ) -> None:
        arrival, start, end = map(nanoseconds, (arrived_us, first_us, ended_us))
        pairs = {
            "app_id": number,
            "app_name": name,
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
    """Return a line of a log; what separates fields is replaced in names."""
    fields: list[str] = []
    for key, value in pairs.items():
        text = str(value).replace(",", ";").replace(": ", "=")
        fields.append(f"{key}: {text}")
    return ", ".join(fields)


def text_of(lines: list[str]) -> str:
    """Return lines as the text of a file."""
    return "".join(f"{line}\n" for line in lines)


def nanoseconds(time_us: float) -> int:
    """Return whole nanoseconds."""
    return round(time_us * 1000)
