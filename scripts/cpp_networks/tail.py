"""The slowest twentieth of two networks' inferences on two cores, and what `simulate` says of it.

Every task of both networks is measured by the runner, alone and while both cores are at work under
each policy (`--measure`). Inferences then arrive at drawn times at 0.5 and 0.7 of what two workers
do at most; `simulate` is given the same times, the tasks (`--graph`) and their measured times with
their spread (`--costs`). It needs two quiet cores and about six minutes.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cpp_trial import build_runtime
from speed import PAIR, link_pair, pair_folders, prepared

from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text

LOADS = (0.5, 0.7)
POLICIES = ("rr", "eft", "heft_rt")
SATURATED = 240
"""Inferences that are there at once to see how many two workers do in a second."""
LIMIT = 0.15
SERVING = Path("docs/results/serving.md")
ELEMENTS = "cpu,cpu"
HEADS = (
    *("load", "policy", "p50 ms", "simulated", "p95 ms", "simulated", "off by"),
    *(f"{name.partition(':')[2]} p95 ms" for name in PAIR),
    "Python's server, p95 ms",
)


@dataclass(frozen=True)
class Bench:
    """The program, and what it and `simulate` are given of each network."""

    folder: Path
    program: Path

    def files(self) -> list[str]:
        """Return weights and costs of both networks in turn."""
        return [
            str(net / name)
            for net in pair_folders(self.folder)
            for name in ("weights.bin", "costs.json")
        ]


@dataclass(frozen=True)
class Row:
    """One load under one policy."""

    load: float
    policy: str
    latencies_ms: tuple[np.ndarray, ...]
    """Of each network's inferences."""
    simulated: dict[str, float]

    @property
    def together_ms(self) -> np.ndarray:
        """Return the latencies of both networks."""
        return np.concatenate(self.latencies_ms)

    @property
    def off_by(self) -> float:
        """Return the relative error of the simulated p95."""
        return self.simulated["p95"] / float(np.percentile(self.together_ms, 95)) - 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--requests", type=int, default=1600, help="inferences a row")
    parser.add_argument("--out", type=Path, default=Path("docs/results/cpp_tail.md"))


def run(args: argparse.Namespace) -> int:
    """Measure, predict and write the page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        bench = set_up(Path(scratch))
        capacity = capacity_per_s(bench)
        rows: list[Row] = []
        for load in LOADS:
            times_ms = drawn_times_ms(load, capacity, args.requests // len(PAIR))
            for policy in POLICIES:
                rows.append(one_row(bench, load, policy, times_ms))
                print(cells(rows[-1], {}), flush=True)
    write_text(args.out, page(rows, capacity, args.requests))
    return 0


def set_up(folder: Path) -> Bench:
    """Build both networks, measure their calls, and write their tasks as graphs."""
    runtime = build_runtime(folder / "runtime")
    for name in PAIR:
        runner = prepared(name, folder / name.replace(":", "_"), runtime).runner
        home = runner.parents[1]
        said(runner, "--elements", ELEMENTS, "--profile", home / "costs.json")
        graph = ("--elements", ELEMENTS, "--graph", home / "graph.json")
        costs = ("--costs", home / "costs.json")
        said(runner, *costs, *graph)
        for policy in POLICIES:
            said(runner, *costs, "--elements", ELEMENTS, "--policy", policy, *measure(home, policy))
    return Bench(folder, link_pair(folder, runtime, "arrivals"))


def measure(home: Path, policy: str) -> tuple[str, Path]:
    """Return the option of a runner that writes its tasks' times under a policy."""
    return "--measure", home / f"{policy}.json"


def said(*command: object, given: str = "") -> str:
    """Return what a program printed."""
    words = [str(word) for word in command]
    return subprocess.run(words, input=given, capture_output=True, check=True, text=True).stdout


def latencies_ms(
    bench: Bench, policy: str, times_ms: Sequence[Sequence[float]]
) -> list[np.ndarray]:
    """Return the latencies of both networks' inferences that arrive at given times."""
    due: list[tuple[float, int]] = []
    for network, times in enumerate(times_ms):
        due += [(at_ms, network) for at_ms in times]
    due.sort()
    given = "".join(f"{at_ms:.6f} {network}\n" for at_ms, network in due)
    printed = said(bench.program, policy, ELEMENTS, *bench.files(), given=given).split()
    latencies = np.array(printed, dtype=float)
    networks = np.array([network for _, network in due])
    return [latencies[networks == network] for network in range(len(PAIR))]


def capacity_per_s(bench: Bench) -> float:
    """Return how many inferences end in a second where all are there from the start, under EFT."""
    times_ms = [[0.0] * (SATURATED // len(PAIR))] * len(PAIR)
    return SATURATED / float(np.concatenate(latencies_ms(bench, "eft", times_ms)).max()) * 1000


def drawn_times_ms(load: float, capacity: float, count: int) -> list[list[float]]:
    """Draw arrivals of each network with exponential gaps, half of the load each."""
    times_ms: list[list[float]] = []
    for name in PAIR:
        gaps, at_ms = random.Random(f"{name}/{load}"), 0.0
        times_ms.append([])
        for _ in range(count):
            at_ms += gaps.expovariate(load * capacity / len(PAIR)) * 1000
            times_ms[-1].append(at_ms)
    return times_ms


def one_row(bench: Bench, load: float, policy: str, times_ms: Sequence[Sequence[float]]) -> Row:
    """Measure and simulate one load under one policy."""
    applications: list[dict[str, Any]] = []
    costs: list[str] = []
    for name, net, times in zip(PAIR, pair_folders(bench.folder), times_ms, strict=True):
        model, arrivals = str(net / "graph.json"), {"times_ms": list(times)}
        applications.append({"name": name, "model": model, "arrivals": arrivals})
        costs += ["--costs", str(net / f"{policy}.json")]
    workload = bench.folder / "workload.yaml"
    write_text(workload, json.dumps({"applications": applications}))
    simulated = run_verb("simulate", workload, "--policy", policy, *costs)["app_latency_ms"]
    return Row(load, policy, tuple(latencies_ms(bench, policy, times_ms)), simulated)


def servers_ms() -> dict[tuple[float, str], str]:
    """Return the p95 of Python's server by load and policy, as its page says it."""
    rows = re.findall(r"^\| ([\d.]+) \| (\w+) \| [\d.]+ \| ([\d.]+) \|", SERVING.read_text(), re.M)
    return {(float(load), policy): p95 for load, policy, p95 in rows}


def cells(row: Row, python_ms: dict[tuple[float, str], str]) -> tuple[str, ...]:
    """Return a row of the table."""
    p50, p95 = np.percentile(row.together_ms, (50, 95))
    return (
        *(f"{row.load:g}", row.policy, f"{p50:.1f}", f"{row.simulated['p50']:.1f}"),
        *(f"{p95:.1f}", f"{row.simulated['p95']:.1f}", f"{row.off_by:+.1%}"),
        *(f"{np.percentile(latencies, 95):.1f}" for latencies in row.latencies_ms),
        python_ms.get((row.load, row.policy), "-"),
    )


def page(rows: Sequence[Row], capacity: float, requests: int) -> str:
    """Return the page of results."""
    python_ms = servers_ms()
    worst = max((row.off_by for row in rows), key=abs)
    kept = "kept" if abs(worst) <= LIMIT else "missed"
    lines = [
        "# Two networks in C++ on two cores: latencies, and what `simulate` says of them",
        "",
        f"Made by `{command_line()}`: {requests} inferences a row, half of each network"
        f" ({' and '.join(PAIR)}), oneDNN, tasks of one fused layer. Loads are shares of"
        f" {capacity:.1f} inferences a second, what two workers did under EFT when all inferences"
        " were there at once. Latencies count from when an inference was due. Simulated: the same"
        f" arrivals, and tasks that take what `run --elements {ELEMENTS} --measure` measured of each"
        " network before: drawn from the times of each task alone, longer while the other core"
        " works, and from when a core that rests is given a task until that starts.",
        "",
        *markdown_table(HEADS, [cells(row, python_ms) for row in rows]),
        "",
        "Python's server: inside `serve` with ONNX Runtime, without HTTP, at the same shares of"
        " its own capacity ([page](serving.md)).",
        "",
        f"- simulated p95 off by {worst:+.1%} at worst; limit {LIMIT:.0%}, {kept}",
    ]
    return "\n".join([*lines, ""])
