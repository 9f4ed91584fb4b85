"""The verb `bench`: what it measures and tells, and one line for what it cannot."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.bundles import branched_bundle
from support.small_plan import write_plan_of_small_net
from torch import nn

from nnstretch.bench.contenders import (
    CONCURRENT,
    ONE_CORE,
    SEQUENTIAL,
    BenchVariant,
)
from nnstretch.bench.prepare import (
    BenchForm,
    random_inputs,
    requested_forms,
    settle_norms,
    warn_low_snr,
)
from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli import main, run_verb
from nnstretch.cli.bench.result import options
from nnstretch.errors import BadInput
from nnstretch.files.plan_yaml import plan_text, read_plan
from nnstretch.plan import Branch, Segment

pytestmark = pytest.mark.usefixtures("no_thread_stays_behind", "affinity_is_restored")


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan_of_small_net(tmp_path_factory.mktemp("bench"))


def benched(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert run_verb("bench", [*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert run_verb("bench", [*map(str, argv)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.slow
def test_a_plan_is_measured_and_told(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = benched(capsys, plan, "--runs", 3, "--out", tmp_path / "page.md")
    (one,) = found["variants"]
    assert (one["backend"], one["precision"], found["skipped"]) == ("onnxruntime", "float32", {})
    assert {ONE_CORE, SEQUENTIAL, CONCURRENT} <= one["contenders"].keys()
    assert one["contenders"][ONE_CORE]["speedup"] == 1.0
    assert "what the model starts with" in found["weights"]
    text = (tmp_path / "page.md").read_text()
    assert f"nnstretch bench {plan} --runs 3" in text
    assert f"| onnxruntime float32 | {CONCURRENT} |" in text


def test_branches_of_another_plan_are_not_measured_as_these(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = branched_bundle().manifest
    planned = read_plan(plan)
    whole = replace(planned, segments=(Segment("input", "output", (Branch("cpu"),)),))
    manifest = replace(manifest, model=planned.model, plan=plan_text(whole))
    write_bundle(tmp_path / "whole.nns", manifest, branched_bundle().files)
    told = refused(capsys, plan, "--bundle", tmp_path / "whole.nns")
    assert "whole.nns has other branches than" in told


INNER = """
from torch import nn

def make(inner=8, outer=8):
    first = nn.Sequential(nn.Conv2d(3, inner, 3, 2, 1), nn.ReLU(), nn.Conv2d(inner, outer, 3, 2, 1), nn.ReLU())
    return nn.Sequential(first, nn.Flatten(), nn.Linear(outer * 16, 10))
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "litert"])
def test_branches_of_an_older_network_are_not_measured_beside_the_present_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    network, plan, bundle = (tmp_path / name for name in ("net.py", "plan.yaml", "net.nns"))
    network.write_text(INNER)
    plan.write_text(
        f"format: 1\nmodel: {network}:make\ninput: [1, 3, 16, 16]\nsegments:\n"
        "  - {end: '0', processor: cpu}\n  - {end: output, processor: cpu}\n"
    )
    argv = ["export", str(plan), "--out", str(bundle), "--format", form, "--json"]
    assert main(argv) == 0
    capsys.readouterr()
    network.write_text(INNER.replace("inner=8", "inner=6"))
    told = refused(capsys, plan, "--bundle", bundle)
    assert "than the one that is there now, bench, sub-graph s0.cpu has a kernel of 216" in told
    network.write_text(INNER.replace("outer=8", "outer=6"))
    told = refused(capsys, plan, "--bundle", bundle)
    assert "sub-graph s0.cpu writes 128 numbers and its branch now 96, export it again" in told


@pytest.mark.slow
def test_a_bundle_exported_before_is_measured_for_people(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_verb("export", [str(plan), "--out", str(tmp_path / "net.nns"), "--json"]) == 0
    capsys.readouterr()
    assert run_verb("bench", [str(plan), "--bundle", str(tmp_path / "net.nns"), "--runs", "2"]) == 0
    other = branched_bundle()
    write_bundle(tmp_path / "other.nns", other.manifest, other.files)
    assert "us per meeting point" in " ".join(capsys.readouterr().out.split())
    assert "other.nns is of test:branched, bench, the plan stretches" in refused(
        capsys, plan, "--bundle", tmp_path / "other.nns"
    )


class Deep(nn.Sequential):
    """Twenty layers that each leave a tenth of what they read, with norms that have seen
    nothing.
    """

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for _ in range(20):
            conv = nn.Conv2d(3, 3, 1, bias=False)
            conv.weight.data = 0.1 * torch.eye(3)[:, :, None, None]
            layers += [conv, nn.BatchNorm2d(3)]
        super().__init__(*layers)


@pytest.mark.parametrize("settled", [True, False])
def test_norms_of_random_weights_see_what_reaches_them(settled: bool) -> None:
    inputs = random_inputs((1, 3, 8, 8))
    with torch.no_grad():
        network = settle_norms(Deep().eval(), inputs if settled else None)
        deviation = float(network(torch.cat(inputs)).std())
    assert not network.training
    assert (0.9 < deviation < 1.1) if settled else deviation < 1e-6


def test_networks_without_norms_stay_as_they_are() -> None:
    network = nn.Flatten(0)  # takes one image only
    assert settle_norms(network, [torch.zeros(1, 3, 8, 8)]) is network


def test_int8_alone_is_of_litert() -> None:
    given = {
        "backend": None,
        "weights": None,
        "bundle": None,
        "calibration": "random",
        "calibration_images": None,
        "runs": 3,
        "seconds": None,
    }
    only = Namespace(int8=True, only_int8=True, **given)
    assert requested_forms(None, True, True, None) == [BenchForm("litert", "litert", True)]
    assert [name for name in options(only) if "int8" in name] == ["only-int8"]
    too = Namespace(int8=True, only_int8=False, **given)
    assert requested_forms(None, True, False, None) == [
        BenchForm("onnxruntime", "onnx", False),
        BenchForm("litert", "litert", False),
        BenchForm("litert", "litert", True),
    ]
    assert [name for name in options(too) if "int8" in name] == ["int8"]


@pytest.mark.parametrize("only", [False, True])
def test_int8_of_a_bundle_that_is_float32_is_refused(only: bool) -> None:
    bundle = branched_bundle()
    assert requested_forms(None, False, False, bundle) == [BenchForm("onnxruntime", "onnx", False)]
    with pytest.raises(BadInput, match="is float32, bench, leave --int8 out"):
        requested_forms(None, True, only, bundle)


def test_int8_too_faint_for_use_is_told_and_measured() -> None:
    bundle = branched_bundle(predicted=False)
    ratios = (None, 4.04, 12.0)
    assert warn_low_snr(
        [BenchVariant("litert", "int8", bundle, bundle, ratio) for ratio in ratios]
    ) == ["litert int8: random weights leave a signal-to-noise ratio of 4.0 dB, for times only"]


def test_what_cannot_be_measured_is_one_line(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "torchvision:resnet18 is no plan, bench" in refused(capsys, "torchvision:resnet18")
    assert "unknown backend 'tvm', --backend" in refused(capsys, plan, "--backend", "tvm")
    twice = "onnxruntime,onnxruntime"
    assert f"--backend {twice}, command line" in refused(capsys, plan, "--backend", twice)
    assert "--int8 with --backend onnxruntime" in refused(
        capsys, plan, "--backend", "onnxruntime", "--int8", "--calibration", "random"
    )
    assert "--int8 without --calibration" in refused(capsys, plan, "--int8")
    assert "--int8 without --calibration" in refused(capsys, plan, "--only-int8")
    only = ("--only-int8", "--calibration", "random")
    assert "--only-int8 with --backend litert,onnxruntime" in refused(
        capsys, plan, "--backend", "litert,onnxruntime", *only
    )
    assert "without --int8" in refused(capsys, plan, "--calibration", "random")
    few = ("--calibration-images", "5")
    assert "--calibration-images 5 without --int8, command line" in refused(capsys, plan, *few)
    assert "--calibration-images 5 with --calibration random" in refused(capsys, plan, *few, *only)
    assert "a bundle brings its own" in refused(capsys, plan, "--bundle", "a.nns", "--weights", "b")
    assert "no bundle" in refused(capsys, plan, "--bundle", tmp_path / "none.nns")
    assert "no folder" in refused(capsys, plan, "--out", tmp_path / "nowhere" / "page.md")
    assert "cannot write" in refused(capsys, plan, "--out", plan)


@pytest.mark.parametrize(
    "argv",
    [["--runs", "0"], ["--seconds", "0"], ["--seconds", "nan"], ["--runs", "3", "--seconds", "3"]],
)
def test_wrong_usage_is_status_2(plan: Path, argv: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_verb("bench", [str(plan), *argv])
    assert stopped.value.code == 2
