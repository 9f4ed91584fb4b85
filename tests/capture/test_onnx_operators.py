"""ONNX operators compute what ONNX Runtime computes, whatever they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from support.onnx_graphs import check_agrees, floats, ints, made, node

SINGLE: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    **{
        op: ([node(op, "x")], {})
        for op in (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Erf",
            "Exp",
            "Neg",
            "Abs",
            "Floor",
            "Ceil",
            "Sin",
            "Softplus",
            "Selu",
            "Mish",
            "HardSwish",
        )
    },
    **{
        op: ([node(op, "x")], {})
        for op in (
            "HardSigmoid",
            "Gelu",
            "Elu",
            "LeakyRelu",
            "GlobalAveragePool",
            "GlobalMaxPool",
            "Identity",
        )
    },
    "Gelu tanh": ([node("Gelu", "x", approximate="tanh")], {}),
    "HardSigmoid 1/6": ([node("HardSigmoid", "x", alpha=1 / 6)], {}),
    "Clip": ([node("Clip", "x", "lo", "hi")], {"lo": np.float32(0), "hi": np.float32(6)}),
    "Clip low": ([node("Clip", "x", "lo")], {"lo": np.float32(-0.5)}),
    "PRelu": ([node("PRelu", "x", "s")], {"s": floats(4, 1, 1)}),
    "Softmax": ([node("Softmax", "x", axis=1)], {}),
    "LogSoftmax": ([node("LogSoftmax", "x", axis=-1)], {}),
    "Sub from number": ([node("Sub", "c", "x")], {"c": np.float32(3)}),
    "Div from number": ([node("Exp", "x", out="e"), node("Div", "c", "e")], {"c": np.float32(2)}),
    "Pow": ([node("Pow", "x", "c")], {"c": np.float32(2)}),
    "Max": ([node("Max", "x", "c")], {"c": np.float32(0.3)}),
    "Add per channel": ([node("Add", "c", "x")], {"c": floats(4, 1, 1)}),
    "Where": (
        [node("Greater", "x", "c", out="m"), node("Where", "m", "x", "c")],
        {"c": np.float32(0.1)},
    ),
    "ReduceMean": ([node("ReduceMean", "x", "a", keepdims=0)], {"a": ints(2, 3)}),
    "ReduceSum": ([node("ReduceSum", "x", "a")], {"a": ints(-1)}),
    "ReduceL2": ([node("ReduceL2", "x", "a")], {"a": ints(1)}),
    "Transpose": ([node("Transpose", "x", perm=[0, 3, 1, 2])], {}),
    "Squeeze": ([node("Unsqueeze", "x", "a", out="u"), node("Squeeze", "u", "a")], {"a": ints(2)}),
    "Flatten": ([node("Flatten", "x", axis=1)], {}),
    "Flatten 2": ([node("Flatten", "x", axis=2)], {}),
    "Reshape": ([node("Reshape", "x", "s")], {"s": ints(0, 2, -1)}),
    "Slice": (
        [node("Slice", "x", "s", "e", "a", "t")],
        {"s": ints(1, 0), "e": ints(3, 2**62), "a": ints(1, 3), "t": ints(1, 2)},
    ),
    "Slice back": (
        [node("Slice", "x", "s", "e", "a", "t")],
        {"s": ints(-1), "e": ints(-(2**62)), "a": ints(2), "t": ints(-1)},
    ),
    "Gather one": ([node("Gather", "x", "i", axis=1)], {"i": np.array(-1)}),
    "Gather many": ([node("Gather", "x", "i", axis=3)], {"i": np.array([[0, 2], [-1, 4]])}),
    "Tile": ([node("Tile", "x", "r")], {"r": ints(1, 2, 1, 1)}),
    "Pad": (
        [node("Pad", "x", "p", "v")],
        {"p": ints(0, 0, 1, 2, 0, 0, 0, 1), "v": np.float32(1.5)},
    ),
    "Pad reflect": ([node("Pad", "x", "p", mode="reflect")], {"p": ints(0, 0, 1, 2, 0, 0, 2, 1)}),
    "Pad edge": ([node("Pad", "x", "p", mode="edge")], {"p": ints(0, 0, 0, 2, 0, 0, 0, 1)}),
    "DepthToSpace": ([node("DepthToSpace", "x", blocksize=2, mode="CRD")], {}),
    "Resize nearest": (
        [
            node(
                "Resize",
                "x",
                "",
                "s",
                mode="nearest",
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            )
        ],
        {"s": np.array([1, 1, 2, 2], np.float32)},
    ),
    "Resize linear": (
        [node("Resize", "x", "", "s", mode="linear")],
        {"s": np.array([1, 1, 2, 1.5], np.float32)},
    ),
    "Split": (
        [
            helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
            node("Mul", "a", "b"),
        ],
        {},
    ),
    "Split unequal": (
        [
            helper.make_node("Split", ["x", "s"], ["a", "b"], axis=3),
            node("Concat", "b", "a", axis=3),
        ],
        {"s": ints(3, 5)},
    ),
    "AveragePool": (
        [node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=0)],
        {},
    ),
    "AveragePool uneven": (
        [node("AveragePool", "x", kernel_shape=[2, 3], auto_pad="SAME_UPPER", strides=[2, 2])],
        {},
    ),
    "MaxPool uneven": (
        [node("MaxPool", "x", kernel_shape=[3, 3], pads=[0, 0, 1, 1], strides=[2, 2])],
        {},
    ),
    "MaxPool ceil": ([node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)], {}),
    "Gemm": (
        [node("Flatten", "x", out="f"), node("Gemm", "f", "w", "b", alpha=0.5, beta=2.0)],
        {"w": floats(192, 5), "b": floats(5)},
    ),
    "Gemm without a share of its bias": (
        [node("Flatten", "x", out="f"), node("Gemm", "f", "w", "b", beta=0.0)],
        {"w": floats(192, 5), "b": np.full(5, np.inf, dtype=np.float32)},
    ),
    "MatMul": (
        [node("MatMul", "x", "w", out="m"), node("Add", "b", "m")],
        {"w": floats(8, 3), "b": floats(3)},
    ),
    "MatMul two": (
        [node("Transpose", "x", out="t", perm=[0, 1, 3, 2]), node("MatMul", "x", "t")],
        {},
    ),
    "BatchNormalization": (
        [node("BatchNormalization", "x", "w", "b", "m", "v", momentum=0.8)],
        {
            "w": floats(4),
            "b": floats(4, seed=1),
            "m": floats(4, seed=2),
            "v": np.abs(floats(4, seed=3)) + 0.1,
        },
    ),
    "InstanceNormalization": (
        [node("InstanceNormalization", "x", "w", "b")],
        {"w": floats(4), "b": floats(4, seed=1)},
    ),
    "LRN over five channels": ([node("LRN", "x", size=5, alpha=0.5, beta=0.6, bias=2.0)], {}),
    "LRN over three channels": ([node("LRN", "x", size=3, alpha=0.5)], {}),
    "LayerNormalization": (
        [node("LayerNormalization", "x", "w", "b", axis=-1)],
        {"w": floats(8), "b": floats(8, seed=1)},
    ),
    "Shape of the batch": (
        [
            node("Shape", "x", out="s", end=1),
            node("Concat", "s", "r", out="t", axis=0),
            node("Reshape", "x", "t"),
        ],
        {"r": ints(-1, 8)},
    ),
    "Expand to the batch": (
        [
            node("Shape", "x", out="s", end=1),
            node("Concat", "s", "r", out="t", axis=0),
            node("Expand", "c", "t", out="e"),
            node("Concat", "e", "x", axis=1),
        ],
        {"r": ints(2, 6, 8), "c": floats(1, 2, 6, 8)},
    ),
    "ConvTranspose": (
        [node("ConvTranspose", "x", "w", strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1])],
        {"w": floats(4, 3, 3, 3)},
    ),
}


@pytest.mark.parametrize("name", SINGLE)
def test_an_operator_computes_what_onnxruntime_computes(name: str, tmp_path: Path) -> None:
    nodes, weights = SINGLE[name]
    check_agrees(made(tmp_path / "m.onnx", nodes, weights))


def powers_of_whole_numbers(to: int) -> list[onnx.NodeProto]:
    """The input as whole numbers from 1 on, to the power of `e`."""
    return [
        *(node("Abs", "x", out="a"), node("Mul", "a", "ten", out="b"), node("Ceil", "b", out="d")),
        *(node("Max", "d", "one", out="f"), node("Cast", "f", out="w", to=to)),
        *(node("Pow", "w", "e", out="p"), node("Cast", "p", to=onnx.TensorProto.FLOAT)),
    ]


EXPONENTS = {
    "square root": np.float32(0.5),
    "power": np.float32(1.7),
    "square": np.float32(2),
    "inverse": np.float32(-1),
    "whole square": np.int32(2),
    "whole numbers": np.arange(8, dtype=np.int64) % 3,
    "roots": np.linspace(-1, 2, 8, dtype=np.float32),
}


@pytest.mark.parametrize("to", [onnx.TensorProto.INT32, onnx.TensorProto.INT64])
@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_power_has_the_type_of_its_base(tmp_path: Path, exponent: str, to: int) -> None:
    weights = {"ten": np.float32(10), "one": np.float32(1), "e": np.asarray(EXPONENTS[exponent])}
    check_agrees(made(tmp_path / "m.onnx", powers_of_whole_numbers(to), weights))


@pytest.mark.parametrize("exponent", [np.array([[[[[3]]]]]), np.arange(8) - 3])
def test_a_number_has_powers_of_whole_exponents(tmp_path: Path, exponent: np.ndarray) -> None:
    check_agrees(made(tmp_path / "m.onnx", [node("Pow", "x", "e")], {"e": exponent}))


def test_a_whole_number_to_the_power_of_the_input_is_whole(tmp_path: Path) -> None:
    nodes = [node("Pow", "c", "x", out="p"), node("Cast", "p", to=onnx.TensorProto.FLOAT)]
    check_agrees(made(tmp_path / "m.onnx", nodes, {"c": np.int64(5)}))


def old_squeeze() -> list[onnx.NodeProto]:
    pooled = node("ReduceMean", "x", out="p", axes=[2, 3], keepdims=1)
    return [
        pooled,
        node("Squeeze", "p", out="q", axes=[3]),
        node("Unsqueeze", "q", out="u", axes=[1]),
        node("Dropout", "u"),
    ]


def test_older_opsets_keep_their_sizes_in_attributes(tmp_path: Path) -> None:
    check_agrees(made(tmp_path / "a.onnx", old_squeeze(), opset=11))
    parts = helper.make_node("Split", ["x"], ["a", "b"], axis=1, split=[1, 3])
    cut = node("Slice", "b", out="c", starts=[0], ends=[1], axes=[1])
    nodes = [
        parts,
        cut,
        node("Clip", "c", out="d", min=0.0, max=1.0),
        node("Concat", "a", "d", out="e", axis=1),
    ]
    check_agrees(
        made(
            tmp_path / "b.onnx",
            [*nodes, node("Pad", "e", pads=[0, 0, 1, 1, 0, 0, 1, 1], value=0.5)],
            opset=9,
        )
    )


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_any_convolution_agrees(tmp_path: Path, data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([1, 2, 4]))
    kernel = [data.draw(st.integers(1, 3)) for _ in range(2)]
    attributes: dict[str, Any] = {
        "group": group,
        "kernel_shape": kernel,
        "strides": [data.draw(st.integers(1, 3)) for _ in range(2)],
    }
    padding = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID", "pads"]))
    if padding == "pads":
        attributes["pads"] = [data.draw(st.integers(0, 2)) for _ in range(4)]
        attributes["dilations"] = [data.draw(st.integers(1, 2)) for _ in range(2)]
    else:
        attributes |= {"auto_pad": padding}
    weights = {"w": floats(8, 4 // group, *kernel), "b": floats(8)}
    check_agrees(
        made(tmp_path / "m.onnx", [node("Conv", "x", "w", "b", **attributes)], weights),
        batches=(2,),
    )


def test_spelled_out_activations_become_the_operator(tmp_path: Path) -> None:
    six = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6)}
    half = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5)}
    patterns = {
        "silu": ([node("Sigmoid", "x", out="s"), node("Mul", "x", "s")], {}),
        "hardswish": (
            [
                node("Add", "x", "three", out="a"),
                node("Clip", "a", "zero", "six", out="c"),
                node("Mul", "x", "c", out="m"),
                node("Div", "m", "six"),
            ],
            six,
        ),
        "gelu": (
            [
                node("Div", "x", "root", out="d"),
                node("Erf", "d", out="e"),
                node("Add", "e", "one", out="a"),
                node("Mul", "x", "a", out="m"),
                node("Mul", "m", "half"),
            ],
            half,
        ),
    }
    for op, (nodes, weights) in patterns.items():
        graph = check_agrees(made(tmp_path / f"{op}.onnx", nodes, weights)).graph
        assert [n.op for n in graph.nodes] == [op]


def test_a_bias_added_behind_a_product_goes_into_the_linear_layer(tmp_path: Path) -> None:
    nodes, weights = SINGLE["MatMul"]
    graph = check_agrees(made(tmp_path / "m.onnx", nodes, weights)).graph
    assert [(n.op, n.macs) for n in graph.nodes] == [("linear", 4 * 6 * 3 * 8 + 4 * 6 * 3)]
    assert [w.name.rpartition(".")[2] for w in graph.weights] == ["weight", "bias"]


RENAMES: dict[str, tuple[onnx.NodeProto, dict[str, np.ndarray]]] = {
    "Identity": (node("Identity", "c", out="z"), {}),
    "Dropout": (node("Dropout", "c", out="z"), {}),
    "Cast": (node("Cast", "c", out="z", to=onnx.TensorProto.FLOAT), {}),
    "Clip": (node("Clip", "c", out="z"), {}),
    "Sum": (node("Sum", "c", out="z"), {}),
    "Slice": (node("Slice", "c", "s", "e", out="z"), {"s": ints(0), "e": ints(2**62)}),
    "Pad": (node("Pad", "c", "p", out="z"), {"p": ints(*(0,) * 8)}),
    "Expand": (node("Expand", "c", "s", out="z"), {"s": ints(1, 1, 1, 1)}),
}


@pytest.mark.parametrize("rename", RENAMES)
def test_a_bias_stays_apart_where_others_read_the_product(tmp_path: Path, rename: str) -> None:
    alias, weights = RENAMES[rename]
    weights = {"w": floats(4, 4, 1, 1), "b": floats(4, 1, 1, seed=1), **weights}
    start = [node("Conv", "x", "w", out="c"), alias, node("Add", "z", "b", out="d")]
    path = tmp_path / "m.onnx"
    for product in ("c", "z"):
        check_agrees(made(path, [*start, node("Mul", "d", product)], weights))
    alone = check_agrees(made(path, [*start, node("Relu", "d")], weights)).graph
    assert [n.op for n in alone.nodes] == ["conv2d", "relu"]


def test_equal_vectors_are_separate_and_shared_matrices_stay_one(tmp_path: Path) -> None:
    weights = {"conv.weight": floats(4, 4, 1, 1), "b": floats(4)}
    twice = [node("Conv", "x", "conv.weight", "b", out="h"), node("Conv", "h", "conv.weight", "b")]
    graph = check_agrees(made(tmp_path / "m.onnx", twice, weights)).graph
    assert graph.params == 16 + 4 + 4
