"""One sound file of every kind, small, from which hostile ones are made."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import onnx
import torch
from support import anynet_yaml
from support.bundles import branched_bundle, model_bytes
from support.pipeline_bundles import chain
from support.trainings import picture, write_images
from torch import nn

from nnstretch.bundle.archive import digest
from nnstretch.bundle.bundle import write_bundle
from nnstretch.bundle.image_task import ImageTask
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.cli import main
from nnstretch.files.journal import append_rows
from nnstretch.files.package_data import package_data
from nnstretch.files.workload.service_record import (
    RecordedApplication,
    RecordedKind,
    RecordedProcessor,
    RecordedRequest,
    RecordedTask,
    RecordHeader,
    RecordWriter,
)
from nnstretch.graph import TensorSpec
from nnstretch.profile.kernel_models.tflite_builder import TfliteModelBuilder
from nnstretch.profile.sampling.journal import FORMAT as PROFILE_FORMAT
from nnstretch.train import save_weights
from nnstretch.train.data.image_folder import open_folder
from nnstretch.train.data.shard_writer import MIN_CHUNK_BYTES, write_dataset

FACTORY = """
from torch import nn

def make(width=16, classes=60):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes),
    )
"""
PLAN = """format: 1
model: net.py:make
input: [1, 3, 16, 16]
segments:
- {end: '1', processor: cpu}
- end: '3'
  branches:
  - {processor: cpu, width: 8}
  - {processor: dsp, width: 0.5x}
- {end: output, processor: cpu}
"""
RECIPE = """model: net.py:make
seed: 3
data: {name: shapes, image_px: 16, batch_images: 8, images_per_class: 4}
optimizer: {name: sgd, lr: 1e-2}
loss: {kind: softmax}
trainer: {max_epochs: 1, threads: 1, precision: fp32, tensorboard: false}
start: own
"""
PHOTOS = """model: net.py:make?classes=2
data: {name: NAME, root: NAME, image_px: 16, batch_images: 4}
trainer: {max_epochs: 1, threads: 1, precision: fp32, tensorboard: false}
start: own
"""
OPS = """config,part,branch,device,name,kind,k,s,groups,cin,cout,hw_in,hw_out,macs,params
A,body,0,cpu,c1,conv,3,1,1,8,8,16,16,147456,576
A,body,1,dsp,c2,conv,3,1,1,8,8,16,16,147456,576
"""
TASKS = {
    "tasks": ["load", "filter", "store"],
    "processors": {"cpu0": "cpu", "cpu1": "cpu", "fft0": "fft"},
    "cost": {"load": {"cpu": 4}, "filter": {"cpu": 9, "fft": 2}, "store": {"cpu1": 3}},
    "edges": [{"from": "load", "to": "filter", "data": 6}, {"from": "filter", "to": "store"}],
}
SERVED = """pool: {cpu: 1}
applications: [{name: net, model: net.nns, arrivals: {period_ms: 5}, instances: 3}]
"""
WORKLOAD = """pool: {cpu: 2, fft: 1}
policy: eft
seed: 3
applications:
- {name: tasks, model: tasks.json, arrivals: {exponential_ms: 2}, instances: 3, deadline_ms: 40}
- {name: fft, costs_ms: {cpu: 4, fft: 1}, arrivals: {times_ms: [0, 3]}, priority: 1}
"""
SWEEP = """workload: workload.yaml
pools: [{cpu: 2, fft: 1}]
policies: [rr]
rates: [1]
trials: 1
"""
LISTED = """pool: {cpu: 1}
costs: costs.json
durations: {kind: measured}
applications: [{name: net, model: net.nns, arrivals: {csv: arrivals.csv}}]
"""
RECORDED = """pool: {cpu: 1}
applications: [{name: net, costs_ms: {cpu: 1}, arrivals: {times_ms: [0]}}]
"""
ARRIVALS = "ms,what\n0,first\n# nothing\n1.5\n4\n"
STG = "2\n0 0 0\n1 3 1 0\n2 4 1 1\n3 0 1 2\n"
SHAPED = "net.py:make --input 1,3,16,16"
WRITERS = (
    f"accelerate {SHAPED} --accelerator chip.yaml --out planned",
    "simulate sweep sweep.yaml --workers 1 --out swept",
    "simulate measure served.yaml --rounds 2 --out costs.json",
    f"study {SHAPED} --soc chip --trials 1 --warm 0 --out study --storage study.log",
    "train recipe.yaml --out begun",
)
"""Verbs that write what others read."""
FILES = (
    *("net.py", "plan.yaml", "recipe.yaml", "config.yaml", "chip/soc.json", "chip/cpu.json"),
    *("ops.csv", "net.nns", "pipeline.nns", "net.safetensors", "net.onnx", "net.pt2"),
    *("input.npy", "tasks.json", "tasks.stg", "story/search.json", "story/trace_original.json"),
    *("workload.yaml", "served.yaml", "sweep.yaml", "chip.yaml", "litert.nns", "picture.png"),
    *("listed.yaml", "arrivals.csv", "costs.json", "swept/journal.jsonl"),
    *("recorded.yaml", "record.jsonl"),
    *("planned/schedule.yaml", "planned/chip.json", "study.log", "study/study.json"),
    *("begun/resume.safetensors", "begun/training.json", "folder.yaml", "folder/cat/0.png"),
    *("folder/dog/1.jpg", "shards.yaml", "shards/classes.json", "shards/train/index.json"),
    *("shards/train/chunk-0-0.bin", "measured/journal.jsonl"),
)
"""Every kind of file that a verb reads."""
UNREAD = {"", ".md", ".html", ".svg", ".lock", ".old"}
"""Endings of files that verbs write and none reads."""
NAMED_WITHIN = {
    "listed.yaml": ("arrivals.csv", "costs.json", "net.nns"),
    "served.yaml": ("net.nns",),
    "workload.yaml": ("tasks.json",),
    "sweep.yaml": ("workload.yaml", "tasks.json"),
    "plan.yaml": ("net.py",),
    "recipe.yaml": ("net.py",),
    "folder.yaml": ("net.py", "folder/"),
    "shards.yaml": ("net.py", "shards/"),
}
"""Files that a file names, and that are read with it."""


def files_read(argv: Sequence[str]) -> list[str]:
    """Return the files that a command line names, itself or in a file that it names."""
    named = [within for file in NAMED_WITHIN if file in argv for within in NAMED_WITHIN[file]]
    tops = [*argv, *named]
    return [name for name in FILES if any(name.partition("/")[0] in word for word in tops)]


def network() -> nn.Module:
    """Make the network of net.py."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 60)),
    )


def classifier() -> nn.Module:
    """Make a network of three classes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    )


def make_samples(folder: Path) -> None:
    """Write a file of every kind."""
    texts = {"net.py": FACTORY, "plan.yaml": PLAN, "recipe.yaml": RECIPE, "ops.csv": OPS}
    texts |= {"tasks.json": json.dumps(TASKS), "tasks.stg": STG}
    texts |= {"workload.yaml": WORKLOAD, "served.yaml": SERVED, "sweep.yaml": SWEEP}
    texts |= {"listed.yaml": LISTED, "arrivals.csv": ARRIVALS, "recorded.yaml": RECORDED}
    texts |= {f"{name}.yaml": PHOTOS.replace("NAME", name) for name in ("folder", "shards")}
    for name, text in texts.items():
        (folder / name).write_text(text)
    rows = anynet_yaml.configurations()
    config = anynet_yaml.document(next(iter(rows.values())))
    (folder / "config.yaml").write_text(json.dumps(config))
    shutil.copytree(package_data("latency_predictors") / "mi9", folder / "chip")
    shutil.copy(package_data("accelerators") / "nvdla-32.yaml", folder / "chip.yaml")
    net, stages = branched_bundle(segments=1), chain(2)
    sees_images = replace(net.manifest, image_task=ImageTask((), (0.5,) * 3, (0.25,) * 3))
    write_bundle(folder / "net.nns", sees_images, net.files)
    write_bundle(folder / "pipeline.nns", stages.manifest, stages.files)
    save_weights(network(), folder / "net.safetensors")
    write_networks(folder)
    write_bundle(folder / "litert.nns", *litert_bundle())
    write_images(folder / "folder", {"cat": 6, "dog": 6})
    picture(0).save(folder / "picture.png")
    write_dataset(open_folder(folder / "folder", 0.2, 0), folder / "shards", MIN_CHUNK_BYTES)
    write_measured(folder)
    shape = net.manifest.inputs[0].spec.shape
    np.save(folder / "input.npy", np.zeros(shape, np.float32))
    (folder / "story").mkdir()
    trace = {"traceEvents": [{"ph": "X", "name": "a", "ts": 0, "dur": 5, "pid": 1, "tid": 1}]}
    (folder / "story" / "trace_original.json").write_text(json.dumps(trace))
    (folder / "story" / "search.json").write_text(json.dumps({"plans": [], "optimal": True}))
    write_results(folder)


def litert_bundle() -> tuple[Manifest, dict[str, bytes]]:
    """Make a bundle of one LiteRT sub-graph, a matrix product."""
    builder = TfliteModelBuilder("float32")
    value = builder.read((2, 4))
    builder.tensor((4, 4), "float32", np.ones((4, 4), np.float32))
    inputs = (value, len(builder.tensors) - 1, -1)
    builder.outputs = [builder.op("FULLY_CONNECTED", inputs, (2, 4), "FullyConnectedOptions")]
    data = builder.bytes()
    x, y = (Port(name, TensorSpec((2, 4))) for name in ("x", "y"))
    file = "net.tflite"
    subgraph = Subgraph(*("net", "cpu", file, digest(data), len(data), (x,), (y,)), format="litert")
    return Manifest("net", None, (x,), (y,), (subgraph,), 0.0), {file: data}


def write_measured(folder: Path) -> None:
    """Write what was measured: a record of a server, a profile's journal."""
    header = RecordHeader(
        *("0.1.0", "recorded.yaml", "eft", True, True, 0, (RecordedProcessor("cpu0", "cpu"),)),
        (RecordedApplication("net", 0, None, 16, (RecordedKind("t", (), None, {"cpu0": 1e3}),)),),
    )
    record = RecordWriter(folder / "record.jsonl", header)
    ran = (RecordedTask("t", "cpu0", 12.0, 900.0),)
    record.add(RecordedRequest(0, "net", 10.0, 11.0, 910.0, "answered", None, 0, ran))
    record.close()
    (folder / "measured").mkdir()
    head = {"backend": "onnxruntime", "version": "1", "dtype": "float32", "machine": "none"}
    append_rows(folder / "measured" / "journal.jsonl", [{"format": PROFILE_FORMAT} | head])


def write_results(folder: Path) -> None:
    """Let verbs write what others read. They work in the current folder."""
    with chdir(folder), redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        for line in WRITERS:
            if main(line.split()):
                raise AssertionError(f"{line} ended with {said.getvalue()}")


def write_networks(folder: Path) -> None:
    """Write the network as ONNX and as a torch.export file."""
    read, written = (Port(name, TensorSpec((1, 3, 8, 8))) for name in ("x", "y"))
    weights = {"w": np.ones((3, 3, 3, 3), np.float32)}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    (folder / "net.onnx").write_bytes(model_bytes(nodes, [read], [written], weights))
    program = torch.export.export(network().eval(), (torch.zeros(1, 3, 16, 16),))
    torch.export.save(program, folder / "net.pt2")
