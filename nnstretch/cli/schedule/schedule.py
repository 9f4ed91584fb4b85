"""Schedule a task graph on processors, and say how far from a lower bound the schedule is.

FILE is JSON with `tasks`, `processors`, `cost` and `edges`, or with a ready `queue`; JSON of CEDR's
DAG mode; or a Standard Task Graph file (.stg). Times are in the file's own unit.

  nnstretch schedule graph.json                          # HEFT
  nnstretch schedule graph.json --policy peft --svg peft.svg
  nnstretch schedule graph.json --policy optimal         # proven, for some tens of tasks
  nnstretch schedule graph.json --policy heft --optimum  # HEFT, and how far from the optimum
  nnstretch schedule fpppp.stg --processors 8 --trace fpppp.json
  nnstretch schedule correlator.json --processors cpu=3,fft=1
  nnstretch schedule queue.json --policy heft_rt         # a run-time policy, on the virtual clock
  nnstretch schedule --policies                          # what there is, with sources

Run-time policies see only tasks whose needs have ended, as in `simulate` and `serve`. A name that
is a static and a run-time policy means the static one here; NAME_rt is the run-time one.

Every schedule is checked before it is printed: each task once, where it can run, after the tasks
and data that it needs, and no two tasks at once on a processor.

Open the trace in ui.perfetto.dev; a unit of the file is a microsecond there.
"""

from __future__ import annotations

import argparse
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import plain_number, seed_of
from nnstretch.cli.output_path import check_ending, check_writable
from nnstretch.cli.schedule.show import show as show
from nnstretch.errors import BadInput, Mismatch

if TYPE_CHECKING:
    from nnstretch.cli.schedule.policies import NamedPolicy
    from nnstretch.schedule.static_schedules.optimal import ProvenSchedule
    from nnstretch.task_graph import TaskGraph
    from nnstretch.trace import Trace

TIME_LIMIT_S = 60.0
DEFAULT_POLICY = "heft"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path, help="the task graph")
    parser.add_argument(
        "--policy",
        default=DEFAULT_POLICY,
        metavar="NAME",
        help=f"one of --policies (default: {DEFAULT_POLICY})",
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
    parser.add_argument(
        "--seed", type=seed_of, default=0, help="of policies that draw lots, such as random (0)"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE.svg", help="write a Gantt chart")
    parser.add_argument(
        "--optimum",
        action="store_true",
        help="prove the optimum beside the policy's schedule, and print the gap to it",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds_of,
        metavar="S",
        help=(
            f"seconds for the solver of `optimal` and --optimum ({TIME_LIMIT_S:g}); then it prints"
            " its bound"
        ),
    )


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput without a FILE."""
    if args.policies:
        check_alone(args)
        return {"policies": policy_rows()}
    if args.file is None:
        raise BadInput("FILE is missing, command line, name a task graph or --policies")
    check_outputs(args)
    from nnstretch.cli.schedule.policies import find_policy

    policy = find_policy(args.policy)
    if args.time_limit is not None and policy.make is not None and not args.optimum:
        raise BadInput(
            f"--time-limit {args.time_limit:g} with --policy {args.policy}, command line, only"
            " `optimal` and --optimum have a solver to end"
        )
    from nnstretch.files.task_graphs.read_task_graph import read_task_graph

    graph = read_task_graph(args.file, args.processors)
    trace, optimum = make_schedule(graph, policy, args)
    write_outputs(args, graph, trace)
    result = {"policy": args.policy, "graph": graph.name, **schedule_json(trace, graph)}
    return result if optimum is None else with_optimum(result, optimum)


def check_alone(args: argparse.Namespace) -> None:
    """Check that a list of policies is all that is asked for. Raises BadInput."""
    asked = {
        "FILE": args.file,
        "--optimum": args.optimum,
        "--trace": args.trace,
        "--svg": args.svg,
        "--processors": args.processors,
        "--time-limit": args.time_limit,
        "--seed": args.seed,
        "--policy": args.policy != DEFAULT_POLICY,
    }
    if names := [name for name, value in asked.items() if value]:
        raise BadInput(
            f"{names[0]} with --policies, command line, which lists policies and schedules nothing"
        )


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse before any work what cannot be written. Raises BadInput."""
    check_ending(args.svg, ".svg", "--svg")
    for path in (args.trace, args.svg):
        check_writable(path, args.file)
    if args.trace and args.svg and args.trace.resolve() == args.svg.resolve():
        raise BadInput(f"--svg is {args.svg}, command line, it is --trace, too")


def make_schedule(
    graph: TaskGraph, policy: NamedPolicy, args: argparse.Namespace
) -> tuple[Trace, ProvenSchedule | None]:
    """Return a checked schedule, and what is proven where that is asked for. Raises Mismatch."""
    from nnstretch.schedule.static_schedules.optimal import optimal
    from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults

    optimum = None
    if args.optimum or policy.make is None:
        limit_s = TIME_LIMIT_S if args.time_limit is None else args.time_limit
        optimum = optimal(graph, limit_s)
    if policy.make is None:
        assert optimum is not None
        trace = optimum.trace
    else:
        trace = policy.make(graph, args.seed)
    if faults := schedule_faults(trace, graph, exact=True):
        raise Mismatch(f"{args.policy} made no schedule of {args.file}, {faults[0]}")
    return trace, optimum


def write_outputs(args: argparse.Namespace, graph: TaskGraph, trace: Trace) -> None:
    """Write --trace and --svg."""
    if args.trace is not None:
        from nnstretch.run.perfetto import TraceLabels, write_traces

        write_traces(args.trace, {args.policy: trace}, TraceLabels(graph.name, {}), "modelled")
    if args.svg is not None:
        from nnstretch.files.atomic import write_text
        from nnstretch.report.charts.gantt_schedule import TimeWindow, schedule_gantt
        from nnstretch.report.format_numbers import graph_time
        from nnstretch.report.style import stand_alone

        names = [processor.name for processor in graph.processors]
        end = max(span.end_us for span in trace.spans)
        title = f"{graph.name or args.file.stem}, {args.policy}: makespan {graph_time(end)}"
        picture = schedule_gantt(title, trace, names, TimeWindow(unit="", unit_us=1.0))
        write_text(args.svg, stand_alone(picture))


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
        **gap_json(makespan, bounds.us),
        "bounds": {"critical_path": bounds.critical_path_us, "work": bounds.work_us},
        "utilisation": utilisation,
    }


def gap_json(makespan: float, lower_bound: float) -> dict[str, Any]:
    """Return how far a makespan may be from the optimum; unknown above a bound of 0."""
    is_optimal = makespan <= lower_bound * (1 + 1e-9)
    gap = 0.0 if is_optimal else None
    if lower_bound:
        gap = max(makespan / lower_bound - 1, 0.0)
    return {"lower_bound": lower_bound, "optimal": is_optimal, "gap": gap}


def with_optimum(result: dict[str, Any], optimum: ProvenSchedule) -> dict[str, Any]:
    """Return the result with the solver's bound in the place of the simple one."""
    makespan = max(span.end_us for span in optimum.trace.spans)
    bound = optimum.lower_bound_us
    proven = gap_json(makespan, bound)["optimal"]
    return {
        **result,
        **gap_json(result["makespan"], bound),
        "bounds": {**result["bounds"], "solver": bound},
        "optimum": {"makespan": makespan, "lower_bound": bound, "proven": proven},
    }


def policy_rows() -> list[dict[str, str]]:
    """Return every policy as JSON data."""
    from nnstretch.cli.schedule.policies import named_policies

    rows: list[dict[str, str]] = []
    for name, policy in named_policies().items():
        about = {"source": policy.source, "ties": policy.ties, "cost": policy.cost}
        rows.append({"name": name, "decides": policy.decides, "rule": policy.rule, **about})
    return rows


def seconds_of(text: str) -> float:
    """Parse a time limit. Raises ArgumentTypeError for anything but a positive number."""
    seconds = plain_number(text)
    if not 0 < seconds < inf:
        raise argparse.ArgumentTypeError(f"{text!r:.80} is no time, write seconds such as 60")
    return seconds
