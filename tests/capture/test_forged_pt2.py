"""Saved programs that could make a reader run something are refused."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.saved_programs import (
    CONSTANTS,
    MODEL,
    SAMPLES,
    WEIGHTS,
    Small,
    a_size,
    nodes,
    refused,
    rewritten,
)
from torch import nn

from nnstretch.capture import example_inputs, load_model
from nnstretch.capture.pt2_file import read_pt2
from nnstretch.errors import (
    BadInput,
    BrokenFile,
    CannotCapture,
    NnstretchError,
    UnknownName,
    UnsupportedOp,
)
from nnstretch.graph import InputShape


class Runs:
    """Unpickling this makes a folder: proof that something was run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


AUDITED = """
import sys
unpickled = []
sys.addaudithook(lambda event, args: unpickled.append(args) if event == "pickle.find_class" else None)
import pickle, collections
pickle.loads(pickle.dumps(collections.OrderedDict))
assert unpickled, "the hook hears unpickling"
from pathlib import Path
from nnstretch.capture.pt2_file import read_pt2
import torch._inductor.codecache, torch.export.pt2_archive._package
read_pt2(Path(sys.argv[1]))
unpickled.clear()
print(read_pt2(Path(sys.argv[1])).graph.params, unpickled)
"""


@pytest.mark.slow
def test_python_itself_sees_no_unpickling(files: dict[str, Path]) -> None:
    """Every name that Python's unpickler looks up raises an audit event.

    An honest file must raise none.
    """
    done = subprocess.run(
        [sys.executable, "-c", AUDITED, str(files["open"])],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1:] == ["[]"]


def test_rewriting_nothing_changes_nothing(files: dict[str, Path], tmp_path: Path) -> None:
    assert str(read_pt2(rewritten(files["open"], tmp_path / "open.pt2", {})).graph) == str(
        read_pt2(files["open"]).graph
    )


def test_no_pickle_is_run(files: dict[str, Path], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    bad = tmp_path / "bad.pt2"
    buffer = io.BytesIO()
    torch.save((Runs(mark),), buffer)
    refused(rewritten(files["open"], bad, {SAMPLES: buffer.getvalue()}), UnsupportedOp, "pickle")
    refused(
        rewritten(files["open"], bad, {SAMPLES: pickle.dumps((Runs(mark),))}),
        UnsupportedOp,
        "pickle",
    )

    def pickled(tree: Any) -> None:
        next(iter(tree["config"].values()))["use_pickle"] = True

    refused(
        rewritten(
            files["open"], bad, {WEIGHTS: pickled, "data/weights/weight_0": buffer.getvalue()}
        ),
        UnsupportedOp,
        "pickled",
    )

    for prefix in ("opaque_obj_0", "custom_obj_0"):

        def an_object(tree: Any, path: str = prefix) -> None:
            tree["config"]["thing"] = {
                "path_name": path,
                "is_param": False,
                "use_pickle": False,
                "tensor_meta": None,
            }

        refused(rewritten(files["open"], bad, {CONSTANTS: an_object}), UnsupportedOp, prefix)
        refused(
            rewritten(files["open"], bad, {f"data/constants/{prefix}": pickle.dumps(Runs(mark))}),
            UnsupportedOp,
            prefix,
        )
    assert not mark.exists()


def test_no_size_is_evaluated_as_python(files: dict[str, Path], tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    call = f"__import__('os').mkdir({str(mark)!r})"
    calls = (
        call,
        f"Integer({call})",
        f"Mul({call!r}, 2)",
        f"Symbol('s0', integer={call})",
        f"Symbol({call!r})",
    )
    for text in (*calls, "Pow(9, 9)", "x.y", "("):
        bad = rewritten(
            files["open"], tmp_path / "bad.pt2", {MODEL: lambda tree, text=text: a_size(tree, text)}
        )
        with pytest.raises((UnsupportedOp, BrokenFile), match="size"):
            read_pt2(bad)
    assert not mark.exists()


def test_no_name_becomes_source(files: dict[str, Path], tmp_path: Path) -> None:
    mark = tmp_path / "ran"

    def injected(tree: Any) -> None:
        nodes(tree)[1]["outputs"][0]["as_tensor"]["name"] = (
            f"x\nimport os\nos.mkdir({str(mark)!r})\n"
        )

    refused(rewritten(files["open"], tmp_path / "bad.pt2", {MODEL: injected}), BrokenFile, "name")
    assert not mark.exists()


def test_only_tensor_operators_are_looked_up(files: dict[str, Path], tmp_path: Path) -> None:
    loading = ["torch.hub.load", "torch.ops.load_library", "torch.ops.aten.from_file.default"]
    for target in [*loading, "math.sqrt", "#x:y", "os.system", "torch.ops.x.y.z"]:

        def replaced(tree: Any, target: str = target) -> None:
            nodes(tree)[1]["target"] = target

        refused(
            rewritten(files["open"], tmp_path / "bad.pt2", {MODEL: replaced}), UnsupportedOp, target
        )


def test_compiled_code_is_not_loaded(files: dict[str, Path], tmp_path: Path) -> None:
    bad = rewritten(
        files["open"], tmp_path / "bad.pt2", {"data/aotinductor/model/lib.so": b"\x7fELF"}
    )
    refused(bad, UnsupportedOp, "data/aotinductor/model/lib.so")


def test_older_and_foreign_archives(files: dict[str, Path], tmp_path: Path) -> None:
    refused(
        rewritten(files["open"], tmp_path / "old.pt2", {"data/weights/model.pt": b""}),
        UnsupportedOp,
        "data/weights/model.pt",
    )
    refused(tmp_path / "absent.pt2", UnknownName, "absent.pt2", "does not exist")
    state = tmp_path / "state.pt2"
    torch.save({"weight": torch.zeros(2)}, state)
    refused(state, BrokenFile, "state.pt2")


def test_control_flow_is_refused_by_name(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 2, (x,))

    path = tmp_path / "cond.pt2"
    torch.export.save(torch.export.export(Branches(), (torch.zeros(2, 3),)), path)
    refused(path, CannotCapture, "cond.pt2")


@pytest.mark.slow
@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_but_never_crashes(
    files: dict[str, Path], tmp_path: Path, data: st.DataObject
) -> None:
    content = bytearray(files["open"].read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[
        : data.draw(st.sampled_from([len(content), len(content) // 2, len(content) - 10, 100]))
    ]
    (tmp_path / "bad.pt2").write_bytes(bytes(content))
    with suppress(NnstretchError):
        read_pt2(tmp_path / "bad.pt2")


@pytest.mark.slow
def test_what_a_program_fixes_is_not_asked_for_otherwise(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", max=64)
    x, path = torch.zeros(2, 3, 16, 16), tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Small().eval(), (x,), dynamic_shapes=({0: batch},)), path)
    module = load_model(str(path))
    for shape, message in (
        (InputShape((1, 3, 32, 16)), r"1x3x32x16 is asked for, .* is \[1 to 64\]x3x16x16"),
        (InputShape((65, 3, 16, 16)), "65x3x16x16 is asked for"),
        (InputShape((1, 3, 16)), "1x3x16 is asked for"),
        (InputShape((1, 3, 16, 16), dtype="float16"), "float16 is asked for, .* is float32"),
    ):
        with pytest.raises(BadInput, match=message):
            example_inputs(str(path), module, [shape])
    for shape in (InputShape((64, 3, 16, 16)), InputShape((7, 3, 16, 16), dtype="float32")):
        (example,) = example_inputs(str(path), module, [shape])
        assert example.shape == shape.shape
