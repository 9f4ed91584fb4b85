"""Sound ONNX files that not every runtime can run: refused by name, or run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import helper, numpy_helper
from support.bundles import feature_map, model_bytes, subgraph
from torch import nn

from nnstretch.bundle.manifest import Port
from nnstretch.errors import UnsupportedOp
from nnstretch.export.onnx.convert import to_onnx
from nnstretch.graph import TensorSpec
from nnstretch.protocols import Backend
from nnstretch.run.backends.registry import load_backend

X = Port("x", feature_map())
WITH_EXCLUDED = {"mode": "cubic", "exclude_outside": 1}
ANTIALIASED = [{"mode": "linear", "antialias": 1}, {"mode": "cubic", "antialias": 1}]
ONE = numpy_helper.from_array(np.ones(1, np.float32))
ONNX_BACKENDS = ["onnxruntime", "openvino", "torch"]


def load(backend: str, data: bytes, inputs: list[Port], *outputs: Port) -> Backend:
    pytest.importorskip(backend)
    return load_backend(backend, subgraph("f", "cpu", data, inputs, outputs), data, "b.nns")


def resized(backend: str, side: int, **attributes: object) -> Backend:
    y = Port("y", feature_map(side=side))
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], "shrink", **attributes)
    sizes = np.array(y.spec.shape)
    return load(backend, model_bytes([node], [X], [y], {"sizes": sizes}, opset=18), [X], y)


@pytest.mark.parametrize("attributes", [*ANTIALIASED, WITH_EXCLUDED], ids=str)
def test_openvino_refuses_a_resize_that_it_computes_otherwise(
    attributes: dict[str, object],
) -> None:
    refusal = (
        r"^cannot run b\.nns by backend openvino, member f\.onnx, OpenVINO has no Resize 'shrink' of"
        r" (antialias|exclude_outside) 1$"
    )
    with pytest.raises(UnsupportedOp, match=refusal):
        resized("openvino", 5, **attributes)


@pytest.mark.parametrize("attributes", [{}, {"antialias": 0}], ids=str)
def test_openvino_runs_other_resizes(attributes: dict[str, object]) -> None:
    x = {"x": np.random.default_rng(0).standard_normal(X.spec.shape, np.float32)}
    ran = [resized(name, 5, mode="linear", **attributes).run(x) for name in ONNX_BACKENDS[:2]]
    np.testing.assert_allclose(*ran, atol=1e-5)


def test_what_the_reader_of_layers_lacks_is_no_broken_file() -> None:
    node = helper.make_node("Einsum", ["x"], ["y"], equation="abcd->abdc")
    y = Port("y", feature_map())
    refusal = r"^cannot run b\.nns by backend torch, member f\.onnx, .*Einsum"
    with pytest.raises(UnsupportedOp, match=refusal):
        load("torch", model_bytes([node], [X], [y], {}), [X], y)


@pytest.mark.parametrize("backend", ONNX_BACKENDS)
def test_an_input_that_nothing_reads_may_be_there(backend: str) -> None:
    """Loaders leave it out."""
    unread, y = Port("unread", feature_map(3)), Port("y", feature_map())
    data = model_bytes([helper.make_node("Neg", ["x"], ["y"])], [unread, X], [y], {})
    arrays = {port.name: np.ones(port.spec.shape, np.float32) for port in (unread, X)}
    (result,) = load(backend, data, [unread, X], y).run(arrays)
    assert np.array_equal(result, -arrays["x"])


@pytest.mark.parametrize("backend", ONNX_BACKENDS)
def test_an_output_may_depend_on_no_input(backend: str) -> None:
    """It is the caller's own, every time."""
    y, z = Port("y", feature_map(3)), Port("z", feature_map())
    ones = helper.make_node("ConstantOfShape", ["shape"], ["y"], value=ONE)
    nodes = [ones, helper.make_node("Neg", ["x"], ["z"])]
    data = model_bytes(nodes, [X], [y, z], {"shape": np.array(y.spec.shape)})
    loaded = load(backend, data, [X], y, z)
    for _ in range(2):
        constant, _ = loaded.run({"x": np.zeros(X.spec.shape, np.float32)})
        assert np.array_equal(constant, np.ones(y.spec.shape, np.float32))
        if constant.flags.writeable:
            constant[:] = 7


RAGGED = {
    "nearest": (nn.Upsample(scale_factor=2.3), 10),
    "two factors": (nn.Upsample(scale_factor=(1.75, 2.3)), 10),
    "linear": (nn.Upsample(scale_factor=(1.7, 2.3), mode="bilinear"), 10),
    "last window": (nn.AvgPool2d((3, 2), (3, 2), (1, 1), ceil_mode=True), 8),
}


@pytest.mark.parametrize("backend", ONNX_BACKENDS)
@pytest.mark.parametrize("kind", RAGGED)
def test_a_size_that_a_runtime_leaves_open_is_that_of_the_module(kind: str, backend: str) -> None:
    layer, side = RAGGED[kind]
    x = Port("x", feature_map(side=side))
    image = torch.randn(x.spec.shape, generator=torch.Generator().manual_seed(0))
    written = layer(image)
    y = Port("y", TensorSpec(tuple(written.shape)))
    (result,) = load(backend, to_onnx(layer, image, x, y, {}), [x], y).run({"x": image.numpy()})
    np.testing.assert_allclose(result, written.numpy(), atol=1e-5)
