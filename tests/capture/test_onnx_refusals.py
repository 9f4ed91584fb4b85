"""Files of ONNX that cannot be captured are refused by what and where; none crashes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from support.onnx_graphs import check_agrees, floats, ints, made, node
from torch import nn

from nnstretch.capture.onnx.names import clean_path, path_from_node_name, path_from_scopes
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.errors import (
    BadInput,
    BrokenFile,
    CannotCapture,
    NnstretchError,
    UnknownName,
    UnsupportedOp,
)
from nnstretch.graph import InputShape


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


def test_a_deprecated_operator_is_said_to_be_one(tmp_path: Path) -> None:
    norm = helper.make_node("GroupNormalization", ["x", "w", "w"], ["y"], name="gn", num_groups=2)
    path = made(tmp_path / "g.onnx", [norm], {"w": floats(2)}, opset=18)
    refused(path, UnsupportedOp, "GroupNormalization 'gn'", "g.onnx", "deprecates it in opset 18")
    check_agrees(made(path, [norm], {"w": floats(4)}, opset=21))
    path = made(tmp_path / "u.onnx", [node("Upsample", "x", "s")], {"s": floats(4)}, opset=13)
    refused(path, UnsupportedOp, "Upsample 'y'", "u.onnx", "deprecates it in opset 13")


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
