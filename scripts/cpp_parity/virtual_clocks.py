"""The same workload on the virtual clock of this package, and on that of the C++ runtime."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from random_workloads import PLANNED, workload_json

from nnstretch.errors import Mismatch
from nnstretch.protocols import Policy
from nnstretch.schedule.executors.virtual import VirtualExecutor
from nnstretch.schedule.loop.processor_queue import Queueing
from nnstretch.schedule.policies.priority_classes import PriorityClasses
from nnstretch.schedule.policies.static_placement import StaticPlacement
from nnstretch.schedule.request import Request
from nnstretch.schedule.request_scheduler import RequestScheduler
from nnstretch.schedule.simulation.application import Application
from nnstretch.schedule.simulation.policy_setting import cost_rows
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.trace import Span

SpanRow = tuple[int, int, int, int, str, str]
"""Application, instance, task, processor, start and end as hexadecimal numbers."""


def spans_in_python(settings: SimulationSettings) -> list[SpanRow]:
    """Return what happens on the virtual clock of this package."""
    names = [application.name for application in settings.applications]
    places = [processor.name for processor in settings.processors]
    rows: list[SpanRow] = []

    def keep(span: Span) -> None:
        task = int(span.task.subgraph[1:])
        where = (names.index(span.task.plan), span.task.request, task)
        times = (float(span.start_us).hex(), float(span.end_us).hex())
        rows.append((*where, places.index(span.processor), *times))

    if settings.policy == PLANNED:
        PlannedRun(settings, keep).run()
    else:
        Simulation(settings, keep).run()
    return rows


def run_in_cpp(program: Path, settings: SimulationSettings, folder: Path) -> dict[str, Any]:
    """Run a workload in C++; its spans lie in `spans.txt`. Raises Mismatch where it refuses."""
    workload = folder / "workload.json"
    workload.write_text(json.dumps(workload_json(settings)), encoding="utf-8")
    command = [str(program), str(workload), str(folder / "spans.txt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Mismatch(f"{program} failed, {settings.policy}, {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def spans_in_cpp(program: Path, settings: SimulationSettings, folder: Path) -> list[SpanRow]:
    """Return what happens on the virtual clock of the C++ runtime."""
    run_in_cpp(program, settings, folder)
    rows: list[SpanRow] = []
    for line in (folder / "spans.txt").read_text(encoding="utf-8").splitlines():
        app, instance, task, place, start, end = line.split()
        times = (float.fromhex(start).hex(), float.fromhex(end).hex())
        rows.append((int(app), int(instance), int(task), int(place), *times))
    return rows


class PlannedRun:
    """Applications whose tasks have processors, under `StaticPlacement`."""

    def __init__(self, settings: SimulationSettings, keep: Callable[[Span], None]) -> None:
        self._settings = settings
        self._clock = VirtualExecutor(settings.processors, settings.times_us)
        places = [processor.name for processor in settings.processors]
        policy: Policy = StaticPlacement(places)
        if len({app.priority for app in settings.applications}) > 1:
            policy = PriorityClasses(lambda: StaticPlacement(places))
        self._open = dict.fromkeys((app.name for app in settings.applications), 0)
        self._names: dict[int, str] = {}
        self._scheduler = RequestScheduler(
            *(settings.processors, policy, self._clock),
            lambda outcome: self._answered(outcome.number),
            settings.times_us,
            keep,
            costs=cost_rows(replace(settings, policy="eft")),
            queueing=Queueing.UNBOUNDED if settings.queueing else Queueing.IDLE,
        )

    def run(self) -> None:
        """Let everything arrive and end."""
        apps = self._settings.applications
        streams = {app.name: app.times_us(0) for app in apps}
        made = {app.name: app.instantiate() for app in apps}
        for app in apps:
            self._clock.set_timer(next(streams[app.name]), app)
        while (tag := self._scheduler.step()) is not None:
            if not isinstance(tag, Application):
                continue
            limit = tag.queue_limit
            if limit is None or self._open[tag.name] < limit:
                number = len(self._names) + 1
                self._open[tag.name] += 1
                self._names[number] = tag.name
                tasks = made[tag.name](number, self._clock.now_us + tag.deadline_us)
                self._scheduler.submit(Request(number, tasks))
            at_us = next(streams[tag.name], None)
            if at_us is not None:
                self._clock.set_timer(at_us, tag)

    def _answered(self, number: int) -> None:
        self._open[self._names[number]] -= 1
