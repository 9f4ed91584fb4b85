"""Requests for formats that do not go together are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

pytest.importorskip("litert_torch")
pytest.importorskip("ai_edge_quantizer")

from support.exports import PLAN, SHAPE, images, tiny

from nnstretch.errors import BadInput, Mismatch, UnsupportedOp
from nnstretch.export.bundle import export, export_bundle
from nnstretch.export.litert.int8 import SharedScaleGroups, check_inputs, require_equal_formats
from nnstretch.export.single_file import export_single
from nnstretch.export.subgraph_specs import ExportRequest
from nnstretch.export.verify import check_snr, snr_db
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.predict import load_soc
from nnstretch.stretch import stretch
from nnstretch.stretch.cost.cost_model import estimate_plan
from nnstretch.trial import Trial


@pytest.fixture(scope="module")
def module() -> nn.Module:
    return tiny()


def trial_on(soc: str) -> Trial:
    return estimate_plan(tiny().lowered, load_soc(soc))


LARGER = replace(PLAN, input_shape=(1, 3, 32, 32))
OTHER = replace(PLAN, segments=(Segment("input", "stem", (Branch("dsp"),)), *PLAN.segments[1:]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"format": "cpp"}, "unknown format cpp, export of tiny, it is one of onnx, litert"),
        (
            {"int8": True, "calibration": []},
            "int8 of format onnx, export of tiny, only litert has it",
        ),
        ({"format": "litert", "int8": True}, "int8 without calibration inputs, export of tiny"),
        (
            {"plan": replace(PLAN, segments=PLAN.segments[:1])},
            "module has 3 segments and its plan 1",
        ),
        ({"plan": OTHER}, "module is of another plan, export of tiny"),
        ({"plan": LARGER}, "module is of another plan, export of tiny"),
        ({"trial": Trial(OTHER, (), 0, 0)}, "trial is of another plan, export of tiny"),
        ({"trial": Trial(LARGER, (), 0, 0)}, "trial is of another plan, export of tiny"),
        ({"calibration": []}, "calibration inputs without int8, export of tiny, nothing else"),
        (
            {"calibration": [], "format": "litert"},
            "calibration inputs without int8, export of tiny",
        ),
        (
            {"trial": trial_on("mi9"), "soc": load_soc("mi11")},
            "trial is of chip mi9 and soc is mi11, export of tiny, predict the plan on the chip",
        ),
    ],
)
def test_requests_that_do_not_go_together_are_refused(
    module: nn.Module, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadInput, match=f"^{why}"):
        replace(ExportRequest(module, PLAN), **change)


def test_a_trial_of_the_chip_is_taken_whatever_chip_its_plan_was_found_for(
    module: nn.Module,
) -> None:
    trial, of_nobody = trial_on("mi11"), Trial(PLAN, (), 0, 0)
    plan = replace(PLAN, soc="mi9")
    for soc in (load_soc("mi11"), None):
        assert ExportRequest(module, plan, trial=trial, soc=soc).trial is trial
    assert ExportRequest(module, plan, trial=of_nobody, soc=load_soc("mi11")).trial is of_nobody


@pytest.mark.slow
def test_a_trial_brings_times_and_its_chip_and_a_chip_alone_no_times(
    module: nn.Module, tmp_path: Path
) -> None:
    trial, soc = trial_on("mi9"), load_soc("mi9")
    for brought, name, is_predicted, has_kinds in (
        ({"trial": trial}, "mi9", True, False),
        ({"trial": replace(trial, soc="")}, None, True, False),
        ({"soc": soc}, "mi9", False, True),
        ({"trial": trial, "soc": soc}, "mi9", True, True),
        ({}, None, False, False),
    ):
        manifest = export(module, PLAN, tmp_path / "net.nns", **brought)
        assert manifest.soc == name
        assert manifest.is_predicted == is_predicted
        assert bool(manifest.processor_kinds) == has_kinds


def test_calibration_inputs_may_lie_in_one_tensor(module: nn.Module) -> None:
    inputs = torch.rand(3, *SHAPE)
    request = ExportRequest(module, PLAN, "litert", int8=True, calibration=inputs)
    assert torch.equal(torch.stack(list(check_inputs(request))), inputs)
    request = replace(request, calibration=inputs.numpy())  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"^calibration input is ndarray, export of tiny"):
        list(check_inputs(request))


def test_weights_of_another_precision_are_refused(module: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^weights are torch.float16, export of tiny"):
        export(copy.deepcopy(module).half(), PLAN, tmp_path / "a.nns")


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ([], "no calibration inputs, int8 of tiny"),
        ([torch.zeros(1, 3, 8, 8)], r"calibration input is \(1, 3, 8, 8\) torch.float32"),
        ([np.zeros((1, 3, 16, 16))], "calibration input is ndarray, export of tiny"),
        (
            [torch.full((1, 3, 16, 16), torch.nan)],  # the quantizer would end the process
            "calibration input holds nan or infinity, export of tiny",
        ),
    ],
)
def test_calibration_inputs_that_do_not_fit_are_refused(
    module: nn.Module,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inputs: list[torch.Tensor],
    why: str,
) -> None:
    monkeypatch.setattr("nnstretch.export.litert.int8.float_files", lambda *_: {})
    with pytest.raises(BadInput, match=f"^{why}"):
        export(module, PLAN, tmp_path / "a.nns", format="litert", int8=True, calibration=inputs)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20), st.floats(-60, 60))
def test_the_ratio_is_in_decibels_of_power(signal: list[float], ratio_db: float) -> None:
    expected = np.array(signal) + 200
    assert snr_db(expected, expected * (1 + 10 ** (-ratio_db / 20))) == pytest.approx(
        ratio_db, abs=1e-3
    )


def test_int8_that_drowns_in_noise_is_refused() -> None:
    y = np.ones((1, 4), np.float32)
    assert check_snr([y, y], [y, y], "net") == 200
    with pytest.raises(
        Mismatch,
        match=(
            r"^int8 of net has a signal-to-noise ratio of 6\.0 dB, 1 calibration inputs, at least"
            r" 10 are needed; "
        ),
    ):
        check_snr([y], [1.5 * y], "net")
    assert check_snr([y], [1.5 * y], "net", 6.0) == pytest.approx(6.02, abs=0.01)
    with pytest.raises(Mismatch, match=r"at least 7 are needed; "):
        check_snr([y], [1.5 * y], "net", 7.0)
    assert snr_db(0 * y, y) == -200


def test_groups_join_through_what_they_share() -> None:
    groups = SharedScaleGroups()
    for one, other in (("a", "b"), ("c", "d"), ("b", "c"), ("x", "y")):
        groups.tie(("s", one), ("s", other))
    groups.tie(("", "cut"), ("s", "d"))
    assert [sorted(name for _, name in group) for group in groups.boundary_groups()] == [
        ["a", "b", "c", "cut", "d"]
    ]


def test_of_two_that_differ_the_writer_is_named() -> None:
    forms = [("writer", ("int8", 0.5, 0)), ("reader", ("int8", 0.25, 3))]
    with pytest.raises(
        UnsupportedOp,
        match=(
            r"^sub-graph writer holds cut as int8 of scale 0\.5 and zero point 0, int8 of net, its"
            r" neighb"
        ),
    ):
        require_equal_formats("cut", forms, "net")


@pytest.mark.slow
def test_a_file_that_a_session_would_refuse_is_not_written(tmp_path: Path) -> None:
    maps = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.MaxPool3d(2)).eval()
    plan = Plan("maps", (1, 1, 4, 4, 4), (Segment("input", "output", (Branch("cpu"),)),))
    with pytest.raises(
        UnsupportedOp, match=r"cannot export maps as litert, sub-graph s0\.cpu, .*graphs"
    ):
        export(stretch(maps, plan), plan, tmp_path / "maps.nns", format="litert")
    assert not (tmp_path / "maps.nns").exists()


class Classes(nn.Module):
    """Maps, and which of their channels is largest."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x).argmax(1)


class Constant(Classes):
    """Maps that are the same for every input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * 0.0 + 1


WHOLE = Plan("net", SHAPE, (Segment("input", "output", (Branch("cpu"),)),))
NO_CODES = "int8 of a network that writes int64 as output, export of net, whole numbers have no"
NO_RANGE = "no int8 form of output, calibration, no range of it is measured"


@pytest.mark.parametrize(
    ("write", "name"), [(export_bundle, "net.nns"), (export_single, "net.tflite")]
)
def test_whole_numbers_have_no_int8_form(
    write: Callable[[ExportRequest, Path], object], name: str, tmp_path: Path
) -> None:
    module = stretch(Classes().eval(), WHOLE).eval()
    request = ExportRequest(module, WHOLE, "litert", True, images(1))
    with pytest.raises(BadInput, match=f"^{NO_CODES}"):
        write(request, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_constant_has_no_int8_form(tmp_path: Path) -> None:
    module = stretch(Constant().eval(), WHOLE).eval()
    with pytest.raises(UnsupportedOp, match=f"^{NO_RANGE}"):
        export_bundle(ExportRequest(module, WHOLE, "litert", True, images(1)), tmp_path / "n.nns")
