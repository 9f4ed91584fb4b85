"""The command line: one JSON object, exit statuses, and one line that names the culprit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.cli import main, overview
from nnstretch.cli.verbs import VERBS

DATA = Path(__file__).parents[1] / "data" / "nn_stretch"


NET = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.down = nn.Conv2d(cin, cout, 1, stride, bias=False) if stride > 1 or cin != cout else nn.Identity()
    def forward(self, x):
        return torch.relu(self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.down(x))

class Net(nn.Module):
    input_shape = (3, 32, 32)
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU())
        self.stage1 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.stage2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(128, 10)
    def forward(self, x):
        return self.fc(self.pool(self.stage2(self.stage1(self.stem(x)))).flatten(1))

class Choosing(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x * 2
        return x - 1

def make():
    return Net()

def choosing():
    return Choosing()

def broken():
    raise ValueError("no such thing")
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    (folder / "net.py").write_text(NET)
    return folder


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = main(list(argv))
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    status, out, err = called(capsys, *argv)
    assert status == 1, err
    assert out == ""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    assert lines[0].startswith("nnstretch: ")
    return lines[0]


def test_the_overview_imports_no_verb() -> None:
    code = (
        "import sys; from nnstretch.cli import main; main(['--help']);"
        " assert not {'numpy', 'yaml', 'nnstretch.cli.inspect', 'nnstretch.plan'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_every_verb_teaches() -> None:
    for verb in VERBS:
        assert f"  {verb.name} " in overview()
    shown = subprocess.run(
        [sys.executable, "-m", "nnstretch.cli", "search", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "--min-macs" in shown
    assert "nnstretch search torchvision:resnet18" in shown


def test_no_verb_and_unknown_verb_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert called(capsys)[0] == 2
    status, _, err = called(capsys, "dance")
    assert status == 2
    assert "unknown verb 'dance'" in err


def test_inspect_names_cuts_units_and_repeats(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    status, out, _ = called(capsys, "inspect", f"{work}/net.py:make", "--json")
    result = json.loads(out)
    assert status == 0
    assert result["input_shape"] == [1, 3, 32, 32]
    assert result["cuts"] == [
        "stem",
        "stage1.0",
        "stage1.1",
        "stage1",
        "stage2.0",
        "stage2",
        "pool",
        "flatten",
        "output",
    ]
    assert [u["repeat_of"] for u in result["units"]][1:6] == [
        None,
        "stage1.0",
        "stage1.0",
        None,
        "stage2.0",
    ]
    assert (
        sum(u["macs"] for u in result["units"])
        == result["macs"]
        == sum(o["macs"] for o in result["ops"])
    )
    assert sum(u["params"] for u in result["units"]) == result["params"]


@pytest.mark.slow
def test_the_whole_path_on_a_small_network(capsys: pytest.CaptureFixture[str], work: Path) -> None:
    model, plan, bundle = f"{work}/net.py:make", str(work / "plan.yaml"), str(work / "net.nns")
    status, out, _ = called(
        capsys,
        "search",
        model,
        "--soc",
        "mi9",
        "--top",
        "2",
        "--width-steps",
        "4",
        "--out",
        plan,
        "--json",
    )
    found = json.loads(out)
    assert status == 0
    assert found["optimal"]
    assert found["lower_bound_ms"] == pytest.approx(found["plans"][0]["latency_ms"])

    _, out, _ = called(capsys, "predict", plan, "--soc", "mi9", "--json")
    predicted = json.loads(out)
    assert predicted["plan_latency_ms"] == pytest.approx(found["plans"][0]["latency_ms"])
    assert predicted["uncovered"] == []

    _, out, _ = called(capsys, "export", plan, "--out", bundle, "--json")
    exported = json.loads(out)
    assert exported["max_abs_error"] < 1e-4
    assert exported["predicted_ms"] == pytest.approx(predicted["plan_latency_ms"])

    traces = []
    for name in ("one", "two"):
        trace = str(work / f"{name}.json")
        _, out, _ = called(
            capsys,
            "run",
            bundle,
            "--soc",
            "mi9",
            "--mode",
            "spatial",
            "--clock",
            "virtual",
            "--trace",
            trace,
            "--json",
        )
        ran = json.loads(out)
        traces.append(Path(trace).read_bytes())
    assert traces[0] == traces[1], "the virtual clock repeats itself"
    assert ran["latency_ms"]["median"] == pytest.approx(predicted["plan_latency_ms"])
    assert ran["max_abs_error"] < 1e-4


def test_predict_a_network_and_operator_lists(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    _, out, _ = called(
        capsys,
        "predict",
        f"{work}/net.py:make",
        "--soc",
        "mi9",
        "--processors",
        "cpu,gpu",
        "--json",
    )
    result = json.loads(out)
    assert set(result["latency_ms"]) == {"cpu", "gpu"}
    assert all(k["error_ms"] > 0 for k in result["kernels"])
    _, out, _ = called(
        capsys, "predict", "--ops", str(DATA / "ops_mi9.csv"), "--soc", "mi9", "--json"
    )
    assert len(json.loads(out)["plans"]) == 24


@pytest.mark.slow
def test_bad_input_is_one_line_that_names_the_culprit(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    good = (
        "format: 1\nmodel: {model}\ninput_shape: [1, 3, 32, 32]\nsegments:\n- {{start: input, end:"
        " {cut}, branches: [{{processor: {p}, width: {w}}}, {{processor: dsp, width: 64}}]}}\n-"
        " {{start: {cut}, end: output, branches: [{{processor: cpu}}]}}\n"
    )

    def plan(name: str, cut: str = "stage1", p: str = "cpu", w: object = 64) -> str:
        (work / name).write_text(good.format(model=f"{work}/net.py:make", cut=cut, p=p, w=w))
        return str(work / name)

    assert "nosuch" in refused(capsys, "predict", plan("a.yaml", cut="nosuch"), "--soc", "mi9")
    assert "'npu'" in refused(capsys, "predict", plan("b.yaml", p="npu"), "--soc", "mi9")
    assert "width, 0 is out of range" in refused(
        capsys, "predict", plan("c.yaml", w=0), "--soc", "mi9"
    )
    assert "nowhere.onnx" in refused(capsys, "inspect", f"{work}/nowhere.onnx")
    assert "nowhere.py" in refused(capsys, "inspect", f"{work}/nowhere.py:make")
    assert "'torchvision:resnet19'" in refused(capsys, "inspect", "torchvision:resnet19")
    assert "choosing" in refused(capsys, "inspect", f"{work}/net.py:choosing")
    assert "no such thing" in refused(capsys, "inspect", f"{work}/net.py:broken")
    assert "1x5x32x32" in refused(capsys, "inspect", f"{work}/net.py:make", "--input", "1,5,32,32")
    assert "'nochip'" in refused(capsys, "predict", f"{work}/net.py:make", "--soc", "nochip")
    assert "--min-macs" in refused(
        capsys, "search", f"{work}/net.py:make", "--soc", "mi9", "--min-macs", "lots"
    )
    assert "no folder" in refused(
        capsys, "export", f"{work}/net.py:make", "--out", str(work / "gone" / "x.nns")
    )


def test_a_refused_export_leaves_the_old_bundle(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    out = work / "kept.nns"
    out.write_bytes(b"old")
    refused(
        capsys,
        "export",
        f"{work}/net.py:make",
        "--weights",
        str(work / "none.safetensors"),
        "--out",
        str(out),
    )
    assert out.read_bytes() == b"old"
    assert [p.name for p in work.iterdir() if p.name.startswith(".kept")] == []


@pytest.mark.slow
def test_import_gives_the_published_counts_and_refuses_contradictions(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    _, out, _ = called(
        capsys,
        "import",
        str(DATA / "example_R-34-CD.yaml"),
        "--out",
        str(work / "r34.yaml"),
        "--json",
    )
    assert json.loads(out)["params"] == 13_457_320
    text = (DATA / "example_R-34-CD.yaml").read_text().replace("  - 304\n", "  - 300\n")
    (work / "bad.yaml").write_text(text)
    line = refused(capsys, "import", str(work / "bad.yaml"))
    assert "300" in line
    assert "144 + 160 = 304" in line


ODD = """
import torch
from torch import nn
class Id(nn.Module):
    def forward(self, x):
        return x
class Const(nn.Module):
    def forward(self, x):
        return torch.zeros(1, 4)
def leaving():
    raise SystemExit(5)
def chatty():
    print("hello from the factory")
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten())
"""


def test_odd_models_are_refused_or_read_in_silence(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    (work / "odd.py").write_text(ODD)
    assert "does not depend on its input" in refused(
        capsys, "inspect", f"{work}/odd.py:Const", "--input", "1,3,8,8"
    )
    assert "leaving" in refused(capsys, "inspect", f"{work}/odd.py:leaving")
    status, out, _ = called(
        capsys, "inspect", f"{work}/odd.py:chatty", "--input", "1,3,8,8", "--json"
    )
    assert status == 0
    assert json.loads(out)["macs"] == 8 * 36 * 28
    status, out, _ = called(capsys, "inspect", f"{work}/odd.py:Id", "--input", "1,3,8,8", "--json")
    assert json.loads(out)["cuts"] == []
    assert "too large" in refused(
        capsys, "inspect", f"{work}/odd.py:Id", "--input", "1,3,99999999999,64"
    )


def test_an_output_never_replaces_the_commands_own_input(
    capsys: pytest.CaptureFixture[str], work: Path
) -> None:
    model = work / "own.py"
    model.write_text(NET)
    assert "own input" in refused(
        capsys, "search", f"{model}:make", "--soc", "mi9", "--out", str(model)
    )
    assert "own input" in refused(
        capsys,
        "import",
        str(DATA / "example_R-34-CD.yaml"),
        "--out",
        str(DATA / "example_R-34-CD.yaml"),
    )
    assert model.read_text() == NET


def test_contradictory_settings_are_named(capsys: pytest.CaptureFixture[str], work: Path) -> None:
    model = f"{work}/net.py:make"
    assert "name each once" in refused(
        capsys, "predict", model, "--soc", "mi9", "--processors", "cpu,cpu"
    )
    assert "cannot be at least" in refused(
        capsys, "search", model, "--soc", "mi9", "--min-macs", "0.9x", "--max-macs", "0.5x"
    )
