"""Simulate a workload: networks that arrive when they like, on the processors of a chip.

    nnstretch simulate workload.yaml --soc mi9 --policy heft_rt
    nnstretch simulate workload.yaml --replications 10          95% intervals
    nnstretch simulate workload.yaml --trace t.json             what ran when, for ui.perfetto.dev
    nnstretch simulate workload.yaml --log logs                 CEDR's log files
    nnstretch simulate workload.yaml --replay served.jsonl      a server's record once more
    nnstretch simulate measure workload.yaml --out costs.json   what this host takes
    nnstretch simulate workload.yaml --costs costs.json         with these times and their spread
    nnstretch schedule --policies                               what --policy may be

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

`cut` is whole, segments, layers, or a number of pieces of about as many MACs. The same scheduler
serves real requests; here every task takes what is predicted, or is drawn around that. Equal seeds
give equal results; memory does not grow with the number of tasks unless --trace, --log or --check
keep them.

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

from nnstretch.cli.output_path import check_writable
from nnstretch.cli.simulate.show import show as show
from nnstretch.errors import BadInput, Mismatch

if TYPE_CHECKING:
    from nnstretch.files.workload.workload import WorkloadFile
    from nnstretch.schedule.request import RequestOutcome
    from nnstretch.schedule.simulation.settings import SimulationSettings
    from nnstretch.schedule.simulation.simulate import ApplicationRun, SimulationResult
    from nnstretch.trace import Span

SUMMARY = "networks that arrive at run time, under a policy, on the virtual clock"
MOST_REPLICATIONS = 10_000


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add = parser.add_argument
    add("workload", metavar="WORKLOAD.yaml", type=Path, help="applications, pool and policy")
    add("--soc", help="chip, before the workload's own: a name or a folder")
    add("--policy", metavar="NAME", help="before the workload's own; see schedule --policies")
    add("--seed", type=int, metavar="N", help="before the workload's own")
    add("--replications", type=int, default=1, metavar="N", help="runs, of seed, seed + 1, ... (1)")
    add("--trace", type=Path, metavar="FILE.json", help="write the first run as a Perfetto trace")
    add("--log", type=Path, metavar="FOLDER", help="write CEDR's log files of the first run")
    add("--costs", metavar="FILE.json", help="measured times, before the workload's own")
    add("--replay", type=Path, metavar="FILE", help="a record of serve: its requests once more")
    add("--check", action="store_true", help="check that the first run is a schedule")


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput or Mismatch."""
    from nnstretch.cli.loaded_model import load_soc_of
    from nnstretch.cli.simulate.applications import simulation_settings
    from nnstretch.files.workload.workload import Durations
    from nnstretch.files.workload.workload_yaml import read_workload
    from nnstretch.schedule.policies.table import find_policy

    check(args)
    workload = read_workload(args.workload)
    options = {"policy": args.policy, "seed": args.seed, "soc": args.soc}
    if args.costs is not None:
        options |= {"costs": args.costs, "durations": Durations("measured")}
    workload = replace(workload, **{key: v for key, v in options.items() if v is not None})
    find_policy(workload.policy)
    if args.replay is not None:
        return replay(args, workload)
    soc = None if workload.soc is None else load_soc_of(workload.soc)
    settings = simulation_settings(workload, soc, args.workload.parent)
    result, _ = simulated(args, settings)
    if soc is not None:
        result |= {"calibrated": soc.calibrated, "provenance": soc.provenance}
    return {"workload": str(args.workload), "soc": workload.soc} | result


def simulated(
    args: argparse.Namespace, settings: SimulationSettings
) -> tuple[dict[str, Any], list[SimulationResult]]:
    """Simulate, write what was asked for, and return the result as JSON data and as it is."""
    from nnstretch.cli.progress import progress
    from nnstretch.cli.simulate.result_json import result_json
    from nnstretch.schedule.simulation.replications import replicate
    from nnstretch.schedule.simulation.simulate import Simulation

    watcher = Watcher(args)
    first = Simulation(settings, watcher.on_span, watcher.on_outcome, watcher.on_round)
    with progress("simulating") as tick:
        results = replicate(settings, args.replications, tick, first)
    return result_json(settings, results) | watcher.write(settings), results


def replay(args: argparse.Namespace, workload: WorkloadFile) -> dict[str, Any]:
    """Let a record arrive once more, and return the result as JSON data. Raises Mismatch."""
    from nnstretch.cli.simulate.applications import beside
    from nnstretch.cli.simulate.measured import measured_times
    from nnstretch.cli.simulate.replay import check_same_workload, replay_json
    from nnstretch.files.workload.measured_costs import read_measured_costs
    from nnstretch.files.workload.service_record import read_record
    from nnstretch.schedule.simulation.replay import replay_settings

    record = read_record(args.replay)
    check_same_workload(record, workload, args.replay)
    measured = None
    if args.costs is not None:
        measured = measured_times(read_measured_costs(beside(args.costs, args.workload.parent)))
    settings = replay_settings(record, args.policy, measured, workload.seed)
    result, results = simulated(args, settings)
    source = "recorded" if measured is None else "measured"
    replayed = replay_json(record, args.replay, source, results)
    return {"workload": str(args.workload), "soc": None} | result | {"replay": replayed}


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that make no sense, before anything is read. Raises BadInput."""
    if not 1 <= args.replications <= MOST_REPLICATIONS:
        raise BadInput(
            f"--replications is {args.replications}, command line, write a number from 1 to"
            f" {MOST_REPLICATIONS}"
        )
    if args.seed is not None and args.seed < 0:
        raise BadInput(f"--seed is {args.seed}, command line, write 0 or more")
    check_writable(args.trace, args.workload)
    if args.log is not None and args.log.exists() and not args.log.is_dir():
        raise BadInput(f"--log is {args.log}, command line, it is a file, name a folder")


class Watcher:
    """Keeps of the first run what --trace, --log and --check need, and nothing else."""

    def __init__(self, args: argparse.Namespace) -> None:
        from nnstretch.schedule.simulation.cedr_logs import CedrLogs

        self._args = args
        self._logs = None if args.log is None else CedrLogs()
        self._spans: list[Span] = []
        self._arrived_us: dict[int, float] = {}
        """Of instances that ended."""
        keeps = args.trace is not None or args.check
        self.on_span = self._keep_span if keeps or self._logs is not None else None
        self.on_outcome = self._keep_outcome if args.check or self._logs is not None else None
        self.on_round = None if self._logs is None else self._logs.on_round

    def _keep_span(self, span: Span) -> None:
        if self._args.trace is not None or self._args.check:
            self._spans.append(span)
        if self._logs is not None:
            self._logs.on_span(span)

    def _keep_outcome(
        self, run: ApplicationRun, number: int, outcome: RequestOutcome, first_us: float
    ) -> None:
        if self._args.check and outcome.error is None:
            self._arrived_us[number] = outcome.arrived_us
        if self._logs is not None:
            self._logs.on_outcome(run, number, outcome, first_us)

    def write(self, settings: SimulationSettings) -> dict[str, Any]:
        """Write what was asked for. Raises Mismatch where the run is no schedule."""
        from nnstretch.run.perfetto import TraceLabels, write_traces
        from nnstretch.trace import Trace

        result: dict[str, Any] = {}
        if self._args.trace is not None:
            labels = TraceLabels(self._args.workload.stem, {})
            write_traces(self._args.trace, {settings.policy: Trace(tuple(self._spans))}, labels)
            result["trace"] = str(self._args.trace)
        if self._logs is not None:
            result["log"] = str(self._logs.write(self._args.log))
        if self._args.check:
            result["checked_tasks"] = self._check(settings)
        return result

    def _check(self, settings: SimulationSettings) -> int:
        from nnstretch.schedule.task_graphs.schedule_faults import schedule_faults
        from nnstretch.task_graph import TaskGraph
        from nnstretch.trace import Trace

        spans = tuple(span for span in self._spans if span.task.request in self._arrived_us)
        tasks = tuple(span.task for span in spans)
        if not tasks:
            return 0
        arrivals_us = {task.name: self._arrived_us[task.request] for task in tasks}
        graph = TaskGraph("", tasks, settings.processors, settings.times_us, settings.transfers_us)
        for fault in schedule_faults(Trace(spans), graph, arrivals_us):
            raise Mismatch(f"{settings.policy} made no schedule of {self._args.workload}, {fault}")
        return len(spans)
