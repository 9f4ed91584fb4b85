"""Sound calls of every public function, and odd values for their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attack.hostile import HUGE
from attack.samples import classifier, network
from attack.seed import MINUTES
from hypothesis import strategies as st

from nnstretch import (
    PipelineConfig,
    capture,
    export,
    load_model,
    load_soc,
    profile,
    quantize,
    search,
    stretch,
)
from nnstretch.errors import NnstretchError
from nnstretch.files.journal import read_journal
from nnstretch.files.plan_yaml import read_plan, write_plan
from nnstretch.files.task_graphs.read_task_graph import read_task_graph
from nnstretch.graph import TensorSpec
from nnstretch.partition.module_graph import Module
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.pipeline import TensorDecl
from nnstretch.predict import predict_ops
from nnstretch.report import write_report
from nnstretch.run.results.npy_files import read_npy
from nnstretch.train import fit, load_recipe, load_weights

ODD = (
    *(None, True, 0, -1, 10**400, 1 << 63, math.nan, math.inf, -math.inf, 1e308, "", "x", HUGE),
    *("x" * 5000, "a\0b", "\udcff", b"x", b"", [], {}, (), [None], [1], object(), len, Path("\0")),
    *(np.float32(1), np.zeros(0), np.zeros((2, 2)), torch.zeros(0), torch.zeros(1), 1j, {1}),
    *(Path("x" * 300), Path("/dev/zero"), range(3), Exception("x"), NnstretchError, type),
    "\ud800",
)
Calls = dict[str, tuple[Callable[..., Any], dict[str, Any]]]


def sound_calls(folder: Path) -> Calls:
    """Return each public function with arguments that it takes."""
    module, soc = network(), load_soc(folder / "chip")
    plan = read_plan(folder / "plan.yaml")
    graph = capture(module, torch.zeros(1, 3, 16, 16))
    recipe = load_recipe(folder / "recipe.yaml")
    split = {"stages": 2, "processors": ("cpu", "dsp"), "replicas": False, "top": 1}
    ends = {"graph": None, "entry": "i", "index": 0, "exit": 0, "spec": None}
    return {
        "partitions": (lambda **how: partitions(graph, soc, PartitionRequest(**how)), split),
        "PipelineConfig": (connect, ends | {"threads": 1, "processors": ["cpu"]}),
        **(quantizing() if MINUTES else {}),
        "capture": (capture, {"module": module, "example_input": torch.zeros(1, 3, 16, 16)}),
        "load_model": (load_model, {"spec": "net.py:make", "seed": 0}),
        "load_soc": (load_soc, {"name": "chip"}),
        "search": (
            search,
            {"graph": graph, "soc": soc, "processors": ("cpu", "dsp"), "limits": None}
            | {"min_macs": 0.0, "max_macs": 1e9, "min_params": 0.0, "top": 1, "width_steps": 2}
            | {"progress": None, "fallback": None, "merges": ("concat",)},
        ),
        "stretch": (stretch, {"module": module, "plan": plan, "inherit": True}),
        "export": (
            export,
            {"module": stretch(module, plan), "plan": plan, "path": "new.nns", "format": "onnx"}
            | {"int8": False, "calibration": None, "trial": None, "soc": soc, "seed": 0},
        ),
        "profile": (
            profile,
            {"out": "profiled", "backend": "nowhere", "dtype": None, "budget_s": 1.0}
            | {"processors": None, "networks": (), "seed": 0, "fresh": False, "most_kernels": 100},
        ),
        "fit": (
            fit,
            {"module": module, "recipe": recipe, "out": Path("trained"), "progress": False}
            | {"teacher": None, "resume": False, "origin": None},
        ),
        "load_recipe": (load_recipe, {"path_or_name": "recipe.yaml", "overrides": ["seed=1"]}),
        "load_weights": (load_weights, {"module": module, "path": "net.safetensors"}),
        "read_plan": (read_plan, {"path": "plan.yaml"}),
        "write_plan": (write_plan, {"path": "new.yaml", "plan": plan}),
        "read_npy": (read_npy, {"path": Path("input.npy")}),
        "read_journal": (read_journal, {"path": Path("journal.jsonl")}),
        "read_task_graph": (read_task_graph, {"path": "tasks.json", "processors": None}),
        "predict_ops": (predict_ops, {"path": "ops.csv", "soc": soc}),
        "write_report": (write_report, {"folder": "story", "out": "new.html"}),
    }


def connect(
    graph: Any, entry: Any, index: Any, exit: Any, spec: Any, threads: Any, processors: Any
) -> dict[str, Any]:
    """Connect a module's ends to those of a pipeline."""
    item = (TensorDecl("x", TensorSpec((1, 1))),)
    module, config = Module("m", item, item), PipelineConfig(graph)
    config.pipe_input(entry, spec)
    config["input"][entry].connect(config[module]["input"]["x"])
    config[module]["output"][index].connect(config["output"][exit])
    config[module].set(threads=threads, processors=processors)
    return config.get_config()


def quantizing() -> Calls:
    """Return the function whose libraries take half a minute, for long attacks."""
    batch = (torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.long))
    images = {"calibration": [batch], "held_out": [batch], "classes": 3, "max_drop": 100.0}
    named = {"module": classifier(), "path": "new.tflite", "name": "net", "image_task": None}
    return {"quantize": (quantize, images | named | {"progress": None})}


def call(data: st.DataObject, calls: Calls) -> tuple[Callable[[], list[str]], str]:
    """Draw a function of which one argument is odd; return the case and what it is."""
    name = data.draw(st.sampled_from(sorted(calls)))
    function, arguments = calls[name]
    changed = data.draw(st.sampled_from(sorted(arguments)))
    # What a caller's own callback raises reaches the caller, and is no finding.
    odd = [value for value in ODD if changed != "progress" or not callable(value)]
    value = data.draw(st.sampled_from(odd))

    def run() -> list[str]:
        try:
            function(**{**arguments, changed: value})
        except NnstretchError as refusal:
            said = str(refusal)
            return [] if said and len(said) < 2100 else [f"a refusal of {len(said)} characters"]
        return []

    return run, f"{name}({changed}={value!r:.100})"
