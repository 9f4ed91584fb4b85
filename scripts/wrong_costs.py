"""Costs that are wrong, and a core that becomes slow: what correcting them by what tasks took is worth.

Six kinds of tasks arrive with exponential gaps on four processors, each of a type of its own; costs
are drawn evenly from 500 to 4,000 us for each kind and processor, and tasks vary by 10%. In the
first table every cost that the policy is told is off by a random factor, and latencies count once
50 tasks of each kind have ended. In the second all costs are right until one processor becomes so
many times slower for the rest of the run. In the third processors are equal and costs are right:
what correcting them costs where it can only take chance for a difference.

    python scripts/wrong_costs.py --out docs/results/wrong_costs.md
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import inf
from pathlib import Path
from statistics import fmean

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.schedule.disturbances import Disturbances, Interference
from nnstretch.schedule.request import Request
from nnstretch.schedule.simulation.application import Application, ExponentialArrivals, own_tasks
from nnstretch.schedule.simulation.replications import Measured, measured
from nnstretch.schedule.simulation.settings import SimulationSettings
from nnstretch.schedule.simulation.simulate import ApplicationRun, Simulation
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.trace import Span

PAGE = Path("docs/results/wrong_costs.md")
KINDS = 6
CHIP = tuple(Processor(name, name, 1) for name in ("cpu", "gpu", "dsp", "npu"))
LEARNT = 50
"""Tasks of each kind that are not counted."""
POLICIES = ("rr", "met", "eft", "etf", "heft_rt", "least_slack", "work_stealing")
WINDOW = 20
"""Tasks in a row, whose share on a processor says whether it is left."""
EQUAL_US = {"long": 1000.0, "short": 300.0}
"""What a task of each network takes on equal processors."""
EQUAL_CASES = tuple(product((0.5, 0.8), (0.1, 0.3)))
"""Load, and by how much tasks vary."""


def workload(policy: str, load: float, instances: int, seed: int) -> SimulationSettings:
    """Return the workload under a policy, with costs of a seed, all of them right."""
    draw = random.Random(f"{seed}/times")
    names = [f"k{number}" for number in range(KINDS)]
    times_us: dict[tuple[WorkKey, str], float] = {}
    for name in names:
        for processor in CHIP:
            times_us[(name, "t"), processor.name] = draw.uniform(500, 4000)
    gap_us = KINDS * mean_best_us(times_us, names) / len(CHIP) / load
    arrivals = ExponentialArrivals(gap_us)
    applications = tuple(
        Application(name, own_tasks(name, (Task("t", "t"),)), arrivals, instances) for name in names
    )
    return SimulationSettings(
        applications, CHIP, times_us, policy, seed=seed, durations="spread", spread=0.1
    )


def mean_best_us(times_us: dict[tuple[WorkKey, str], float], names: Iterable[str]) -> float:
    """Return about what a task takes where a policy that knows costs sends it."""
    typical: list[float] = []
    for name in names:
        ordered = sorted(times_us[(name, "t"), processor.name] for processor in CHIP)
        typical.append(fmean(ordered[:2]))
    return fmean(typical)


def mean_latency_us(settings: SimulationSettings) -> float:
    """Return the mean latency once `LEARNT` tasks of each kind have ended."""
    ended: Counter[str] = Counter()
    latencies_us: list[float] = []

    def on_outcome(run: ApplicationRun, _number: int, outcome: Request, _us: float) -> None:
        ended[run.application.name] += 1
        if min(ended.values()) > LEARNT and len(ended) == KINDS:
            latencies_us.append(outcome.latency_us)

    Simulation(settings, on_outcome=on_outcome).run()
    return fmean(latencies_us)


def wrong_row(policy: str, load: float, factor: float, args: argparse.Namespace) -> list[str]:
    """Return how much longer latencies are under wrong costs, corrected and not."""
    ratios: dict[bool, list[float]] = {True: [], False: []}
    true_us: list[float] = []
    for seed in range(args.trials):
        settings = workload(policy, load, args.instances, seed)
        true_us.append(mean_latency_us(settings))
        for correction in (True, False):
            wrong = replace(settings, wrong_costs=factor, correction=correction)
            ratios[correction].append(mean_latency_us(wrong) / true_us[-1])
    cells = [policy, f"{load:g}", f"{fmean(true_us) / 1000:.2f}"]
    for correction in (True, False):
        cells.append(mean_text(measured(ratios[correction])))
    return cells


@dataclass(frozen=True, slots=True)
class Leaving:
    """How a policy treats a processor that became slow."""

    share_before: float
    """Of all tasks, those given to it."""
    share_after: float
    """Likewise in the last quarter of the run."""
    tasks: float
    """That it was given from then on, until its share of 20 in a row was half of before."""
    after_us: float
    """When that was; infinite for never."""
    slower: float
    """Mean latency of the last quarter over that before it became slow."""


def leaving(settings: SimulationSettings, slow: str, factor: float) -> Leaving:
    """Simulate a processor that becomes slow after half of the arrivals."""
    gap_us = settings.applications[0].arrivals.mean_gap_us  # type: ignore[union-attr]
    instances = settings.applications[0].instances or 0
    at_us = gap_us * instances / 2
    busy = (Interference(slow, at_us, 1e15, 1 / factor),)
    sent: list[Span] = []
    answers: dict[int, Request] = {}

    def on_outcome(_run: ApplicationRun, number: int, outcome: Request, _us: float) -> None:
        answers[number] = outcome

    disturbed = replace(settings, disturbances=Disturbances(busy))
    Simulation(disturbed, sent.append, on_outcome).run()
    sent.sort(key=lambda span: span.task.request)  # in the order in which they arrived
    before = [span for span in sent if answers[span.task.request].arrived_us < at_us]
    after = sent[len(before) :]
    last = after[len(after) // 2 :]
    share_before = share_of(before, slow)
    count = next(
        (
            n
            for n in range(WINDOW, len(after))
            if share_of(after[n - WINDOW : n], slow) <= share_before / 2
        ),
        None,
    )
    after_us = inf if count is None else answers[after[count].task.request].arrived_us - at_us
    given = sum(span.processor == slow for span in after[:count])
    quiet_us = fmean(answers[span.task.request].latency_us for span in before)
    late_us = fmean(answers[span.task.request].latency_us for span in last)
    return Leaving(share_before, share_of(last, slow), given, after_us, late_us / quiet_us)


def share_of(spans: list[Span], processor: str) -> float:
    """Return the share of tasks that a processor ran."""
    return fmean(span.processor == processor for span in spans)


def slow_row(policy: str, correction: bool, args: argparse.Namespace) -> list[str]:
    """Return who leaves a slow processor, and after how long."""
    runs = []
    for seed in range(args.trials):
        settings = replace(workload(policy, 0.5, args.instances, seed), correction=correction)
        slow = max(CHIP, key=lambda p: busiest(settings, p.name)).name
        runs.append(leaving(settings, slow, args.slow))
    gone = [run for run in runs if run.after_us < inf]
    cells = [policy, "yes" if correction else "no"]
    cells += [
        f"{fmean(r.share_before for r in runs):.0%}",
        f"{fmean(r.share_after for r in runs):.0%}",
    ]
    cells += [f"{len(gone)} of {len(runs)}"]
    cells += [f"{fmean(r.tasks for r in gone):.0f}" if gone else "-"]
    cells += [f"{fmean(r.after_us for r in gone) / 1000:.0f}" if gone else "-"]
    return [*cells, f"{fmean(run.slower for run in runs):.1f}"]


def busiest(settings: SimulationSettings, name: str) -> float:
    """Return for how many kinds a processor is the fastest."""
    count = 0.0
    for application in settings.applications:
        work = application.tasks[0].work
        best = min(CHIP, key=lambda p: settings.times_us[work, p.name])
        count += best.name == name
    return count


def equal_workload(load: float, spread: float, instances: int, seed: int) -> SimulationSettings:
    """Return two networks of eight tasks in a chain on four equal processors; copies take 60 us."""
    chip = tuple(Processor(f"cpu{number}", "cpu", 1) for number in range(4))
    times_us: dict[tuple[WorkKey, str], float] = {}
    transfers_us: dict[tuple[WorkKey, WorkKey], float] = {}
    applications: list[Application] = []
    gap_us = 8 * sum(EQUAL_US.values()) / len(chip) / load
    for name, task_us in EQUAL_US.items():
        chain = [Task("t0", "t0")]
        for number in range(1, 8):
            chain.append(Task(f"t{number}", f"t{number}", frozenset([chain[-1].name])))
        tasks = own_tasks(name, tuple(chain))
        times_us |= {(task.work, p.name): task_us for task in tasks for p in chip}
        transfers_us |= {(a.work, b.work): 60.0 for a, b in pairwise(tasks)}
        applications.append(Application(name, tasks, ExponentialArrivals(gap_us), instances))
    return SimulationSettings(
        *(tuple(applications), chip, times_us, "eft", transfers_us),
        seed=seed,
        durations="spread",
        spread=spread,
    )


def equal_row(load: float, spread: float, args: argparse.Namespace) -> list[str]:
    """Return p95 with corrections over that without, of each network."""
    ratios: dict[str, list[float]] = {name: [] for name in EQUAL_US}
    for seed in range(args.trials):
        settings = equal_workload(load, spread, args.instances, seed)
        ends = [Simulation(replace(settings, correction=c)).run().runs for c in (True, False)]
        for corrected, believed in zip(*ends, strict=True):
            ratio = corrected.latencies.quantile_us(0.95) / believed.latencies.quantile_us(0.95)
            ratios[corrected.application.name].append(ratio)
    cells = [f"{load:g}", f"{spread:.0%}"]
    return [*cells, *(mean_text(measured(ratios[name])) for name in EQUAL_US)]


def mean_text(mean: Measured) -> str:
    """Return a mean with its interval."""
    return f"{mean.mean:.2f}" + (f" ± {mean.half_width:.2f}" if mean.half_width is not None else "")


def equal_lines(args: argparse.Namespace) -> list[str]:
    """Return the third section."""
    rows = [equal_row(load, spread, args) for load, spread in EQUAL_CASES]
    heads = ["load", "tasks vary by", *EQUAL_US]
    return [
        *("## Equal processors, and costs that are right", ""),
        "Two networks of eight tasks in a chain, 1 ms and 0.3 ms each, on four equal processors; data",
        "between these take 60 us. Under eft: p95 with corrections over that without, of each network.",
        *("", *markdown_table(heads, rows), ""),
    ]


def page(args: argparse.Namespace) -> str:
    """Return the page."""
    heads = ["policy", "load", "true costs, mean ms", "corrected", "not corrected"]
    wrong = [
        wrong_row(policy, load, args.factor, args) for policy in POLICIES for load in (0.5, 0.8)
    ]
    slow_heads = [
        *("policy", "corrected", "share before", "share at the end", "left", "tasks", "ms"),
        "latency x",
    ]
    slow = [slow_row(policy, c, args) for policy in POLICIES for c in (True, False)]
    lines = [
        *("# Costs that are wrong, and a processor that becomes slow", ""),
        f"By `{command_line()}`; {args.trials} draws of costs, {args.instances} tasks of each of",
        f"{KINDS} kinds, on the virtual clock.",
        *("", f"## Every cost off by a random factor of up to {args.factor:g}", ""),
        f"Mean latency once {LEARNT} tasks of each kind have ended, as a multiple of that with true",
        "costs: with corrections by what tasks took, and without; ± are 95% intervals over draws.",
        "With queueing every task is sent when it arrives, so policies that differ in the order of",
        "waiting tasks choose alike.",
        *("", *markdown_table(heads, wrong), ""),
        f"## The processor that is fastest for most kinds becomes {args.slow:g} times slower",
        *("", "Load 0.5. `left`: in how many runs its share of 20 tasks in a row fell to half of"),
        "what it was; `tasks` that it was given and `ms` until then; `latency x`: mean of the last",
        *("quarter of the tasks over that before.", "", *markdown_table(slow_heads, slow), ""),
        *equal_lines(args),
    ]
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--trials", type=int, default=20, metavar="N", help="draws of costs (20)")
    parser.add_argument(
        "--instances", type=int, default=400, metavar="N", help="of each kind (400)"
    )
    parser.add_argument("--factor", type=float, default=3.0, help="of wrong costs (3)")
    parser.add_argument("--slow", type=float, default=3.0, help="of the slow processor (3)")
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.md")
    return parser


def main() -> int:
    args = arguments().parse_args()
    text = page(args)
    print(text)
    if args.out is not None:
        write_text(args.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
