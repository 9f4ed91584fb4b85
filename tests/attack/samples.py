"""One sound file of every kind, small, from which hostile ones are made."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import torch
from support import anynet_yaml
from support.bundles import branched_bundle
from support.pipeline_bundles import chain
from torch import nn

from nnstretch.bundle.bundle import write_bundle
from nnstretch.files.package_data import package_data
from nnstretch.train import save_weights

FACTORY = """
from torch import nn

def make(width=16):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 60),
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
STG = "2\n0 0 0\n1 3 1 0\n2 4 1 1\n3 0 1 2\n"
FILES = (
    *("net.py", "plan.yaml", "recipe.yaml", "config.yaml", "chip/soc.json", "chip/cpu.json"),
    *("ops.csv", "net.nns", "pipeline.nns", "net.safetensors", "net.onnx", "net.pt2"),
    *("input.npy", "tasks.json", "tasks.stg", "story/search.json", "story/trace_original.json"),
    *("workload.yaml", "served.yaml", "sweep.yaml", "chip.yaml"),
)
"""Every kind of file that a verb reads."""


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
    for name, text in texts.items():
        (folder / name).write_text(text)
    rows = anynet_yaml.configurations()
    config = anynet_yaml.document(next(iter(rows.values())))
    (folder / "config.yaml").write_text(json.dumps(config))
    shutil.copytree(package_data("latency_predictors") / "mi9", folder / "chip")
    shutil.copy(package_data("accelerators") / "nvdla-32.yaml", folder / "chip.yaml")
    for name, bundle in (("net.nns", branched_bundle(segments=1)), ("pipeline.nns", chain(2))):
        write_bundle(folder / name, bundle.manifest, bundle.files)
    save_weights(network(), folder / "net.safetensors")
    write_networks(folder)
    shape = branched_bundle(segments=1).manifest.inputs[0].spec.shape
    np.save(folder / "input.npy", np.zeros(shape, np.float32))
    (folder / "story").mkdir()
    trace = {"traceEvents": [{"ph": "X", "name": "a", "ts": 0, "dur": 5, "pid": 1, "tid": 1}]}
    (folder / "story" / "trace_original.json").write_text(json.dumps(trace))
    (folder / "story" / "search.json").write_text(json.dumps({"plans": [], "optimal": True}))


def write_networks(folder: Path) -> None:
    """Write the network as ONNX and as a torch.export file."""
    from support.bundles import model_bytes

    from nnstretch.bundle.manifest import Port
    from nnstretch.graph import TensorSpec

    read, written = (Port(name, TensorSpec((1, 3, 8, 8))) for name in ("x", "y"))
    weights = {"w": np.ones((3, 3, 3, 3), np.float32)}
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    (folder / "net.onnx").write_bytes(model_bytes(nodes, [read], [written], weights))
    program = torch.export.export(network().eval(), (torch.zeros(1, 3, 16, 16),))
    torch.export.save(program, folder / "net.pt2")
