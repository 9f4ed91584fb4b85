"""Programs saved by torch.export become graphs.

A file that could make the reader run something is refused.
"""

from __future__ import annotations

import io
import json
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
from torch import nn
from torch.export.pt2_archive import PT2ArchiveReader, PT2ArchiveWriter

from nnstretch.capture import build, example_inputs, load_model, trace
from nnstretch.capture.pt2_file import read_pt2
from nnstretch.cli import run_verb
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

MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"
SAMPLES, CONSTANTS = "data/sample_inputs/model.pt", "data/constants/model_constants_config.json"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(x + y)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2)
        self.blocks = nn.Sequential(Block(16), Block(16), Block(16))
        self.head = nn.Linear(16, 5)
        self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0, 1.0, 0.25]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(x.flatten(2).mean(2).reshape(x.shape[0], -1)) * self.scale


@pytest.fixture(scope="module")
def module() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Small().eval()


@pytest.fixture(scope="module")
def files(module: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pt2")
    found = {name: folder / f"{name}.pt2" for name in ("open", "fixed")}
    x = torch.zeros(2, 3, 15, 15)
    torch.export.save(
        torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)),
        found["open"],
    )
    torch.export.save(torch.export.export(module, (x[:1],)), found["fixed"])
    return found


@pytest.mark.parametrize(("name", "batches"), [("open", (1, 3)), ("fixed", (1,))])
def test_a_saved_program_computes_what_its_module_computes(
    name: str, batches: tuple[int, ...], module: nn.Module, files: dict[str, Path]
) -> None:
    captured = read_pt2(files[name])
    assert captured.graph.inputs[0].spec.shape == (1, 3, 15, 15)
    assert captured.graph.params == sum(p.numel() for p in module.parameters())
    assert captured.graph.macs == trace(module, torch.zeros(1, 3, 15, 15)).graph.macs
    rebuilt = build(captured.graph, captured.weights).eval()
    for batch in batches:
        x = torch.randn(batch, 3, 15, 15)
        assert torch.allclose(rebuilt(x), module(x), rtol=1e-5, atol=1e-6)


def test_cuts_and_weights_keep_the_names_of_the_modules(files: dict[str, Path]) -> None:
    graph = read_pt2(files["open"]).graph
    assert {"blocks.0", "blocks.1", "blocks"} <= {cut.name for cut in NetworkAnalysis(graph).cuts}
    assert {"blocks.1.conv2.weight", "head.bias"} <= {weight.name for weight in graph.weights}


def test_a_saved_program_is_stretched_like_any_module(files: dict[str, Path]) -> None:
    loaded = load_model(str(files["open"]))
    graph = trace(loaded, torch.zeros(1, 3, 15, 15)).graph
    survey = two_branches(NetworkAnalysis(graph), "m", ("cpu", "dsp"), (0.5, 0.75), 0.5)
    assert any(segment.branched for segment in survey.plan.segments)
    network = stretch(loaded, survey.plan)
    network.train()(torch.randn(2, 3, 15, 15)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


# --- files that somebody else wrote --------------------------------------------------------------


class Runs:
    """Unpickling this makes a folder: proof that something was run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def rewritten(source: Path, target: Path, changes: dict[str, Any]) -> Path:
    """The same archive with some records replaced, added, or edited as JSON by a function."""
    old = PT2ArchiveReader(str(source))
    with PT2ArchiveWriter(str(target)) as archive:
        names = [n for n in old.get_file_names() if not n.startswith(".data") and n != "byteorder"]
        for name in dict.fromkeys([*names, *changes]):
            content = old.read_bytes(name) if name in names else b""
            change = changes.get(name, content)
            archive.write_bytes(name, edited(content, change) if callable(change) else change)
    return target


def edited(content: bytes, change: Callable[[Any], None]) -> bytes:
    tree = json.loads(content)
    change(tree)
    return json.dumps(tree).encode()


def refused(path: Path, error: type[NnstretchError], *words: str) -> None:
    with pytest.raises(error) as caught:
        read_pt2(path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def nodes(tree: Any) -> list[Any]:
    return tree["graph_module"]["graph"]["nodes"]  # type: ignore[no-any-return]


def a_size(tree: Any, text: str) -> None:
    """Replace the first symbolic size."""
    stack = [tree]
    while stack:
        item = stack.pop()
        if isinstance(item, dict) and "expr_str" in item:
            item["expr_str"] = text
            return
        stack.extend(
            item.values() if isinstance(item, dict) else item if isinstance(item, list) else []
        )
    raise AssertionError("no symbolic size in the file")


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


def test_the_verbs_take_a_saved_program(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan, out = str(files["open"]), tmp_path / "plan.yaml", tmp_path / "net.nns"
    assert run_verb("inspect", [path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"] > 0
    search = [
        path,
        "--soc",
        "mi9",
        "--processors",
        "cpu,dsp",
        "--fallback",
        "nearest",
        "--out",
        str(plan),
        "--json",
    ]
    assert run_verb("search", search) == 0, capsys.readouterr().err
    assert run_verb("export", [str(plan), "--out", str(out), "--json"]) == 0, (
        capsys.readouterr().err
    )
    capsys.readouterr()
    assert out.is_file()
    bad = tmp_path / "bad.pt2"
    rewritten(files["open"], bad, {"data/aotinductor/model/lib.so": b"ELF"})
    assert run_verb("export", [str(bad), "--out", str(tmp_path / "bad.nns"), "--json"]) == 1
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert not (tmp_path / "bad.nns").exists()


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
