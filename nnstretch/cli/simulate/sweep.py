"""Simulate a workload on many pools, policies and rates of arrival, several times each.

    nnstretch simulate sweep sweep.yaml --out results
    nnstretch simulate sweep sweep.yaml --out results --dask tcp://scheduler:8786

A sweep names its workload and what is varied:

    workload: workload.yaml
    pools: [{cpu: 1}, {cpu: 3, fft: 1}]
    policies: [rr, met, eft]
    rates: [0.5, 1, 2]          arrivals come so many times as fast
    trials: 5                   of seed, seed + 1, ...

Every finished configuration is a line of FOLDER/journal.jsonl: a sweep that was killed goes on
where it stopped, and ends in the same bytes; it is refused where a file that it reads has changed
since. All cores compute (--workers N for fewer), by joblib; --dask hands the work to the scheduler
of a Dask cluster. FOLDER/report.html shows latency against rate, policies, pools and queues; the
same is in FOLDER/sweep.md and its pictures, and `nnstretch report FOLDER/journal.jsonl` makes the
page again. --decision-times adds what decisions took on this host, by how many tasks waited; only
that differs from run to run.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.output_path import check_folder
from nnstretch.errors import BadInput, NnstretchError, Stuck, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from nnstretch.files.workload.sweep_yaml import Configuration
    from nnstretch.files.workload.workload import WorkloadFile

MOST_WORKERS = 1024


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    add = parser.add_argument
    add("sweep", metavar="SWEEP.yaml", type=Path, help="workload, pools, policies, rates, trials")
    add("--out", type=Path, required=True, metavar="FOLDER", help="for the journal and tables")
    add("--workers", type=int, default=-1, metavar="N", help="processes (default: all cores)")
    add("--decision-times", action="store_true", help="keep what decisions take on this host")
    add("--dask", metavar="ADDRESS", help="scheduler of a Dask cluster, instead of processes here")


def main(args: argparse.Namespace) -> dict[str, Any]:
    """Run the verb and return its result as JSON data. Raises BadInput."""
    from nnstretch.cli.loaded_model import load_soc_of
    from nnstretch.cli.simulate.applications import source_json
    from nnstretch.cli.simulate.sweep_files import file_digests
    from nnstretch.files.journal import only_writer
    from nnstretch.files.workload.sweep_yaml import read_sweep
    from nnstretch.files.workload.workload_yaml import read_workload
    from nnstretch.schedule.policies.table import find_policy

    check(args)
    sweep = read_sweep(args.sweep)
    path = workload_path(args.sweep, sweep.workload)
    workload = read_workload(path)
    for policy in sweep.policies or (workload.policy,):
        find_policy(policy)
    configurations = list(sweep.configurations(workload))
    soc = None if workload.soc is None else load_soc_of(workload.soc)
    head = {
        "sweep": digest(workload, configurations),
        "files": file_digests(workload, path.parent),
        **source_json(workload, soc),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    with only_writer(args.out):
        return swept(args, workload, configurations, path.parent, head)


def swept(
    args: argparse.Namespace,
    workload: WorkloadFile,
    configurations: Sequence[Configuration],
    folder: Path,
    head: dict[str, Any],
) -> dict[str, Any]:
    """Simulate what the journal lacks, write tables, and return the result as JSON data.

    `head` is the journal's first line. Raises BadInput for a journal of something else.
    """
    from nnstretch.cli.progress import progress
    from nnstretch.cli.simulate.sweep_files import resume_sweep
    from nnstretch.cli.simulate.sweep_tables import write_tables
    from nnstretch.files.journal import append_rows, read_journal, resume_journal
    from nnstretch.report.simulations.sweep_data import DECISIONS, JOURNAL, sweep_data

    journal, decisions = args.out / JOURNAL, args.out / DECISIONS
    rows = resume_sweep(journal, head, configurations)
    resume_journal(decisions)
    done = rows[1:]
    waiting = configurations[len(done) :]
    if args.decision_times and not waiting and not decisions.exists():
        raise BadInput(
            f"no --decision-times, {args.out}, its sweep is complete and was made without"
        )
    with progress("simulating") as tick, workers_of(args):
        if not rows:
            append_rows(journal, [head])
        for row, times in results(workload, waiting, folder, args.workers):
            append_rows(journal, [row])
            if args.decision_times:
                append_rows(decisions, [times])
            done.append(row)
            tick(len(done), len(configurations))
    data = sweep_data([head, *done], journal, read_journal(decisions))
    failed = sum("error" in row for row in done)
    return {
        "configurations": len(configurations),
        "finished": len(done) - failed,
        "failed": failed,
        "journal": str(journal),
        "tables": [str(file) for file in write_tables(args.out, data)],
    }


def check(args: argparse.Namespace) -> None:
    """Refuse arguments that make no sense, before anything is read. Raises BadInput."""
    if not 1 <= args.workers <= MOST_WORKERS and args.workers != -1:
        raise BadInput(
            f"--workers is {args.workers}, command line, write 1 to {MOST_WORKERS}, or -1 for all"
            " cores"
        )
    check_folder(args.out, "--out")


def workload_path(sweep: Path, name: str) -> Path:
    """Return the file of a sweep's workload, beside the sweep or where the command runs."""
    beside = sweep.parent / name
    return beside if beside.exists() else Path(name)


def digest(workload: WorkloadFile, configurations: Sequence[Configuration]) -> str:
    """Return what tells sweeps apart."""
    return hashlib.sha256(repr((workload, configurations)).encode()).hexdigest()


@contextmanager
def workers_of(args: argparse.Namespace) -> Iterator[None]:
    """Let joblib's work be done by the cluster that is named, if any.

    Raises BadInput without joblib or the cluster.
    """
    try:
        import joblib
    except ImportError as error:
        raise BadInput(
            f"joblib is not installed ({one_line(error)}), sweep, pip install 'nnstretch[sweep]'"
        ) from None
    if args.dask is None:
        try:
            yield
        finally:
            end_worker_processes()
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise BadInput(
            f"Dask is not installed ({one_line(error)}), --dask, pip install 'nnstretch[sweep]'"
        ) from None
    try:
        client = Client(args.dask, timeout="10s")
    # Of what another service answers it takes the first bytes for a size; on a machine so busy that
    # a thread does not start in ten seconds, it asserts that it did.
    except (OSError, ValueError, MemoryError, AssertionError) as error:
        why = one_line(error)[:200] or type(error).__name__
        raise BadInput(f"no scheduler at {args.dask}, --dask, {why}") from None
    with client, joblib.parallel_config(backend="dask"):
        yield


def end_worker_processes() -> None:
    """End the processes that joblib else keeps for five minutes for whoever calls it next."""
    from joblib.externals.loky import reusable_executor

    executor = reusable_executor._executor  # its only getter would make one where there is none
    if executor is not None:
        executor.shutdown(wait=True)


def results(
    workload: WorkloadFile, configurations: Sequence[Configuration], folder: Path, workers: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the rows of each configuration, in their order.

    Raises Stuck where a process of the sweep was killed.
    """
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed

    run = delayed(simulate_one)
    place = folder.resolve()
    calls = (run(workload, configuration, place) for configuration in configurations)
    workers = min(workers, max(1, len(configurations)))
    try:
        yield from Parallel(n_jobs=workers, return_as="generator")(calls)
    except BrokenProcessPool:
        raise Stuck(
            "a process of the sweep was killed, --workers, often for want of memory: the same"
            " command goes on after the configurations in the journal"
        ) from None


def simulate_one(
    workload: WorkloadFile, configuration: Configuration, folder: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the journal's row of one configuration, and apart from it what this host took."""
    from nnstretch.cli.loaded_model import load_soc_of
    from nnstretch.cli.simulate.applications import simulation_settings
    from nnstretch.cli.simulate.result_json import result_json
    from nnstretch.cli.simulate.sweep_files import configuration_row
    from nnstretch.files.workload.sweep_yaml import configured
    from nnstretch.schedule.simulation.round_times import RoundTimes
    from nnstretch.schedule.simulation.simulate import Simulation

    row, rounds = configuration_row(configuration), RoundTimes()
    try:
        soc = None if workload.soc is None else load_soc_of(workload.soc)
        settings = simulation_settings(configured(workload, configuration), soc, folder)
        simulation = Simulation(settings, on_round=rounds.on_round)
        result = result_json(settings, [simulation.run()])
    except NnstretchError as refusal:
        return {**row, "error": one_line(refusal)}, {**row, "rounds": []}
    del result["scheduling_us"]
    return {**row, "result": result}, {**row, "rounds": rounds.rows()}


def show(result: dict[str, Any], console: Console) -> None:
    """Print the result for people."""
    failed = f", {result['failed']} failed" if result["failed"] else ""
    console.print(f"{result['finished']} of {result['configurations']} configurations{failed}")
    for file in (result["journal"], *result["tables"]):
        console.print(file)
