"""How far ten networks are from the rate that no schedule beats, under `graphturbo` and `best`.

The networks and images per cluster are those of the GraphTurbo paper, on STCP920. The bound counts
the units at their peak, every weight once and inputs and outputs once; whatever a schedule loads
again, waits for or leaves half filled is the distance.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from modelled_cases import NETWORKS, network

from nnstretch.accelerate.accelerate import AccelerateRequest, accelerate, result_json
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.files.atomic import write_text

TEN = (
    ("A ResNet-50", "torchvision:resnet50", 64, 16),
    ("B BERT-base 128", f"{NETWORKS}:bert_base?tokens=128", 32, 8),
    ("C BERT-base 256", f"{NETWORKS}:bert_base?tokens=256", 16, 4),
    ("D BERT-large 384", f"{NETWORKS}:bert_large?tokens=384", 8, 2),
    ("E BERT-base 512", f"{NETWORKS}:bert_base?tokens=512", 8, 2),
    ("F DLRM", f"{NETWORKS}:dlrm", 1024, 256),
    ("G MobileNet-v2", "torchvision:mobilenet_v2", 128, 32),
    ("H ViT-B/16", "timm:vit_base_patch16_224", 32, 8),
    ("I DenseNet-121", "torchvision:densenet121", 32, 8),
    ("J Conformer", f"{NETWORKS}:conformer", 12, 3),
)
"""Name, model, batch, images per cluster."""
POLICIES = ("graphturbo", "best")
GAPS = (
    "MobileNet-v2: the published rule cuts four early operators along their channels, so that maps"
    " around them leave the chip; `best` finds that",
    "cuts of the batch alone keep all of them there. Elsewhere weight tiles that enter the unit,"
    " which the bound leaves out (`utilisation.matrix_fill`",
    "of the verb), and waits for one another are the distance.",
    "",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget-s", type=float, default=20.0, help="of best, for each network")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.md")


def run(args: argparse.Namespace) -> int:
    rates = ChipRates(load_accelerator("stcp920"), "fp16")
    shares: dict[str, list[float]] = {policy: [] for policy in POLICIES}
    lines: list[list[object]] = []
    for name, model, batch, images in TEN:
        for policy in POLICIES:
            options = ScheduleOptions(policy)
            request = AccelerateRequest(rates, batch, options, images, args.budget_s)
            answer = result_json(accelerate(network(model).graph, request), name)
            rate, bound = answer["throughput_per_s"], answer["bound_per_s"]
            shares[policy].append(100 * rate / bound)
            shown = f"{rate:,.0f}", f"{bound:,.0f}", answer["bound_by"], f"{100 * rate / bound:.1f}"
            spilled = sum(s["bytes"] for s in answer["spills"] if s["to"] == "ddr")
            moved = f"{spilled / 1e6:.1f}", f"{answer['scheduling_s']:.1f}"
            lines.append([name, images, policy, *shown, answer["instances"], *moved])
        network.cache_clear()
    write_text(args.out, page(lines, shares, args.budget_s))
    return 0


def page(lines: list[list[object]], shares_percent: dict[str, list[float]], budget_s: float) -> str:
    """Return the page of results."""
    heads = (
        "network|a cluster|policy|modelled /s|bound /s|bound by|% of the bound|instances"
        "|MB spilled to DDR|seconds"
    )
    ends = {
        policy: f"median {statistics.median(shares):.1f}, least {min(shares):.1f}"
        for policy, shares in shares_percent.items()
    }
    text = [
        "# Ten networks inside an accelerator beside the rate that no schedule beats",
        "",
        f"`{command_line()}`",
        "",
        "On `stcp920` with the published images per cluster. Modelled, the bound, too: the units at"
        " their peak, every weight once over DDR, inputs",
        f"and outputs once. `best` has {budget_s:g} s of the clock for a network, beside what else"
        " ran on the host. Spilled: for one pass of a cluster.",
        "",
        *markdown_table(heads.split("|"), lines),
        "",
        *(f"`{policy}`: {text} % of the bound." for policy, text in ends.items()),
        "",
        *GAPS,
    ]
    return "\n".join(text)
