"""Run-time policies: simulated tasks per second of CPU time, below and above what processors do.

Applications of ten tasks in a chain, or of one task, arrive with exponential gaps on three equal
processors and a fourth of another type; costs are drawn evenly from 50 to 150 us for each task and
processor. Seconds are CPU time of one process and include arrivals, requests and statistics. Time
to decide is wall time, in which other work of the host is, too. Of three runs the fastest counts.

    python scripts/policy_speed.py [--policies rr met] [--out docs/results/policy_speed.md]

Then the same processors with so many tasks waiting from the start, without queueing: tasks a second
until none is left. And chains at 0.7 of the capacity under eft, without a trace, each number of
tasks in a process of its own: the most memory that it had.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import random
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.schedule.policies.table import POLICIES
from nnstretch.schedule.simulation.application import (
    Application,
    ExponentialArrivals,
    ListedArrivals,
    own_tasks,
)
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import Simulation
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey

PAGE = Path("docs/results/policy_speed.md")
TASKS = 20_000
APPLICATIONS = 5
LOADS = (0.7, 3.0)
TURNS = 3
"""Runs of each setting: the first one also asks the system for memory."""
WAITING = (1_000, 5_000, 10_000, 20_000)
MEMORY_TASKS = (10_000, 100_000, 1_000_000)
MEAN_US = 85.0
"""About what a task takes where it is sent."""
CHIP = (*(Processor(f"cpu{n}", "cpu", 1) for n in range(3)), Processor("gpu", "gpu", 1))


def chain(length: int) -> tuple[Task, ...]:
    """Return tasks that need each the one before it."""
    tasks: list[Task] = []
    for number in range(length):
        needs = frozenset({tasks[-1].name}) if tasks else frozenset[str]()
        tasks.append(Task(f"t{number}", f"t{number}", needs))
    return tuple(tasks)


def settings(length: int, load: float, queueing: bool, total: int = TASKS) -> SimulationSettings:
    """Return applications of chains that ask for `load` times what the processors can do."""
    draw = random.Random(0)
    times_us: dict[tuple[WorkKey, str], float] = {}
    applications: list[Application] = []
    gap_us = MEAN_US / len(CHIP) * length * APPLICATIONS / load
    for number in range(APPLICATIONS):
        name = f"a{number}"
        tasks = own_tasks(name, chain(length))
        for task in tasks:
            for processor in CHIP:
                times_us[task.work, processor.name] = float(draw.randint(50, 150))
        arrivals = ExponentialArrivals(gap_us)
        count = total // length // APPLICATIONS
        applications.append(Application(name, tasks, arrivals, count))
    return SimulationSettings(tuple(applications), CHIP, times_us, "eft", queueing=queueing)


def speed(setting: SimulationSettings) -> tuple[float, float, int]:
    """Return tasks per second of CPU time, us to decide a task, and the most open instances.

    Of several runs, the most and the least; the last is always the same.
    """
    rates: list[float] = []
    decisions_us: list[float] = []
    for _ in range(TURNS):
        simulation = Simulation(setting)
        began_s = time.process_time()
        result = simulation.run()
        seconds = time.process_time() - began_s
        rates.append(result.tasks / seconds)
        decisions_us.append(result.decisions.total_s * 1e6 / result.tasks)
    return max(rates), min(decisions_us), result.open_over_time.most


def at_once(setting: SimulationSettings) -> SimulationSettings:
    """Return the same with every instance there at time 0."""
    applications: list[Application] = []
    for application in setting.applications:
        arrivals = ListedArrivals((0.0,) * (application.instances or 0))
        applications.append(replace(application, arrivals=arrivals))
    return replace(setting, applications=tuple(applications))


def waiting_rows(policies: Sequence[str]) -> list[list[object]]:
    """Measure every policy with more and more tasks that wait."""
    cells: list[list[object]] = []
    for policy in policies:
        row: list[object] = [policy]
        for waiting in WAITING:
            setting = at_once(settings(1, 1.0, False, waiting))
            row.append(f"{speed(replace(setting, policy=policy))[0]:,.0f}")
        cells.append(row)
        print(*row, file=sys.stderr)
    return cells


def most_memory_mb(tasks: int) -> float:
    """Return the most memory of this process once it has simulated chains without a trace."""
    Simulation(settings(10, 0.7, True, tasks)).run()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def memory_rows() -> list[list[object]]:
    """Measure each number of tasks in a process of its own."""
    cells: list[list[object]] = []
    for tasks in MEMORY_TASKS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            cells.append([f"{tasks:,}", f"{pool.apply(most_memory_mb, (tasks,)):.1f}"])
        print(*cells[-1], file=sys.stderr)
    return cells


def rows(policies: Sequence[str]) -> list[list[object]]:
    """Measure every policy under every load."""
    cells: list[list[object]] = []
    for length in (1, 10):
        for queueing in (True, False):
            for load in LOADS:
                setting = settings(length, load, queueing)
                for policy in policies:
                    rate, decided_us, most = speed(replace(setting, policy=policy))
                    words = "on" if queueing else "off"
                    row = [length, words, load, policy, f"{rate:,.0f}", f"{decided_us:.1f}", most]
                    cells.append(row)
                    print(*row, file=sys.stderr)
    return cells


def page(policies: Sequence[str]) -> str:
    """Measure, and return the page of results."""
    heads = ("tasks", "queueing", "load", "policy", "tasks/s", "us to decide", "most open")
    lines = [
        "# Speed of run-time policies",
        "",
        *(__doc__ or "").split("\n\n")[0:2],
        "",
        f"Made by `{command_line()}`, Python {platform.python_version()}, one core; the host's load",
        f"average was {os.getloadavg()[0]:.1f} when it began.",
        "",
        "`load` is what arrives, as a share of what the four processors can do; at 3 everything",
        "waits in the end.",
        "",
        *markdown_table(heads, rows(policies)),
        "",
        "## Tasks that wait",
        "",
        *(__doc__ or "").strip().split("\n\n")[3].splitlines(),
        "",
        *markdown_table(("policy", *(f"{n:,} wait" for n in WAITING)), waiting_rows(policies)),
        "",
        "## Memory",
        "",
        *markdown_table(("tasks", "most memory, MiB"), memory_rows()),
        "",
    ]
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = command_parser(__doc__)
    parser.add_argument(
        "--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES), metavar="NAME"
    )
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE.md", help="the page")
    return parser


def main() -> int:
    """Run the command."""
    args = arguments().parse_args()
    write_text(args.out, page(args.policies))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
