"""Search plans of four networks for two cores of this machine, and measure them.

Profiles the machine first where --soc is not there. Every network is searched at no fewer than 0.8
of its MACs and then measured with `nnstretch bench`: float32 of ONNX Runtime, int8 of LiteRT.
Weights and calibration inputs are random, which only times may be judged by; for int8, batch norms
hold the statistics of those inputs. Finished rows go to a journal beside --out (`NAME.rows.jsonl`),
so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from itertools import chain, product
from pathlib import Path
from typing import Any

from bench_tables import HEADS, bench_rows

from nnstretch.bench.commands import command_line, run_verb
from nnstretch.bench.markdown import markdown_table
from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BadInput
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
    "int8": """\
Batch norms of original and branches hold the statistics of the 16 random calibration inputs: without them the signal of deep networks fades below the steps of int8. `nnstretch bench` then asks for 3 dB of signal over noise, not for the 10 dB of a sound network.

Branches write side by side into the tensor of their meeting point, so merges copy nothing (docs/guide/run_and_serve.md). Inputs and outputs of sub-graphs are copied: LiteRT computes in memory of its own. No segment ends at a map that is padded for the convolution behind it: a padded map that is handed over is copied pixel by pixel, inside a sub-graph padding costs nothing.

In MobileNetV3 no single operator loses the signal: each of some hundred operators rounds anew and costs 0.3 to 1 dB, from 40 dB behind the first to about 10 dB at the end, and random weights have nothing that averages noise out.
"""
}
"""Beside the numbers, by format."""


def add_options(parser: argparse.ArgumentParser) -> None:
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


def named(text: str, known: Sequence[str], option: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"unknown {unknown[0]!r}, {option}, it is one of {', '.join(known)}")
    return names


def settings(network: str, format: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return what a row of the journal is measured with."""
    shared = {"min_macs": args.min_macs, "runs": args.runs, "soc": args.soc}
    return {"network": network, "format": format, **shared}


def measured(network: str, format: str, args: argparse.Namespace, plans: Path) -> dict[str, Any]:
    """Return one row of the journal; its `refused` says why nothing was measured."""
    row = settings(network, format, args)
    plan = plans / f"{network}.yaml"
    try:
        answer = run_verb(
            *("search", NETWORKS[network], "--soc", args.soc, "--processors", args.processors),
            *("--min-macs", args.min_macs, "--fallback", "nearest", "--out", plan),
        )
        best = answer["plans"][0]
        row |= {
            "macs": best["macs"] / answer["original"]["macs"],
            "predicted": best["speedup_vs_fastest"],
        }
        row["bench"] = run_verb("bench", plan, *FORMATS[format], "--runs", args.runs)
    except BadInput as refusal:
        row["refused"] = str(refusal)
    return row


def page(rows: Sequence[dict[str, Any]]) -> str:
    measured_rows = [row for row in rows if "bench" in row]
    lines = ["# Searched plans on this machine, measured", "", f"    {command_line()}", ""]
    if measured_rows:
        facts = measured_rows[-1]["bench"]
        lines.append(
            f"{facts['machine']}; {facts['versions']}. Weights and calibration inputs are random:"
            " only times may be judged by them.\n"
        )
    lines += [NOTES[format] for format in NOTES if any(row["format"] == format for row in rows)]
    tables = (bench_rows(row["network"], row["bench"]) for row in measured_rows)
    lines += [*markdown_table(HEADS, chain.from_iterable(tables)), ""]
    lines += chain.from_iterable(map(remarks, rows))
    return "\n".join(lines) + "\n"


def remarks(row: dict[str, Any]) -> list[str]:
    where = f"- {row['network']} {row['format']}"
    lines = []
    if "macs" in row:
        speedup = f"predicted {row['predicted']:.2f}x over the fastest core"
        lines.append(f"{where}: {row['macs']:.2f} of the MACs, {speedup}")
    if "refused" in row:
        return [*lines, f"{where}: refused, {row['refused']}"]
    skipped, warnings = row["bench"]["skipped"], row["bench"]["warnings"]
    lines += [f"{where}: not measured: {name}, {why}" for name, why in skipped.items()]
    return lines + [f"{where}: warning: {warning}" for warning in warnings]


def journal_of(path: Path) -> list[dict[str, Any]]:
    """Whole lines; one that was cut off is measured again."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"a broken line of {path} is left out", file=sys.stderr)
    return rows


def run(args: argparse.Namespace) -> int:
    out = Path(args.out)
    check_writable(out)
    networks = named(args.networks, list(NETWORKS), "--networks")
    formats = named(args.formats, list(FORMATS), "--formats")
    if not Path(args.soc).is_dir():
        print(f"profiling this machine into {args.soc}, {BUDGET_S} s", file=sys.stderr)
        run_verb("profile", "--out", args.soc, "--budget-s", BUDGET_S)
    plans, journal = out.with_suffix(".plans"), out.with_suffix(".rows.jsonl")
    plans.mkdir(exist_ok=True)
    cases = list(product(networks, formats))
    for network, format in cases:
        rows = journal_of(journal)
        asked = settings(network, format, args).items()
        if not any("bench" in row and asked <= row.items() for row in rows):
            print(f"{network} {format}", file=sys.stderr, flush=True)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps(measured(network, format, args, plans)) + "\n")
            rows = journal_of(journal)
        latest = {}
        for row in rows:
            case = (row["network"], row["format"])
            if case in cases and settings(*case, args).items() <= row.items():
                latest[case] = row
        write_text(out, page(list(latest.values())))
    print(out.read_text(encoding="utf-8"))
    return 0
