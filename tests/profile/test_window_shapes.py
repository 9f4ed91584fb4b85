"""Windows that are no squares are measured as such: 1x7 is 1x7, with its own padding."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from nnstretch.capture.torch_export import capture
from nnstretch.kernel import Kernel
from nnstretch.profile.kernel_models.kernel_shapes import (
    pool_window,
    window_of,
    window_strides,
)
from nnstretch.profile.kernel_models.onnx_chains import build_chain
from nnstretch.profile.kernel_models.torch_chains import build, shapes_of
from nnstretch.structure.kernel_fusion import fuse_kernels

SIDES = (17, 13)


def kernel_of(module: nn.Module, channels: int = 8, sides: tuple[int, int] = SIDES) -> Kernel:
    """The one kernel that a profile measures for a module."""
    (kernel,) = fuse_kernels(capture(module.eval(), torch.zeros(1, channels, *sides), "net"))
    return kernel


def run_as_onnx(kernel: Kernel) -> tuple[list[int], np.ndarray]:
    """The window of the kernel's main node, and what the model computes."""
    built = build_chain((kernel,))
    (window,) = (
        list(attribute.ints)
        for attribute in onnx.load_from_string(built).graph.node[0].attribute
        if attribute.name == "kernel_shape"
    )
    session = onnxruntime.InferenceSession(built, providers=["CPUExecutionProvider"])
    fed = {put.name: np.zeros(put.shape, np.float32) for put in session.get_inputs()}
    return window, session.run(None, fed)[0]


CONVOLUTIONS = {
    "row": (nn.Conv2d(8, 16, (1, 7), padding=(0, 3)), (1, 7)),
    "row-without-bias": (nn.Conv2d(8, 16, (1, 7), padding=(0, 3), bias=False), (1, 7)),
    "row-without-padding": (nn.Conv2d(8, 16, (1, 7)), (1, 7)),
    "row-with-stride": (nn.Conv2d(8, 16, (1, 7), 2, (0, 3)), (1, 7)),
    "column-without-padding": (nn.Conv2d(8, 16, (7, 1)), (7, 1)),
    "column-with-stride": (nn.Conv2d(8, 16, (7, 1), 2), (7, 1)),
    "upright": (nn.Conv2d(8, 16, (5, 3)), (5, 3)),
    "depthwise": (nn.Conv2d(8, 8, (1, 2), groups=8), (1, 2)),
    "grouped": (nn.Conv2d(8, 16, (3, 5), padding=(1, 2), groups=4), (3, 5)),
    "square": (nn.Conv2d(8, 16, 3, padding=1), (3, 3)),
    "square-depthwise": (nn.Conv2d(8, 8, 5, 2, 2, groups=8), (5, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_is_built_with_its_window(name: str) -> None:
    module, window = CONVOLUTIONS[name]
    kernel = kernel_of(module)
    chain = build((kernel,))
    convolution = chain.weighted[0]
    assert isinstance(convolution, nn.Conv2d)
    assert convolution.kernel_size == window
    with torch.inference_mode():
        assert chain(*map(torch.zeros, shapes_of((kernel,)))).shape == kernel.shape_out
    built, value = run_as_onnx(kernel)
    assert built == list(window)
    assert value.shape == kernel.shape_out


def test_a_column_that_keeps_its_map_has_no_more_taps_than_a_row() -> None:
    """The maps do not tell the two apart, the work does tell them from a square."""
    kernel = kernel_of(nn.Conv2d(8, 16, (7, 1), padding=(3, 0)))
    assert window_of(kernel) == (1, 7)
    assert run_as_onnx(kernel)[1].shape == kernel.shape_out


def test_a_window_over_one_column_stands_upright() -> None:
    kernel = kernel_of(nn.Conv2d(8, 16, (7, 1), padding=(3, 0)), sides=(40, 1))
    assert window_of(kernel) == (7, 1)
    assert run_as_onnx(kernel)[1].shape == kernel.shape_out


def test_a_column_whose_strides_leave_a_row_over_stands_upright() -> None:
    kernel = kernel_of(nn.Conv2d(8, 16, (3, 1), 2), sides=(17, 14))
    assert window_of(kernel) == (3, 1)
    assert run_as_onnx(kernel)[1].shape == kernel.shape_out


@pytest.mark.parametrize("window", [(2, 2), (2, 4), (4, 2), (3, 3)])
def test_a_transposed_convolution_is_built_with_its_window(window: tuple[int, int]) -> None:
    kernel = kernel_of(nn.ConvTranspose2d(8, 16, window, 2))
    built, value = run_as_onnx(kernel)
    assert built == list(window)
    assert value.shape == kernel.shape_out


@pytest.mark.parametrize(
    ("side", "window"), [(17, 3), (2, 3), (4, 5), (1, 3)], ids=lambda value: str(value)
)
def test_a_pool_keeps_its_map_where_that_is_smaller_than_its_window(side: int, window: int) -> None:
    kernel = kernel_of(nn.MaxPool2d(window, 1, window // 2), sides=(17, side))
    with torch.inference_mode():
        assert build((kernel,))(torch.zeros(1, 8, 17, side)).shape == kernel.shape_out
    assert run_as_onnx(kernel)[1].shape == kernel.shape_out


def test_a_pool_along_one_row_is_a_row() -> None:
    kernel = kernel_of(nn.MaxPool2d((1, 3), (1, 2), (0, 1)), sides=(1, 17))
    window, value = run_as_onnx(kernel)
    assert window == [1, 3]
    assert value.shape == kernel.shape_out


POOLS = {
    "halves the rows": (nn.MaxPool2d((2, 1), (2, 1)), (2, 1), (2, 1)),
    "halves the rows of squares": (nn.MaxPool2d(2, (2, 1), (0, 1)), (2, 2), (2, 1)),
    "strips of a row": (nn.MaxPool2d((1, 3), (1, 3)), (1, 3), (1, 3)),
    "column": (nn.MaxPool2d((3, 1), 1, (1, 0)), (3, 1), (1, 1)),
    "tiles": (nn.AvgPool2d((3, 2), (3, 2)), (3, 2), (3, 2)),
    "whole columns": (nn.AvgPool2d((17, 1)), (17, 1), (17, 1)),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_is_built_with_its_window_and_its_strides(name: str) -> None:
    module, window, strides = POOLS[name]
    kernel = kernel_of(module)
    assert pool_window(kernel) == window
    assert window_strides(kernel, window) == strides
    with torch.inference_mode():
        assert build((kernel,))(torch.zeros(1, 8, *SIDES)).shape == kernel.shape_out
    built, value = run_as_onnx(kernel)
    assert built == list(window)
    assert value.shape == kernel.shape_out


@pytest.mark.parametrize("strides", [(2, 1), (1, 2), (3, 2)])
def test_a_convolution_is_built_with_its_strides(strides: tuple[int, int]) -> None:
    kernel = kernel_of(nn.Conv2d(8, 16, 3, strides, 1))
    assert window_strides(kernel, window_of(kernel)) == strides
    with torch.inference_mode():
        assert build((kernel,))(torch.zeros(1, 8, *SIDES)).shape == kernel.shape_out
    assert run_as_onnx(kernel)[1].shape == kernel.shape_out
