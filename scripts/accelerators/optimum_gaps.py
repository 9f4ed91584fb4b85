"""How far `graphturbo` and `best` are from the fastest of all plans of random small graphs.

Chains and diamonds of three to seven operators on small random machines. `best` runs first; the
exhaustive search then tries every grouping, factor and order that could be faster still. Finished
graphs are kept in --rows, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from nnstretch.accelerate.best_schedule import best_candidate, best_schedule
from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.optimum.exhaustive import (
    MOST_PARTS,
    MOST_SIMULATED,
    exhaustive_optimum,
)
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster
from nnstretch.accelerate.steps.peak import group_peak
from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.chip.accelerator import Accelerator, Dram, MatrixUnit, OnChipBuffer, VectorUnit
from nnstretch.errors import BadPlan
from nnstretch.files.atomic import write_text
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight

KINDS = ("chain", "diamond")
NEAR = 1.05
LAUNCHES_US = (None, 0.0, 20.0)
"""Of a kernel; None draws 0.2 to 1 us for each machine."""
SHARE_OF_FIXED = 4
"""A table of one fixed launch has a quarter as many graphs."""


@dataclass(frozen=True)
class GapRow:
    """One random graph."""

    launch_us: float | None
    seed: int
    kind: str
    operators: int
    plans: int
    simulated: int
    proven: bool
    graphturbo: float
    """Latency over the fastest."""
    candidates: float
    """Of `best` without its climb."""
    best: float


class SmallGraph:
    """Feature maps that grow operator by operator."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.nodes: list[Node] = []
        self.weights: list[Weight] = []
        side, channels = draw.choice([8, 16]), draw.choice([8, 16])
        self.shapes = {"x": (draw.choice([1, 2, 4]), channels, side, side)}

    def add(self, op: str, shape: tuple[int, ...], *args: object) -> str:
        name = f"{op.partition('.')[0]}_{len(self.nodes)}"
        self.nodes.append(Node(name, op, args, (TensorSpec(shape),)))  # type: ignore[arg-type]
        self.shapes[name] = shape
        return name

    def convolution(self, x: str, channels: int, kernel: int, stride: int) -> str:
        n, c, h, w = self.shapes[x]
        weight = Weight(f"w{len(self.weights)}.weight", TensorSpec((channels, c, kernel, kernel)))
        self.weights.append(weight)
        pad = kernel // 2
        shape = (n, channels, (h + 2 * pad - kernel) // stride + 1, (w - 1) // stride + 1)
        steps = ((stride, stride), (pad, pad), (1, 1), 1)
        return self.add("conv2d", shape, ValueRef(x), ValueRef(weight.name), None, *steps)

    def layer(self, x: str) -> str:
        """A convolution, an activation or a pooling."""
        n, c, h, w = self.shapes[x]
        step = self.draw.random()
        if step < 0.6:
            channels, kernel = self.draw.choice([8, 16, 32, 64]), self.draw.choice([1, 3])
            return self.convolution(x, channels, kernel, self.draw.choice([1, 1, 2]))
        if step < 0.8:
            return self.add("relu", self.shapes[x], ValueRef(x))
        shape = (n, c, (h + 1) // 2, (w + 1) // 2)
        return self.add("max_pool2d", shape, ValueRef(x), (3, 3), (2, 2), (1, 1))

    def path(self, x: str, layers: int) -> str:
        """Layers that keep the shape."""
        for _ in range(layers):
            if self.draw.random() < 0.6:
                x = self.convolution(x, self.shapes[x][1], self.draw.choice([1, 3]), 1)
            else:
                x = self.add("relu", self.shapes[x], ValueRef(x))
        return x

    def diamond(self) -> str:
        entry = self.convolution("x", self.shapes["x"][1], 3, 1)
        first = self.path(entry, self.draw.randint(1, 2))
        second = self.path(entry, self.draw.randint(0, 2))
        return self.add("add.Tensor", self.shapes[entry], ValueRef(first), ValueRef(second))


def random_graph(seed: int, kind: str) -> Graph:
    """A chain or a diamond of three to seven operators."""
    maker = SmallGraph(random.Random(f"{seed} {kind}"))
    count = maker.draw.randint(3, 7)
    x = maker.diamond() if kind == "diamond" else "x"
    while len(maker.nodes) < count:
        x = maker.layer(x)
    inputs = (Value("x", TensorSpec(maker.shapes["x"])),)
    return Graph("random", inputs, tuple(maker.weights), tuple(maker.nodes), (x,))


def random_machine(seed: int, chip: ChipGraph, launch_us: float | None = None) -> Accelerator:
    """A machine whose local buffers hold 0.3 to twice what the whole graph needs at once."""
    draw = random.Random(f"{seed} machine")
    cores = draw.choice([1, 2, 4])
    peak_bytes = group_peak(chip, [node.name for node in chip.operators])
    local_bytes = max(2048, int(peak_bytes * draw.choice([0.3, 0.6, 1.2, 2.0]) / cores))
    shared = None
    if draw.random() < 0.7:
        shared_bytes = local_bytes * cores * draw.choice([1, 2])
        shared = OnChipBuffer(shared_bytes, draw.choice([16e9, 64e9]))
    return Accelerator(
        "random",
        clusters=1,
        cores=cores,
        clock_hz=1e9,
        element_types=("fp16",),
        matrix=MatrixUnit(16, 8, draw.choice([0, 8])),
        vector=VectorUnit(draw.choice([8, 16]), 1, 4),
        local=OnChipBuffer(local_bytes, draw.choice([32e9, 128e9])),
        ddr=Dram(draw.choice([1e9, 4e9]), draw.random() < 0.7),
        shared=shared,
        mesh_bytes_per_s=draw.choice([None, 16e9]),
        launch_us=draw.choice([0.2, 0.5, 1.0]) if launch_us is None else launch_us,
    )


def gap_row(launch_us: float | None, seed: int, budget_s: float) -> GapRow | None:
    """Return the gaps of one graph, None where no plan fits its machine."""
    kind = KINDS[seed % 2]
    chip = chip_graph(random_graph(seed, kind), "fp16")
    rates = ChipRates(random_machine(seed, chip, launch_us), "fp16")
    options = ScheduleOptions()
    ours = replace(options, policy="best", keep_weights=True)
    try:
        published = schedule_cluster(chip, rates, options)
    except BadPlan:
        return None
    candidate = best_candidate(chip, rates, ours, float("inf"))
    assert candidate is not None
    best = best_schedule(chip, rates, ours, budget_s, time.process_time)
    optimum = exhaustive_optimum(chip, rates, replace(options, keep_weights=True), best)
    fastest_us = optimum.schedule.latency_us
    return GapRow(
        launch_us,
        seed,
        kind,
        len(chip.operators),
        optimum.plans,
        optimum.simulated,
        optimum.proven,
        published.latency_us / fastest_us,
        candidate[1].latency_us / fastest_us,
        best.latency_us / fastest_us,
    )


def finished_rows(path: Path) -> list[GapRow]:
    """Read the graphs that are done."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [GapRow(**json.loads(line)) for line in lines]


def summary(rows: Sequence[GapRow], policy: str) -> list[str]:
    """The gap of one policy, in percent."""
    ratios = [float(getattr(row, policy)) for row in rows]
    near = sum(ratio <= NEAR for ratio in ratios)
    exact = sum(ratio <= 1 + 1e-9 for ratio in ratios)
    shown = [f"{100 * (value - 1):.1f}" for value in (median(ratios), max(ratios))]
    return [policy, *shown, f"{exact} of {len(ratios)}", f"{near} of {len(ratios)}"]


def page(rows: Sequence[GapRow], budget_s: float) -> str:
    """The tables as a page."""
    proven = [row for row in rows if row.proven]
    lines = [
        "# Schedules inside an accelerator against the fastest of all plans",
        "",
        f"`{command_line()}`",
        "",
        "Random chains and diamonds of three to seven operators, each on a random machine"
        " (scripts/accelerators/optimum_gaps.py).",
        "The fastest plan is that of all groupings into connected groups, all factors of each group"
        f" up to {MOST_PARTS} parts and all orders of their",
        f"instances, or that of `best` (budget {budget_s:g} s of one core a graph) where it is faster. Only"
        " plans whose least time (busiest engine and longest",
        "chain of each kernel) is below the fastest so far are simulated. Modelled.",
        "",
        f"Proven for {len(proven)} of {len(rows)} graphs; of the others the search stopped after"
        f" {MOST_SIMULATED} simulations, and the gap is that to the fastest it met.",
        f"Plans of a graph: median {median(row.plans for row in rows):.0f}, most"
        f" {max(row.plans for row in rows):,}; simulated: median"
        f" {median(row.simulated for row in rows):.0f}.",
        "`candidates`: `best` without its climb, the fastest of all policies and their variants on"
        " the machine itself.",
    ]
    drawn = [row for row in rows if row.launch_us is None]
    sets = {
        "Kernel launch 0.2 to 1 us": drawn,
        "Of these, proven": [row for row in drawn if row.proven],
        "Kernel launch 0.2 to 1 us, chains": [row for row in drawn if row.kind == "chain"],
        "Kernel launch 0.2 to 1 us, diamonds": [row for row in drawn if row.kind == "diamond"],
    }
    for launch_us in LAUNCHES_US[1:]:
        fixed = [row for row in rows if row.launch_us == launch_us]
        sets[f"Kernel launch {launch_us:g} us"] = fixed
    for title, shown in sets.items():
        lines += ["", f"## {title}: {len(shown)} graphs", "", *gap_table(shown)]
    return "\n".join([*lines, ""])


def gap_table(rows: Sequence[GapRow]) -> list[str]:
    """The gaps of each policy."""
    heads = ("policy", "median gap %", "worst gap %", "fastest of all", "within 5 %")
    policies = ("graphturbo", "candidates", "best")
    return markdown_table(heads, [summary(rows, policy) for policy in policies])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graphs", type=int, default=200)
    parser.add_argument("--budget-s", type=float, default=2.0, help="of best, for each graph")
    parser.add_argument("--rows", type=Path, required=True, metavar="FILE.jsonl")
    parser.add_argument("--stop-s", type=float, default=240.0, help="no new graph after this time")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")


def run(args: argparse.Namespace) -> int:
    rows = finished_rows(args.rows)
    last_s = time.perf_counter() + args.stop_s
    wanted = 0
    for launch_us in LAUNCHES_US:
        graphs = args.graphs if launch_us is None else args.graphs // SHARE_OF_FIXED
        wanted += graphs
        same = [row.seed for row in rows if row.launch_us == launch_us]
        seed = max(same, default=-1) + 1
        count = len(same)
        while count < graphs and time.perf_counter() < last_s:
            row = gap_row(launch_us, seed, args.budget_s)
            seed += 1
            if row is not None:
                count += 1
                rows.append(row)
                with args.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
    print(f"{len(rows)} of {wanted} graphs")
    if len(rows) == wanted:
        write_text(args.out, page(rows, args.budget_s))
    return 0
