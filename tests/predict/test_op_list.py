"""Lists of operators are priced; a malformed one names its line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nnstretch.errors import BrokenFile, NnstretchError, UnknownName
from nnstretch.predict import load_soc, predict_ops
from nnstretch.predict.op_list import predict_segments, read_ops, segment_costs
from nnstretch.predict.op_list_csv import COLUMNS, TEXT_COLUMNS
from nnstretch.structure.segment_cost import BranchDemand

DATA = Path(__file__).parents[1] / "data" / "nn_stretch"


def branch(processor: str, compute_us: float = 1000.0) -> BranchDemand:
    return BranchDemand(processor, compute_us, 10.0, 2048, 1024)


HEADER = (
    "device_set,config,part,branch,device,name,kind,k,s,groups,cin,cout,hw_in,hw_out,macs,params"
)


ROW = "mi,A,stem,-1,cpu,stem.conv,conv,3,2,1,3,8,16,8,13824,224"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{HEADER}\n{ROW}\n{ROW.replace('cpu', 'tpu')}",
            "unknown device 'tpu'.* line 3, mi9 has cpu, dsp, gpu",
        ),
        (f"{HEADER}\n{ROW.replace('conv,3', 'sing,3')}", r"line 2, row\.kind, unknown kind 'sing'"),
        (f"{HEADER}\n{ROW[:-9]}", "cells.* line 2, the header has 16"),
        (
            f"{HEADER}\n{ROW.replace(',8,16', ',8,x')}",
            r"line 2, row\.hw_in, 'x' is str, expected int",
        ),
        (
            f"{HEADER}\n{ROW.replace(',8,16', ',8,nan')}",
            r"line 2, row\.hw_in, 'nan' is str, expected int",
        ),
        (
            f"{HEADER}\n{ROW.replace(',3,8,16', ',0,8,16')}",
            r"line 2, row\.cin, 0 is out of range, needed is at least 1",
        ),
        (f"{HEADER.replace('device,', '')}\n{ROW}", "column 'device' is missing.* line 1"),
        (HEADER, "0 rows"),
        ("", "column 'config' is missing"),
        (f"{HEADER},{HEADER.split(',')[1]}\n{ROW},A", "column 'config' is there twice.* line 1"),
        (f"{HEADER}\n{ROW.replace('stem.conv', 'a' * 200_000)}", "field larger than.* line 2"),
        (f"{HEADER}\n{ROW.replace(',A,', ',&A,').replace('&', chr(34))}\n{ROW}", "line 3"),
        (
            f"{HEADER}\n{ROW}\n{ROW.replace(',A,', ',B,')}\n{ROW}",
            "configuration A starts a second time",
        ),
        (
            f"{HEADER}\n{ROW}\n{ROW.replace('stem', 'head')}\n{ROW}",
            "part stem starts a second time",
        ),
        (
            f"{HEADER}\n{ROW.replace('-1', '0')}\n{ROW.replace('-1', '0').replace('cpu', 'gpu')}",
            "gpu in a branch on cpu.* line 3",
        ),
        (
            f"{HEADER}\n{ROW.replace('-1', '0')}\n{ROW.replace('-1', '1')}",
            "branches of stem run on cpu, cpu",
        ),
    ],
)
def test_a_malformed_list_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ops.csv"
    path.write_text(text + "\n")
    with pytest.raises(NnstretchError, match=message) as refusal:
        predict_ops(path, load_soc("mi9"))
    assert "\n" not in str(refusal.value)


NO_COUNTS = (
    *("nan", "inf", "-inf", "1e400", "1" + "0" * 400, "True", "null", "1_0", "0x10", "010", "1:30"),
    *("", "1.5", " 1", "\u0661", "-5"),
)


@pytest.mark.parametrize("column", [name for name in COLUMNS if name not in TEXT_COLUMNS])
def test_a_number_that_nobody_can_mean_is_refused_in_every_column(
    column: str, tmp_path: Path
) -> None:
    soc, path = load_soc("mi9"), tmp_path / "ops.csv"
    path.write_text(f"{HEADER}\n{ROW}\n")
    predict_ops(path, soc)
    cells = dict(zip(HEADER.split(","), ROW.split(","), strict=True))
    for text in NO_COUNTS:
        path.write_text(f"{HEADER}\n{','.join((cells | {column: text}).values())}\n")
        with pytest.raises(BrokenFile, match=rf"ops\.csv line 2, row\.{column}, ") as refusal:
            predict_ops(path, soc)
        assert len(str(refusal.value)) < 300


def test_a_list_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"no operator list .*nowhere\.csv"):
        predict_ops(tmp_path / "nowhere.csv", load_soc("mi9"))


@pytest.mark.slow
def test_a_captured_network_costs_what_its_deployed_operators_cost() -> None:
    """Two roads to one number: capture and fusion, and the published operator list."""
    torch, torchvision = pytest.importorskip("torch"), pytest.importorskip("torchvision")
    from nnstretch.capture import capture
    from nnstretch.structure.kernel_fusion import fuse_kernels

    graph = capture(torchvision.models.resnet34(weights=None).eval(), torch.zeros(1, 3, 224, 224))
    soc = load_soc("mi9")
    listed = segment_costs(
        read_ops(DATA / "ops_mi9.csv", soc)["R-34-G"], soc, predict_segments(soc)
    )
    listed_us = sum(branch.compute_us for cost in listed for branch in cost.branches)
    captured_us = sum(
        soc.predictors["gpu"].estimate(kernel).latency_us
        for kernel in fuse_kernels(getattr(graph, "graph", graph))
    )
    assert captured_us == pytest.approx(listed_us, rel=1e-3)


def test_loading_a_chip_needs_neither_torch_nor_scipy() -> None:
    heavy = ("torch", "scipy", "numpy", "onnxruntime")
    code = (
        f"import sys; from nnstretch import load_soc; load_soc('mi9'); print([m for m in {heavy} if"
        " m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
