"""Draw two networks on three elements: two cores, and one that computes and takes its table's time.

Both networks are linked into one C program (cpp/examples/two_networks). Calls are measured on the
core; on the third element, `npu`, each is said to take twice as long.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

import torch
from cpp_trial import build_network, build_runtime
from cpp_zoo import load

from nnstretch.capture.torch_export import trace
from nnstretch.export.cpp.build import run_tool
from nnstretch.export.cpp.project import write_project
from nnstretch.export.cpp.translate import translate
from nnstretch.files.atomic import write_text
from nnstretch.files.package_data import package_data
from nnstretch.report.charts.gantt_schedule import TimeWindow, schedule_gantt
from nnstretch.report.style import stand_alone
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

NETWORKS = ("torchvision:resnet18", "torchvision:mobilenet_v2")
ELEMENTS = ("cpu:0", "cpu:1", "emulated:npu")
NPU_FACTOR = 2.0
INFERENCES = 12
WINDOW_US = 100_000.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this part."""
    parser.add_argument("--policy", default="eft")
    parser.add_argument("--out", type=Path, default=Path("docs/results/cpp_two_networks.svg"))


def run(args: argparse.Namespace) -> int:
    """Export, link, run and draw."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        runtime = build_runtime(folder / "runtime")
        files = [file for name in NETWORKS for file in exported(name, folder, runtime)]
        nets = [folder / plain(name) for name in NETWORKS]
        program = linked(nets, folder / "program")
        config = json.dumps({"elements": ELEMENTS, "policy": args.policy, "trace_spans": 100_000})
        spans = folder / "trace.json"
        run_tool([str(program), config, str(INFERENCES), str(spans), *map(str, files)], folder)
        played = read_spans(json.loads(spans.read_text()))
    names = dict.fromkeys(span.processor for span in played.spans)
    title = f"ResNet-18 (blue) and MobileNetV2 (orange) in C++ under {args.policy}; npu is emulated"
    start_us = played.makespan_us / 3
    window = TimeWindow(start_us, start_us + WINDOW_US)
    drawing = schedule_gantt(title, played, sorted(names), window)
    write_text(args.out, stand_alone(drawing))
    return 0


def plain(name: str) -> str:
    """Return a name for a folder."""
    return re.sub(r"\W", "_", name)


def exported(name: str, folder: Path, runtime: Path) -> tuple[Path, Path]:
    """Export and measure a network; return its weights and its table of costs."""
    subject = load(name, folder)
    captured = trace(subject.module, subject.example, name)
    net = folder / plain(name)
    write_project(translate(captured.graph, captured.weights, "layer", subject.placement), net)
    costs = net / "costs.json"
    run_tool([str(build_network(net, runtime)), "--profile", str(costs)], net)
    table = json.loads(costs.read_text())
    for row in table["costs_us"].values():
        row["npu"] = NPU_FACTOR * row["cpu"]
    costs.write_text(json.dumps(table))
    return net / "weights.bin", costs


def linked(nets: list[Path], build: Path) -> Path:
    """Build the example with both networks; return the program."""
    source = package_data("cpp") / "examples" / "two_networks"
    folders = [f"-DFIRST={nets[0]}", f"-DSECOND={nets[1]}"]
    build.mkdir()
    run_tool(["cmake", "-S", str(source), "-B", str(build), *folders], build)
    run_tool(["cmake", "--build", str(build), "--parallel", "2"], build)
    return build / "two_networks"


def read_spans(document: dict[str, list[dict[str, object]]]) -> Trace:
    """Return the spans of a program's trace; all tasks of one network share a request number."""
    threads: dict[object, str] = {}
    spans: list[Span] = []
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            threads[event["tid"]] = str(event["args"]["name"])  # type: ignore[index]
            continue
        network, _, task = str(event["name"]).partition("/")
        start_us = float(str(event["ts"]))
        end_us = start_us + float(str(event["dur"]))
        where = threads[event["tid"]]
        placed = Task(task, task, request=NETWORKS.index(network))
        spans.append(Span(start_us, end_us, placed, where))
    return Trace(tuple(spans))
