"""The slowest twentieth of two networks' inferences on two cores, and what `simulate` says of it.

Inferences arrive at drawn times at 0.5 and 0.7 of what two workers do at most. Before, every task
of both networks is measured by the runner, alone and while both cores are at work on few and on
many inferences of both under the same policy; `simulate` is given the same arrivals, the tasks
(`--graph`) and their measured times with their spread (`--costs`). All of it is done in several
rounds, in turns, since a host is not equally fast all the time. It needs two quiet cores and about
fifteen minutes.
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
LAYER, NETWORK = "layer", "network"
"""How fine tasks are: one fused layer, or a whole network."""
ROWS = ((LAYER, "rr"), (LAYER, "eft"), (LAYER, "heft_rt"), (NETWORK, "eft"))
SATURATED = 240
"""Inferences that are there at once to see how many two workers do in a second."""
LIMIT = 0.15
SERVING = Path("docs/results/serving.md")
ELEMENTS = "cpu,cpu"
ON, OFF = "on", "off"
"""Whether costs are learnt from what tasks take."""
LEARNING = "eft"
"""The policy of which that is shown."""
HEADS = (
    *("load", "task", "policy", "p50 ms", "simulated", "p95 ms", "rounds", "simulated", "rounds"),
    *("off by", *(f"{name.partition(':')[2]} p95 ms" for name in PAIR)),
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

    def times(self, policy: str) -> Path:
        """Return the file of what tasks take under a policy."""
        return self.folder / f"{policy}.json"


@dataclass(frozen=True)
class Row:
    """One load under one policy in one round."""

    latencies_ms: tuple[np.ndarray, ...]
    """Of each network's inferences."""
    simulated: dict[str, float]

    def quantile_ms(self, percent: float) -> float:
        """Return a percentile of the latencies of both networks."""
        return float(np.percentile(np.concatenate(self.latencies_ms), percent))


@dataclass(frozen=True)
class Capacity:
    """Inferences in a second where all are there from the start, under EFT."""

    measured_per_s: float
    simulated_per_s: float


Rows = dict[tuple[float, str, str], list[Row]]
"""By load, granularity and policy."""


def off_by(rows: Sequence[Row]) -> float:
    """Return the relative error of the simulated p95, in the mean of all rounds."""
    simulated_ms = sum(row.simulated["p95"] for row in rows)
    return simulated_ms / sum(row.quantile_ms(95) for row in rows) - 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--requests", type=int, default=900, help="inferences a row and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/results/cpp_tail.md"))


def run(args: argparse.Namespace) -> int:
    """Measure, predict and write the page."""
    torch.set_num_threads(1)
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        runtime = build_runtime(Path(scratch) / "runtime")
        benches = {fine: set_up(Path(scratch) / fine, runtime, fine) for fine in (LAYER, NETWORK)}
        bench = benches[LAYER]
        capacities: list[Capacity] = []
        corrected_ms: list[float] = []
        for number in range(args.rounds):
            capacities.append(capacity(bench))
            print(number, capacities[-1], flush=True)
            for load in LOADS:
                per_s = load * capacities[0].measured_per_s
                times_ms = drawn_times_ms(f"{load}", per_s, args.requests // len(PAIR))
                for fine, policy in ROWS:
                    row = one_row(benches[fine], policy, times_ms, number)
                    rows.setdefault((load, fine, policy), []).append(row)
                    print(load, fine, policy, row.quantile_ms(95), row.simulated["p95"], flush=True)
            corrected_ms.append(corrected_p95_ms(bench, times_ms))
            print(corrected_ms[-1], flush=True)
    write_text(args.out, page(rows, capacities, corrected_ms, args.requests))
    return 0


def set_up(folder: Path, runtime: Path, granularity: str) -> Bench:
    """Build both networks, measure their calls, and write their tasks as graphs."""
    for name in PAIR:
        runner = prepared(name, folder / name.replace(":", "_"), runtime, granularity).runner
        home = runner.parents[1]
        said(runner, "--elements", ELEMENTS, "--profile", home / "costs.json")
        graph = ("--elements", ELEMENTS, "--graph", home / "graph.json")
        said(runner, "--costs", home / "costs.json", *graph)
    return Bench(folder, link_pair(folder, runtime, "arrivals"))


def said(*command: object, given: str = "") -> str:
    """Return what a program printed."""
    words = [str(word) for word in command]
    return subprocess.run(words, input=given, capture_output=True, check=True, text=True).stdout


def latencies_ms(
    bench: Bench, policy: str, times_ms: Sequence[Sequence[float]], correction: str = OFF
) -> list[np.ndarray]:
    """Return the latencies of both networks' inferences that arrive at given times."""
    due: list[tuple[float, int]] = []
    for network, times in enumerate(times_ms):
        due += [(at_ms, network) for at_ms in times]
    due.sort()
    given = "".join(f"{at_ms:.6f} {network}\n" for at_ms, network in due)
    words = (policy, correction, ELEMENTS)
    printed = said(bench.program, *words, *bench.files(), given=given).split()
    latencies = np.array(printed, dtype=float)
    networks = np.array([network for _, network in due])
    return [latencies[networks == network] for network in range(len(PAIR))]


def capacity(bench: Bench) -> Capacity:
    """Return how many inferences end in a second where all are there from the start, under EFT."""
    measure_tasks(bench, "eft")
    times_ms = [[0.0] * (SATURATED // len(PAIR))] * len(PAIR)
    last_ms = float(np.concatenate(latencies_ms(bench, "eft", times_ms)).max())
    simulated_ms = simulation(bench, "eft", times_ms, 0)["makespan_ms"]
    return Capacity(SATURATED / last_ms * 1000, SATURATED / simulated_ms * 1000)


def drawn_times_ms(seed: str, per_s: float, count: int) -> list[list[float]]:
    """Draw arrivals of each network with exponential gaps, half of the load each."""
    times_ms: list[list[float]] = []
    for name in PAIR:
        gaps, at_ms = random.Random(f"{name}/{seed}"), 0.0
        times_ms.append([])
        for _ in range(count):
            at_ms += gaps.expovariate(per_s / len(PAIR)) * 1000
            times_ms[-1].append(at_ms)
    return times_ms


def simulation(
    bench: Bench, policy: str, times_ms: Sequence[Sequence[float]], seed: int
) -> dict[str, Any]:
    """Return what `simulate` says of inferences that arrive at given times."""
    applications: list[dict[str, Any]] = []
    for name, net, times in zip(PAIR, pair_folders(bench.folder), times_ms, strict=True):
        model, arrivals = str(net / "graph.json"), {"times_ms": list(times)}
        applications.append({"name": name, "model": model, "arrivals": arrivals})
    workload = bench.folder / "workload.yaml"
    write_text(workload, json.dumps({"applications": applications, "correction": False}))
    costs = ("--costs", bench.times(policy))
    return run_verb("simulate", workload, "--policy", policy, *costs, "--seed", str(seed))


def measure_tasks(bench: Bench, policy: str) -> None:
    """Let the program write what tasks take under a policy."""
    said(bench.program, policy, OFF, ELEMENTS, *bench.files(), bench.times(policy))


def one_row(bench: Bench, policy: str, times_ms: Sequence[Sequence[float]], seed: int) -> Row:
    """Measure and simulate one load under one policy."""
    measure_tasks(bench, policy)
    simulated = simulation(bench, policy, times_ms, seed)["app_latency_ms"]
    return Row(tuple(latencies_ms(bench, policy, times_ms)), simulated)


def corrected_p95_ms(bench: Bench, times_ms: Sequence[Sequence[float]]) -> float:
    """Return the p95 of given arrivals where costs are learnt from what tasks take."""
    return float(np.percentile(np.concatenate(latencies_ms(bench, LEARNING, times_ms, ON)), 95))


def servers_ms() -> dict[tuple[float, str], str]:
    """Return the p95 of Python's server by load and policy, as its page says it."""
    rows = re.findall(r"^\| ([\d.]+) \| (\w+) \| [\d.]+ \| ([\d.]+) \|", SERVING.read_text(), re.M)
    return {(float(load), policy): p95 for load, policy, p95 in rows}


def between(values: Sequence[float]) -> str:
    """Return the least and the largest."""
    return f"{min(values):.1f} to {max(values):.1f}"


def cells(
    key: tuple[float, str, str], rows: Sequence[Row], python_ms: dict[tuple[float, str], str]
) -> tuple[str, ...]:
    """Return a row of the table."""
    load, fine, policy = key
    p95_ms = [row.quantile_ms(95) for row in rows]
    simulated_ms = [row.simulated["p95"] for row in rows]
    by_network = np.mean(
        [[np.percentile(times, 95) for times in row.latencies_ms] for row in rows], axis=0
    )
    return (
        *(f"{load:g}", fine, policy, f"{np.mean([row.quantile_ms(50) for row in rows]):.1f}"),
        f"{np.mean([row.simulated['p50'] for row in rows]):.1f}",
        *(f"{np.mean(p95_ms):.1f}", between(p95_ms)),
        *(f"{np.mean(simulated_ms):.1f}", between(simulated_ms), f"{off_by(rows):+.1%}"),
        *(f"{time_ms:.1f}" for time_ms in by_network),
        python_ms.get((load, policy), "-"),
    )


def apart(rows: Sequence[Row]) -> float:
    """Return how far the p95 of the rounds are apart, over their mean."""
    p95_ms = [row.quantile_ms(95) for row in rows]
    return (max(p95_ms) - min(p95_ms)) / float(np.mean(p95_ms))


def page(
    rows: Rows, capacities: Sequence[Capacity], corrected_ms: Sequence[float], requests: int
) -> str:
    """Return the page of results."""
    python_ms = servers_ms()
    worst = max(map(off_by, rows.values()), key=abs)
    kept = "kept" if abs(worst) <= LIMIT else "missed"
    measured = [each.measured_per_s for each in capacities]
    simulated = [each.simulated_per_s for each in capacities]
    lines = [
        "# Two networks in C++ on two cores: latencies, and what `simulate` says of them",
        "",
        f"Made by `{command_line()}`: {requests} inferences a row, half of each network"
        f" ({' and '.join(PAIR)}), oneDNN, tasks of one fused layer or of a whole network, the same"
        f" arrivals in each of {len(capacities)} rounds. Loads are shares of {measured[0]:.1f} inferences a second, what"
        " two workers did under EFT when all inferences were there at once. Latencies count from"
        " when an inference was due; percentiles are means of the rounds. Simulated: the same"
        " arrivals, and tasks that take what the runner measured just before: drawn from the times"
        " of each task alone, longer while the other core works, longer after a task that it does"
        " not need, and the more so the more inferences are under way, slow together in the host's"
        " slow moments, and from when a core that rests is given a task until that starts. Neither"
        " learns costs from what tasks take (`correct_costs`, `correction`).",
        "",
        *markdown_table(HEADS, [cells(key, rows[key], python_ms) for key in rows]),
        "",
        "Python's server: inside `serve` with ONNX Runtime, without HTTP, at the same shares of"
        " its own capacity ([page](serving.md)).",
        "",
        f"- all at once: {between(measured)} a second, simulated {between(simulated)}",
        f"- p95 of the same arrivals, from round to round: {max(map(apart, rows.values())):.0%}"
        " apart at most",
        f"- p95 at {LOADS[-1]:g} under {LEARNING} where costs are learnt from what tasks take:"
        f" {between(corrected_ms)} ms",
        f"- simulated p95 off by {worst:+.1%} at worst; limit {LIMIT:.0%}, {kept}",
    ]
    return "\n".join([*lines, ""])
