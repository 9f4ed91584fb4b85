"""Sound ONNX files that not every runtime can run: refused by name, or run."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from support.bundles import feature_map, model_bytes, subgraph

from nnstretch.bundle.manifest import Port
from nnstretch.errors import UnsupportedOp
from nnstretch.protocols import Backend
from nnstretch.run.backends.registry import load_backend

X = Port("x", feature_map())
WITH_EXCLUDED = {"mode": "cubic", "exclude_outside": 1}
ANTIALIASED = [{"mode": "linear", "antialias": 1}, {"mode": "cubic", "antialias": 1}]
ONNX_BACKENDS = ["onnxruntime", "openvino", "torch"]


def load(backend: str, data: bytes, inputs: list[Port], output: Port) -> Backend:
    pytest.importorskip(backend)
    return load_backend(backend, subgraph("f", "cpu", data, inputs, [output]), data, "b.nns")


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
