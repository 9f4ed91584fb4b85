"""From a profile to a plan: chips that a backend's rules, a simulator or a fallback price."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.fake_meter import FakeMeter, law_us
from support.quiet_watch import quiet_watch
from torch import nn

from nnstretch.capture.torch_export import capture
from nnstretch.cli import main
from nnstretch.errors import UnsupportedOp
from nnstretch.graph import Graph
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules, Kernel
from nnstretch.predict import load_soc, save_soc
from nnstretch.predictor import Estimate
from nnstretch.profile.profile_request import ProfileRequest
from nnstretch.profile.profile_run import ProfileRun, mark_noisy
from nnstretch.soc import Processor, Soc
from nnstretch.stretch import NetworkAnalysis
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan, uncovered_kernels
from nnstretch.stretch.search.search import search

BLOCKED = FusionRules(
    MOBILE_FUSION.pairs, False, ChannelBlockedLayout(16, 4, frozenset({"relu", "add"}))
)


class Simulator:
    """A described accelerator in miniature: no table of kernels, only lanes and a bandwidth."""

    processor = "npu"

    def estimate(self, kernel: Kernel, /) -> Estimate:
        rows = -(-kernel.cin // 32) * -(-kernel.cout // 32)
        latency_us = (
            1
            + rows * kernel.hw_out * kernel.kernel**2 / 1000
            + (kernel.read_elements + kernel.write_elements) / 16_000
        )
        return Estimate(latency_us, 0.2 * latency_us)


class Law:
    processor = "cpu"

    def estimate(self, kernel: Kernel, /) -> Estimate:
        if kernel.op == "mish":
            raise UnsupportedOp(
                f"operator 'mish' was never measured, kernel {kernel.name}, processor cpu"
            )
        return Estimate(law_us(kernel), 0.0)


def chip(cpu_rules: FusionRules = MOBILE_FUSION) -> Soc:
    processors = (Processor("cpu", "cpu", 1), Processor("npu", "npu", 2))
    return Soc(
        "bench", processors, "int8", {"cpu": Law(), "npu": Simulator()}, fusion={"cpu": cpu_rules}
    )


def network(activation: type[nn.Module] = nn.ReLU) -> Graph:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, padding=1), activation()]
    for _ in range(4):
        layers += [nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), activation()]
    return capture(nn.Sequential(*layers).eval(), torch.zeros(1, 3, 32, 32), "net")


def test_a_simulating_predictor_takes_part_in_a_search() -> None:
    found = search(network(), chip(), ("cpu", "npu"))
    assert set(found.original_us) == {"cpu", "npu"}
    assert found.plans[0].trial.latency_us <= min(found.original_us.values())


def test_every_processor_is_priced_by_what_its_own_backend_fuses() -> None:
    graph, cost_model = network(), CostModel(chip(BLOCKED))
    cpu, npu = cost_model.fuse_kernels(graph, "cpu"), cost_model.fuse_kernels(graph, "npu")
    assert [k.op for k in cpu if k.kind == "reorder"] == ["to_plain"]
    assert not [k for k in npu if k.kind == "reorder"]
    assert cost_model.estimate_graph(graph, "cpu").latency_us == pytest.approx(
        sum(map(law_us, cpu))
    )


def test_a_search_under_blocked_layouts_prices_its_plans_as_predict_does() -> None:
    soc, graph = chip(BLOCKED), network()
    found = search(graph, soc, ("cpu", "npu"), top=3)
    for plan in found.plans:
        from nnstretch.stretch.lowering.lower import lower

        assert estimate_plan(
            lower(NetworkAnalysis(graph), plan.trial.plan), soc
        ).latency_us == pytest.approx(plan.trial.latency_us)


class Gaps(Law):
    """A predictor of neither global pooling nor the kind that stands in for it."""

    def estimate(self, kernel: Kernel, /) -> Estimate:
        if kernel.kind in ("gap", "add"):
            raise UnsupportedOp(f"no {kernel.kind}, kernel {kernel.name}, processor cpu")
        return super().estimate(kernel)


def test_a_fallback_without_a_price_is_not_what_the_refusal_advises() -> None:
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1)
    )
    graph = capture(layers.eval(), torch.zeros(1, 3, 16, 16), "net")
    soc = replace(chip(), predictors={"cpu": Gaps()})
    for fallback, advice in (
        (None, "allow fallback nearest"),
        ("nearest", "fallback nearest has no price either"),
    ):
        with pytest.raises(UnsupportedOp) as refusal:
            search(graph, soc, ("cpu",), fallback=fallback)
        told = str(refusal.value)
        assert told.startswith("1 kernel was never measured (")
        assert told.endswith(f"), net on bench, {advice}")


def test_what_was_never_measured_is_refused_unless_a_fallback_is_named() -> None:
    graph, soc = network(nn.Mish), chip()
    soc = replace(soc, fusion={"cpu": FusionRules(frozenset({("conv", "batch_norm")}))})
    names = [kernel.name for kernel in uncovered_kernels(graph, soc, ("cpu", "npu"))]
    assert len(names) == 5
    named = ", ".join(f"activation {name}" for name in names)
    with pytest.raises(
        UnsupportedOp,
        match=(
            rf"^5 kernels were never measured \({named}\), net on bench, allow"
            r" fallback nearest$"
        ),
    ):
        search(graph, soc, ("cpu", "npu"))
    found = search(graph, soc, ("cpu", "npu"), fallback="nearest")
    assert set(names) <= set(found.fallbacks)
    assert set(found.fallbacks.values()) == {"add"}
    cost_model = CostModel(soc, "nearest")
    (kernel,) = (k for k in cost_model.fuse_kernels(graph, "cpu") if k.name == names[0])
    assert cost_model.estimate_kernel(kernel, "cpu").latency_us >= law_us(kernel)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("chips") / "latency_predictors" / "host"
    out.parent.mkdir()
    ProfileRun(
        ProfileRequest(out, 60, most=1200),
        FakeMeter(frozenset({("conv", "relu"), ("conv", "add")})),
        lambda *_: None,
        watch=quiet_watch(),
    ).run()
    return out


@pytest.mark.slow
def test_a_profiled_chip_is_found_by_name_and_priced_with_intervals(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent.parent)
    assert load_soc("host").name == "host"
    assert main(["predict", "torchvision:resnet18", "--soc", "host", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["uncovered"] == []
    assert found["calibrated"] is True
    for row in found["kernels"]:
        low, high = row["interval_ms"]
        assert 0 < low <= row["latency_ms"] <= high


@pytest.mark.slow
def test_a_noisy_chip_says_so_in_its_file_and_in_every_prediction(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soc = load_soc(folder)
    assert soc.noisy == ""
    save_soc(mark_noisy(soc, "9 of 60 s lost to other work"), tmp_path / "loud")
    assert json.loads((tmp_path / "loud" / "cpu0.json").read_text())["noisy"]
    assert load_soc(tmp_path / "loud").noisy == "9 of 60 s lost to other work"
    for verb in ("predict", "search"):
        command = [verb, "torchvision:resnet18", "--soc", str(tmp_path / "loud")]
        assert main([*command, "--processors", "cpu0", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["noisy"] == "9 of 60 s lost to other work"
    assert main(command) == 0
    assert "noisy: 9 of 60 s lost to other work" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--backend", "tensorrt"],
            (
                "nnstretch: unknown backend 'tensorrt', profile, known are onnxruntime, litert,"
                " openvino, torch"
            ),
        ),
        (
            ["--backend", "onnxruntime", "--dtype", "int8"],
            "nnstretch: unknown element type 'int8', backend onnxruntime, it has float32",
        ),
        (
            ["--validate", "resnet50"],
            (
                "nnstretch: --validate is 'resnet50', command line, write few, all, none, or"
                " networks as in"
            ),
        ),
        (
            ["--processors", "big=99"],
            ("nnstretch: processors is 'big=99', profile, write NAME=CORE,... with cores among"),
        ),
    ],
)
def test_a_profile_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--out", str(tmp_path / "chip"), *arguments]) == 1
    told = capsys.readouterr().err.strip()
    assert told.startswith(line)
    assert "\n" not in told


@pytest.mark.slow
def test_a_chip_nobody_measured_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["predict", "torchvision:resnet18", "--soc", "pixel6"],):
        assert main(arguments) == 0
        assert "not calibrated" in capsys.readouterr().out
        assert main([*arguments, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["calibrated"] is False
