"""Ten networks at full size, each schedule carried out on the host in memory of its planned layout.

The networks and images per cluster are those of the GraphTurbo paper, on STCP920, with all layers,
words and table rows; then one image in parts of rows on two small machines. Outputs are compared
with those of the network itself. Ends with status 1 where one differs by more than a
ten-thousandth of the largest output. Takes some minutes and 12 GB of memory.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bound_distances import TEN
from judged import JudgedClaim, judged_table, status_of
from modelled_cases import network

from nnstretch.accelerate.accelerate import AccelerateRequest, AccelerateResult, accelerate
from nnstretch.accelerate.engines.verify_plan import verify_plan
from nnstretch.accelerate.execute import execute, largest_error
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text

MOST_ERROR = 1e-4
"""Of the largest output."""
ROWS = ("torchvision:resnet50", "torchvision:mobilenet_v2", "torchvision:densenet121")
SMALL_MACHINES = ("ethos-u55-128", "nvdla-64")
IN_PARTS = ScheduleOptions(parts_margin=math.inf)
"""Parts that do not pay are cut all the same."""
ROW_AXIS = 2


@dataclass(frozen=True)
class CarriedOut:
    """One schedule that was carried out."""

    name: str
    machine: str
    images: int
    parameters: int
    result: AccelerateResult
    error: float
    """The largest difference, of the largest output."""
    seconds: float

    @property
    def row_groups(self) -> int:
        """Return the groups that are cut along the rows of their maps."""
        splits = [group.split for group in self.result.schedule.groups]
        return sum(split.factor > 1 and split.axis == ROW_AXIS for split in splits)

    @property
    def claim(self) -> JudgedClaim:
        """Return what is judged of it."""
        name = f"{self.name}, {self.machine}, {self.images} at once"
        limit = f"{MOST_ERROR:.0e} of the largest output"
        return JudgedClaim(name, f"{self.error:.1e}", limit, self.error <= MOST_ERROR)


def carry_out(
    name: str, model: str, machine: str, images: int, options: ScheduleOptions
) -> CarriedOut:
    """Schedule so many inputs, carry the schedule out, and compare with the network.

    Raises BadPlan for a plan that contradicts itself.
    """
    began_s = time.perf_counter()
    batches = network(model)
    described = load_accelerator(machine)
    rates = ChipRates(described, described.element_types[0])
    clusters = described.clusters
    request = AccelerateRequest(rates, clusters * images, options, images)
    result = accelerate(batches.graph, request)
    placed = result.schedule.placed
    verify_plan(placed, rates)
    examples = batches.random_inputs(images)
    inputs = dict(zip(batches.graph(images).input_names, examples, strict=True))
    outputs = execute(placed, described.cores, batches.weights(images), inputs)
    error = largest_error(outputs, batches.outputs(examples))[1]
    parameters = sum(weight.numel() for weight in batches.module.parameters())
    seconds = time.perf_counter() - began_s
    return CarriedOut(name, machine, images, parameters, result, error, seconds)


def every_case() -> list[CarriedOut]:
    """Carry out all of them, one after the other."""
    rows: list[CarriedOut] = []
    cases = [(name, model, "stcp920", images, ScheduleOptions()) for name, model, _, images in TEN]
    for model in ROWS:
        name = model.partition(":")[2]
        cases += [(name, model, machine, 1, IN_PARTS) for machine in SMALL_MACHINES]
    for case in cases:
        rows.append(carry_out(*case))
        print(f"{rows[-1].claim}, {rows[-1].seconds:.0f} s", flush=True)
        network.cache_clear()
    return rows


def page(rows: Sequence[CarriedOut]) -> str:
    """Return the page of results."""
    table: list[list[object]] = []
    for row in rows:
        schedule = row.result.schedule
        spills = len(schedule.placed.spills)
        counts = len(schedule.order), row.row_groups, len(schedule.placed.program.steps), spills
        size = f"{row.parameters / 1e6:,.1f}"
        cells = f"{row.error:.1e}", f"{row.seconds:.0f}"
        table.append([row.name, row.machine, row.images, size, *counts, *cells])
    heads = (
        "network|machine|inputs at once|M parameters|instances|groups cut along rows|steps|spills"
        "|largest difference|seconds"
    )
    lines = [
        "# Schedules carried out on the host",
        "",
        f"`{command_line()}`",
        "",
        "Every network whole, with all layers, words and table rows, and as many inputs at once as the paper has on a cluster. A schedule is carried",
        "out in one flat array a buffer, at the planned addresses; places are filled with NaN before and after their use, so that an overlap, an",
        "early free or a forgotten halo shows. The difference is that from the network's own output, as a part of the largest one.",
        "",
        *judged_table([row.claim for row in rows]),
        "",
        *markdown_table(heads.split("|"), table),
        "",
    ]
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")


def run(args: argparse.Namespace) -> int:
    rows = every_case()
    write_text(args.out, page(rows))
    return status_of([row.claim for row in rows])
