"""How fine tasks are: their number, what each costs beside its work, and the time of an inference.

Every granularity of ResNet-18, and of the example of the slides on CEDR's translator, in turns.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from cpp_trial import build_network, build_runtime
from speed import answer, overhead_us
from torch import nn

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.capture import load_model
from nnstretch.capture.torch_export import CapturedNetwork, trace
from nnstretch.errors import Mismatch
from nnstretch.export.cpp.build import run_network
from nnstretch.export.cpp.channel_calls import MOST_TASKS, count_channel_tasks
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.files.atomic import write_text

GRANULARITIES = ("layer", "branch", "network", "channel")
WHOLE = GRANULARITIES[:3]
"""Those that keep operators whole: their outputs must be the same bits."""
HEADS = ("granularity", "tasks", "ms, one worker", "ms, two workers", "us beside a task's work")


class Example(nn.Module):
    """The model of the slides."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_relu = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.linear = nn.Linear(32, 16)
        self.maxpool = nn.MaxPool2d(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the model."""
        return self.linear(self.maxpool(self.conv_relu(x)))  # type: ignore[no-any-return]


NETWORKS = {
    "ResNet-18, 224x224": (lambda: load_model("torchvision:resnet18"), (1, 3, 224, 224)),
    "The slides' example, 66x66": (Example, (1, 3, 66, 66)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kernels", choices=("portable", "onednn"), default="portable")
    parser.add_argument("--out", type=Path, default=Path("docs/results/cpp_granularity.md"))


def run(args: argparse.Namespace) -> int:
    """Build, compare, measure, and write the page. Raises Mismatch where bits differ."""
    load = os.getloadavg()[0]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sections: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        runtime = build_runtime(Path(folder) / "runtime")
        for number, (title, (make, shape)) in enumerate(NETWORKS.items()):
            example = torch.randn(shape)
            captured = trace(make().eval(), example, f"network{number}")
            runners = built(captured, Path(folder), runtime)
            check_bits(runners, example.numpy(), args.kernels)
            rows = measured(captured, runners, args.kernels, args.turns)
            sections += [f"## {title}", "", *markdown_table(HEADS, rows), ""]
            print("\n".join(sections), flush=True)
    write_text(args.out, page(sections, args.kernels, load))
    return 0


def built(captured: CapturedNetwork, folder: Path, runtime: Path) -> dict[str, Path]:
    """Build a network at every granularity at which it is possible."""
    runners: dict[str, Path] = {}
    for name in GRANULARITIES:
        if name == "channel" and channel_tasks(captured) > MOST_TASKS:
            continue
        program = translate(captured.graph, captured.weights, name)
        target = folder / f"{captured.graph.name}_{name}"
        write_project(program, target)
        runners[name] = build_network(target, runtime)
    return runners


def channel_tasks(captured: CapturedNetwork) -> int:
    """Count the tasks that a network would fall into by pairs of channels."""
    return count_channel_tasks(translate(captured.graph, captured.weights).calls).total()


def check_bits(runners: dict[str, Path], example: np.ndarray, kernels: str) -> None:
    """Compare granularities that keep operators whole. Raises Mismatch where a bit differs."""
    reference: np.ndarray | None = None
    for name in WHOLE:
        (output,) = run_network(runners[name], [example], 1, ("--kernels", kernels))
        if reference is not None and not np.array_equal(output, reference):
            raise Mismatch(f"{name} computes other bits than {WHOLE[0]}, granularity, C++")
        reference = output


def measured(
    captured: CapturedNetwork, runners: dict[str, Path], kernels: str, turns: int
) -> list[Sequence[str]]:
    """Return a row for each granularity: the least of all turns."""
    options = ("--kernels", kernels)
    times: dict[tuple[str, str], list[float]] = {}
    tasks: dict[str, int] = {}
    for _ in range(turns):
        for name, runner in runners.items():
            for elements in ("cpu", "cpu,cpu"):
                said = answer(runner, *options, "--elements", elements)
                times.setdefault((name, elements), []).append(said["latency_ms"]["min"])
                tasks[name] = said["tasks"]
    rows: list[Sequence[str]] = []
    for name, runner in runners.items():
        least = [f"{min(times[name, elements]):.3f}" for elements in ("cpu", "cpu,cpu")]
        rows.append((name, f"{tasks[name]:,}", *least, f"{overhead_us(runner):.1f}"))
    if "channel" not in runners:
        rows.append(("channel", f"{channel_tasks(captured):,}", "refused", "refused", ""))
    return rows


def page(sections: Sequence[str], kernels: str, load: float) -> str:
    """Return the page of results, with the mean load of the host at the start."""
    lines = [
        "# How fine tasks are",
        "",
        f"Made by `{command_line()}`, {kernels} kernels, in turns, the least of all turns. The load"
        f" of the host at the start was {load:.1f}: above 0.3, only ratios within a table mean"
        " something.",
        "",
        "`layer`, `branch` and `network` gave the same bits. Without a plan a `branch` is the"
        " whole network. us beside a task's work: median over inferences of the time between"
        " tasks, on one worker. `channel` makes a convolution of one plane by one kernel"
        " (`CONV_2D`) for every pair of channels and adds each to a plane of the result (`ZIP`),"
        f" as CEDR's translator does; above {MOST_TASKS:,} tasks it is refused.",
        "",
        *sections,
    ]
    return "\n".join(lines)
