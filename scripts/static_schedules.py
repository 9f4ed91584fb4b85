"""Static schedules: published graphs against their bounds and optima, and how HEFT's time grows.

Random graphs have three needs per task, drawn from the tenth of the graph before it, costs drawn
evenly from 1 to 100 for each task and processor, and transfers from 0 to 50. Seconds are CPU time
of one process; reading and building the graph are left out.

    python scripts/static_schedules.py --out docs/results/static_schedules.md --picture docs/results/heft_growth.svg
"""

from __future__ import annotations

import argparse
import platform
import random
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text
from nnstretch.files.task_graphs.read_task_graph import read_task_graph
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.style import stand_alone
from nnstretch.schedule.static_schedules.optimal import optimal
from nnstretch.schedule.static_schedules.table import STATIC_POLICIES
from nnstretch.schedule.task_graphs.lower_bounds import lower_bounds
from nnstretch.soc import Processor
from nnstretch.task import Task, WorkKey
from nnstretch.task_graph import TaskGraph
from nnstretch.trace import Trace

GRAPHS = Path(__file__).parents[1] / "tests" / "data" / "task_graphs"
STANDARD = (
    ("robot", (2, 3, 4, 5, 6, 8, 16)),
    ("fpppp", (2, 3, 4, 5, 6, 8, 16)),
    ("sparse", (2, 4, 8, 16)),
)
SIZES = (1_000, 3_000, 10_000, 30_000, 100_000)
PROCESSORS = (2, 8, 32)
NEEDS = 3
INSERTING = ("heft", "cpop", "peft")


def random_graph(count: int, processors: int, seed: int) -> TaskGraph:
    """A graph of `count` tasks with NEEDS needs each where there are as many before it."""
    draw = random.Random(seed)
    chip = tuple(Processor(f"p{number}", "cpu", 1) for number in range(processors))
    tasks: list[Task] = []
    costs: dict[tuple[WorkKey, str], float] = {}
    transfers: dict[tuple[WorkKey, WorkKey], float] = {}
    for number in range(count):
        name = f"t{number}"
        first = max(number - max(count // 10, NEEDS), 0)
        chosen = draw.sample(range(first, number), min(NEEDS, number - first))
        needs = [f"t{need}" for need in chosen]
        tasks.append(Task(name, name, frozenset(needs)))
        for need in needs:
            transfers[need, name] = draw.uniform(0, 50)
        for processor in chip:
            costs[name, processor.name] = draw.uniform(1, 100)
    return TaskGraph(f"random {count}", tuple(tasks), chip, costs, transfers)


def end_of(trace: Trace) -> float:
    return max(span.end_us for span in trace.spans)


def published_rows() -> Iterable[tuple[str, ...]]:
    graph = read_task_graph(GRAPHS / "topcuoglu2002.json")
    best = end_of(optimal(graph).trace)
    for name, policy in STATIC_POLICIES.items():
        makespan = end_of(policy.make(graph))
        yield name, f"{makespan:g}", f"{makespan / best - 1:.1%}"
    yield "optimal", f"{best:g}", "proven"


def standard_rows() -> Iterable[tuple[str, ...]]:
    for name, counts in STANDARD:
        for count in counts:
            graph = read_task_graph(GRAPHS / f"{name}.stg", str(count))
            bounds = lower_bounds(graph)
            ends = {key: end_of(policy.make(graph)) for key, policy in STATIC_POLICIES.items()}
            best = min(ends.values())
            names = ", ".join(key for key, end in ends.items() if end == best)
            cells = (f"{bounds.us:g}", f"{ends['heft']:g}", f"{ends['heft'] / bounds.us - 1:.1%}")
            yield name, str(count), *cells, f"{best:g} ({names})"


def seconds_of(policy: str, graph: TaskGraph) -> float:
    began = time.process_time()
    STATIC_POLICIES[policy].make(graph)
    return time.process_time() - began


def growth() -> tuple[list[tuple[str, ...]], list[ChartLine]]:
    rows: list[tuple[str, ...]] = []
    points: dict[str, list[tuple[float, float]]] = {}
    for count in SIZES:
        for processors in PROCESSORS:
            graph = random_graph(count, processors, seed=count)
            seconds = {name: seconds_of(name, graph) for name in INSERTING}
            points.setdefault(f"HEFT, {processors} processors", []).append((count, seconds["heft"]))
            cells = [f"{seconds[name]:.2f}" for name in INSERTING]
            rows.append((f"{count:,}", f"{NEEDS * count:,}", str(processors), *cells))
    return rows, [ChartLine(name, tuple(line)) for name, line in points.items()]


def page(picture: Path, rows: list[tuple[str, ...]]) -> str:
    lines = [
        "# Static schedules",
        "",
        f"`{command_line()}`, CPU time on one core ({platform.machine()}).",
    ]
    lines += ["", "## The published graph of Topcuoglu, Hariri, Wu (2002)", ""]
    lines += markdown_table(("policy", "makespan", "above the optimum"), published_rows())
    lines += ["", "## Standard Task Graphs (Kasahara laboratory) on equal processors", ""]
    lines += [
        "Bound: the greater of critical path and work by processors. Best: of all static policies.",
        "",
    ]
    heads = ("graph", "processors", "bound", "HEFT", "HEFT above the bound", "best")
    lines += markdown_table(heads, standard_rows())
    lines += ["", "## Seconds", "", f"![Seconds of HEFT]({picture.name})", ""]
    lines += markdown_table(("tasks", "edges", "processors", *INSERTING), rows)
    return "\n".join([*lines, ""])


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/static_schedules.md"))
    parser.add_argument("--picture", type=Path, default=Path("docs/results/heft_growth.svg"))
    return parser


def main() -> int:
    args = arguments().parse_args()
    rows, lines = growth()
    tasks, seconds = ChartAxis("tasks", True), ChartAxis("seconds", True)
    drawing = line_chart("CPU time of HEFT with insertion", tasks, seconds, lines)
    write_text(args.picture, stand_alone(drawing))
    write_text(args.out, page(args.picture, rows))
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
