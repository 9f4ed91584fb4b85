"""Measure what the applications of a workload take on this host, for simulations and servers.

    nnstretch simulate measure workload.yaml --out costs.json
    nnstretch simulate measure workload.yaml --out costs.json --rounds 100
    nnstretch simulate measure workload.yaml --out costs.json --record served.jsonl

Every sub-graph of the workload's bundles runs on every processor of its pool, --rounds times while
all others rest and as often while all others work, on the threads that serve requests. The table
keeps samples, by how much others slow it, and what deciding, handing over and hearing of an end
take. With --record nothing is run: the table says what the tasks of a server's record took.

`nnstretch simulate workload.yaml --costs costs.json` draws from it; so does a workload with
`costs: costs.json` and `durations: {kind: measured}`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import seed_of, whole_number
from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from rich.console import Console

    from nnstretch.files.workload.measured_costs import MeasuredCosts
    from nnstretch.files.workload.workload import WorkloadFile
    from nnstretch.run.loaded_network import LoadedNetwork, Values
    from nnstretch.task import Task

ROUNDS, MOST_ROUNDS = 50, 100_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add = parser.add_argument
    add("workload", metavar="WORKLOAD.yaml", type=Path, help="applications and pool")
    add("--out", type=Path, required=True, metavar="FILE.json", help="where the table is written")
    add("--rounds", type=whole_number, metavar="N", help=f"runs of each kind ({ROUNDS})")
    add("--record", type=Path, metavar="FILE", help="take times from a record of serve")
    add("--seed", type=seed_of, metavar="N", help="of the inputs (0)")


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput or Mismatch."""
    from nnstretch.cli.simulate.workload_files import check_no_input
    from nnstretch.files.workload.measured_costs import write_measured_costs
    from nnstretch.files.workload.workload_yaml import read_workload

    check(args)
    check_writable(args.out, args.workload, args.record)
    workload = read_workload(args.workload)
    check_no_input(workload, args.workload.parent, args.out)
    costs = measured(args, workload) if args.record is None else recorded(args, workload)
    write_measured_costs(args.out, costs)
    return result_json(costs, args)


def check(args: argparse.Namespace) -> None:
    """Refuse options that make no sense, before anything is read. Raises BadInput."""
    if args.rounds is not None and not 1 <= args.rounds <= MOST_ROUNDS:
        raise BadInput(f"--rounds is {args.rounds}, command line, write 1 to {MOST_ROUNDS}")
    for option, value in (("--rounds", args.rounds), ("--seed", args.seed)):
        if args.record is not None and value is not None:
            raise BadInput(
                f"{option} {value} with --record {args.record}, command line, nothing is run, the"
                " record says what tasks took"
            )


def recorded(args: argparse.Namespace, workload: WorkloadFile) -> MeasuredCosts:
    """Return what a record says. Raises Mismatch for one of another workload."""
    from nnstretch.cli.simulate.replay import check_same_workload
    from nnstretch.files.workload.service_record import read_record
    from nnstretch.schedule.simulation.record_costs import costs_of_record

    record = read_record(args.record)
    check_same_workload(record, workload, args.record)
    return costs_of_record(record)


def measured(args: argparse.Namespace, workload: WorkloadFile) -> MeasuredCosts:
    """Run the tasks of all applications and return what they took."""
    from nnstretch.bench.cost_meter import CostMeter
    from nnstretch.cli.progress import progress
    from nnstretch.cli.simulate.pool import pool_of

    pool = pool_of(workload, None, ())
    work, tasks = runnable_tasks(workload, args.workload.parent, args.seed or 0)
    meter = CostMeter(tasks, pool.processors, work)
    with progress("measuring") as tick:
        meter.run(args.rounds or ROUNDS, tick)
    return meter.table()


def runnable_tasks(
    workload: WorkloadFile, folder: Path, seed: int
) -> tuple[Callable[[Task], None], list[Task]]:
    """Load every bundle of a workload; return what computes a task, and all tasks.

    Raises BadInput for an application that is no bundle.
    """
    from nnstretch.bundle.bundle import read_bundle
    from nnstretch.cli.simulate.workload_files import beside
    from nnstretch.run.loaded_network import LoadedNetwork
    from nnstretch.schedule.task_graph import task_graph

    networks: dict[str, LoadedNetwork] = {}
    values: dict[str, Values] = {}
    tasks: list[Task] = []
    for application in workload.applications:
        if application.model is None or not application.model.endswith(".nns"):
            raise BadInput(
                f"{application.model or 'costs_ms'} of {application.name} is no bundle, workload,"
                " only what `nnstretch export` wrote can be measured"
            )
        network = LoadedNetwork(read_bundle(beside(application.model, folder)))
        inputs = network.inputs(network.random_inputs(seed))
        networks[application.name] = network
        values[application.name] = network.all_tensors(inputs)
        tasks += task_graph(network.manifest, plan=application.name)

    def work(task: Task) -> None:
        networks[task.plan].results(task.subgraph, values[task.plan])

    return work, tasks


def result_json(costs: MeasuredCosts, args: argparse.Namespace) -> dict[str, Any]:
    """Return the table as JSON data, without its samples."""
    rows = []
    for row in costs.tasks:
        p95_us = row.samples_us[min(len(row.samples_us) - 1, int(0.95 * len(row.samples_us)))]
        rows.append(
            {
                **{"application": row.application, "task": row.task, "processor": row.processor},
                **{"median_ms": row.median_us / 1000, "p95_ms": p95_us / 1000},
                **{"beside": row.beside, "samples": len(row.samples_us)},
            }
        )
    return {
        "workload": str(args.workload),
        "out": str(args.out),
        "record": None if args.record is None else str(args.record),
        "tasks": rows,
        "decision_us": costs.decision_us,
        "handover_us": costs.handover_us,
        "answer_us": costs.answer_us,
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    from rich.table import Table

    table = Table("application", "task", "processor", "median ms", "p95", "beside others")
    for row in result["tasks"]:
        table.add_row(
            *(row["application"], row["task"], row["processor"]),
            *(f"{row['median_ms']:.4g}", f"{row['p95_ms']:.4g}", f"x {row['beside']:.2f}"),
        )
    console.print(table)
    console.print(
        f"{result['decision_us']:.0f} us to decide, {result['handover_us']:.0f} us to hand over,"
        f" {result['answer_us']:.0f} us to hear of an end; table in {result['out']}",
        highlight=False,
        soft_wrap=True,
    )
