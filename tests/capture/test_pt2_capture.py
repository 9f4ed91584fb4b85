"""Programs saved by torch.export become graphs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.saved_programs import rewritten
from torch import nn

from nnstretch.capture import build, load_model, trace
from nnstretch.capture.pt2_file import read_pt2
from nnstretch.cli import run_verb
from nnstretch.errors import CannotCapture
from nnstretch.stretch import stretch
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.lowering.two_branch_plan import two_branches


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


class Writer(nn.Module):
    """A layer, a buffer, and a function of both."""

    def __init__(self, step: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(4, 4), step
        self.register_buffer("kept", torch.ones(1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(self, x)


def save_decomposed(module: nn.Module, path: Path) -> str:
    """Save a program that returns what it writes, too, for its caller to write there."""
    torch.export.save(torch.export.export(module, (X.clone(),)).run_decompositions(), path)
    return str(path)


X = torch.randn(1, 4, generator=torch.Generator().manual_seed(0))
WRITERS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "input": lambda m, x: m.layer(x.relu_()),
    "buffer": lambda m, x: m.kept.copy_(m.layer(x)) * 2,
}


@pytest.mark.parametrize("step", WRITERS.values(), ids=WRITERS)
def test_what_a_decomposed_program_writes_is_no_output(
    step: Callable[[Any, torch.Tensor], torch.Tensor], tmp_path: Path
) -> None:
    module = Writer(step).eval()
    loaded = load_model(save_decomposed(module, tmp_path / "net.pt2")).eval()
    torch.testing.assert_close(loaded(X.clone()), module(X.clone()))


def test_memory_of_a_decomposed_program_is_refused_by_name(tmp_path: Path) -> None:
    module = Writer(lambda m, x: m.layer(x) + m.kept.add_(1)).eval()
    path = save_decomposed(module, tmp_path / "net.pt2")
    with pytest.raises(CannotCapture, match=r"net, .*writes into kept, which the next inference"):
        load_model(path)


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


@pytest.mark.slow
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
