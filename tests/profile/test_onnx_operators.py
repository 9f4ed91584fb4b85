"""What the ONNX meter builds for an operator computes what PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch

from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.onnx_builder import OnnxModelBuilder
from nnstretch.profile.kernel_models.onnx_operators import emit
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec, spec_of_kernel
from nnstretch.structure.kernel_fusion import fuse_kernels

ATTENTION = "scaled_dot_product_attention"
TOKENS = (1, 2, 5, 4)


def run(kernel: Kernel, values: list[np.ndarray]) -> np.ndarray:
    model = OnnxModelBuilder()
    names = [model.read(shape) for shape in kernel.shapes_in]
    model.write(emit(model, kernel, names))
    session = onnxruntime.InferenceSession(model.bytes(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, dict(zip(names, values, strict=True)))
    return np.asarray(result)


@pytest.mark.parametrize(
    ("spec", "function"),
    [
        (KernelSpec("add", "sub", (TOKENS, (1, 2, 5, 1)), TOKENS), torch.sub),
        (KernelSpec("mul", "div", (TOKENS, (1, 2, 5, 1)), TOKENS), torch.div),
        (KernelSpec("activation", "pow", (TOKENS,), TOKENS), torch.square),
        (
            KernelSpec("matmul", ATTENTION, (TOKENS, TOKENS, TOKENS), TOKENS),
            torch.nn.functional.scaled_dot_product_attention,
        ),
    ],
    ids=lambda value: getattr(value, "op", ""),
)
def test_operators_compute_what_pytorch_computes(
    spec: KernelSpec, function: Callable[..., torch.Tensor]
) -> None:
    rng = np.random.default_rng(0)
    values = [rng.uniform(0.5, 2, shape).astype(np.float32) for shape in spec.shapes_in]
    expected = function(*map(torch.from_numpy, values)).numpy()
    assert run(kernel_of_spec(spec, "kernel"), values) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("side", "window"), [(40, 2), (41, 3), (39, 3), (40, 4)])
def test_a_transposed_convolution_is_a_kind_of_its_own(side: int, window: int) -> None:
    """Captured, described, rebuilt from its shapes and run: one kernel of one size."""
    shapes = ((1, 6, 20, 20), (1, 8, side, side))
    weight = Weight("w", TensorSpec((6, 8, window, window)))
    bias = Weight("b", TensorSpec((8,)))
    refs = (ValueRef("x"), ValueRef("w"), ValueRef("b"))
    macs = 6 * 400 * 8 * window**2 + 8 * side**2
    node = Node("y", "conv_transpose2d", (*refs, (2, 2)), (TensorSpec(shapes[1]),), macs=macs)
    graph = Graph("net", (Value("x", TensorSpec(shapes[0])),), (weight, bias), (node,), ("y",))
    (kernel,) = fuse_kernels(graph)
    assert (kernel.kind, kernel.kernel, kernel.stride) == ("tconv", window, 2)
    again = kernel_of_spec(spec_of_kernel(kernel), kernel.name)
    assert (again.macs, again.weight_elements) == (
        kernel.macs - kernel.write_elements,
        kernel.weight_elements,
    )
    assert run(again, [np.ones(shapes[0], np.float32)]).shape == shapes[1]
