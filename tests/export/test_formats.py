"""Bundles of LiteRT sub-graphs, float and int8.

Layouts, shared scales, merges that change no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

pytest.importorskip("litert_torch")
pytest.importorskip("ai_edge_quantizer")

from ai_edge_litert.interpreter import Interpreter
from support.exports import PLAN, SHAPE, Written, conversions_shared, images, network, tiny, written

from nnstretch.bundle.manifest import Port
from nnstretch.errors import UnsupportedOp
from nnstretch.export.bundle import export
from nnstretch.export.litert.convert import float_operators, to_int8, to_litert
from nnstretch.export.litert.flatbuffer import parse_model, with_description
from nnstretch.export.litert.runner import LiteRTRunner
from nnstretch.export.onnx.convert import OnnxRunner
from nnstretch.export.onnx.rename_io import rename_io
from nnstretch.export.single_file import export_single
from nnstretch.export.subgraph_specs import ExportRequest
from nnstretch.export.verify import snr_db
from nnstretch.plan import Branch, Segment


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return tiny()


@pytest.fixture(scope="module")
def made() -> Callable[..., Written]:
    """A bundle by format and int8, exported when a test first asks for it."""
    return written


def names_and_files(written: Written) -> dict[str, str]:
    return {s.name: s.file for s in written.bundle.manifest.subgraphs}


def flowing(written: Written) -> dict[str, list[Port]]:
    """Every port of every sub-graph and of the network, by the tensor it holds."""
    manifest, found = written.bundle.manifest, {}
    for port in (
        *manifest.inputs,
        *manifest.outputs,
        *(p for s in manifest.subgraphs for p in (*s.inputs, *s.outputs)),
    ):
        found.setdefault(port.name, []).append(port)
    return found


@pytest.mark.slow
def test_the_files_are_of_the_format_and_so_are_the_maps(made: Callable[..., Written]) -> None:
    for format, suffix, layout in (("onnx", ".onnx", "NCHW"), ("litert", ".tflite", "NHWC")):
        written = made(format)
        assert names_and_files(written) == {
            n: f"subgraphs/{n}{suffix}"
            for n in ("s0.cpu", "s1.cpu", "s1.dsp", "s1.merge", "s2.cpu")
        }
        assert {s.format for s in written.bundle.manifest.subgraphs} == {format}
        ports = {name: ports[0] for name, ports in flowing(written).items()}
        assert {name: port.layout for name, port in ports.items()} == {
            "input": layout,
            "stem": layout,
            "body@cpu": layout,
            "body@dsp": layout,
            "body": layout,
            "output": "",
        }
        assert ports["input"].spec.shape == (SHAPE if format == "onnx" else (1, 16, 16, 3))
        assert ports["output"].spec.shape == (1, 10)
        assert all(port.spec.dtype == "float32" and not port.scale for port in ports.values())
        assert written.exported.int8_snr_db is None


@pytest.mark.slow
def test_a_float_tflite_computes_what_the_manifest_promises(
    made: Callable[..., Written], module: nn.Module
) -> None:
    written = made("litert")
    manifest = written.bundle.manifest
    assert 0 < manifest.max_abs_error < 1e-4
    x = images(1, seed=7)[0]
    np.testing.assert_allclose(chained(written, x.numpy()), module(x).detach().numpy(), atol=1e-4)


def chained(written: Written, x: np.ndarray) -> np.ndarray:
    """The files in a row, on the numbers they hold themselves.

    Nothing between two of them but the port.
    """
    manifest = written.bundle.manifest
    values = {manifest.inputs[0].name: stored(x, manifest.inputs[0])}
    for sub in manifest.subgraphs:
        interpreter = Interpreter(model_content=written.bundle.files[sub.file], num_threads=1)
        interpreter.allocate_tensors()
        for at, port in zip(
            sorted(interpreter.get_input_details(), key=lambda d: d["name"]),
            sub.inputs,
            strict=True,
        ):
            interpreter.set_tensor(at["index"], values[port.name])
        interpreter.invoke()
        values[sub.outputs[0].name] = interpreter.get_tensor(
            interpreter.get_output_details()[0]["index"]
        )
        assert values[sub.outputs[0].name].shape == sub.outputs[0].spec.shape
    port = manifest.outputs[0]
    found = values[port.name]
    return (
        (found.astype(np.float32) - port.zero_point) * np.float32(port.scale)
        if port.scale
        else found
    )


def stored(x: np.ndarray, port: Port) -> np.ndarray:
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    return (
        np.clip(np.rint(x / port.scale) + port.zero_point, -128, 127).astype(np.int8)
        if port.scale
        else x
    )


def test_int8_flows_between_sub_graphs_without_being_rounded_again(
    made: Callable[..., Written], module: nn.Module
) -> None:
    written = made("litert", True)
    tested = images(20)
    exact = np.concatenate([module(x).detach().numpy() for x in tested])
    found = np.concatenate([chained(written, x.numpy()) for x in tested])
    assert snr_db(exact, found) > 15
    assert written.exported.int8_snr_db == pytest.approx(snr_db(exact[:16], found[:16]), abs=0.01)
    assert written.bundle.manifest.max_abs_error == pytest.approx(
        np.abs(exact[0] - found[0]).max(), abs=1e-5
    )


def test_tensors_that_meet_share_one_scale(made: Callable[..., Written]) -> None:
    ports = flowing(made("litert", True))
    assert all(port == group[0] for group in ports.values() for port in group)
    forms = {
        name: (group[0].spec.dtype, group[0].scale, group[0].zero_point)
        for name, group in ports.items()
    }
    assert forms["body@cpu"] == forms["body@dsp"] == forms["body"]
    assert len(set(forms.values())) == 4
    assert {dtype for dtype, _, _ in forms.values()} == {"int8"}
    assert min(scale for _, scale, _ in forms.values()) > 0


def test_the_files_hold_the_scales_of_the_manifest(made: Callable[..., Written]) -> None:
    written = made("litert", True)
    for sub in written.bundle.manifest.subgraphs:
        runner = LiteRTRunner(written.bundle.files[sub.file], sub.name)
        for how, port in zip(
            (*runner.inputs.values(), runner.output), (*sub.inputs, *sub.outputs), strict=True
        ):
            assert (tuple(how["shape"]), how["quantization"]) == (
                port.spec.shape,
                (port.scale, port.zero_point),
            )
        assert float_operators(written.bundle.files[sub.file]) == ()


@pytest.mark.parametrize("int8", [False, True])
def test_a_merge_is_one_concatenation_that_changes_no_bit(
    made: Callable[..., Written], int8: bool
) -> None:
    written = made("litert", int8)
    sub = next(s for s in written.bundle.manifest.subgraphs if s.role == "merge")
    interpreter = Interpreter(model_content=written.bundle.files[sub.file], num_threads=1)
    interpreter.allocate_tensors()
    assert [
        op["op_name"] for op in interpreter._get_ops_details() if op["op_name"] != "DELEGATE"
    ] == ["CONCATENATION"]
    generator = np.random.default_rng(0)
    fed = [
        (
            generator.integers(-128, 128, p.spec.shape).astype(np.int8)
            if int8
            else generator.standard_normal(p.spec.shape).astype(np.float32)
        )
        for p in sub.inputs
    ]
    for at, value in zip(
        sorted(interpreter.get_input_details(), key=lambda d: d["name"]), fed, strict=True
    ):
        interpreter.set_tensor(at["index"], value)
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert found.dtype == fed[0].dtype
    assert found.tobytes() == np.concatenate(fed, 3).tobytes()


def test_viewers_see_who_runs_a_file(made: Callable[..., Written]) -> None:
    for one in (made("litert"), made("litert", True)):
        assert (
            parse_model(one.data("s1.dsp")).Description()
            == b"processor: dsp; branch: dsp:=x8; segment: " + str(PLAN.segments[1]).encode()
        )
    properties = {
        p.key: p.value for p in onnx.load_from_string(made("onnx").data("s1.merge")).metadata_props
    }
    assert properties["branch"] == "merge"


def test_an_inner_tensor_may_have_the_name_of_the_cut() -> None:
    info = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 2))
        for name in ("x", "y")
    ]
    nodes = [
        onnx.helper.make_node("Relu", ["x"], ["relu"]),
        onnx.helper.make_node("Neg", ["relu"], ["relu.0"]),
        onnx.helper.make_node("Add", ["relu.0", "stem"], ["y"]),
    ]
    weights = [onnx.numpy_helper.from_array(np.ones((1, 2), np.float32), "stem")]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", info[:1], info[1:], weights),
        opset_imports=[onnx.helper.make_opsetid("", 20)],
        ir_version=9,
    )
    model = rename_io(model, ["stem"], ["relu"])
    onnx.checker.check_model(model)
    assert (model.graph.input[0].name, model.graph.output[0].name) == ("stem", "relu")
    assert OnnxRunner(model.SerializeToString()).run(np.array([[2, -2]], np.float32)).tolist() == [
        [-1, 1]
    ]


@pytest.mark.slow
def test_weights_that_the_quantizer_puts_behind_the_file_come_inside() -> None:
    module, x = nn.Linear(640, 640).eval(), torch.randn(1, 640)
    model = to_int8(to_litert(module, (x,), "net"), iter([(x,)] * 2), "net")
    parsed = parse_model(model)
    assert any(parsed.Buffers(i).Offset() > 1 for i in range(parsed.BuffersLength())), (
        "else this test shows nothing"
    )
    found = parse_model(whole := with_description(model, "net"))
    assert not any(found.Buffers(i).Offset() for i in range(found.BuffersLength()))
    assert np.array_equal(
        LiteRTRunner(whole, "net").run(x.numpy()), LiteRTRunner(model, "net").run(x.numpy())
    )


@pytest.mark.slow
def test_an_operator_with_a_scale_of_its_own_at_a_cut_is_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    plan = replace(
        PLAN,
        segments=(
            Segment("input", "stem", (Branch("cpu"),)),
            Segment("stem", "output", (Branch("dsp"),)),
        ),
    )
    module = network(nn.Sequential(nn.MaxPool2d(2), nn.Sigmoid()), plan)
    with pytest.raises(
        UnsupportedOp,
        match=(
            r"^sub-graph s0\.cpu holds stem as int8 of scale 0\.0039.* its neighbours as int8 of"
            r" scale"
        ),
    ):
        export(module, plan, tmp_path / "a.nns", format="litert", int8=True, calibration=images(4))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_whole_network_in_one_file(
    made: Callable[..., Written], module: nn.Module, tmp_path: Path
) -> None:
    x = images(1)[0]
    exact = module(x).detach().numpy()
    request = ExportRequest(module, PLAN, "onnx")
    one = export_single(request, tmp_path / "net.onnx")
    assert b'File "/' not in (tmp_path / "net.onnx").read_bytes(), "no folder of this machine"
    assert one.size_bytes == (tmp_path / "net.onnx").stat().st_size
    assert one.max_abs_error < 1e-4
    np.testing.assert_allclose(
        OnnxRunner((tmp_path / "net.onnx").read_bytes()).run(x.numpy()), exact, atol=1e-4
    )
    for int8, allowed in ((False, 1e-4), (True, 0.2)):
        path = tmp_path / f"{int8}.tflite"
        with conversions_shared():
            calibration = iter(images(20)) if int8 else None
            asked = replace(request, format="litert", int8=int8, calibration=calibration)
            one = export_single(asked, path)
        found = LiteRTRunner(path.read_bytes(), "net").run(x.numpy())
        np.testing.assert_allclose(found, exact, atol=allowed)
        assert (one.int8_snr_db is not None and one.int8_snr_db > 15) == int8
        assert (float_operators(path.read_bytes()) == ()) == int8
