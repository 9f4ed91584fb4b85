"""The slowest twentieth of two networks' inferences on two cores, and what `simulate` says of it.

Inferences arrive at drawn times, so that two workers are busy for 0.5 and 0.7 of the time, in blocks
with a pause after each in which all end. How long an inference keeps a worker busy is measured right
before, of arrivals, too: where all are there at once, one layer of many runs in a row, with its
weights in the cache. Blocks of two drawings take turns: of the one, what the runtime did is
a record, of which a table of costs is made (`costs_of_record`, as `simulate measure --record`); given
that table (`--costs`), the arrivals of the other and the tasks (`--graph`), `simulate` says the p95 of
the other. They take turns because the host's own speed changes within seconds and minutes: a table
of other minutes is one of another host. Beside it stands what a table of the very arrivals says. All
of it is done in several rounds. It needs
two quiet cores; a round of 480 requests takes about five minutes.

`--emulated` asks the same of two elements that compute and take the time of their table, four times
what a core takes: what differs there is not the host's, and one round is enough.
"""

from __future__ import annotations

import argparse
import json
import random
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
from tail_page import LEARNING, LOADS, Capacity, Row, Rows, page
from tail_record import Turns, record_of_spans

from nnstretch.bench.commands import run_verb
from nnstretch.files.atomic import write_text
from nnstretch.files.workload.measured_costs import write_measured_costs
from nnstretch.files.workload.service_record import ServiceRecord
from nnstretch.schedule.simulation.record_costs import costs_of_record

LAYER, NETWORK = "layer", "network"
"""How fine tasks are: one fused layer, or a whole network."""
ROWS = ((LAYER, "rr"), (LAYER, "eft"), (LAYER, "heft_rt"), (NETWORK, "eft"))
SATURATED = 240
"""Inferences that are there at once, or arrive, to see how many two workers do in a second."""
TRIED_LOAD = 0.5
"""Share of the former at which the latter arrive."""
CORES = "cpu,cpu"
EMULATED = "emulated:npu,emulated:npu"
EMULATED_FACTOR = 4.0
"""What emulated elements take, over what a core takes, so that the computing hides behind it."""
BLOCK = 30
"""Inferences of a block, in the mean."""
TRIES = 3
"""Times that a row is measured where a block has not ended when the next begins."""
ON, OFF = "on", "off"
"""Whether costs are learnt from what tasks take."""


@dataclass(frozen=True)
class Bench:
    """The program, and what it and `simulate` are given of each network."""

    folder: Path
    program: Path
    elements: str

    def files(self) -> list[str]:
        """Return weights and costs of both networks in turn."""
        return [
            str(net / name)
            for net in pair_folders(self.folder)
            for name in ("weights.bin", "costs.json")
        ]

    @property
    def times(self) -> Path:
        """Return the file of what tasks took last."""
        return self.folder / "times.json"

    @property
    def spans(self) -> Path:
        """Return the file of what was done last."""
        return self.folder / "spans.txt"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--emulated", action="store_true", help="elements that take set times")
    parser.add_argument(
        "--requests", type=int, help="a row and round: 900, 400 of emulated elements"
    )
    parser.add_argument("--rounds", type=int, help="3, of emulated elements 1")
    parser.add_argument("--out", type=Path, help="default: a page in docs/results")


def run(args: argparse.Namespace) -> int:
    """Measure, predict and write the page."""
    torch.set_num_threads(1)
    elements = EMULATED if args.emulated else CORES
    requests = args.requests or (400 if args.emulated else 900)
    rounds = args.rounds or (1 if args.emulated else 3)
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as scratch:
        runtime = build_runtime(Path(scratch) / "runtime")
        benches = {
            fine: set_up(Path(scratch) / fine, runtime, fine, elements) for fine in (LAYER, NETWORK)
        }
        bench = benches[LAYER]
        capacities: list[Capacity] = []
        corrected_ms: list[float] = []
        for number in range(rounds):
            for load in LOADS:
                for fine, policy in ROWS:
                    capacities.append(capacity(benches[fine], policy))
                    print(number, capacities[-1], flush=True)
                    per_s, count = load * capacities[-1].arriving_per_s, requests // len(PAIR)
                    row = one_row(benches[fine], policy, load, per_s, count, number)
                    rows.setdefault((load, fine, policy), []).append(row)
                    print(
                        load,
                        fine,
                        policy,
                        row.quantile_ms(95),
                        row.simulated["p95"],
                        row.foretold_p95_ms,
                        row.tries,
                        flush=True,
                    )
            per_s = LOADS[-1] * capacity(bench, LEARNING).arriving_per_s
            times_ms = drawn_times_ms(f"{LOADS[-1]}", per_s, requests // len(PAIR))
            corrected_ms.append(corrected_p95_ms(bench, times_ms))
            print(corrected_ms[-1], flush=True)
    name = "cpp_tail_emulated.md" if args.emulated else "cpp_tail.md"
    out = args.out or Path("docs/results") / name
    factor = EMULATED_FACTOR if args.emulated else None
    write_text(out, page(rows, capacities, corrected_ms, requests, BLOCK, factor))
    return 0


def set_up(folder: Path, runtime: Path, granularity: str, elements: str) -> Bench:
    """Build both networks, measure their calls, and write their tasks as graphs."""
    for name in PAIR:
        runner = prepared(name, folder / name.replace(":", "_"), runtime, granularity).runner
        home = runner.parents[1]
        costs = home / "costs.json"
        said(runner, "--elements", CORES, "--profile", costs)
        if elements == EMULATED:
            add_emulated(costs)
        said(runner, "--costs", costs, "--elements", elements, "--graph", home / "graph.json")
    return Bench(folder, link_pair(folder, runtime, "arrivals"), elements)


def add_emulated(costs: Path) -> None:
    """Add what emulated elements take to a table of what cores take."""
    table = json.loads(costs.read_text())
    for row in table["costs_us"].values():
        row["npu"] = EMULATED_FACTOR * row["cpu"]
    write_text(costs, json.dumps(table))


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
    words = (policy, correction, bench.elements, *bench.files(), bench.spans)
    printed = said(bench.program, *words, given=given).split()
    latencies = np.array(printed, dtype=float)
    networks = np.array([network for _, network in due])
    return [latencies[networks == network] for network in range(len(PAIR))]


def capacity(bench: Bench, policy: str) -> Capacity:
    """Return how many inferences two workers do in a second, all there at once or arriving."""
    count = SATURATED // len(PAIR)
    times_ms = [[0.0] * count] * len(PAIR)
    last_ms = float(np.concatenate(latencies_ms(bench, policy, times_ms)).max())
    simulated = simulation(bench, policy, times_ms, record_of(bench, policy))
    per_s = SATURATED / last_ms * 1000
    latencies_ms(bench, policy, drawn_times_ms(f"capacity/{policy}", TRIED_LOAD * per_s, count))
    requests = record_of(bench, policy).requests
    busy_us = sum(task.end_us - task.start_us for request in requests for task in request.tasks)
    workers = len(bench.elements.split(","))
    arriving_per_s = workers * SATURATED / busy_us * 1e6
    return Capacity(per_s, SATURATED / simulated["makespan_ms"] * 1000, arriving_per_s)


def record_of(bench: Bench, policy: str) -> ServiceRecord:
    """Return what the program did last."""
    graphs = [json.loads((net / "graph.json").read_text()) for net in pair_folders(bench.folder)]
    return record_of_spans(dict(zip(PAIR, graphs, strict=True)), bench.spans, policy)


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
    bench: Bench, policy: str, times_ms: Sequence[Sequence[float]], record: ServiceRecord
) -> dict[str, Any]:
    """Return what `simulate` says of inferences at given times by a table of a record."""
    applications: list[dict[str, Any]] = []
    for name, net, times in zip(PAIR, pair_folders(bench.folder), times_ms, strict=True):
        model, arrivals = str(net / "graph.json"), {"times_ms": list(times)}
        applications.append({"name": name, "model": model, "arrivals": arrivals})
    workload = bench.folder / "workload.yaml"
    write_text(workload, json.dumps({"applications": applications, "correction": False}))
    write_measured_costs(bench.times, costs_of_record(record))
    return run_verb("simulate", workload, "--policy", policy, "--costs", bench.times)


def one_row(bench: Bench, policy: str, load: float, per_s: float, count: int, seed: int) -> Row:
    """Measure two drawings of arrivals in turns, and simulate one by tables of both."""
    turns = Turns(BLOCK / per_s * 1000)
    other = drawn_times_ms(f"{load}/{policy}/{seed}", per_s, count)
    times_ms = drawn_times_ms(f"{load}", per_s, count)
    due_ms = [
        sorted(turns.due_ms(first, 0) + turns.due_ms(second, 1))
        for first, second in zip(other, times_ms, strict=True)
    ]
    for tries in range(1, TRIES + 1):  # noqa: B007
        both_ms = latencies_ms(bench, policy, due_ms)
        record = record_of(bench, policy)
        if not turns.overran(record):
            break
    own = [[turns.turn(at_ms) == 1 for at_ms in due] for due in due_ms]
    latencies = tuple(served[kept] for served, kept in zip(both_ms, own, strict=True))
    paused_ms = [turns.paused_ms(times) for times in times_ms]
    foretold, simulated = (
        simulation(bench, policy, paused_ms, turns.record(record, turn))["app_latency_ms"]
        for turn in range(2)
    )
    return Row(latencies, simulated, foretold["p95"], tries)


def corrected_p95_ms(bench: Bench, times_ms: Sequence[Sequence[float]]) -> float:
    """Return the p95 of given arrivals where costs are learnt from what tasks take."""
    return float(np.percentile(np.concatenate(latencies_ms(bench, LEARNING, times_ms, ON)), 95))
