"""Tell the whole story: train, search, stretch, retrain, export, run on an emulated phone, report.

Every step is a command that a user can type; it is printed before it runs. Nothing is downloaded.

    python scripts/demo.py --out demo
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from nnstretch.bench.commands import command_parser, run_command
from nnstretch.cli import parser_of, verb_module
from nnstretch.cli.output_path import check_folder
from nnstretch.errors import BadInput

MARK = "made_by_demo.txt"
"""File by which a demo knows a folder that it may replace."""
MODEL = "torchvision:resnet18?num_classes=10"
SHAPE = "1,3,64,64"
CONSOLE = Console()


class Story:
    """Runs verbs and keeps what they return, each as a file that the report reads."""

    def __init__(self, out: Path) -> None:
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        (out / MARK).write_text("scripts/demo.py wrote this folder, and replaces all of it.\n")

    def path(self, name: str) -> str:
        return str(self.out / name)

    def verb(self, verb: str, *argv: str, keep: str | None = None) -> dict[str, Any]:
        command = f"nnstretch {verb} {shlex.join(argv)}"
        CONSOLE.print(f"[bold cyan]$[/bold cyan] {command}", highlight=False, soft_wrap=True)
        began = time.perf_counter()
        result: dict[str, Any] = verb_module(verb).main(parser_of(verb).parse_args(list(argv)))
        CONSOLE.print(f"  [dim]{time.perf_counter() - began:.1f} s[/dim]")
        if keep:
            self.keep(keep, {"command": command, **result})
        return result

    def keep(self, name: str, data: dict[str, Any]) -> None:
        (self.out / name).write_text(json.dumps(data, indent=1), encoding="utf-8")


def tell(story: Story, epochs: int, retrain_epochs: int, repeat: int) -> dict[str, Any]:
    p, plan = story.path, story.path("plan.yaml")
    network, soc = (MODEL, "--input", SHAPE), ("--soc", "mi9")
    weights, branched = p("original/weights.safetensors"), p("branched/weights.safetensors")
    length = ("--trainer.max_epochs", str(epochs), "--overwrite", "--out", p("original"))
    trained = story.verb(
        "train", "digits", "--model", MODEL, *length, keep="training_original.json"
    )
    found = story.verb(
        "search",
        *(*network, *soc, "--processors", "cpu,dsp", "--min-macs", "0.9x", "--top", "5"),
        *("--out", plan),
        keep="search.json",
    )
    length = ("--trainer.max_epochs", str(retrain_epochs), "--overwrite", "--out", p("branched"))
    start = ("--plan", plan, "--weights", weights)
    retrained = story.verb("train", "digits", *start, *length, keep="training_branched.json")
    alone = (*soc, "--processor", found["original"]["fastest"], "--out", p("original.nns"))
    story.verb("export", *network, "--weights", weights, *alone)
    story.verb("export", plan, "--weights", branched, *soc, "--out", p("branched.nns"))
    runs = {}
    for name in ("original", "branched"):
        clock = ("--clock", "real", "--repeat", str(repeat), "--trace", p(f"trace_{name}.json"))
        runs[name] = story.verb("run", p(f"{name}.nns"), *soc, *clock, keep=f"run_{name}.json")
    return summary(trained, found, retrained, runs)


def summary(
    trained: dict[str, Any], found: dict[str, Any], retrained: dict[str, Any], runs: dict[str, Any]
) -> dict[str, Any]:
    original, plan = found["original"], found["plans"][0]
    fastest = original["fastest"]
    names = ", ".join(
        dict.fromkeys(b["processor"] for s in plan["segments"] for b in s["branches"])
    )
    rows = [
        {
            "network": "original",
            "processor": fastest,
            "accuracy": trained["val_accuracy"],
            "macs": original["macs"],
            "params": original["params"],
            "predicted_ms": original["latency_ms"][fastest],
            "predicted_error_ms": original["error_ms"][fastest],
            "emulated_ms": runs["original"]["latency_ms"]["median"],
        },
        {
            "network": "equal MACs",
            "processor": plan["iso_mac_processor"],
            "accuracy": None,
            "macs": plan["macs"],
            "params": None,
            "predicted_ms": plan["iso_mac_latency_ms"],
            "predicted_error_ms": None,
            "emulated_ms": None,
        },
        {
            "network": "branched",
            "processor": names,
            "accuracy": retrained["val_accuracy"],
            "macs": plan["macs"],
            "params": plan["params"],
            "predicted_ms": plan["latency_ms"],
            "predicted_error_ms": plan["error_ms"],
            "emulated_ms": runs["branched"]["latency_ms"]["median"],
        },
    ]
    return {
        "title": "ResNet-18 on digits, stretched for the CPU and DSP of a Mi 9",
        "command": "make demo",
        "rows": rows,
        "speedup_vs_fastest": plan["speedup_vs_fastest"],
        "speedup_vs_iso_mac": plan["speedup_vs_iso_mac"],
        "notes": [
            (
                "Equal MACs: the original scaled to the branched network's MACs, every width alike,"
                " on its fastest processor; priced, not trained."
            ),
            (
                "Accuracy: scikit-learn's digits at 64x64, one fifth held out, one seed, computed"
                " by PyTorch in floating point on this machine."
            ),
            (
                "Predicted: the calibrated mi9 predictor at 64x64. It was fitted to int8 networks"
                " at 224x224, so this size is an extrapolation."
            ),
            (
                "Emulated: ONNX Runtime computes the true numbers on this machine while every"
                " sub-graph takes its predicted time; nothing ran on a phone."
            ),
        ],
    }


def table(told: dict[str, Any]) -> Table:
    drawn = Table(
        "network",
        "on",
        "accuracy",
        "MMACs",
        "M params",
        "predicted ms",
        "emulated ms",
        title=told["title"],
    )
    for row in told["rows"]:
        off = "" if row["predicted_error_ms"] is None else f" ± {row['predicted_error_ms']:.2f}"
        drawn.add_row(
            row["network"],
            row["processor"],
            "-" if row["accuracy"] is None else f"{row['accuracy']:.2%}",
            f"{row['macs'] / 1e6:.1f}",
            "-" if row["params"] is None else f"{row['params'] / 1e6:.2f}",
            f"{row['predicted_ms']:.2f}{off}",
            "-" if row["emulated_ms"] is None else f"{row['emulated_ms']:.2f}",
        )
    return drawn


def arguments() -> argparse.ArgumentParser:
    parser = command_parser(__doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo"),
        help="folder for everything the demo makes; an older demo in it is replaced (default demo)",
    )
    parser.add_argument("--epochs", type=int, default=5, help="epochs of the original (default 5)")
    parser.add_argument(
        "--retrain-epochs", type=int, default=3, help="epochs of the branched network (default 3)"
    )
    parser.add_argument("--repeat", type=int, default=30, help="emulated inferences (default 30)")
    return parser


def check_replaceable(out: Path) -> None:
    """Refuse a folder that holds what no demo wrote. Raises BadInput."""
    check_folder(out, "--out")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise BadInput(
            f"cannot write {out}, it holds files and no {MARK}, so no demo wrote it: name another"
            " --out, or empty it"
        )


def main() -> int:
    args = arguments().parse_args()
    check_replaceable(args.out)
    began = time.perf_counter()
    if args.out.is_dir():
        shutil.rmtree(args.out)
    story = Story(args.out)
    told = tell(story, args.epochs, args.retrain_epochs, args.repeat)
    story.keep("summary.json", told)
    story.verb("report", str(args.out), "--out", story.path("report.html"))
    CONSOLE.print(table(told))
    CONSOLE.print(
        f"predicted speed-up: {told['speedup_vs_fastest']:.2f}x over the fastest single processor,"
        f" {told['speedup_vs_iso_mac']:.2f}x over equal MACs"
    )
    for note in told["notes"]:
        CONSOLE.print(f"[dim]{note}[/dim]")
    CONSOLE.print(f"report: {story.path('report.html')}   ({time.perf_counter() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main))
