"""Whole networks as they are deployed, for validation."""

from __future__ import annotations

import torch
from torch import nn

from nnstretch.bundle.manifest import Port
from nnstretch.export.onnx.convert import to_onnx as exported
from nnstretch.graph import TensorSpec


def to_onnx(module: nn.Module, example: torch.Tensor) -> bytes:
    """Write a module to ONNX as `nnstretch export` does.

    Raises UnsupportedOp with the exporter's reason.
    """
    target = Port("output", TensorSpec(()))
    return exported(module, example, Port("input", TensorSpec(tuple(example.shape))), target, {})
