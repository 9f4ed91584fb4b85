"""ONNX graphs made by hand, and what ONNX Runtime computes with them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper

from nnstretch.capture import build
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.capture.torch_export import CapturedNetwork

torch.set_num_threads(2)

OPSET = 20


Feeds = list[tuple[str, list[Any]]]


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def reference(path: Path, x: torch.Tensor) -> torch.Tensor:
    """onnxruntime's output; a file of batch 1 is run once for each input."""
    runtime = session(path)
    entry = runtime.get_inputs()[0]
    fixed = isinstance(entry.shape[0], int)
    parts = x.split(entry.shape[0]) if fixed else [x]
    return torch.cat(
        [torch.from_numpy(runtime.run(None, {entry.name: part.numpy()})[0]) for part in parts]
    )


def check_agrees(path: Path, batches: tuple[int, ...] = (1, 3)) -> CapturedNetwork:
    captured = read_onnx(path)
    module = build(captured.graph, captured.weights).eval()
    shape = captured.graph.inputs[0].spec.shape
    for batch in batches:
        x = torch.randn(batch, *shape[1:], generator=torch.Generator().manual_seed(batch))
        expected = reference(path, x)
        with torch.no_grad():
            found = module(x)
        assert found.shape == expected.shape
        worst = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
        assert worst < 1e-4, f"batch {batch}: {worst:.2e}"
    return captured


def made(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    shape: tuple[int | str, ...] = ("n", 4, 6, 8),
    opset: int = OPSET,
    inputs: tuple[str, ...] = ("x",),
) -> Path:
    entry = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(
        nodes, "g", entry, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    with suppress(onnx.shape_inference.InferenceError):
        model = onnx.shape_inference.infer_shapes(model)
    if not model.graph.output[0].type.tensor_type.HasField("shape"):
        model.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ("a", "b", "c", "d"))
        )
    onnx.save(model, str(path))
    return path


def node(op: str, *inputs: str, out: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [out], **attributes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
