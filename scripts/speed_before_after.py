"""Speed of this checkout beside another one's, both in turns within one run.

    python scripts/speed_before_after.py --against FOLDER --out docs/results/speed_before_after.md

Each checkout has one process, which answers the same commands of the command line: branches at once
and pipelines on two cores of this machine (ONNX Runtime, random weights), an exact search, a
training. Both run the bundles that the other checkout exported, and search with its predictor, so
that the work is the same. Rounds alternate: before, after, after, before. The first round warms up
and does not count. A round of a checkout is one command; what is compared are medians over rounds,
beside their least and most.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from nnstretch.bench.commands import command_line, command_parser, run_command
from nnstretch.bench.markdown import markdown_table
from nnstretch.bench.statistics import speedup
from nnstretch.errors import Mismatch
from nnstretch.files.atomic import write_text
from nnstretch.profile.machine import allowed_cores, description

ROOT = Path(__file__).resolve().parents[1]
NETWORK = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    layers = {f"layer{i}": nn.Conv2d(8, 8, 1) for i in range(1, 4)}
    net = nn.Sequential()
    for name, layer in layers.items():
        net.add_module(name, layer)
    return net
"""
ANSWERING = """
import contextlib, io, json, shlex, sys
from nnstretch.cli import main
for line in sys.stdin:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main([*shlex.split(line), "--json"])
        except SystemExit as ended:
            status = ended.code
    print("ANSWER", json.dumps([status, out.getvalue(), err.getvalue()]), file=sys.__stdout__, flush=True)
"""
PREPARATION = (
    "import {tree}/tests/data/nn_stretch/example_R-34-CD.yaml --out branches.yaml",
    "export branches.yaml --out branches.nns",
    "partition torchvision:resnet18 --soc mi9 --processors cpu,dsp --stages 2 --out stages.nns",
    "partition tiny.py:make --input 1,8,8,8 --soc mi9 --split layer1,layer2 --out tiny.nns",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A command that is repeated, and numbers of its result."""

    name: str
    command: str
    rounds: int
    fields: Mapping[str, str]
    """Path in the result -> what it is called."""


CASES = (
    Case(
        "R-34-CD, branches at once",
        "run branches.nns --clock real --repeat 40",
        8,
        {
            "overlap_efficiency": "critical path over latency",
            "dispatch_us": "us per meeting point",
            "latency_ms.median": "latency, ms",
        },
    ),
    Case(
        "ResNet-18, pipeline of two stages",
        "run stages.nns --mode pipeline --clock real --repeat 100",
        6,
        {"throughput_per_s": "items a second"},
    ),
    Case(
        "1x1 convolutions, pipeline of three stages",
        "run tiny.nns --mode pipeline --clock real --repeat 5000",
        12,
        {"period_ms": "us an item and stage", "dispatch_overhead_us": "us until a stage begins"},
    ),
    Case(
        "ResNet-50, exact search for two processors",
        "search torchvision:resnet50 --soc {soc} --processors cpu,dsp --min-macs 0.9x",
        3,
        {"search_s": "search, s"},
    ),
    Case(
        "ResNet-18, training on digits",
        "train digits --model torchvision:resnet18?num_classes=10 --data.image_px 32"
        " --trainer.max_epochs 1 --trainer.threads 1 --out trained{number}",
        3,
        {"images_per_s": "images a second"},
    ),
)
FACTORS = {"us an item and stage": 1000 / 3}
"""From the unit of the field to that of the table: milliseconds an item, three stages."""


class Checkout:
    """A process that answers commands with the code of one folder."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.tree, self.folder, self.answered = tree, folder, 0
        folder.mkdir()
        (folder / "tiny.py").write_text(NETWORK, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(
            [sys.executable, "-c", ANSWERING], cwd=folder, env=environment, **pipes
        )

    def __enter__(self) -> Checkout:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def answer(self, command: str) -> Any:
        """Return a command's result. Raises Mismatch where it is refused."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self.answered += 1
        asked = command.replace("{number}", str(self.answered)).replace("{tree}", str(self.tree))
        process.stdin.write(asked + "\n")
        process.stdin.flush()
        line = next((text for text in process.stdout if text.startswith("ANSWER ")), "")
        if not line:
            raise Mismatch(f"the process ended, {self.tree}, at {command}")
        status, out, err = json.loads(line.removeprefix("ANSWER "))
        if status:
            raise Mismatch(f"{command} ended with status {status}, {self.tree}, {err.strip()}")
        return json.loads(out)


def value_at(result: Any, path: str) -> float:
    """Return the number at a dotted path; a training's is of its last epoch."""
    if path == "images_per_s":
        return float(result["history"][-1][path])
    for key in path.split("."):
        result = result[key]
    return float(result)


def compare(case: Case, before: Checkout, after: Checkout) -> list[list[str]]:
    """Measure both checkouts in turns and return a row for each number."""
    command = case.command.replace("{soc}", str(before.tree / "latency_predictors" / "mi9"))
    before.answer(command)
    after.answer(command)
    results: dict[Checkout, list[Any]] = {before: [], after: []}
    for number in range(case.rounds):
        for checkout in (before, after) if number % 2 == 0 else (after, before):
            results[checkout].append(checkout.answer(command))
    rows: list[list[str]] = []
    for path, what in case.fields.items():
        factor = FACTORS.get(what, 1.0)
        values = [[value_at(r, path) * factor for r in results[c]] for c in (before, after)]
        ratio = speedup(values[1], values[0])
        between = f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
        row = [case.name, what, *(spread(of_one) for of_one in values), between]
        print(" | ".join(row), flush=True)
        rows.append(row)
    return rows


def spread(values: Sequence[float]) -> str:
    """Return median, least and most."""
    return f"{median(values):.4g} ({min(values):.4g} to {max(values):.4g})"


def commit_of(tree: Path) -> str:
    """Return the commit of a checkout, shortened."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def arguments() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = command_parser(__doc__)
    parser.add_argument("--against", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FILE.md", help="page to write")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names contain it")
    return parser


def main() -> int:
    """Compare, print, and write the page."""
    args = arguments().parse_args()
    commits = [commit_of(args.against), commit_of(ROOT)] if args.out else []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        before = stack.enter_context(Checkout(args.against.resolve(), Path(folder) / "before"))
        after = stack.enter_context(Checkout(ROOT, Path(folder) / "after"))
        for command in PREPARATION:
            before.answer(command)
        for bundle in before.folder.glob("*.nns"):
            shutil.copy(bundle, after.folder)
        cases = [case for case in CASES if args.only in case.name]
        rows = [row for case in cases for row in compare(case, before, after)]
    if args.out:
        heads = ("what", "number", *(f"at {commit}" for commit in commits), "after over before")
        facts = (
            f"{description()}, {len(allowed_cores())} cores. Medians, least and most in brackets;"
        )
        lines = [
            f"# Speed at {commits[0]} and at {commits[1]}",
            f"    {command_line()}",
            f"{facts} the last column is the median of rounds' ratios with its 95 % interval.",
            "\n".join(markdown_table(heads, rows)),
        ]
        write_text(args.out, "\n\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
