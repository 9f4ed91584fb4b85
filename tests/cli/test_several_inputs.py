"""Networks with several inputs and outputs on the command line: exported whole, run by name."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.bundle.bundle import read_bundle
from nnstretch.cli import run_verb
from nnstretch.export.litert.runner import LiteRTRunner
from nnstretch.export.onnx.convert import OnnxRunner
from nnstretch.predict import load_soc

NETWORK = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.image = nn.Embedding(9, 4), nn.Linear(6, 4)

    def forward(self, ids, image):
        both = self.table(ids).sum(1) + self.image(image)
        return torch.relu(both), both.mean(1)

def make():
    return Pair().eval()
"""
SHAPES = "ids=1,5:int64;image=1,6"


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export a network of two inputs and two outputs, beside its source."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "pair.py").write_text(NETWORK)
    out = [str(folder / "net.nns"), "--single", str(folder / "net.onnx")]
    assert run_verb("export", [f"{folder}/pair.py:make", "--input", SHAPES, "--out", *out]) == 0
    return folder / "net.nns"


def pair(folder: Path) -> nn.Module:
    """Return the network itself."""
    space: dict[str, object] = {}
    exec((folder / "pair.py").read_text(), space)
    made = space["make"]
    assert callable(made)
    network = made()
    assert isinstance(network, nn.Module)
    return network


def names(net: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Return the names of inputs and outputs, as a refusal tells them."""
    manifest = read_bundle(net).manifest
    return [port.name for port in manifest.inputs], [port.name for port in manifest.outputs]


def test_arrays_by_name_give_the_network_s_own_numbers(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, outputs = names(net, capsys)
    ids, image = np.array([[1, 8, 3, 0, 2]]), np.linspace(-1, 1, 6, dtype=np.float32)[None]
    arguments: list[str] = []
    for name, array in zip(inputs, (ids, image), strict=True):
        np.save(tmp_path / f"{name}.npy", array)
        arguments += ["--input", f"{name}={tmp_path / name}.npy"]
    for number, name in enumerate(outputs):
        arguments += ["--output", f"{name}={tmp_path}/out{number}.npy"]
    assert run_verb("run", [str(net), "--repeat", "1", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["max_abs_error"] == 0
    with torch.no_grad():
        expected = pair(net.parent)(torch.from_numpy(ids), torch.from_numpy(image))
    single = OnnxRunner(net.with_suffix(".onnx").read_bytes())
    computed = single.run_named(dict(zip(inputs, (ids, image), strict=True)))
    for number, (name, value) in enumerate(zip(outputs, expected, strict=True)):
        np.testing.assert_allclose(np.load(tmp_path / f"out{number}.npy"), value, atol=1e-5)
        np.testing.assert_allclose(computed[name], value, atol=1e-5)


def test_what_does_not_fit_is_refused_by_name(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, outputs = names(net, capsys)
    np.save(tmp_path / "x.npy", np.zeros((1, 6), np.float32))
    array, new = f"{tmp_path}/x.npy", f"{tmp_path}/new.npy"
    cases = {
        ("--input", array): f"has 2 inputs ({', '.join(inputs)}), write --input NAME=",
        (
            "--output",
            new,
        ): f"has 2 outputs ({', '.join(outputs)}), write --output NAME=FILE.npy for each",
        ("--input", f"{inputs[1]}={array}"): f"expects {', '.join(inputs)}",
        ("--input", f"{inputs[0]}={array}") * 2: f"--input names {inputs[0]} twice",
        ("--output", f"{outputs[0]}={new}", "--output", f"{outputs[1]}={new}"): f"{new} twice",
        ("--output", f"{outputs[0]}={new}", "--trace", new): "it is --output, too",
        ("--output", f"nothing={new}"): f"has no output 'nothing' but {', '.join(outputs)}",
    }
    for arguments, message in cases.items():
        assert run_verb("run", [str(net), "--repeat", "1", *arguments]) == 1
        refusal = capsys.readouterr().err
        assert message in refusal, refusal
        assert refusal.count("\n") == 1
    assert not Path(new).exists()


def test_formats_with_one_input_refuse_several(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = ("--format", "litert")
    model, out = f"{net.parent}/pair.py:make", str(tmp_path / "new")
    assert run_verb("export", [model, "--input", SHAPES, "--out", out, *option]) == 1
    refusal = capsys.readouterr().err
    assert f"{' '.join(option)} of {model}, command line, it has 2 inputs and 2 outputs" in refusal
    assert not Path(out).exists()


def test_a_network_that_returns_its_input_is_not_said_to_have_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "same.py").write_text("from torch.nn import Identity as make\n")
    model, out = f"{tmp_path}/same.py:make", str(tmp_path / "new.nns")
    options = ["--input", "1,3,8,8", "--format", "litert", "--out", out]
    assert run_verb("export", [model, *options]) == 1
    refusal = capsys.readouterr().err
    assert f"{model}, command line, its output is its input, so no sub-graph" in refusal
    assert not Path(out).exists()


@pytest.mark.parametrize("option", ["--format litert", "--format cpp --soc mi9"])
def test_a_network_without_a_cut_is_not_said_to_have_several(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        return x.relu().sum()\n"
    )
    model, out = f"{tmp_path}/net.py:Net", tmp_path / "new"
    argv = [model, "--input", "1,3,8,8", *option.split(), "--out", str(out)]
    assert run_verb("export", argv) == 1
    why = "it has no cut, its output has no dimensions or does not depend on its input"
    assert f" of {model}, command line, {why}" in capsys.readouterr().err
    assert not out.exists()


def test_an_input_that_is_handed_out_unchanged_is_refused(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "same.py").write_text(NETWORK.replace("return torch.relu(both)", "return image"))
    model, out = f"{tmp_path}/same.py:make", str(tmp_path / "new.nns")
    assert run_verb("export", [model, "--input", SHAPES, "--out", out]) == 1
    assert "it returns its input unchanged (image)" in capsys.readouterr().err
    assert not Path(out).exists()


@pytest.mark.slow
def test_a_searched_plan_of_a_token_network_is_exported_with_the_nearest_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plan, out = f"{tmp_path}/tokens.py:make", tmp_path / "plan.yaml", tmp_path / "net.nns"
    (tmp_path / "tokens.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 4))\n"
    )
    options = ["--soc", "mi9", "--input", "1,5:int64", "--fallback", "nearest", "--out", str(plan)]
    assert run_verb("search", [model, *options]) == 0
    for refused in (["export", str(plan), "--out", str(out)], ["predict", str(plan), *options[:2]]):
        assert run_verb(refused[0], refused[1:]) == 1
        assert "; --fallback nearest prices it as the nearest kind" in capsys.readouterr().err
    nearest = ("--fallback", "nearest", "--json")
    assert run_verb("export", [str(plan), "--out", str(out), *nearest]) == 0
    assert json.loads(capsys.readouterr().out)["fallbacks"]["embedding"] == "add"


@pytest.mark.slow
def test_a_network_in_one_piece_is_exported_with_the_nearest_prices(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = f"{net.parent}/pair.py:make", tmp_path / "priced.nns"
    options = [model, "--input", SHAPES, "--soc", "mi9", "--out", str(out), "--json"]
    assert run_verb("export", options) == 1
    assert "; --fallback nearest prices it as the nearest kind" in capsys.readouterr().err
    assert run_verb("export", [*options, "--fallback", "nearest"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fallbacks"]["embedding"] == "add"
    (subgraph,) = read_bundle(out).manifest.subgraphs
    assert subgraph.predicted_us.keys() == set(load_soc("mi9").processor_names)
    assert result["predicted_ms"] == subgraph.predicted_us["cpu"] / 1000


def test_the_nearest_prices_without_a_chip_are_refused(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = f"{net.parent}/pair.py:make", tmp_path / "new.nns"
    options = ["--input", SHAPES, "--out", str(out), "--fallback", "nearest"]
    assert run_verb("export", [model, *options]) == 1
    assert "--fallback nearest without --soc, command line" in capsys.readouterr().err
    assert not out.exists()


def test_int8_of_an_integer_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokens.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))\n"
    )
    out = tmp_path / "net.nns"
    options = ["--input", "1,5:int64", "--format", "litert", "--int8", "--out", str(out)]
    assert run_verb("export", [f"{tmp_path}/tokens.py:make", *options, "--calibration", "x"]) == 1
    refusal = capsys.readouterr().err
    assert "reads int64" in refusal
    assert "only float32 inputs have int8 codes" in refusal
    assert refusal.count("\n") == 1
    assert not out.exists()


def test_a_network_without_a_cut_is_not_searched(
    net: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"{net.parent}/pair.py:make"
    options = ["--soc", "mi9", "--input", SHAPES, "--fallback", "nearest"]
    assert run_verb("search", [model, *options]) == 1
    refusal = capsys.readouterr().err
    reason = "cuts separate one input from one output, it has 2 and 2"
    assert f"cannot search {model}, {reason}, so there is nowhere" in refusal
    assert refusal.count("\n") == 1


def test_an_index_outside_of_a_table_is_the_input_s_fault(
    net: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "ids.npy", np.full((1, 5), 99))
    np.save(tmp_path / "image.npy", np.zeros((1, 6), np.float32))
    arguments = [f"--input={name}={tmp_path}/{name}.npy" for name in ("ids", "image")]
    assert run_verb("run", [str(net), "--repeat", "1", *arguments]) == 1
    refusal = capsys.readouterr().err
    assert refusal.startswith("nnstretch: input ids, bundle ")
    assert "an index lies outside of its table" in refusal
    assert "idx=99" in refusal
    assert refusal.count("\n") == 1


@pytest.mark.slow
def test_tokens_reach_litert_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("litert_torch")
    (tmp_path / "tokens.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "def make():\n"
        "    torch.manual_seed(0)\n"
        "    return nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4)).eval()\n"
    )
    model, out = f"{tmp_path}/tokens.py:make", tmp_path / "net.nns"
    options = ["--input", "1,5:int64", "--format", "litert"]
    assert run_verb("export", [model, *options, "--out", str(out)]) == 1
    assert "sub-graph s0.cpu, operator code 7, " in capsys.readouterr().err
    assert not out.exists()
    single = tmp_path / "net.tflite"
    assert run_verb("export", [model, *options, "--single", str(single)]) == 0
    ids = np.array([[1, 8, 3, 0, 2]])
    space: dict[str, object] = {}
    exec((tmp_path / "tokens.py").read_text(), space)
    network = space["make"]
    assert callable(network)
    expected = network()(torch.from_numpy(ids)).detach()
    computed = LiteRTRunner(single.read_bytes(), "tokens").run(ids)
    np.testing.assert_allclose(computed, expected, atol=1e-6)


TABLE = """
from torch import nn

class Table(nn.Embedding):
    def forward(self, ids, more=0):
        return super().forward(ids * 9) + more

def make():
    return Table(9, 4).eval()
"""


@pytest.mark.parametrize(
    ("form", "shapes"),
    [("onnx", "ids=1,5:int64"), ("onnx", "ids=1,5:int64;more=1"), ("cpp", "ids=1,5:int64")],
)
def test_random_numbers_that_the_network_cannot_read_are_one_line(
    form: str, shapes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table.py").write_text(TABLE)
    argv = [f"{tmp_path}/table.py:make", "--input", shapes, "--format", form]
    assert run_verb("export", [*argv, "--out", str(tmp_path / "net.nns")]) == 1
    refusal = r"nnstretch: cannot run .* to compare with it, inputs are random numbers, IndexError"
    assert re.match(refusal, capsys.readouterr().err)
