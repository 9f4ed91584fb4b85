"""ONNX files of networks from outside: open sizes, weights of any size, reasons of refusals."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from nnstretch.bundle.manifest import Port
from nnstretch.capture.rebuild_module import build
from nnstretch.capture.torch_export import trace
from nnstretch.errors import Mismatch, UnsupportedOp
from nnstretch.export.onnx import convert, rename_io
from nnstretch.export.onnx.convert import (
    OnnxRunner,
    check_close,
    close_shapes,
    export_model,
    merge_onnx,
)
from nnstretch.graph import TensorSpec


def test_sizes_that_the_exporter_left_open_are_said() -> None:
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
        for name, sizes in (("x", ["s6", "s45"]), ("w", [3]), ("y", ["s6", 4]))
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])
    model = helper.make_model(helper.make_graph([], "g", values, [], [weight]))

    close_shapes(model, (torch.zeros(2, 3), torch.zeros(2, 4)))

    assert sizes_of(model) == {"x": [2, 3], "w": [3], "y": [2, 4]}


def test_a_file_that_onnx_runtime_refuses_is_said_in_one_line() -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    node = helper.make_node("Concat", ["x", "nowhere"], ["y"], axis=0)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    model = helper.make_model(helper.make_graph([node], "g", [value], [result]))
    with pytest.raises(UnsupportedOp, match=r"ONNX Runtime refuses it: .*nowhere") as refusal:
        OnnxRunner(model.SerializeToString())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("kind", ["bool", "int64", "float16", "float32"])
def test_branches_meet_in_their_own_element_type(kind: str) -> None:
    ends = [Port(name, TensorSpec((1, 2), kind)) for name in ("a", "b")]
    whole = Port("y", TensorSpec((1, 4), kind))
    parts = {port.name: np.array([[n, 1]], kind) for n, port in enumerate(ends)}

    merged = OnnxRunner(merge_onnx(ends, whole, 1, {})).run_named(parts)["y"]

    assert merged.dtype == kind
    assert merged.tolist() == [[0, 1, 1, 1]]


def sizes_of(model: onnx.ModelProto) -> dict[str, list[int]]:
    sizes = {}
    for value in model.graph.input:
        sizes[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return sizes


def test_weights_larger_than_python_draws_at_once_are_drawn_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rename_io, "MOST_DRAWN_BYTES", 8)
    drawn = rename_io.random_bytes(1, 21)
    assert len(drawn) == 21
    assert drawn == rename_io.random_bytes(1, 21)
    assert len({drawn[:8], drawn[8:16], rename_io.random_bytes(2, 8)}) == 3


class Windows(nn.Module):
    """Attention in windows, of five dimensions, which PyTorch's exporter does not translate."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(*x.shape[:-1], x.shape[-2])
        return nn.functional.scaled_dot_product_attention(x, x, x, mask)


def test_an_operator_without_an_onnx_form_is_named_with_its_module() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AdaptiveMaxPool2d(3)).eval()
    image = torch.zeros(1, 3, 8, 8)
    captured = trace(net, image, "net")
    rebuilt = build(captured.graph, captured.weights)
    with pytest.raises(UnsupportedOp) as refusal:
        export_model("s0", rebuilt, (image,))
    assert str(refusal.value) == (
        "cannot export s0 to ONNX, adaptive_max_pool2d (adaptive_max_pool2d_default) in 1 has no"
        " ONNX form in PyTorch's exporter"
    )


def test_a_refusal_of_the_exporter_says_the_first_cause() -> None:
    with pytest.raises(UnsupportedOp, match="cannot export s0 to ONNX, AssertionError, only 4D"):
        export_model("s0", Windows(), (torch.zeros(1, 2, 2, 4, 8),))


class WindowAttention(nn.Module):
    """Attention of q, k and v that stand side by side in the last dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attention, with the input's dimensions but for the last."""
        query, key, value = x.chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 4, 2, 5, 24), (3, 5, 24)])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_attention_over_windows_or_without_heads_is_exported(
    shape: tuple[int, ...], rebuilt: bool
) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    module = build(trace(WindowAttention(), (x,)).graph) if rebuilt else WindowAttention()
    model = export_model("windows", module, (x,))
    computed = OnnxRunner(model.SerializeToString()).run(x.numpy())
    torch.testing.assert_close(torch.from_numpy(computed), WindowAttention()(x))


@pytest.mark.slow
def test_tables_that_are_kept_change_no_byte_and_are_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry = pytest.importorskip("torch.onnx._internal.exporter._registration").ONNXRegistry
    builds: list[object] = []

    def build(*opset: object, **named: object) -> object:
        builds.append(opset)
        return from_torchlib(*opset, **named)

    from_torchlib = registry.from_torchlib
    monkeypatch.setattr(registry, "from_torchlib", staticmethod(build))
    module, x = nn.Conv2d(3, 4, 3), torch.zeros(1, 3, 8, 8)
    kept = [export_model("conv", module, (x,)) for _ in range(3)]
    assert len(builds) == 1
    assert registry.from_torchlib is build
    monkeypatch.setattr(convert, "keep_operator_tables", nullcontext)
    alone = export_model("conv", module, (x,))
    assert len(builds) == 2
    assert [model.SerializeToString() for model in kept] == [alone.SerializeToString()] * 3


@pytest.mark.parametrize(("kind", "difference"), [(np.bool_, 1), (np.uint8, 1), (np.int64, 1)])
def test_truth_values_and_whole_numbers_are_compared(kind: type, difference: int) -> None:
    zeros, ones = np.zeros(3, kind), np.array([0, 1, 0], kind)
    assert check_close(ones, ones, "s0") == 0
    with pytest.raises(Mismatch, match=f"s0 differs from the module by {difference}, allowed"):
        check_close(zeros, ones, "s0")


def test_what_is_infinite_or_nan_on_both_sides_does_not_differ() -> None:
    odd, near = (
        np.float32([np.nan, np.inf, -np.inf, 2]),
        np.float32([np.nan, np.inf, -np.inf, 2.0001]),
    )
    assert 0 < check_close(odd, near, "s0") < 2e-4
    for number in range(4):
        changed = odd.copy()
        changed[number] = np.nan if number else 1
        with pytest.raises(Mismatch, match="one of them has NaN or infinite numbers"):
            check_close(odd, changed, "s0")
    with pytest.raises(Mismatch, match=r"s0 differs from the module by 1, allowed are 0.0002$"):
        check_close(odd, np.float32([np.nan, np.inf, -np.inf, 3]), "s0")


def test_half_precision_may_differ_by_its_rounding_and_full_may_not() -> None:
    ones, near, far = np.float16([1, 1, 1]), np.float16([1, 1.003, 1]), np.float16([1, 1.02, 1])
    assert 0 < check_close(ones, near, "s0") < 0.004
    with pytest.raises(Mismatch, match=r"s0 differs from the module by 0.0195, allowed are 0.0039"):
        check_close(ones, far, "s0")
    with pytest.raises(
        Mismatch, match=r"s0 differs from the module by 0.00293, allowed are 0.0001"
    ):
        check_close(ones.astype(np.float32), near.astype(np.float32), "s0")
