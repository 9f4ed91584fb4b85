"""Kill a sweep three times, run it on a Dask scheduler, and compare with one that ran through.

python scripts/cedr interruptions --out docs/results/sweep_interruptions.md

480 configurations of 5 trials each: 4 pools, 6 policies, 20 rates of a short workload. Every run is
a process of its own, `nnstretch simulate sweep`; a kill is SIGKILL to it and its workers, at about a
quarter, a half and three quarters of the way. The Dask cluster is a scheduler and two workers,
processes of one thread each; its run is killed once, too. All files of the folders are compared.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.errors import Mismatch
from nnstretch.files.atomic import write_text

WORKLOAD = """\
pool: {cpu: 1, fft: 1}
durations: {kind: spread, spread: 0.2}
applications:
- {name: fft, costs_ms: {cpu: 4, fft: 1}, arrivals: {exponential_ms: 2}, instances: 40}
- {name: scan, costs_ms: {cpu: 3}, arrivals: {period_ms: 5}, instances: 15}
"""
SWEEP = """\
workload: workload.yaml
pools: [{cpu: 1}, {cpu: 2}, {cpu: 1, fft: 1}, {cpu: 3, fft: 2}]
policies: [rr, met, eft, etf, heft_rt, random]
rates: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.4, 1.6, 1.8, 2, 3, 4, 5, 10, 20]
trials: 5
"""
SIMULATIONS = 480 * 5
KILLS = (0.25, 0.5, 0.75)
POLL_S = 0.02
LONGEST_S = 1800


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One process that ran a sweep, or a part of it."""

    seconds: float
    lines: int
    """Of the journal when it had ended, the first of which names the sweep."""
    torn: bool
    """Whether the last one was cut off."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the part's options to its parser."""
    parser.add_argument("--out", type=Path, required=True, help="page to write")
    parser.add_argument("--workers", default="2", help="processes of a sweep without Dask (2)")


def run(args: argparse.Namespace) -> int:
    """Run the sweeps and write the page. Raises Mismatch where folders differ."""
    local = ("--workers", args.workers)
    rows: list[tuple[str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder / "workload.yaml", WORKLOAD)
        write_text(folder / "sweep.yaml", SWEEP)
        whole = folder / "whole"
        rows += described("ran through", whole, run_sweep(folder, whole, local))
        for kinds, how, kills in (("killed three times", local, KILLS), ("Dask", (), KILLS[1:2])):
            out = folder / kinds.split()[0]
            with dask_cluster() if kinds == "Dask" else no_cluster() as options:
                for share in kills:
                    killed = run_sweep(folder, out, (*how, *options), share)
                    rows += described(f"{kinds}: killed", out, killed)
                last = run_sweep(folder, out, (*how, *options))
            rows += described(f"{kinds}: went on to the end", out, last, whole)
    heads = ("run", "s", "lines of the journal", "folder equals the first")
    says = (__doc__ or "").split("\n\n")[-1].strip()
    lines = ["# Sweeps that are interrupted", "", says, ""]
    lines += [f"Made by `{command_line()}`; other work shared the host.", ""]
    lines += [*markdown_table(heads, rows), ""]
    write_text(args.out, "\n".join(lines))
    return 0


def run_sweep(
    folder: Path, out: Path, options: Sequence[str], kill_at: float | None = None
) -> SweepRun:
    """Run the sweep in a process group of its own, and kill that when so much is done."""
    command = [sys.executable, "-m", "nnstretch", "simulate", "sweep", str(folder / "sweep.yaml")]
    began_s = time.monotonic()
    process = subprocess.Popen(
        [*command, "--out", str(out), *options],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    journal = out / "journal.jsonl"
    while kill_at is not None and process.poll() is None:
        if journal.exists() and journal.read_bytes().count(b"\n") > kill_at * SIMULATIONS:
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(POLL_S)
    status = process.wait(timeout=LONGEST_S)
    expected = 0 if kill_at is None else -signal.SIGKILL
    if status != expected:
        raise Mismatch(f"the sweep ended with {status}, {out}, expected is {expected}")
    data = journal.read_bytes()
    seconds = time.monotonic() - began_s
    return SweepRun(seconds, data.count(b"\n"), not data.endswith(b"\n"))


def described(
    what: str, out: Path, ended: SweepRun, whole: Path | None = None
) -> list[tuple[str, str, str, str]]:
    """Return the row of a run, compared where it ran to the end. Raises Mismatch."""
    equal = ""
    if whole is not None:
        files = contents(out)
        if files != contents(whole) or ended.lines != SIMULATIONS + 1:
            raise Mismatch(f"{what}, {out}, its files are not those of the sweep that ran through")
        size_bytes = sum(map(len, files.values()))
        equal = f"byte for byte, {len(files)} files, {size_bytes:,} bytes"
    torn = ", the last one torn" if ended.torn else ""
    return [(what, f"{ended.seconds:.0f}", f"{ended.lines:,}{torn}", equal)]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@contextmanager
def no_cluster() -> Iterator[tuple[str, ...]]:
    """Yield no options."""
    yield ()


@contextmanager
def dask_cluster() -> Iterator[tuple[str, ...]]:
    """Start a scheduler and two workers, and yield the options that name them."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield ("--dask", cluster.scheduler_address)
