"""Small pipelines for tests.

The published reference network, linked by hand, and what stands around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from support.bundles import model_bytes

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.graph import TensorSpec
from nnstretch.partition.build_manifest import ModuleFile, build_manifest
from nnstretch.partition.connect import PipelineConfig
from nnstretch.partition.module_graph import Module, ModuleGraph
from nnstretch.partition.stage_modules import add_python_stages
from nnstretch.pipeline import TensorDecl

MAP = TensorSpec((3, 3))


def port(name: str) -> Port:
    return Port(name, MAP)


def onnx_file(
    nodes: Sequence[onnx.NodeProto], inputs: Sequence[str], outputs: Sequence[str], **weights: float
) -> ModuleFile:
    reads, writes = tuple(map(port, inputs)), tuple(map(port, outputs))
    arrays = {name: np.full((1,), value, np.float32) for name, value in weights.items()}
    return ModuleFile(model_bytes(nodes, reads, writes, arrays), reads, writes)


def op(kind: str, inputs: str, output: str, **fields: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), output.split(), **fields)


def reference_files() -> dict[str, ModuleFile]:
    """S0(data_0) -> (o3, o2); S1(data_n_0, data_1) -> n; S2(data_n_1, data_n_2) -> out."""
    halves = [op("Concat", "o1 o2", "both", axis=0), op("Split", "both", "h0 h1", axis=0)]
    s0 = [
        op("Add", "data_0 one", "o1"),
        op("Sub", "data_0 two", "o2"),
        *halves,
        op("Add", "h0 two", "o3"),
    ]
    s1 = [op("Add", "data_n_0 two", "a"), op("Add", "a data_1", "b"), op("Add", "b three", "n")]
    s2 = [op("Mul", "data_n_1 three", "a"), op("Add", "a data_n_2", "out")]
    return {
        "s0": onnx_file(s0, ["data_0"], ["o3", "o2"], one=1, two=2),
        "s1": onnx_file(s1, ["data_n_0", "data_1"], ["n"], two=2, three=3),
        "s2": onnx_file(s2, ["data_n_1", "data_n_2"], ["out"], three=3),
    }


def module_for(name: str, file: ModuleFile, *params: str) -> Module:
    inputs, outputs = (
        tuple(TensorDecl(p.name, p.spec) for p in ports) for ports in (file.inputs, file.outputs)
    )
    return Module(name, inputs, outputs, tuple(TensorDecl(one, TensorSpec((1,))) for one in params))


def reference_config() -> PipelineConfig:
    files = reference_files()
    s0, s1, s2 = (
        module_for(name, files[name], *(["one", "two"] if name == "s0" else []))
        for name in ("s0", "s1", "s2")
    )
    config = PipelineConfig()
    config["param_group"]["param_0"].connect(config[s0]["param"])
    config[s1].set(processors=("dsp",))
    config["input"]["data_a"].connect(config[s0]["input"]["data_0"])
    config["input"]["data_b"].connect(config[s1]["input"]["data_1"])
    config[s0]["output"][0].connect(config[s1]["input"]["data_n_0"])
    config[s0]["output"][1].connect(config[s2]["input"]["data_n_2"])
    config[s1]["output"][0].connect(config[s2]["input"]["data_n_1"])
    config[s2]["output"][0].connect(config["output"][0])
    return config


def reference() -> tuple[Manifest, dict[str, bytes]]:
    return build_manifest(reference_config().graph, reference_files(), "reference", None)


def bundled(links: ModuleGraph, files: dict[str, ModuleFile]) -> Bundle:
    return Bundle(*build_manifest(links, files, "test", None), name="test.nns")


def chain(count: int, python: Sequence[int] = (), capacity: int = 2, replicas: int = 1) -> Bundle:
    config, files = chain_config(count, python, capacity, replicas)
    return bundled(config.graph, files)


def chain_config(
    count: int, python: Sequence[int] = (), capacity: int = 2, replicas: int = 1
) -> tuple[PipelineConfig, dict[str, ModuleFile]]:
    """Stages `m0`, `m1`, ... of which number k adds k + 1 to a map.

    Those in `python` are functions `stages:mK`, `m1` has the replicas.
    """
    config, files = PipelineConfig(), {}
    modules = []
    for k in range(count):
        reads, writes = f"x{k}", f"x{k + 1}"
        if k in python:
            modules.append(
                Module(
                    f"m{k}",
                    (TensorDecl(reads, MAP),),
                    (TensorDecl(writes, MAP),),
                    call=f"stages:m{k}",
                )
            )
        else:
            files[f"m{k}"] = onnx_file(
                [op("Add", f"{reads} c", writes)], [reads], [writes], c=k + 1
            )
            modules.append(module_for(f"m{k}", files[f"m{k}"]))
    for k, module in enumerate(modules):
        processors = (
            tuple(f"cpu{n}" for n in range(replicas)) if replicas > 1 and k == 1 else ("cpu",)
        )
        own: dict[str, Any] = (
            {"replicas": replicas if k == 1 else 1} if k in python else {"processors": processors}
        )
        config[module].set(**own, capacity=capacity)
        source = config["input"]["x"] if k == 0 else config[modules[k - 1]]["output"][0]
        source.connect(config[module]["input"][f"x{k}"])
    config[modules[-1]]["output"][0].connect(config["output"][0])
    return config, files


def framed(
    before: str = "camera.read:load", after: str = "boxes:draw"
) -> tuple[Manifest, dict[str, bytes]]:
    """The reference network between two Python stages."""
    return build_manifest(
        add_python_stages(reference_config().graph, before, after),
        reference_files(),
        "reference",
        None,
    )


def full(value: float) -> np.ndarray:
    return np.full((3, 3), value, np.float32)


def both(value: float) -> dict[str, np.ndarray]:
    return {"data_a": full(value), "data_b": full(value)}


def reference_bundle() -> Bundle:
    return Bundle(*reference(), name="reference.nns")


def first_of(array: np.ndarray) -> float:
    return float(array[0, 0])


def scaled_bundle() -> Bundle:
    """Return a Python stage, and behind it a weight of group `g` times what it gives."""
    file = onnx_file([op("Mul", "x c", "y")], ["x"], ["y"], c=2)
    config, scale = PipelineConfig(), module_for("s", file, "c")
    before = Module("m", (TensorDecl("mi", MAP),), (TensorDecl("x0", MAP),), call="stages:m")
    config["param_group"]["g"].connect(config[scale]["param"])
    config["input"]["image"].connect(config[before]["input"]["mi"])
    config[before]["output"][0].connect(config[scale]["input"]["x"])
    config[scale]["output"][0].connect(config["output"][0])
    return bundled(config.graph, {"s": file})
