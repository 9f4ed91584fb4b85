"""ONNX files become graphs that compute what onnxruntime computes, can be stretched, and are
refused in one line.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torchvision
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from nnstretch.capture import build, load_model, trace
from nnstretch.capture.onnx.names import clean_path, path_from_node_name, path_from_scopes
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.capture.torch_export import CapturedNetwork
from nnstretch.errors import (
    BadInput,
    BrokenFile,
    CannotCapture,
    NnstretchError,
    UnknownName,
    UnsupportedOp,
)
from nnstretch.graph import InputShape
from nnstretch.stretch import stretch
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.two_branch_plan import two_branches

torch.set_num_threads(2)
OPSET = 20
Feeds = list[tuple[str, list[Any]]]


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def reference(path: Path, x: torch.Tensor) -> torch.Tensor:
    """onnxruntime's output; a file of batch 1 is run once for each input."""
    runtime = session(path)
    entry = runtime.get_inputs()[0]
    fixed = isinstance(entry.shape[0], int)
    parts = x.split(entry.shape[0]) if fixed else [x]
    return torch.cat(
        [torch.from_numpy(runtime.run(None, {entry.name: part.numpy()})[0]) for part in parts]
    )


def check_agrees(path: Path, batches: tuple[int, ...] = (1, 3)) -> CapturedNetwork:
    captured = read_onnx(path)
    module = build(captured.graph, captured.weights).eval()
    shape = captured.graph.inputs[0].spec.shape
    for batch in batches:
        x = torch.randn(batch, *shape[1:], generator=torch.Generator().manual_seed(batch))
        expected = reference(path, x)
        with torch.no_grad():
            found = module(x)
        assert found.shape == expected.shape
        worst = (found - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
        assert worst < 1e-4, f"batch {batch}: {worst:.2e}"
    return captured


# --- exported networks ---------------------------------------------------------------------------


class Attention(nn.Module):
    """A small vision transformer: patches, a class token, positions, pre-norm blocks."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.1)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        b, n, c = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .reshape(b, n, 3, self.heads, c // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.project(y.transpose(1, 2).reshape(b, n, c))
        x = x + self.mlp(self.norm2(x))
        return self.head(x[:, 0])


def densenet() -> nn.Module:
    return torchvision.models.DenseNet(8, (2, 2), 16, num_classes=5)


MODELS: dict[str, tuple[Callable[[], nn.Module], bool, bool]] = {
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=5), True, True),
    "shufflenet": (lambda: torchvision.models.shufflenet_v2_x0_5(num_classes=5), False, False),
    "densenet": (densenet, True, True),
    "attention": (Attention, True, True),
    "attention_fixed": (Attention, True, False),
    "mobilenet": (lambda: torchvision.models.mobilenet_v3_small(num_classes=5), False, False),
    "squeezenet": (lambda: torchvision.models.squeezenet1_1(num_classes=5), False, False),
    "efficientnet": (lambda: torchvision.models.efficientnet_b0(num_classes=5), False, False),
}
"""Factory, whether torch.onnx's newer exporter writes it, whether its batch is open."""


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Each network is exported once, when a test first asks for it."""
    folder, found = tmp_path_factory.mktemp("onnx"), dict[str, Path]()

    def path(name: str) -> Path:
        if name not in found:
            found[name] = export(name, folder / f"{name}.onnx")
        return found[name]

    return path


@pytest.mark.filterwarnings("ignore")
def export(name: str, path: Path) -> Path:
    make, dynamo, open_batch = MODELS[name]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = make().eval()
        for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean.normal_(0, 0.1)
            norm.running_var.uniform_(0.5, 1.5)
            nn.init.normal_(norm.bias, 0, 0.1)
    x = torch.zeros(2 if open_batch else 1, 3, 32, 32)
    if dynamo:
        shapes = ({0: "batch"},) if open_batch else None
        torch.onnx.export(
            module,
            (x,),
            str(path),
            dynamo=True,
            external_data=False,
            opset_version=OPSET,
            verbose=False,
            dynamic_shapes=shapes,
        )
    else:
        torch.onnx.export(module, (x,), str(path), dynamo=False, opset_version=17)
    return path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_network_computes_what_onnxruntime_computes_at_any_batch(
    name: str, exported: Callable[[str], Path]
) -> None:
    captured = check_agrees(exported(name))
    make = MODELS[name][0]
    original = sum(p.numel() for p in make().parameters())
    assert 0.97 * original < captured.graph.params <= original, (
        "exporters fold norms and drop zero biases, nothing else"
    )


@pytest.mark.filterwarnings("ignore")
def test_cuts_carry_the_names_of_modules(exported: Callable[[str], Path]) -> None:
    for name, expected in {
        "resnet18": {"maxpool", "layer1.0", "layer1", "layer4"},
        "shufflenet": {"conv1", "stage2.0", "stage2", "stage4"},
        "mobilenet": {"features.1", "features.4.block.1", "features"},
    }.items():
        graph = read_onnx(exported(name)).graph
        assert expected <= {cut.name for cut in NetworkAnalysis(graph).cuts}, name
    assert "layer2.0.conv1.weight" in {
        w.name for w in read_onnx(exported("resnet18")).graph.weights
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["resnet18", "mobilenet", "densenet"])
def test_a_file_is_stretched_like_any_module(name: str, exported: Callable[[str], Path]) -> None:
    path = exported(name)
    direct = NetworkAnalysis(read_onnx(path).graph)
    assert (
        two_branches(direct, str(path), ("cpu", "dsp"), (0.5, 0.75), 0.5).branched_macs
        > 0.9 * direct.graph.macs
    )

    module = load_model(str(path))
    graph = trace(module, torch.zeros(1, 3, 32, 32)).graph
    survey = two_branches(NetworkAnalysis(graph), str(path), ("cpu", "dsp"), (0.5, 0.75), 0.5)
    network = stretch(module, survey.plan)
    network.train()(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


# --- graphs made by hand -------------------------------------------------------------------------


def made(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray] | None = None,
    shape: tuple[int | str, ...] = ("n", 4, 6, 8),
    opset: int = OPSET,
    inputs: tuple[str, ...] = ("x",),
) -> Path:
    entry = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(
        nodes, "g", entry, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], stored
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    with suppress(onnx.shape_inference.InferenceError):
        model = onnx.shape_inference.infer_shapes(model)
    if not model.graph.output[0].type.tensor_type.HasField("shape"):
        model.graph.output[0].CopyFrom(
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ("a", "b", "c", "d"))
        )
    onnx.save(model, str(path))
    return path


def node(op: str, *inputs: str, out: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [out], **attributes)


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


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


def test_equal_vectors_are_separate_and_shared_matrices_stay_one(tmp_path: Path) -> None:
    weights = {"conv.weight": floats(4, 4, 1, 1), "b": floats(4)}
    twice = [node("Conv", "x", "conv.weight", "b", out="h"), node("Conv", "h", "conv.weight", "b")]
    graph = check_agrees(made(tmp_path / "m.onnx", twice, weights)).graph
    assert graph.params == 16 + 4 + 4


# --- what is refused -----------------------------------------------------------------------------


def refused(path: Path, error: type[NnstretchError], *words: str) -> None:
    with pytest.raises(error) as caught:
        read_onnx(path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_files_that_are_no_models(tmp_path: Path) -> None:
    refused(tmp_path / "absent.onnx", UnknownName, "absent.onnx", "does not exist")
    for name, content in {"empty": b"", "text": b"hello, world", "zeros": bytes(100)}.items():
        (tmp_path / f"{name}.onnx").write_bytes(content)
        refused(tmp_path / f"{name}.onnx", BrokenFile, name)


def test_operators_that_cannot_be_captured_are_named(tmp_path: Path) -> None:
    refused(
        made(tmp_path / "a.onnx", [helper.make_node("NonZero", ["x"], ["y"], name="nz")]),
        UnsupportedOp,
        "NonZero 'nz'",
        "a.onnx",
    )
    body = helper.make_graph(
        [node("Relu", "x", out="z")],
        "b",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
    )
    branch = helper.make_node("If", ["c"], ["y"], name="choice", then_branch=body, else_branch=body)
    refused(
        made(tmp_path / "b.onnx", [node("Not", "c0", out="c"), branch], {"c0": np.array(True)}),
        CannotCapture,
        "If 'choice'",
    )
    turns = helper.make_node("Loop", ["n", "c0", "x"], ["y"], name="turns", body=body)
    refused(
        made(tmp_path / "l.onnx", [turns], {"n": np.array(3), "c0": np.array(True)}),
        CannotCapture,
        "Loop 'turns'",
        "l.onnx",
    )
    for recurrent in ("LSTM", "GRU", "RNN"):
        gates = helper.make_node(recurrent, ["x", "w", "r"], ["y"], name="r0", hidden_size=2)
        refused(
            made(tmp_path / "r.onnx", [gates], {"w": floats(1, 8, 4), "r": floats(1, 8, 2)}),
            UnsupportedOp,
            f"{recurrent} 'r0'",
            "r.onnx",
        )
    foreign = helper.make_node("FusedConv", ["x"], ["y"], name="f", domain="com.microsoft")
    refused(made(tmp_path / "c.onnx", [foreign]), UnsupportedOp, "com.microsoft.FusedConv", "'f'")
    training = node("BatchNormalization", "x", "w", "w", "w", "w", training_mode=1)
    refused(made(tmp_path / "d.onnx", [training], {"w": floats(4)}), UnsupportedOp, "training mode")


def test_opsets_and_inputs_outside_the_range(tmp_path: Path) -> None:
    refused(
        made(tmp_path / "a.onnx", [node("Relu", "x")], opset=5), UnsupportedOp, "opset 5", "7 to"
    )
    refused(made(tmp_path / "b.onnx", [node("Relu", "x")], opset=900), UnsupportedOp, "opset 900")
    two = read_onnx(made(tmp_path / "c.onnx", [node("Add", "x", "z")], inputs=("x", "z")))
    assert [value.name for value in two.graph.inputs] == ["x", "z"]
    read_onnx(made(tmp_path / "d.onnx", [node("Relu", "x")], inputs=("x", "unused")))
    wide = made(tmp_path / "e.onnx", [node("Relu", "x")], shape=("n", 3, "h", "w"))
    refused(wide, BadInput, "x is nx3xhxw", "--input '1,3,224,224'")
    closed = read_onnx(wide, (InputShape((1, 3, 10, 12)),))
    assert closed.graph.inputs[0].spec.shape == (1, 3, 10, 12)
    with pytest.raises(BadInput, match="wrong input shape 1x3x10"):
        read_onnx(wide, (InputShape((1, 3, 10)),))


def test_shapes_that_contradict_each_other_name_the_node(tmp_path: Path) -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="wrong")
    refused(
        made(tmp_path / "m.onnx", [conv], {"w": floats(8, 5, 3, 3)}),
        BrokenFile,
        "Conv 'wrong'",
        "m.onnx",
    )
    refused(made(tmp_path / "n.onnx", [node("Add", "x", "nowhere")]), BrokenFile, "nowhere")
    huge = [node("ConstantOfShape", "s", out="c"), node("Add", "x", "c")]
    refused(
        made(tmp_path / "h.onnx", huge, {"s": ints(1 << 20, 1 << 20)}), UnsupportedOp, "elements"
    )


def test_external_data_is_read_from_the_models_folder_only(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(floats(4, 4, 1, 1).tobytes())
    path = made(folder / "m.onnx", [node("Conv", "x", "w")], {"w": floats(4, 4, 1, 1)})
    onnx.save(
        onnx.load(str(path)),
        str(path),
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    check_agrees(path)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    absolute = str(tmp_path / "secret.bin")
    for location, word in {
        "../secret.bin": "outside",
        absolute: "outside",
        "link.bin": "outside",
        "no.bin": "not exist",
    }.items():
        model = onnx.load(str(path), load_external_data=False)
        entry = next(e for e in model.graph.initializer[0].external_data if e.key == "location")
        entry.value = location
        (folder / "bad.onnx").write_bytes(model.SerializeToString())
        refused(folder / "bad.onnx", BrokenFile, word)


def test_a_constant_folded_at_one_batch_fixes_the_batch(tmp_path: Path) -> None:
    """Picking the only input of a batch means nothing at another; the file is read at its own."""
    path = made(
        tmp_path / "m.onnx",
        [node("Gather", "x", "i", axis=0)],
        {"i": np.array(0)},
        shape=(1, 4, 6, 8),
    )
    assert read_onnx(path).graph.nodes[0].output.shape == (4, 6, 8)


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_but_never_crashes(
    tmp_path: Path, data: st.DataObject
) -> None:
    good = tmp_path / "good.onnx"
    if not good.exists():
        body = [
            node("Conv", "x", "w", "b", out="c", pads=[1, 1, 1, 1]),
            node("Relu", "c", out="r"),
            node("Reshape", "r", "s", out="f"),
        ]
        made(
            good,
            [*body, node("Softmax", "f", axis=1)],
            {"w": floats(4, 4, 3, 3), "b": floats(4), "s": ints(0, -1)},
        )
    content = bytearray(good.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[
        : data.draw(st.sampled_from([len(content), len(content) // 2, len(content) - 1]))
    ]
    (tmp_path / "bad.onnx").write_bytes(bytes(content))
    with suppress(NnstretchError):
        read_onnx(tmp_path / "bad.onnx")


def test_names_from_both_exporters_become_paths() -> None:
    assert path_from_node_name("/layer1/layer1.0/conv1/Conv") == "layer1.0.conv1"
    assert (
        path_from_node_name("/features/features.1/conv/conv.0/conv.0.0/Conv")
        == "features.1.conv.0.0"
    )
    assert path_from_node_name("/Conv") == ""
    assert (
        path_from_scopes("['', 'layer1', 'layer1.0', 'layer1.0.conv1', 'conv2d']")
        == "layer1.0.conv1"
    )
    assert path_from_scopes("['', 'add']") == ""
    assert path_from_scopes("__import__('os')") == ""


@given(st.text())
def test_any_name_becomes_attributes_a_module_can_have(text: str) -> None:
    for part in clean_path(text).split("."):
        assert part.isidentifier() or part.isdigit()
        assert not hasattr(nn.Module, part)
