"""ONNX files keep the batch open where they can, and are read at their own batch otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.onnx_graphs import check_agrees, ints, made, node

from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.errors import BrokenFile

FIXED = (1, 4, 6, 8)
SQUEEZED = node("Squeeze", "x", "axes", out="s")
UNSQUEEZED = node("Unsqueeze", "s", "axes", out="u")
AT_ONE_BATCH = {
    "reshape": ([SQUEEZED, node("Reshape", "s", "to")], ints(4, 48)),
    "expand": ([SQUEEZED, node("Expand", "s", "to")], ints(2, 4, 6, 8)),
    "repeat": ([node("Expand", "x", "to")], ints(3, 1, 1, 1)),
    "back": ([SQUEEZED, UNSQUEEZED, node("Reshape", "u", "to")], ints(1, 192)),
    "mean": ([SQUEEZED, node("ReduceMean", "s", "to")], ints(1, 2)),
}


@pytest.mark.parametrize("name", AT_ONE_BATCH)
def test_what_holds_at_the_files_batch_only_is_read_at_that_batch(
    name: str, tmp_path: Path
) -> None:
    nodes, target = AT_ONE_BATCH[name]
    weights = {"to": target, "axes": ints(0)}
    check_agrees(made(tmp_path / "m.onnx", nodes, weights, shape=FIXED), batches=(1,))


def test_what_holds_at_no_batch_is_still_broken(tmp_path: Path) -> None:
    path = made(tmp_path / "m.onnx", [node("Expand", "x", "to")], {"to": ints(3, 3, 1, 1)})
    with pytest.raises(BrokenFile, match=r"Expand 'y' in m.onnx.* should be broadcastable to \[1,"):
        read_onnx(path)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, 4, -1])
def test_flatten_divides_an_open_batch_where_the_file_says(axis: int, tmp_path: Path) -> None:
    check_agrees(made(tmp_path / "m.onnx", [node("Flatten", "x", axis=axis)]))


@pytest.mark.parametrize("target", [(1, -1), (1, 4, -1), (2, -1), (0, -1), (-1, 192)])
def test_a_reshape_lays_an_open_batch_where_the_file_says(
    target: tuple[int, ...], tmp_path: Path
) -> None:
    nodes = [node("Reshape", "x", "to")]
    check_agrees(made(tmp_path / "m.onnx", nodes, {"to": ints(*target)}))
