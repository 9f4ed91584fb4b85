"""Whole numbers of ONNX files stay whole numbers of their type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.onnx_graphs import check_agrees, floats, ints, made, node

from nnstretch.capture import CapturedNetwork

TYPES = {onnx.TensorProto.INT32: "int32", onnx.TensorProto.INT64: "int64"}


def whole(to: int, *nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return nodes that read `w`, the input times ten as whole numbers, and write `v`."""
    start = [node("Mul", "x", "ten", out="t"), node("Cast", "t", out="w", to=to)]
    return [*start, *nodes, node("Cast", "v", to=onnx.TensorProto.FLOAT)]


def check_type(
    path: Path,
    to: int,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    opset: int = 17,
) -> CapturedNetwork:
    """Check that the numbers agree with ONNX Runtime, and the type of the last whole ones."""
    weights = {"ten": np.float32(10), **weights}
    captured = check_agrees(made(path, whole(to, *nodes), weights, opset=opset))
    assert captured.graph.nodes[-2].output.dtype == TYPES[to]
    return captured


BOUNDS = {
    "low": (("w", "lo"), -4),
    "high": (("w", "", "hi"), 7),
    "both": (("w", "lo", "hi"), -4),
    "zero": (("w", "lo"), 0),
}


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("case", BOUNDS)
def test_clipped_numbers_are_still_whole(tmp_path: Path, case: str, to: int) -> None:
    reads, bound = BOUNDS[case]
    kind = np.dtype(TYPES[to])
    bounds = {name: np.array(7 if name == "hi" else bound, kind) for name in reads[1:] if name}
    nodes = [node("Clip", *reads, out="c"), node("Div", "c", "two", out="v")]
    check_type(tmp_path / "m.onnx", to, nodes, {**bounds, "two": np.array(2, kind)})


def test_a_clipped_number_picks_a_row(tmp_path: Path) -> None:
    start = [node("Abs", "x", out="p"), *whole(onnx.TensorProto.INT64)[:2]]
    start[1] = node("Mul", "p", "ten", out="t")
    rows = [node("Clip", "w", "", "last", out="c"), node("Gather", "table", "c")]
    weights = {"ten": np.float32(10), "last": np.array(4), "table": floats(5, 2)}
    check_agrees(made(tmp_path / "m.onnx", [*start, *rows], weights))


def test_a_large_bound_is_not_rounded(tmp_path: Path) -> None:
    weights = {"lo": np.array(2**53 + 1), "base": np.array(2**53)}
    nodes = [node("Clip", "w", "lo", out="c"), node("Sub", "c", "base", out="v")]
    check_type(tmp_path / "m.onnx", onnx.TensorProto.INT64, nodes, weights)


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("axes", [(1,), (-1,), (1, 2, 3)])
@pytest.mark.parametrize("op", ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2"])
def test_a_reduction_has_the_type_of_what_it_reads(
    tmp_path: Path, op: str, axes: tuple[int, ...], to: int
) -> None:
    check_type(tmp_path / "m.onnx", to, [node(op, "w", out="v", axes=axes)], {})


@pytest.mark.parametrize("to", TYPES)
def test_a_sum_has_the_type_of_what_it_reads(tmp_path: Path, to: int) -> None:
    nodes = [node("ReduceSum", "w", "a", out="v")]
    check_type(tmp_path / "m.onnx", to, nodes, {"a": ints(1, 2)})
    nodes = [node("ReduceSum", "w", "a", out="s"), node("Add", "s", "k", out="v")]
    weights = {"a": ints(3), "k": np.array(3, TYPES[to])}
    check_type(tmp_path / "m.onnx", to, nodes, weights)
