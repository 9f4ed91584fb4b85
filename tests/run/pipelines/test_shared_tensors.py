"""Tensors that several stages read: none of them can write on another's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.bundles import model_bytes
from support.pipeline_bundles import module_for, op

from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.bundle.pipeline_view import torch_spec
from nnstretch.graph import TensorSpec
from nnstretch.partition.build_manifest import ModuleFile, build_manifest
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.module_graph import Module
from nnstretch.pipeline import TensorDecl
from nnstretch.run.pipelines.item_tensors import TensorForms


def two_readers(port: Port) -> Manifest:
    """A sub-graph's output, which two Python stages read."""
    plain = Port(port.name, torch_spec(port))
    x = Port("x", plain.spec)
    nodes = [op("Neg", "x", plain.name)]
    file = ModuleFile(model_bytes(nodes, [x], [plain], {}), (x,), (plain,))
    writer = module_for("writer", file)
    config = PipelineConfig()
    config["input"]["x"].connect(config[writer]["input"]["x"])
    for k in range(2):
        reads, writes = TensorDecl(plain.name, plain.spec), TensorDecl(f"z{k}", plain.spec)
        reader = Module(f"reader{k}", (reads,), (writes,), call=f"stages:reader{k}")
        config[writer]["output"][0].connect(config[reader]["input"][plain.name])
        config[reader]["output"][0].connect(config["output"][k])
    manifest = build_manifest(config.graph, {"writer": file}, "test", None)[0]
    subgraph = replace(manifest.subgraphs[0], outputs=(port,))
    return replace(manifest, subgraphs=(subgraph,))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((1, 4, 4, 2), ""), ((1, 4, 4, 2), "NHWC"), ((1, 4, 4, 1), "NHWC"), ((1, 1, 1, 3), "NHWC")],
)
def test_a_stage_cannot_write_on_what_another_reads(shape: tuple[int, ...], layout: str) -> None:
    port = Port("y", TensorSpec(shape), layout)
    value = np.zeros(shape, np.float32)
    view = TensorForms(two_readers(port)).to_python_stage("y", value)
    assert view.shape == torch_spec(port).shape
    assert value.flags.writeable
    if view.flags.writeable:
        view[:] = 1
    assert not value.any()
