"""Pools of ONNX files have the windows that ONNX Runtime has, or are refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import onnx
import pytest
from support.onnx_graphs import check_agrees, made, node

from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.errors import UnsupportedOp

PADS = ([0, 0, 2, 2], [2, 2, 2, 2], [2, 0, 1, 2], [1, 1, 0, 0], [0, 0, 1, 1])
SIZES = ((4, 5), (6, 7), (8, 9))


@pytest.mark.parametrize("pads", PADS)
def test_a_pool_that_rounds_up_has_no_window_inside_the_padding(
    tmp_path: Path, pads: list[int]
) -> None:
    windows = {"kernel_shape": [3, 3], "pads": pads, "ceil_mode": 1}
    path = tmp_path / "m.onnx"
    for size, stride in product(SIZES, (1, 2, 3)):
        settings = {**windows, "strides": [stride, stride]}
        for dilation in (1, 2):
            pool = node("MaxPool", "x", **settings, dilations=[dilation, dilation])
            check_agrees(made(path, [pool], shape=("n", 4, *size)))
        pool = node("AveragePool", "x", **settings)
        check_agrees(made(path, [pool], shape=("n", 4, *size)))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_a_window_inside_the_padding_may_be_declared(op: str, tmp_path: Path) -> None:
    """ONNX's shape inference counts it, ONNX Runtime leaves it out."""
    settings = {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1}
    nodes = [node(op, "x", **settings, out="p"), node("Relu", "p")]
    path = made(tmp_path / "m.onnx", nodes, shape=(1, 4, 8, 8), opset=11)
    declared = onnx.load(path).graph.output[0].type.tensor_type.shape.dim
    assert [size.dim_value for size in declared] == [1, 4, 4, 4]
    graph = check_agrees(path, batches=(1,)).graph
    assert graph.specs()[graph.outputs[0]].shape == (1, 4, 3, 3)


@pytest.mark.parametrize("pads", PADS)
def test_counted_padding_is_refused_where_its_share_is_unknown(
    tmp_path: Path, pads: list[int]
) -> None:
    settings = {"kernel_shape": [3, 3], "pads": pads, "ceil_mode": 1, "count_include_pad": 1}
    path = made(tmp_path / "m.onnx", [node("AveragePool", "x", **settings)])
    with pytest.raises(UnsupportedOp, match=r"AveragePool .* padding together with ceil_mode"):
        read_onnx(path)
