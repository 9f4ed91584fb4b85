"""Networks with several inputs and outputs: the verb, files by name, what is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from support.cpp import (  # noqa: E402
    CppRuntime,
    assert_close,
    cpp_runtime,  # noqa: F401
    outputs_in_cpp,
    outputs_in_torch,
    translate_module,
)
from torch import nn  # noqa: E402

from nnstretch.cli import main  # noqa: E402
from nnstretch.errors import CannotCapture, UnsupportedOp  # noqa: E402

MODULE = """\
import torch
from torch import nn


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Conv2d(3, 4, 3, padding=1)
        self.depth = nn.Conv2d(1, 4, 3, padding=1)

    def forward(self, image, depth):
        both = self.image(image) - self.depth(depth)
        return torch.relu(both), both.mean((2, 3))


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(9, 4)

    def forward(self, token, scale):
        return self.table(token) * scale
"""


@pytest.fixture(scope="module")
def pair(cpp_runtime: CppRuntime, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """Export and build a network of two inputs and two outputs."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "m.py").write_text(MODULE)
    model = [f"{folder / 'm.py'}:Pair", "--input", "image=1,3,6,6;depth=1,1,6,6"]
    out = folder / "net"
    assert main(["export", *model, "--format", "cpp", "--out", str(out), "--no-build"]) == 0
    cpp_runtime.build(out)
    return out


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(folder / "build" / "run"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def ports(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of inputs and outputs, as the source says them."""
    lines = (folder / "network.cpp").read_text().splitlines()
    inputs = [line.split('"')[1] for line in lines if "net.input(" in line]
    return inputs, [line.split('"')[1] for line in lines if "net.output(" in line]


def test_several_inputs_and_outputs_are_what_the_module_computes(pair: Path) -> None:
    example = pair / "example"
    words: list[str] = []
    for option, name in (("--input", "input"), ("--expect", "output")):
        for number in range(2):
            words += [option, str(example / f"{name}{number}.npy")]
    done = run(pair, *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("differs from") == 2
    words_from_here = " ".join(words).replace(f"{pair}/", "")
    assert (pair / "README.md").read_text().count(f"/run {words_from_here}\n") == 1
    assert np.load(example / "output1.npy").shape == (1, 4)
    assert json.loads((pair / "layers" / "forward.json").read_text())


def test_files_are_matched_by_name_in_any_order(pair: Path, tmp_path: Path) -> None:
    example = pair / "example"
    inputs, outputs = ports(pair)
    y = tmp_path / "y.npy"
    named = [f"{inputs[1]}={example / 'input1.npy'}", str(example / "input0.npy")]
    words = [word for name in named for word in ("--input", name)]
    done = run(pair, *words, "--output", f"{outputs[1]}={y}")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(y), np.load(example / "output1.npy"), atol=1e-5)
    for more, refusal in (
        (("--input", named[0]), f"there is a file for {inputs[1]}"),
        (("--input", named[1]), f"the network has 2: {inputs[0]}, {inputs[1]}"),
        (("--expect", f"{outputs[0]}="), "it names no file"),
        (("--expect", str(y)), "its shape is (1, 4)"),
    ):
        done = run(pair, *words, *more)
        assert done.returncode == 1
        assert refusal in done.stderr
        assert done.stderr.count("\n") == 1


def test_tokens_are_exported_and_truth_values_and_chips_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.py").write_text(MODULE)
    end = ["--format", "cpp", "--out", str(tmp_path / "net"), "--no-build"]
    tokens = ["--input", "token=1,5:int64;scale=1"]
    words = ["export", f"{tmp_path / 'm.py'}:Tokens", *tokens, "--format", "cpp", "--no-build"]
    assert main([*words, "--out", str(tmp_path / "tokens")]) == 0
    assert np.load(tmp_path / "tokens" / "example" / "input0.npy").dtype == np.int64
    truth = ["--input", "token=1,5:int64;scale=1:bool"]
    assert main(["export", f"{tmp_path / 'm.py'}:Tokens", *truth, *end]) == 1
    assert "no C++ for input scale (bool)" in capsys.readouterr().err
    images = ["--input", "image=1,3,6,6;depth=1,1,6,6"]
    assert main(["export", f"{tmp_path / 'm.py'}:Pair", *images, *end, "--soc", "mi9"]) == 1
    assert "--soc mi9 with --format cpp" in capsys.readouterr().err
    assert not (tmp_path / "net").exists()


class Returns(nn.Module):
    """What may be returned: inputs, weights, views, numbers without dimensions, all also twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.weight = nn.Parameter(torch.randn(2, 3))
        self.gain = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor, unread: torch.Tensor, number: torch.Tensor) -> object:
        """Return them by name and in lists."""
        y = self.conv(x)
        rows = y.flatten(1)
        numbers = [y.mean(), number, number * self.gain]
        views = {"rows": rows, "again": y.flatten(1), "rows again": rows, "channel": x[:, 1]}
        return {"y": y, "x": x, "views": views}, (y, x), numbers, (self.weight, self.gain)


@pytest.mark.slow
def test_whatever_is_returned_is_what_the_module_returns(
    cpp_runtime: CppRuntime,  # noqa: F811
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(1, 3, 6, 6), torch.randn(1, 2), torch.tensor(2.0))
    module = Returns()
    computed = outputs_in_cpp(cpp_runtime, module, inputs, tmp_path)
    assert_close(computed, outputs_in_torch(module, inputs))


class Returned(nn.Module):
    """One thing that is returned."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what
        self.register_buffer("places", torch.tensor([2**24 + 1]))

    def forward(self, x: torch.Tensor) -> object:
        """Return it."""
        results = {"whole": self.places, "empty": x[:, :0], "nothing": None}
        return x * 2, results[self.what]


def test_what_is_no_tensor_of_numbers_is_refused_by_name() -> None:
    x = torch.zeros(1, 3, 6, 6)
    for what, reason in {
        "whole": "output places with places holds int64 beyond 2\\^24",
        "empty": "output slice_.* with a tensor without elements",
    }.items():
        with pytest.raises(UnsupportedOp, match=reason):
            translate_module(Returned(what), x)
    assert len(translate_module(Returned("nothing"), x).outputs) == 1
    with pytest.raises(CannotCapture, match="it returns no tensor"):
        translate_module(Nothing(), x)


class Nothing(nn.Module):
    """A network without a result."""

    def forward(self, x: torch.Tensor) -> None:
        """Return nothing."""


@pytest.mark.slow
def test_the_verb_takes_names_and_an_end_without_dimensions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "m.py").write_text(
        "import torch\n"
        "class Named(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return {'mean': x.mean(), 'inner': [x, x * 2]}\n"
        "class Mean(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.relu(x).mean()\n"
        "class Ids(torch.nn.Module):\n"
        "    def forward(self, ids):\n"
        "        return ids, ids.float()\n"
        "class Odd(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.erfinv(torch.special.i0(x)).mean()\n"
        "def deep():\n"
        "    return torch.nn.Sequential(torch.nn.Sequential(torch.nn.Conv3d(3, 4, 1)))\n"
    )
    end = ["--input", "1,3,6,6", "--format", "cpp", "--no-build", "--out"]
    for name, shapes in (("Named", [(), (1, 3, 6, 6), (1, 3, 6, 6)]), ("Mean", [()])):
        out = tmp_path / name
        assert main(["export", f"{tmp_path / 'm.py'}:{name}", *end, str(out)]) == 0
        files = sorted((out / "example").glob("output*.npy"))
        assert [np.load(path).shape for path in files] == shapes
    ids = ["export", f"{tmp_path / 'm.py'}:Ids", "--input", "1,3:int64", *end[2:]]
    assert main([*ids, str(tmp_path / "ids")]) == 0
    example = tmp_path / "ids" / "example"
    types = {path.stem: np.load(path).dtype.name for path in example.iterdir()}
    assert types == {"input0": "int64", "output0": "float32", "output1": "float32"}
    capsys.readouterr()
    assert main(["export", f"{tmp_path / 'm.py'}:Odd", *end, str(tmp_path / "odd")]) == 1
    assert "no C++ for special_i0 (1 times, in special_i0), erfinv" in capsys.readouterr().err
    deep = ["export", f"{tmp_path / 'm.py'}:deep", "--input", "1,3,4,4,4", *end[2:]]
    assert main([*deep, str(tmp_path / "deep")]) == 1
    assert "no C++ for conv3d (1 times, in 0.0), network" in capsys.readouterr().err
    onnx = ["--input", "1,3,6,6", "--out", str(tmp_path / "mean.nns")]
    assert main(["export", f"{tmp_path / 'm.py'}:Mean", *onnx]) == 0
