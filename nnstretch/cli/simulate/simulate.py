"""Simulate a workload: networks that arrive when they like, on the processors of a chip.

    nnstretch simulate workload.yaml --soc mi9 --policy heft_rt
    nnstretch simulate workload.yaml --replications 10          # 95% intervals
    nnstretch simulate workload.yaml --trace t.json             # what ran when, for ui.perfetto.dev
    nnstretch simulate workload.yaml --log logs                 # CEDR's log files
    nnstretch simulate workload.yaml --report page.html         # applications, Gantt, queues
    nnstretch simulate workload.yaml --svg gantt.svg --window 0:10000
    nnstretch simulate workload.yaml --replay served.jsonl      # a server's record once more
    nnstretch simulate measure workload.yaml --out costs.json   # what this host takes
    nnstretch simulate workload.yaml --costs costs.json         # with these times and their spread
    nnstretch schedule --policies                               # what --policy may be

A workload, with one of each kind of application:

    soc: mi9
    pool: {cpu: 2, gpu: 1}             how many of each; all of the chip's where absent
    policy: heft_rt                    --policy goes before it, as --seed does
    queueing: true                     false: only idle processors get work
    durations: {kind: spread, spread: 0.1}    or exact, or exponential
    applications:
    - {name: detect, model: net.onnx, cut: 4, arrivals: {exponential_ms: 20}, instances: 500,
       deadline_ms: 60, priority: 1, queue_limit: 8}
    - {name: planned, model: plan.yaml, placement: kept, arrivals: {period_ms: 50}, instances: 90}
    - {name: radar, model: graph.json, arrivals: {times_ms: [0, 5, 5]}}
    - {name: filter, costs_ms: {cpu: 3.5}, arrivals: {csv: times.csv}}

`cut` is whole, segments, layers, or a number of pieces of about as many MACs. Of all that wait,
what was given to a busy processor included, the greatest `priority` (0 where absent) starts first.
Deadlines order what waits only with `policy: least_slack` and `queueing: false`. The same scheduler
serves real requests; here every task takes what is predicted, or is drawn around that. Equal seeds
give equal results; memory does not grow with the number of tasks unless --trace, --log, --check or
pictures keep them: from 65,536 instances of an application on, percentiles are within 0.05%.

In a --trace, `handed to cpu` counts the tasks that the processor itself has: what the scheduler
keeps for it, or for any, is not among them.

--replay lets the requests of `serve --record` arrive once more, with the costs that the server's
policy was told, and prints recorded beside simulated latencies with the error of each. Tasks take
what they took; with --costs they take measured times, and only the arrivals are the recorded ones.
--policy says what another policy would have done.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.arguments import seed_of
from nnstretch.cli.output_path import check_apart, check_ending, check_folder, check_writable
from nnstretch.cli.simulate.show import show as show
from nnstretch.cli.simulate.watcher import Watcher, window_us
from nnstretch.errors import BadInput

if TYPE_CHECKING:
    from nnstretch.files.workload.workload import WorkloadFile
    from nnstretch.schedule.simulation.settings import SimulationSettings
    from nnstretch.schedule.simulation.simulate import SimulationResult

MOST_REPLICATIONS = 10_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add = parser.add_argument
    add("workload", metavar="WORKLOAD.yaml", type=Path, help="applications, pool and policy")
    add("--soc", help="chip, instead of the workload's own: a name or a folder")
    add("--policy", metavar="NAME", help="instead of the workload's own; see schedule --policies")
    add("--seed", type=seed_of, metavar="N", help="instead of the workload's own")
    add("--replications", type=int, default=1, metavar="N", help="runs, of seed, seed + 1, ... (1)")
    add("--trace", type=Path, metavar="FILE.json", help="write the first run as a Perfetto trace")
    add("--log", type=Path, metavar="FOLDER", help="CEDR's logs of the first run, kept in memory")
    add("--report", type=Path, metavar="FILE.html", help="write a page, its chart of the first run")
    add("--svg", type=Path, metavar="FILE.svg", help="write a Gantt chart of the first run")
    add("--window", metavar="START:END", help="of Gantt charts, in ms (the whole run)")
    more = "measured times, instead of the workload's own; again for those of another network"
    add("--costs", metavar="FILE.json", action="append", help=more)
    add("--replay", type=Path, metavar="FILE", help="a record of serve: its requests once more")
    add("--check", action="store_true", help="check that the first run is a schedule")


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput or Mismatch."""
    from nnstretch.cli.loaded_model import load_soc_of
    from nnstretch.cli.simulate.applications import simulation_settings, source_json
    from nnstretch.cli.simulate.workload_files import check_no_input
    from nnstretch.files.workload.workload import Durations
    from nnstretch.files.workload.workload_yaml import read_workload
    from nnstretch.schedule.policies.table import find_policy

    check(args)
    workload = read_workload(args.workload)
    options = {"policy": args.policy, "seed": args.seed, "soc": args.soc}
    if args.costs is not None:
        options |= {"costs": tuple(args.costs), "durations": Durations("measured")}
    workload = replace(workload, **{key: v for key, v in options.items() if v is not None})
    find_policy(workload.policy)
    check_no_input(workload, args.workload.parent, args.trace, args.report, args.svg)
    if args.replay is not None:
        return replay(args, workload)
    soc = None if workload.soc is None else load_soc_of(workload.soc)
    settings = simulation_settings(workload, soc, args.workload.parent)
    head = {"workload": str(args.workload), "soc": workload.soc} | source_json(workload, soc)
    return simulated(args, settings, head)[0]


def simulated(
    args: argparse.Namespace, settings: SimulationSettings, head: dict[str, Any]
) -> tuple[dict[str, Any], list[SimulationResult]]:
    """Simulate, write the requested files, and return the result as JSON data and as objects.

    `head` is the part of the JSON that names the workload.
    """
    from nnstretch.cli.progress import progress
    from nnstretch.cli.simulate.result_json import result_json
    from nnstretch.schedule.simulation.replications import replicate
    from nnstretch.schedule.simulation.simulate import Simulation

    watcher = Watcher(args)
    first = Simulation(settings, watcher.on_span, watcher.on_outcome, watcher.on_round)
    with progress("simulating") as tick:
        results = replicate(settings, args.replications, tick, first)
    result = head | result_json(settings, results) | watcher.write(settings, results[0])
    return result | watcher.draw(result, results[0]), results


def replay(args: argparse.Namespace, workload: WorkloadFile) -> dict[str, Any]:
    """Let a record arrive once more, and return the result as JSON data. Raises Mismatch."""
    from nnstretch.cli.simulate.measured import measured_times
    from nnstretch.cli.simulate.replay import check_same_workload, replay_json
    from nnstretch.cli.simulate.workload_files import costs_beside
    from nnstretch.files.workload.service_record import read_record
    from nnstretch.schedule.simulation.replay import replay_settings

    record = read_record(args.replay)
    check_same_workload(record, workload, args.replay)
    measured = None
    if args.costs is not None:
        measured = measured_times(costs_beside(args.costs, args.workload.parent))
    settings = replay_settings(record, args.policy, measured, workload.seed)
    result, results = simulated(args, settings, {"workload": str(args.workload), "soc": None})
    source = "recorded" if measured is None else "measured"
    replayed = replay_json(record, args.replay, source, results)
    return result | {"replay": replayed}


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that make no sense, before anything is read. Raises BadInput."""
    if not 1 <= args.replications <= MOST_REPLICATIONS:
        raise BadInput(
            f"--replications is {args.replications}, command line, write a number from 1 to"
            f" {MOST_REPLICATIONS}"
        )
    if args.replay is not None and args.soc is not None:
        raise BadInput(f"--soc {args.soc} beside --replay, command line, a record has its own chip")
    check_ending(args.svg, ".svg", "--svg")
    check_ending(args.report, ".html", "--report")
    for file in (args.trace, args.report, args.svg):
        check_writable(file, args.workload, args.replay)
    check_apart(args.trace, args.report, args.svg, args.log)
    window_us(args.window)
    if args.window is not None and args.svg is None and args.report is None:
        raise BadInput(
            f"--window {args.window} without --svg or --report, command line, there is no chart"
        )
    check_folder(args.log, "--log")
