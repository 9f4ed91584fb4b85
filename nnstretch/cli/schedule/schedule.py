"""Schedule a task graph on processors, and say how far from a lower bound the schedule is.

FILE is JSON with `tasks`, `processors`, `cost` and `edges`, or with a ready `queue`; JSON of CEDR's
DAG mode; or a Standard Task Graph file (.stg). Times are in the file's own unit.

  nnstretch schedule graph.json                          HEFT
  nnstretch schedule graph.json --policy peft --json
  nnstretch schedule fpppp.stg --processors 8 --trace fpppp.json
  nnstretch schedule correlator.json --processors cpu=3,fft=1
  nnstretch schedule --policies                          what there is, with sources

Every schedule is checked before it is printed: each task once, where it can run, behind what it
needs and the data of that, and no two tasks at once on a processor.

Open the trace in ui.perfetto.dev; a unit of the file is a microsecond there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.output_path import check_writable
from nnstretch.cli.schedule.show import show as show
from nnstretch.errors import BadInput, Mismatch, UnknownName, closest

if TYPE_CHECKING:
    from nnstretch.task_graph import TaskGraph
    from nnstretch.trace import Trace

SUMMARY = "a task graph on processors, with lower bounds"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="the task graph")
    parser.add_argument(
        "--policy", default="heft", metavar="NAME", help="one of --policies (default: heft)"
    )
    parser.add_argument(
        "--policies", action="store_true", help="list every policy with source, ties and cost"
    )
    parser.add_argument(
        "--processors",
        metavar="N",
        help=(
            "for .stg and CEDR's files: a number of equal processors, or types with counts such as"
            " cpu=3,fft=1"
        ),
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE.json", help="write what runs when as a Perfetto trace"
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput without a FILE."""
    if args.policies:
        return {"policies": policy_rows()}
    if args.file is None:
        raise BadInput("FILE is missing, command line, name a task graph or --policies")
    check_writable(args.trace, args.file)
    policy = find_policy(args.policy)
    from nnstretch.files.task_graphs.read_task_graph import read_task_graph
    from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults

    graph = read_task_graph(args.file, args.processors)
    trace = policy.make(graph)
    if faults := schedule_faults(trace, graph, exact=True):
        raise Mismatch(f"{args.policy} made no schedule of {args.file}, {faults[0]}")
    if args.trace is not None:
        from nnstretch.run.perfetto import TraceLabels, write_traces

        write_traces(args.trace, {args.policy: trace}, TraceLabels(graph.name, {}))
    return {"policy": args.policy, "graph": graph.name, **schedule_json(trace, graph)}


def schedule_json(trace: Trace, graph: TaskGraph) -> dict[str, Any]:
    """Return a schedule as JSON data, from time 0 on."""
    from nnstretch.schedule.task_graphs.lower_bounds import lower_bounds

    bounds = lower_bounds(graph)
    makespan = max(span.end_us for span in trace.spans)
    tasks: list[dict[str, Any]] = []
    for span in sorted(trace.spans, key=lambda span: (span.start_us, span.end_us)):
        where = {"task": span.task.name, "processor": span.processor}
        tasks.append({**where, "start": span.start_us, "end": span.end_us})
    utilisation: dict[str, float] = {}
    for processor in graph.processors:
        busy = trace.busy_us(processor.name)
        utilisation[processor.name] = busy / makespan if makespan else 0.0
    return {
        "makespan": makespan,
        "tasks": tasks,
        "lower_bound": bounds.us,
        "optimal": makespan <= bounds.us * (1 + 1e-12),
        "gap": makespan / bounds.us - 1 if bounds.us else 0.0,
        "bounds": {"critical_path": bounds.critical_path_us, "work": bounds.work_us},
        "utilisation": utilisation,
    }


def find_policy(name: str) -> Any:
    """Return a policy by name. Raises UnknownName with the closest."""
    from nnstretch.schedule.static_schedules.table import STATIC_POLICIES

    if name not in STATIC_POLICIES:
        names = list(STATIC_POLICIES)
        raise UnknownName(
            f"unknown policy {name}, command line, it is one of {', '.join(names)}"
            f"{closest(name, names)}"
        )
    return STATIC_POLICIES[name]


def policy_rows() -> list[dict[str, str]]:
    """Return every policy as JSON data."""
    from nnstretch.schedule.static_schedules.table import STATIC_POLICIES

    rows: list[dict[str, str]] = []
    for name, policy in STATIC_POLICIES.items():
        about = {"source": policy.source, "ties": policy.ties, "cost": policy.cost}
        rows.append({"name": name, "decides": "before anything runs", **about})
    return rows
