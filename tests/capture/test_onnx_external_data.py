"""Numbers that lie beside an ONNX file come from its own folder, wherever the file asks for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from nnstretch.capture.onnx.load import parse_onnx
from nnstretch.capture.onnx.reader import read_onnx
from nnstretch.errors import BrokenFile

DOMAIN = "local"
NUMBERS = np.arange(8, dtype=np.float32)


def lying_at(location: str) -> onnx.TensorProto:
    """A tensor whose numbers lie in a file."""
    tensor = TensorProto(name="secret", data_type=TensorProto.FLOAT, dims=NUMBERS.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def with_function(
    path: Path, constant: onnx.NodeProto, default: onnx.AttributeProto | None
) -> Path:
    """A network that adds what a function of the file holds."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
    function = helper.make_function(
        DOMAIN,
        "AddSecret",
        ["a"],
        ["b"],
        [constant, helper.make_node("Add", ["a", "c"], ["b"])],
        opsets[:1],
        attribute_protos=[] if default is None else [default],
    )
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 8)) for name in "xy"]
    call = helper.make_node("AddSecret", ["x"], ["y"], domain=DOMAIN)
    graph = helper.make_graph([call], "g", ports[:1], ports[1:])
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    path.write_bytes(model.SerializeToString())
    return path


def constant_of(location: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["c"], value=lying_at(location))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which holds a file that is nobody's business."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / ".env").write_bytes(NUMBERS.tobytes())
    monkeypatch.chdir(folder)
    return folder


def is_refused(path: Path, why: str) -> None:
    with pytest.raises(BrokenFile, match=why) as refusal:
        read_onnx(path)
    assert "\n" not in str(refusal.value)


def test_a_function_reads_no_file_of_the_working_directory(tmp_path: Path, elsewhere: Path) -> None:
    is_refused(with_function(tmp_path / "m.onnx", constant_of(".env"), None), "not exist")
    is_refused(
        with_function(tmp_path / "n.onnx", constant_of(str(elsewhere / ".env")), None), "outside"
    )


def test_an_attribute_that_a_call_leaves_out_reads_no_file_of_the_working_directory(
    tmp_path: Path, elsewhere: Path
) -> None:
    constant = helper.make_node("Constant", [], ["c"])
    constant.attribute.add(name="value", type=onnx.AttributeProto.TENSOR, ref_attr_name="held")
    default = helper.make_attribute("held", lying_at(".env"))
    is_refused(with_function(tmp_path / "m.onnx", constant, default), "not exist")


def test_a_function_may_read_numbers_beside_the_file(tmp_path: Path, elsewhere: Path) -> None:
    (tmp_path / "c.bin").write_bytes((2 * NUMBERS).tobytes())
    path = with_function(tmp_path / "m.onnx", constant_of("c.bin"), None)
    (weight,) = read_onnx(path).weights.values()
    assert weight.flatten().tolist() == (2 * NUMBERS).tolist()
    with pytest.raises(BrokenFile, match="the file must hold all its numbers"):
        parse_onnx(path.read_bytes(), path, alone=True)


def test_a_function_with_its_own_numbers_is_read(tmp_path: Path) -> None:
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(NUMBERS, "c"))
    (weight,) = read_onnx(with_function(tmp_path / "m.onnx", constant, None)).weights.values()
    assert weight.flatten().tolist() == NUMBERS.tolist()
