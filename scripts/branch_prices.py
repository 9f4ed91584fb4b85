"""Sums of kernels of branches on described accelerators beside whole branches as scheduled.

    python scripts/branch_prices.py [--out docs/results/accelerator_branches.md]

Branches are those that `nnstretch search` places on the NPU of examples/accelerator/phone, for four networks
and four machines in its place, at most three of each. Then what a local buffer of twice the size does to the best plan,
and how many kernel prices a second the predictor gives. Every number is modelled; takes about a minute.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.pricing.whole_branch import BranchScheduler
from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.capture import capture, default_input, load_model
from nnstretch.cli.search.whole_branches import whole_branches_json
from nnstretch.files.atomic import write_text
from nnstretch.predict import load_soc
from nnstretch.predict.described import DescribedAccelerator
from nnstretch.soc import Soc
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.lower import lower
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.search import search
from nnstretch.structure.kernel_fusion import fuse_kernels

PHONE = Path(__file__).parents[1] / "examples" / "accelerator" / "phone"
NETWORKS = (
    "torchvision:resnet18",
    "torchvision:resnet50",
    "torchvision:mobilenet_v2",
    "torchvision:resnet34",
)
MACHINES = ("nvdla-256", "nvdla-512", "nvdla-2048", "stcp920")
MOST_BRANCHES = 3
"""Of one network on one machine."""
PROVEN = "proven"
LONGEST_SEARCH_S = 60.0
LEAST_PRICES_PER_S = 50_000
LEAST_BRANCHES = 30


@dataclass(frozen=True)
class PricedBranch:
    """One branch, priced twice."""

    network: str
    machine: str
    branch: str
    kernels_us: float
    whole_us: float

    @property
    def difference(self) -> float:
        """Return how far the sum of kernels is from the schedule, as a share of the latter."""
        return self.kernels_us / self.whole_us - 1


@dataclass(frozen=True)
class BufferRow:
    """The best plan with a local buffer of one size."""

    network: str
    machine: str
    size: str
    kernels_ms: float
    whole_ms: float | None
    """As scheduled; None where a branch cannot be."""
    search_s: float
    proof: str
    plan: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        whole_ms = "-" if self.whole_ms is None else f"{self.whole_ms:.2f}"
        times = f"{self.kernels_ms:.2f}", whole_ms, f"{self.search_s:.1f}"
        return (self.network, self.machine, self.size, *times, self.proof, self.plan)


def chip_with(machine: str, *assume: str) -> Soc:
    """Return the example chip with another machine as its NPU."""
    soc = load_soc(PHONE)
    rates = ChipRates(load_accelerator(machine, assume), "int8")
    npu = DescribedAccelerator("npu", "int8", rates, machine)
    return replace(soc, predictors={**soc.predictors, "npu": npu})


def branches_of(network: str, analysis: NetworkAnalysis, machine: str) -> list[PricedBranch]:
    """Search a network and price its plans' branches on the NPU."""
    soc = chip_with(machine)
    npu = soc.predictors["npu"]
    assert isinstance(npu, DescribedAccelerator)
    scheduler, cost_model = BranchScheduler(npu.rates), CostModel(soc)
    result = search(analysis, soc, processors=("cpu", "npu"), top=MOST_BRANCHES)
    rows: dict[str, PricedBranch] = {}
    for scored in result.plans:
        for segment in lower(analysis, scored.trial.plan).segments:
            for branch in segment.branches:
                if branch.branch.processor != "npu":
                    continue
                kernels_us = cost_model.estimate_graph(branch.graph, "npu").latency_us
                whole_us = scheduler.schedule(branch.graph).latency_us
                ends = f"{segment.segment.start} -> {segment.segment.end}"
                name = f"{ends}, {branch.branch.depth} x {branch.branch.width}"
                rows[name] = PricedBranch(network, machine, name, kernels_us, whole_us)
    longest = sorted(rows.values(), key=lambda row: -row.whole_us)
    return longest[:MOST_BRANCHES]


def prices_per_s(network: NetworkAnalysis) -> float:
    """Return kernel prices a second where a search asks for all widths of a layer at once."""
    predictor = chip_with("nvdla-512").predictors["npu"]
    assert isinstance(predictor, DescribedAccelerator)
    kernels = [k for k in fuse_kernels(network.graph) if k.kind == "conv"]
    widths = np.arange(8, 2049, 8, dtype=np.float64)
    started_s = time.perf_counter()
    count = 0
    for kernel in kernels:
        grid = replace(kernel, cout=widths, macs=kernel.macs / kernel.cout * widths)  # type: ignore[arg-type]
        count += predictor.estimate_grid(grid).size
    return count / (time.perf_counter() - started_s)


def buffer_rows(network: str, analysis: NetworkAnalysis, machine: str) -> list[BufferRow]:
    """Return the best plan with the NPU's local buffer as described, twice and four times as large."""
    rows: list[BufferRow] = []
    size_kib = load_accelerator(machine).local.size_bytes / 1024
    for factor in (1, 2, 4):
        soc = chip_with(machine, f"local_buffer.size={factor * size_kib:g}KiB")
        result = search(analysis, soc, processors=("cpu", "npu"), top=1)
        (whole,) = whole_branches_json(result.plans, analysis, CostModel(soc), ("cpu", "npu"))
        plan = result.plans[0].trial.plan
        shown = "; ".join(" + ".join(map(str, segment.branches)) for segment in plan.segments)
        proof = PROVEN if result.optimal else f"within {result.gap:.1%}"
        size = f"{factor * size_kib:g} KiB"
        times = whole["kernels_ms"], whole["whole_ms"], result.search_s
        rows.append(BufferRow(network, machine, size, *times, proof, shown))
    return rows


def verdicts(rows: list[PricedBranch], buffers: list[BufferRow], rate: float) -> list[str]:
    """Return what was asked for, what it came to, and whether it was kept."""
    longest_s = max(row.search_s for row in buffers)
    proven = all(row.proof == PROVEN for row in buffers)
    whole_ms = [row.whole_ms for row in buffers]
    falls = all(b is not None and a is not None and b <= a for a, b in pairwise(whole_ms))
    kept = {
        f"search of {buffers[0].network} proven in {longest_s:.1f} s at most, limit"
        f" {LONGEST_SEARCH_S:g} s": proven and longest_s < LONGEST_SEARCH_S,
        f"{rate:,.0f} kernel prices a second, at least {LEAST_PRICES_PER_S:,}": rate
        >= LEAST_PRICES_PER_S,
        f"{len(rows)} branches, at least {LEAST_BRANCHES}": len(rows) >= LEAST_BRANCHES,
        "a larger local buffer never slows the best plan": falls,
    }
    return [f"- {claim}: {'kept' if each else 'missed'}" for claim, each in kept.items()]


def page(rows: list[PricedBranch], buffers: list[BufferRow], rate: float) -> str:
    """Return the page."""
    shares = [row.difference for row in rows]
    error = statistics.fmean(share**2 for share in shares) ** 0.5
    worst = max(shares, key=abs)
    median = statistics.median(map(abs, shares))
    table = [
        [
            r.network,
            r.machine,
            r.branch,
            f"{r.kernels_us / 1000:.3f}",
            f"{r.whole_us / 1000:.3f}",
            f"{r.difference:+.1%}",
        ]
        for r in rows
    ]
    heads = ("network", "NPU", "branch", "kernels ms", "as scheduled ms", "difference")
    buffer_heads = ("network", "NPU", "local buffer", "kernels ms", "whole ms", "search s", "proof")
    lines = [
        "# Sums of kernels beside whole branches, modelled",
        "",
        f"`{command_line()}`",
        "",
        "Branches that a search places on a described NPU beside the CPU of `mi9` (examples/accelerator/phone).",
        "Nothing was measured on a chip.",
        "",
        f"{len(rows)} branches: root mean square difference {error:.1%}, median {median:.1%}, worst {worst:+.1%}.",
        f"{rate:,.0f} kernel prices a second, all widths of a layer at once.",
        "",
        *verdicts(rows, buffers, rate),
        "",
        *markdown_table(heads, table),
        "",
        "## What a larger local buffer does to the best plan",
        "",
        *markdown_table((*buffer_heads, "best plan"), [row.cells for row in buffers]),
    ]
    return "\n".join(lines) + "\n"


def arguments() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = command_parser(__doc__)
    parser.add_argument("--out", type=Path, default=None, help="default: standard output")
    return parser


def main() -> int:
    """Price branches, write or print the page."""
    args = arguments().parse_args()
    rows: list[PricedBranch] = []
    analyses: dict[str, NetworkAnalysis] = {}
    for network in NETWORKS:
        module = load_model(network)
        captured = capture(module, torch.zeros(default_input(network, module)))
        analyses[network] = NetworkAnalysis(captured)
        for machine in MACHINES:
            rows += branches_of(network, analyses[network], machine)
    network = NETWORKS[1]
    buffers = buffer_rows(network, analyses[network], "nvdla-512")
    text = page(rows, buffers, prices_per_s(analyses[network]))
    if args.out is None:
        sys.stdout.write(text)
    else:
        write_text(args.out, text)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
