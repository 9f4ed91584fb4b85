"""What `inspect` and `predict` say of attention and of networks with several outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli.test_cli import refused

from nnstretch.cli import main

NETS = """
from torch import nn

class Attention(nn.Module):
    input_shape = (3, 32, 32)
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 10)
    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(tokens).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).mean(1))

class TwoHeads(nn.Module):
    input_shape = (3, 32, 32)
    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(3, 16, 3, 2, 1)
        self.boxes = nn.Conv2d(16, 4, 1)
        self.classes = nn.Conv2d(16, 10, 1)
    def forward(self, x):
        x = self.body(x).relu()
        return self.boxes(x), self.classes(x)

class SharedHead(TwoHeads):
    def forward(self, x):
        x = self.body(x).relu()
        return self.boxes(x), self.boxes(-x), self.classes(x)
"""
ATTENTION_MACS = 2 * 16 * 16 * 32
"""Scores and mix of 16 tokens of width 32."""


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nets") / "nets.py"
    path.write_text(NETS)
    return path


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    status = main(list(argv))
    out, err = capsys.readouterr()
    assert (status, err) == (0, ""), err
    return str(out)


def test_inspect_counts_attention_and_says_by_which_convention(
    capsys: pytest.CaptureFixture[str], nets: Path
) -> None:
    result = json.loads(printed(capsys, "inspect", f"{nets}:Attention", "--json"))
    assert result["attention_macs"] == ATTENTION_MACS
    layers = 16 * 32 * 192 + 16 * 32 + 16 * (32 * 96 + 96) + 32 * 10 + 10
    assert result["macs"] == layers
    assert "attention_macs" in result["macs_convention"]
    assert sum(op["attention_macs"] for op in result["ops"]) == ATTENTION_MACS
    assert sum(unit["attention_macs"] for unit in result["units"]) == ATTENTION_MACS
    text = printed(capsys, "inspect", f"{nets}:Attention")
    assert "MMACs of attention" in text


def test_an_output_that_is_not_there_is_no_fault_of_the_network(
    capsys: pytest.CaptureFixture[str], nets: Path
) -> None:
    line = refused(capsys, "inspect", f"{nets}:TwoHeads#layer9")
    assert line.startswith("nnstretch: unknown output 'layer9'")


def test_inspect_lists_modules_where_there_is_no_cut(
    capsys: pytest.CaptureFixture[str], nets: Path
) -> None:
    result = json.loads(printed(capsys, "inspect", f"{nets}:TwoHeads", "--json"))
    assert [output["shape"] for output in result["outputs"]] == [[1, 4, 16, 16], [1, 10, 16, 16]]
    assert (result["cuts"], result["units"]) == ([], [])
    text = printed(capsys, "inspect", f"{nets}:TwoHeads")
    for module in ("body", "boxes", "classes"):
        assert re.search(rf"\b{module}\b.*\d", text), text


def test_weights_that_several_calls_read_count_once(
    capsys: pytest.CaptureFixture[str], nets: Path
) -> None:
    result = json.loads(printed(capsys, "inspect", f"{nets}:SharedHead", "--json"))
    assert sum(op["params"] for op in result["ops"]) == result["params"]
    assert [op["params"] for op in result["ops"] if op["module"] == "boxes"] == [16 * 4 + 4, 0]


def test_predict_prices_all_outputs(capsys: pytest.CaptureFixture[str], nets: Path) -> None:
    result = json.loads(printed(capsys, "predict", f"{nets}:TwoHeads", "--soc", "mi9", "--json"))
    assert result["uncovered"] == []
    kernels_ms = dict.fromkeys(result["latency_ms"], 0.0)
    for row in result["kernels"]:
        kernels_ms[row["processor"]] += row["latency_ms"]
    to_host_kib = (4 + 10) * 16 * 16 / 1024
    copies_ms = 0.1106 + 0.4204 * (3 * 32 * 32 / 1024 + to_host_kib) / 1000
    assert result["latency_ms"]["dsp"] == pytest.approx(kernels_ms["dsp"] + copies_ms)


def test_predict_names_what_was_never_measured(
    capsys: pytest.CaptureFixture[str], nets: Path
) -> None:
    command = ("predict", f"{nets}:Attention", "--soc", "mi9", "--processors", "cpu")
    result = json.loads(printed(capsys, *command, "--json"))
    attention = "scaled_dot_product_attention"
    assert attention in result["uncovered"]
    doubts = {row["name"]: row for row in result["outside"]}
    assert doubts[attention]["reason"] == "kind matmul was never measured"
    assert doubts["conv2d"]["reason"].startswith("macs 9.882e+04, measured ")
    errors = {row["name"]: row["error_ms"] / row["latency_ms"] for row in result["kernels"]}
    assert errors[attention] > errors["conv2d"] > 0.2
    text = printed(capsys, *command)
    assert "cpu: matmul scaled_dot_product_attention (kind matmul was never measured)" in text
