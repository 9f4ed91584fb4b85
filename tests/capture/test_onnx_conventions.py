"""Attributes by which ONNX says what PyTorch says otherwise, or not at all."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from support.onnx_graphs import check_agrees, made, node, reference

from nnstretch.capture import build
from nnstretch.capture.onnx.ops.table import TRANSLATION_RULES
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.cli import main
from nnstretch.errors import UnsupportedOp

X = np.random.default_rng(0).standard_normal((1, 4, 4, 4)).astype(np.float32)


def agrees(path: Path, op: str, weights: dict[str, np.ndarray], opset: int, **settings: object):
    """Return whether one operator computes what ONNX Runtime computes; None where it is refused."""
    names = ["x", *weights]
    node = helper.make_node(op, names if "" not in names else ["x", "", *names[2:]], ["y"], "op")
    node.attribute.extend(helper.make_attribute(key, value) for key, value in settings.items())
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items() if name]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", X.shape), ("y", ("a", "b", "c", "d")))
    ]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], stored)
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": X})
    try:
        captured = read_onnx(path)
    except UnsupportedOp as refusal:
        return None if op in str(refusal) and path.name in str(refusal) else False
    with torch.no_grad():
        computed = build(captured.graph, captured.weights).eval()(torch.from_numpy(X)).numpy()
    return computed.shape == expected.shape and np.allclose(computed, expected, atol=1e-5)


COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDING = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
FACTORS = ((2.0, 2.0), (3.0, 2.0), (0.5, 0.75), (0.25, 1.5))
UNEVEN_FACTORS = ((2.1, 2.1), (2.2, 2.2), (1.1, 1.1), (1.1, 2.0), (2.2, 1.5), (1.7, 2.3))
"""Their sizes, 8 of 4 pixels for instance, do not tell them."""


def test_every_nearest_pixel_is_the_same_or_refused(tmp_path: Path) -> None:
    known = 0
    for coordinates, rounding, factors in product(COORDINATES, ROUNDING, FACTORS + UNEVEN_FACTORS):
        settings = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
        scales = {"": np.empty(0), "s": np.array([1, 1, *factors], np.float32)}
        verdict = agrees(tmp_path / "r.onnx", "Resize", scales, 13, mode="nearest", **settings)
        assert verdict in (None, True), (settings, factors)
        known += verdict is True
    assert known >= 13


def test_a_nearest_pixel_at_an_uneven_factor_is_known_or_refused(tmp_path: Path) -> None:
    asymmetric = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    verdicts = []
    for factors in UNEVEN_FACTORS:
        scales = {"": np.empty(0), "s": np.array([1, 1, *factors], np.float32)}
        path = tmp_path / "r.onnx"
        verdicts.append(agrees(path, "Resize", scales, 13, mode="nearest", **asymmetric))
    assert verdicts == [None, None, True, None, None, True]


def test_every_linear_resize_is_the_same_or_refused(tmp_path: Path) -> None:
    known = 0
    for coordinates, factors, smooth in product(COORDINATES, FACTORS, (0, 1)):
        settings = {"coordinate_transformation_mode": coordinates, "antialias": smooth}
        scales = {"": np.empty(0), "s": np.array([1, 1, *factors], np.float32)}
        verdict = agrees(tmp_path / "r.onnx", "Resize", scales, 18, mode="linear", **settings)
        assert verdict in (None, True), (settings, factors)
        known += verdict is True
    assert known >= 12


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("factor", "rows"), [(2.1, 209), (2.3, 230)])
def test_a_size_that_rounds_to_two_numbers_is_refused(
    tmp_path: Path, factor: float, rows: int, mode: str
) -> None:
    scales = {"s": np.array([1, 1, factor, 1], np.float32)}
    resize = node("Resize", "x", "", "s", mode=mode)
    path = made(tmp_path / "r.onnx", [resize], scales, shape=(1, 2, 100, 4))
    assert reference(path, torch.zeros(1, 2, 100, 4)).shape[2] == rows
    with pytest.raises(UnsupportedOp, match="depend on how they are rounded"):
        read_onnx(path)


def test_a_resize_may_name_its_axes(tmp_path: Path) -> None:
    scales = {"": np.empty(0), "s": np.array([3, 2], np.float32)}
    for axes in ([2, 3], [3, 2], [-2, -1]):
        assert agrees(tmp_path / "r.onnx", "Resize", scales, 18, mode="linear", axes=axes)


@pytest.mark.parametrize(("start", "end"), product((-9, -5, -4, -1, 0, 3, 9), repeat=2))
@pytest.mark.parametrize("step", [-1, -3])
def test_a_slice_goes_backwards_as_far_as_onnxruntime_goes(
    tmp_path: Path, start: int, end: int, step: int
) -> None:
    where = {"s": start, "e": end, "a": 2, "t": step}
    cut = node("Slice", "x", *where, out="c")
    weights = {name: np.array([number]) for name, number in where.items()}
    check_agrees(made(tmp_path / "m.onnx", [cut, node("Concat", "c", "x", axis=2)], weights))


@pytest.mark.parametrize("shape", [(4,), (1, 1, 1, 4), (4, 1), (4, 1, 1), (1, 4, 1, 1), (1,)])
def test_a_slope_lies_along_the_axis_that_the_file_says(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    slope = np.linspace(0.1, 0.9, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    known = shape in ((4, 1, 1), (1, 4, 1, 1), (1,))
    assert agrees(tmp_path / "p.onnx", "PRelu", {"s": slope}, 16) is (True if known else None)


def test_selu_has_the_numbers_of_the_file(tmp_path: Path) -> None:
    assert agrees(tmp_path / "s.onnx", "Selu", {}, 13)
    assert agrees(tmp_path / "s.onnx", "Selu", {}, 13, alpha=2.0, gamma=0.5)


def test_a_dropout_in_training_is_refused(tmp_path: Path) -> None:
    share = np.array(0.5, np.float32)
    assert agrees(tmp_path / "d.onnx", "Dropout", {"r": share, "t": np.array(False)}, 13)
    training = {"r": share, "t": np.array(True)}
    assert agrees(tmp_path / "d.onnx", "Dropout", training, 13) is None


def test_a_file_is_tried_beside_onnxruntime_before_it_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert agrees(tmp_path / "net.onnx", "Relu", {}, 13)
    arguments = [str(tmp_path / "net.onnx"), "--out", str(tmp_path / "net.nns")]
    monkeypatch.setitem(TRANSLATION_RULES, "Relu", TRANSLATION_RULES["Sigmoid"])
    assert main(["export", *arguments]) == 1
    assert "computes something else" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["export", *arguments]) == 0
