"""One thread: PyTorch eager, ONNX Runtime and both kernel sets in turns; sizes, start, overhead.

Then two cores: a published plan of two branches, its critical path over its latency; two networks
at once against one worker. Those need a quiet machine of two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from cpp_trial import build_network, build_runtime
from cpp_zoo import load

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.capture.torch_export import trace
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.memory import plan_arena
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.export.onnx.convert import export_model
from nnstretch.files.atomic import write_text
from nnstretch.files.package_data import package_data

NETWORKS = ("torchvision:resnet18", "torchvision:resnet50", "torchvision:mobilenet_v2")
PAIR = (NETWORKS[0], NETWORKS[2])
BRANCHED = "published:R-50-CG"
REPEATS = 6
HEADS = (
    *("network", "eager ms", "ONNX Runtime ms", "oneDNN ms", "portable ms", "oneDNN / eager"),
    *("oneDNN / ONNX Runtime", "portable / oneDNN", "first answer ms", "program MB", "weights MB"),
    *("arena / alive", "us a task"),
)


@dataclass(frozen=True)
class Built:
    """A network's module, its input, and its runner."""

    module: torch.nn.Module
    example: torch.Tensor
    runner: Path
    arena_share: float
    """Of the arena's bytes over the most bytes alive, calls one after the other."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("docs/results/cpp_speed.md"))


def run(args: argparse.Namespace) -> int:
    """Measure and write the page."""
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        runtime = build_runtime(Path(folder) / "runtime")
        for name in NETWORKS:
            network = prepared(name, Path(folder) / name.replace(":", "_"), runtime)
            rows.append(on_one_thread(name, network, args.turns))
            print(rows[-1], flush=True)
        branched = prepared(BRANCHED, Path(folder) / "branched", runtime)
        share = critical_share(branched.runner, args.turns)
        gains = throughput_gains(Path(folder), runtime, args.turns)
    write_text(args.out, page(rows, share, gains, load))
    return 0


def prepared(name: str, folder: Path, runtime: Path, granularity: str = "layer") -> Built:
    """Export and build a network."""
    folder.mkdir(parents=True)
    subject = load(name, folder)
    captured = trace(subject.module, subject.example, name)
    program = translate(captured.graph, captured.weights, granularity, subject.placement)
    arena = plan_arena(program.groups)
    write_project(program, folder / "net")
    runner = build_network(folder / "net", runtime)
    return Built(subject.module, subject.example, runner, arena.size / arena.peak_alive)


def on_one_thread(name: str, network: Built, turns: int) -> tuple[str, ...]:
    """Return a row: the least of all turns of each."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    model = export_model(name, network.module, (network.example,)).SerializeToString()
    session = onnxruntime.InferenceSession(model, options)
    feed = {session.get_inputs()[0].name: network.example.numpy()}
    timed: dict[str, Callable[[], float]] = {
        "eager": lambda: least_ms(lambda: network.module(network.example)),
        "ort": lambda: least_ms(lambda: session.run(None, feed)),
        "onednn": lambda: answer(network.runner, "--kernels", "onednn")["latency_ms"]["min"],
        "portable": lambda: answer(network.runner, "--kernels", "portable")["latency_ms"]["min"],
    }
    times: dict[str, list[float]] = {what: [] for what in timed}
    with torch.no_grad():
        for _ in range(turns):
            for what, measure in timed.items():
                times[what].append(measure())
    best = {what: min(values) for what, values in times.items()}
    weights = network.runner.parents[1] / "weights.bin"
    return (
        *(name, *(f"{best[what]:.1f}" for what in timed)),
        f"{best['onednn'] / best['eager']:.2f}",
        f"{best['onednn'] / best['ort']:.2f}",
        f"{best['portable'] / best['onednn']:.2f}",
        f"{first_answer_ms(network.runner, turns):.0f}",
        *(f"{path.stat().st_size / 1e6:.1f}" for path in (network.runner, weights)),
        f"{network.arena_share:.2f}",
        f"{overhead_us(network.runner):.1f}",
    )


def least_ms(compute: Callable[[], object]) -> float:
    """Return the least milliseconds of some runs."""
    times: list[float] = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        compute()
        times.append((time.perf_counter() - begun) * 1000)
    return min(times)


def answer(runner: Path, *options: str, repeats: int = REPEATS) -> dict[str, Any]:
    """Return what a runner says of some inferences."""
    said: dict[str, Any] = json.loads(
        subprocess.run(
            [str(runner), "--repeat", str(repeats), "--json", *options],
            capture_output=True,
            check=True,
            text=True,
        ).stdout
    )
    return said


def first_answer_ms(runner: Path, turns: int) -> float:
    """Return the least time from the start of the program to its end after one inference."""
    times: list[float] = []
    for _ in range(turns):
        begun = time.perf_counter()
        answer(runner, repeats=1)
        times.append((time.perf_counter() - begun) * 1000)
    return min(times)


def spans_of(
    runner: Path, *options: str, repeats: int = REPEATS
) -> tuple[dict[str, Any], dict[int, list[Any]]]:
    """Return what a runner says, and its spans by inference."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "trace.json"
        said = answer(runner, "--trace", str(path), *options, repeats=repeats)
        events = json.loads(path.read_text())["traceEvents"]
    by_request: dict[int, list[Any]] = {}
    for event in events:
        if event["ph"] == "X":
            by_request.setdefault(event["args"]["request"], []).append(event)
    return said, by_request


def makespan_us(spans: Sequence[Any]) -> float:
    """Return the time from the first start to the last end."""
    return float(max(s["ts"] + s["dur"] for s in spans) - min(s["ts"] for s in spans))


def overhead_us(runner: Path) -> float:
    """Return the median time between tasks of one inference on one worker, for each task."""
    _, by_request = spans_of(runner, repeats=20)
    return statistics.median(
        (makespan_us(spans) - sum(s["dur"] for s in spans)) / len(spans)
        for spans in by_request.values()
    )


def critical_share(runner: Path, turns: int) -> float:
    """Return the median of critical path over latency, of the last inference of each turn."""
    shares: list[float] = []
    for _ in range(turns):
        said, by_request = spans_of(runner, "--elements", "cpu:0,cpu:1")
        shares.append(said["critical_path_ms"] * 1000 / makespan_us(by_request[max(by_request)]))
    return statistics.median(shares)


def link_pair(folder: Path, runtime: Path, name: str) -> Path:
    """Link a program of `cpp/tests` to the two networks in `folder` that PAIR names."""
    home = package_data("cpp")
    includes = [f"-I{home / part}" for part in ("include", "src")]
    objects: list[str] = []
    for net in pair_folders(folder):
        objects.append(str(net / "network.o"))
        source = str(net / "network.cpp")
        headers = [*includes, f"-I{net}"]
        run_tool(["c++", "-std=c++17", "-O1", *headers, "-c", source, "-o", objects[-1]], net)
    libraries = (runtime.parent / "libraries.txt").read_text().split()
    sources = [str(home / "tests" / f"{name}.cpp"), *objects, str(runtime), *libraries]
    models = [f"nns_model_torchvision_{network.partition(':')[2]}" for network in PAIR]
    macros = [f"-DFIRST={models[0]}", f"-DSECOND={models[1]}"]
    command = ["c++", "-std=c++17", "-O2", *includes, *macros, *sources]
    run_tool([*command, "-lpthread", "-ldl", "-o", str(folder / name)], folder)
    return folder / name


def pair_folders(folder: Path) -> list[Path]:
    """Return where `prepared` put the networks of PAIR."""
    return [folder / name.replace(":", "_") / "net" for name in PAIR]


def throughput_gains(folder: Path, runtime: Path, turns: int) -> list[float]:
    """Return how much more two workers do than one, under EFT, with two networks at once."""
    program = link_pair(folder, runtime, "two_networks")
    weights = [str(net / "weights.bin") for net in pair_folders(folder)]
    gains: list[float] = []
    for _ in range(turns):
        rates: list[float] = []
        for elements in ("cpu", "cpu,cpu"):
            ended = subprocess.run(
                [str(program), elements, *weights], capture_output=True, check=True, text=True
            )
            rates.append(float(ended.stdout))
        gains.append(rates[1] / rates[0])
    return gains


def page(rows: Sequence[tuple[str, ...]], share: float, gains: Sequence[float], load: float) -> str:
    """Return the page of results, with the mean load of the host at the start."""
    lines = [
        "# Speed of networks as C++",
        "",
        f"Made by `{command_line()}`. One thread each, in turns, the least of all turns. The load"
        f" of the host at the start was {load:.1f}: above 0.3, only ratios of one row mean"
        " something, and what needs two quiet cores (the last two lines) is a lower bound.",
        "",
        *markdown_table(HEADS, list(rows)),
        "",
        "First answer: from the start of the process to its end after one inference, oneDNN. us a"
        " task: median time between the tasks of an inference on one worker.",
        "",
        f"- {BRANCHED} on two workers: critical path over latency {share:.3f} (median; wanted 0.95)",
        f"- {PAIR[0]} and {PAIR[1]} at once under EFT: two workers do"
        f" {statistics.median(gains):.2f} times what one does (median of {len(gains)}, at most"
        f" {max(gains):.2f}; wanted 1.8)",
    ]
    return "\n".join([*lines, ""])
