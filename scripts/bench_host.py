"""Four networks on this machine.

The plan that a search finds for two of its cores, measured against the original.

    python scripts/bench_host.py --out docs/results/bench_host.md [--soc latency_predictors/host]
    [--networks resnet50,...] [--runs 30]

Profiles the machine first where --soc is not there. Every network is searched at no fewer than 0.8
of its MACs and then measured with `nnstretch bench`: float32 of ONNX Runtime, int8 of LiteRT.
Weights and calibration inputs are random, which only times may be judged by; for int8, batch norms
hold the statistics of those inputs. Finished rows go to a journal beside --out (`NAME.rows.jsonl`),
so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnstretch.cli.common import check_writable
from nnstretch.errors import BadInput, NnstretchError, one_line
from nnstretch.files.atomic import write_text

NETWORKS = {
    "resnet50": "torchvision:resnet50",
    "regnet_x_1_6gf": "torchvision:regnet_x_1_6gf",
    "mobilenet_v3_large": "torchvision:mobilenet_v3_large",
    "tf_efficientnet_lite4": "timm:tf_efficientnet_lite4",
    "resnet18": "torchvision:resnet18",
}
"""The last only where it is named: it is for a quick look."""
FORMATS = {
    "float32": ("--backend", "onnxruntime"),
    "int8": ("--only-int8", "--calibration", "random"),
}
BUDGET_S = 420
NOTES = {
    "int8": (
        (
            "Batch norms of original and branches hold the statistics of the 16 random calibration"
            " inputs: without them the signal of deep networks fades below the steps of int8."
            " `nnstretch bench` then asks for 3 dB of signal over noise, not for the 10 dB of a"
            " sound network."
        ),
        (
            "Branches write side by side into the tensor of their meeting point, so merges copy"
            " nothing (docs/guide/run_and_serve.md). Inputs and outputs of sub-graphs are copied: LiteRT"
            " computes in memory of its own. No segment ends at a map that is padded for the"
            " convolution behind it: a padded map that is handed over is copied pixel by pixel,"
            " inside a sub-graph padding costs nothing."
        ),
        (
            "In MobileNetV3 no single operator loses the signal: each of some hundred operators"
            " rounds anew and costs 0.3 to 1 dB, from 40 dB behind the first to about 10 dB at the"
            " end, and random weights have nothing that averages noise out."
        ),
    )
}
"""Beside the numbers, by format."""
HEADS = (
    "network",
    "backend",
    "what",
    "median ms",
    "quartiles ms",
    "speed-up over the original on one core",
    "95% interval",
)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="FILE.md")
    parser.add_argument(
        "--soc",
        default="latency_predictors/host",
        metavar="FOLDER",
        help="this machine's profile, made where it is not there",
    )
    parser.add_argument("--processors", default="cpu0,cpu1", help="two cores of it (cpu0,cpu1)")
    parser.add_argument(
        "--networks",
        default=",".join(list(NETWORKS)[:4]),
        metavar="A,B",
        help=f"of {', '.join(NETWORKS)}",
    )
    parser.add_argument(
        "--formats", default=",".join(FORMATS), metavar="A,B", help=f"of {', '.join(FORMATS)}"
    )
    parser.add_argument("--min-macs", default="0.8x", help="of the original's (0.8x)")
    parser.add_argument("--runs", type=int, default=30, help="rounds of every measurement (30)")
    return parser


def nnstretch(*argv: object) -> dict[str, Any]:
    """The JSON of one verb in a process of its own.

    Raises BadInput with its line where it refuses.
    """
    done = subprocess.run(
        [sys.executable, "-m", "nnstretch.cli", *map(str, argv), "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        raise BadInput(lines[-1].removeprefix("nnstretch: "))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def named(text: str, known: Sequence[str], option: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"unknown {unknown[0]!r}, {option}, it is one of {', '.join(known)}")
    return names


def measured(network: str, format: str, args: argparse.Namespace, plans: Path) -> dict[str, Any]:
    """One row of the journal; its `refused` says why there is nothing to see."""
    row: dict[str, Any] = {
        "network": network,
        "format": format,
        "min_macs": args.min_macs,
        "runs": args.runs,
        "soc": args.soc,
    }
    plan = plans / f"{network}.yaml"
    try:
        found = nnstretch(
            *("search", NETWORKS[network], "--soc", args.soc, "--processors", args.processors),
            *("--min-macs", args.min_macs, "--fallback", "nearest", "--out", plan),
        )
        best = found["plans"][0]
        row |= {
            "macs": best["macs"] / found["original"]["macs"],
            "predicted": best["speedup_vs_fastest"],
        }
        row["bench"] = nnstretch("bench", plan, *FORMATS[format], "--runs", args.runs)
    except BadInput as refusal:
        row["refused"] = str(refusal)
    return row


def lines_of(label: str, result: dict[str, Any]) -> list[str]:
    """A line of the table for each contender of a `bench`, and one for the limit."""
    lines = []
    for one in result["variants"]:
        name = f"{one['backend']} {one['precision']}"
        for what, row in one["contenders"].items():
            low, high = row["speedup_interval"]
            times = f"{row['median_ms']:.2f} | {row['q1_ms']:.2f} to {row['q3_ms']:.2f}"
            lines.append(
                f"| {label} | {name} | {what} | {times} | {row['speedup']:.2f}x | {low:.2f} to"
                f" {high:.2f} |"
            )
        limit = (
            f"critical path, {one['efficiency']:.3f} of branches at once, {one['dispatch_us']:.0f}"
            " us per meeting point"
        )
        lines.append(f"| {label} | {name} | {limit} | {one['critical_path_ms']:.2f} | | | |")
    return lines


def page(rows: Sequence[dict[str, Any]], command: str) -> str:
    done = [row for row in rows if "bench" in row]
    lines = ["# Searched plans on this machine, measured", "", f"    {command}", ""]
    if done:
        facts = done[-1]["bench"]
        lines += [
            (
                f"{facts['machine']}; {facts['versions']}. Weights and calibration inputs are"
                " random: only times may be judged by them."
            ),
            "",
        ]
    lines += [
        line
        for format, notes in NOTES.items()
        if any(row["format"] == format for row in rows)
        for note in notes
        for line in (note, "")
    ]
    lines += [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [line for row in done for line in lines_of(row["network"], row["bench"])]
    lines.append("")
    for row in rows:
        where = f"{row['network']} {row['format']}"
        if "macs" in row:
            lines.append(
                f"- {where}: {row['macs']:.2f} of the MACs, predicted {row['predicted']:.2f}x over"
                " the fastest core"
            )
        if "refused" in row:
            lines.append(f"- {where}: refused, {row['refused']}")
        else:
            lines += [
                f"- {where}: not measured: {name}, {why}"
                for name, why in row["bench"]["skipped"].items()
            ]
            lines += [f"- {where}: warning: {warning}" for warning in row["bench"]["warnings"]]
    return "\n".join(lines) + "\n"


def journal_of(path: Path) -> list[dict[str, Any]]:
    """Whole lines; one that was cut off is measured again."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"a broken line of {path} is left out", file=sys.stderr)
    return rows


def main() -> None:
    args = arguments().parse_args()
    out = check_writable(args.out)
    assert out is not None
    networks, formats = (
        named(args.networks, list(NETWORKS), "--networks"),
        named(args.formats, list(FORMATS), "--formats"),
    )
    if not Path(args.soc).is_dir():
        print(f"profiling this machine into {args.soc}, {BUDGET_S} s", file=sys.stderr)
        nnstretch("profile", "--out", args.soc, "--budget-s", BUDGET_S)
    plans, journal = out.with_suffix(".plans"), out.with_suffix(".rows.jsonl")
    plans.mkdir(exist_ok=True)
    wanted = [
        {
            "network": network,
            "format": format,
            "min_macs": args.min_macs,
            "runs": args.runs,
            "soc": args.soc,
        }
        for network in networks
        for format in formats
    ]
    command = "python scripts/bench_host.py " + " ".join(
        f"--{name.replace('_', '-')} {value}" for name, value in vars(args).items()
    )
    for one in wanted:
        rows = journal_of(journal)
        if not any("bench" in row and one.items() <= row.items() for row in rows):
            print(f"{one['network']} {one['format']}", file=sys.stderr, flush=True)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(measured(one["network"], one["format"], args, plans)) + "\n")
            rows = journal_of(journal)
        latest = {
            (row["network"], row["format"]): row
            for row in rows
            if any(one.items() <= row.items() for one in wanted)
        }
        write_text(out, page(list(latest.values()), command))
    print(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    try:
        main()
    except NnstretchError as refusal:
        sys.exit(f"nnstretch: {one_line(refusal)}")
