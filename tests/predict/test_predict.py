"""Predictors keep their promises, chips load strictly, and segments cost what the formula says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.errors import BadPlan, BrokenFile, NnstretchError, UnknownName, UnsupportedOp
from nnstretch.files.package_data import package_data
from nnstretch.kernel import Kernel
from nnstretch.predict import known_socs, load_soc, predict_ops
from nnstretch.predict.op_list import predict_segments, read_ops, segment_costs
from nnstretch.predict.op_list_csv import COLUMNS, TEXT_COLUMNS
from nnstretch.predict.roofline import KINDS
from nnstretch.soc import Link, Processor, Soc
from nnstretch.structure.segment_cost import BranchDemand, Residency, residencies, segment_cost

DATA = Path(__file__).parents[1] / "data" / "nn_stretch"
PREDICTORS = [
    load_soc(name).predictors[p.name] for name in known_socs() for p in load_soc(name).processors
]
EACH = pytest.mark.parametrize("predictor", PREDICTORS, ids=lambda p: p.processor)


@st.composite
def shapes(draw: st.DrawFn) -> Kernel:
    """A kernel of any known kind, consistent with itself."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    groups = draw(st.sampled_from((2, 4))) if kind == "gconv" else 1
    cin, cout = (8 * draw(st.integers(1, 64)) for _ in range(2))
    side, k, batch = (
        draw(st.sampled_from((1, 7, 14, 56))),
        draw(st.sampled_from((1, 3, 5))),
        draw(st.integers(1, 4)),
    )
    if kind == "dwconv":
        cout = groups = cin
    hw = side * side
    work = kind in ("conv", "gconv", "dwconv", "linear", "matmul")
    macs = batch * cout * hw * k * k * cin // groups if work else 0
    weights = macs // (batch * hw)
    return Kernel(
        "k",
        kind,
        cin,
        cout,
        hw,
        hw,
        k,
        1,
        groups,
        batch,
        macs,
        batch * cin * hw,
        batch * cout * hw,
        weights,
    )


@EACH
@settings(max_examples=60, deadline=None)
@given(kernel=shapes())
def test_estimates_are_positive_and_repeatable(predictor: Any, kernel: Kernel) -> None:
    first, second = (predictor.estimate(kernel) for _ in range(2))
    assert first == second
    assert first.latency_us > 0
    assert 0 <= first.error_us < first.latency_us


@EACH
@settings(max_examples=60, deadline=None)
@given(kernel=shapes(), factor=st.integers(2, 5))
def test_more_work_and_more_traffic_are_never_faster(
    predictor: Any, kernel: Kernel, factor: int
) -> None:
    before = predictor.estimate(kernel).latency_us
    assert predictor.estimate(replace(kernel, macs=factor * kernel.macs)).latency_us >= before
    for field in ("read_elements", "write_elements", "weight_elements"):
        more = replace(kernel, **{field: factor * getattr(kernel, field)})
        assert predictor.estimate(more).latency_us >= before, field


@EACH
@settings(max_examples=60, deadline=None)
@given(kernel=shapes())
def test_wider_outputs_and_larger_batches_are_never_faster(predictor: Any, kernel: Kernel) -> None:
    before = predictor.estimate(kernel).latency_us
    batched = {"batch": 2 * kernel.batch, "macs": 2 * kernel.macs}
    moved = {"read_elements": 2 * kernel.read_elements, "write_elements": 2 * kernel.write_elements}
    assert predictor.estimate(replace(kernel, **batched, **moved)).latency_us >= before
    if kernel.kind in ("conv", "linear"):
        wide = {
            "cout": 2 * kernel.cout,
            "macs": 2 * kernel.macs,
            "write_elements": 2 * kernel.write_elements,
        }
        assert predictor.estimate(replace(kernel, **wide)).latency_us >= before


@EACH
def test_a_kind_nobody_measured_is_refused_by_name(predictor: Any) -> None:
    odd = Kernel("node_7", "made_up", 8, 8, 49, 49, 1, 1, 1, 1, 0, 392, 392, 0)
    with pytest.raises(UnsupportedOp, match=f"'made_up'.*node_7.*{predictor.processor}"):
        predictor.estimate(odd)


def test_mi9_is_a_chip_of_three_processors() -> None:
    soc = load_soc("mi9")
    assert [p.name for p in soc.processors] == ["cpu", "gpu", "dsp"]
    assert soc.element_bytes == 1
    assert soc.calibrated
    assert soc.contention_factor(frozenset(("cpu", "gpu", "dsp"))) == 1
    assert soc.price_key("cpu", ("cpu", "gpu", "dsp")) == "cpu beside dsp"
    assert soc.processor_among("cpu", ("cpu", "gpu")).copy_in.us_per_kib > 0
    assert soc.processor("cpu").copy_in == Link()


def test_a_folder_of_the_same_form_is_a_chip(tmp_path: Path) -> None:
    shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "mine")
    assert load_soc(tmp_path / "mine") == load_soc("mi9") == load_soc(str(tmp_path / "mine"))


def test_a_path_is_the_folder_and_a_name_the_chip_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mi9", "latency_predictors/mine"):
        folder = shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / name)
        data = json.loads((folder / "soc.json").read_text())
        (folder / "soc.json").write_text(json.dumps(data | {"name": "changed"}))
    (tmp_path / "mine").mkdir()
    assert [load_soc(name).name for name in ("mi9", "./mi9", "mi9/", "mine")] == [
        "mi9",
        *3 * ["changed"],
    ]


def test_an_unknown_chip_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"unknown SoC 'mi99'.*known are .*mi9"):
        load_soc("mi99")


def drop(key: str) -> Callable[[Any], Any]:
    return lambda data: {k: v for k, v in data.items() if k != key}


def put(value: Any, *path: str | int) -> Callable[[Any], Any]:
    def change(data: Any) -> Any:
        place = data
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return data

    return change


def leaves(data: Any, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value that is no table or list."""
    if not isinstance(data, dict | list):
        yield path
        return
    for key in data if isinstance(data, dict) else range(len(data)):
        yield from leaves(data[key], *path, key)


MAY_BE_NULL = {"memory_bytes", "power_w", "copies_beside"}
"""Of a processor: null says that it is not known."""


@pytest.mark.parametrize("file", ["soc.json", "gpu.json"])
def test_null_in_a_chip_or_predictor_is_refused_by_its_dotted_name(
    file: str, tmp_path: Path
) -> None:
    source = package_data("latency_predictors") / "mi9"
    data = json.loads((source / file).read_text())
    paths = [path for path in leaves(data) if path[-1] not in MAY_BE_NULL | {"format"}]
    assert len(paths) > 10
    for path in paths:
        folder = tmp_path / "chip"
        shutil.copytree(source, folder, dirs_exist_ok=True)
        changed = put(None, *path)(json.loads((source / file).read_text()))
        (folder / file).write_text(json.dumps(changed))
        with pytest.raises(BrokenFile) as refusal:
            load_soc(folder)
        dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
        assert f"{dotted}, " in str(refusal.value)
        assert "NoneType" in str(refusal.value)


BROKEN = [
    ("soc.json", drop("merge"), "soc.json, soc, key 'merge' is missing"),
    ("soc.json", put(1, "colour"), "soc.json, soc, unknown key 'colour'"),
    ("soc.json", put(2, "format"), "unknown format 2.*reads format 1"),
    ("soc.json", put("int7", "dtype"), "unknown dtype 'int7'"),
    (
        "soc.json",
        put(-1, "processors", 1, "sync_us"),
        r"soc\.processors\[1\]\.sync_us, -1\.0 is out of range, needed is at least 0",
    ),
    (
        "soc.json",
        put(600, "processors", 1, "handover_us"),
        r"processors\[1\], .*handover_us 600 of sync_us 3",
    ),
    (
        "soc.json",
        put(True, "processors", 1, "blocks_host"),
        r"processors\[1\], .*blocks_host True, a queue does not block",
    ),
    (
        "soc.json",
        put("yes", "processors", 1, "copies_beside"),
        r"processors\[1\]\.copies_beside, 'yes' is str, expected bool or None",
    ),
    (
        "soc.json",
        put("fast", "processors", 2, "copy_in", "fixed_us"),
        r"processors\[2\]\.copy_in\.fixed_us, 'fast' is str, expected float",
    ),
    (
        "soc.json",
        put([{"processors": ["cpu", "npu"], "factor": 1.5}], "contention"),
        r"contention\[0\] is of .*known are",
    ),
    (
        "soc.json",
        put(
            [
                {"processors": ["cpu", "dsp"], "factor": 1.0},
                {"processors": ["dsp", "cpu"], "factor": 50.0},
            ],
            "contention",
        ),
        r"contention\[1\] is of .*each set of them once",
    ),
    (
        "soc.json",
        put([{"processors": ["cpu", "cpu"], "factor": 1.5}], "contention"),
        r"contention\[0\] is of .*processors that differ",
    ),
    (
        "soc.json",
        put(1.9, "processors", 1, "queue_depth"),
        r"queue_depth, 1\.9, needed is a whole number",
    ),
    (
        "soc.json",
        put(1.9, "processors", 1, "memory_bytes"),
        r"memory_bytes, 1\.9, needed is a whole number",
    ),
    ("soc.json", put("a\x1bb", "name"), r"soc\.name, .* needed is a name"),
    ("cpu.json", put(1e300, "relative_error"), r"relative_error, 1e\+300 is out of range"),
    ("soc.json", put("gpu", "processors", 0, "name"), "each named once"),
    ("gpu.json", put("dsp", "processor"), "processor 'dsp'.*gpu.json.*expects 'gpu'"),
    (
        "gpu.json",
        put(float("nan"), "rates", "launch_us"),
        "not JSON, .*gpu.json, NaN is not a number",
    ),
    ("gpu.json", put(0, "rates", "bytes_per_us"), r"rates\.bytes_per_us, 0\.0 is out of range"),
    ("gpu.json", put([], "rates"), r"gpu.json, predictor\.rates, '\[\]' is list"),
    ("dsp.json", put("forest", "form"), "unknown form 'forest'.*analytic"),
]


@pytest.mark.parametrize(
    ("file", "change", "message"), BROKEN, ids=[message for _, _, message in BROKEN]
)
def test_a_broken_chip_names_file_and_field(
    tmp_path: Path, file: str, change: Callable[[Any], Any], message: str
) -> None:
    folder = shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "chip")
    path = folder / file
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(BrokenFile, match=message):
        load_soc(folder)


def test_a_truncated_file_names_the_place(tmp_path: Path) -> None:
    folder = shutil.copytree(package_data("latency_predictors") / "mi9", tmp_path / "chip")
    path = folder / "cpu.json"
    path.write_text(path.read_text()[:120])
    with pytest.raises(BrokenFile, match=r"not JSON, .*cpu.json, .*line \d+ column \d+"):
        load_soc(folder)
    path.unlink()
    with pytest.raises(BrokenFile, match=r"missing, .*cpu.json"):
        load_soc(folder)


def chip() -> Soc:
    """Round numbers: 100 us + 1 us per KiB each way to `gpu`, 50 us to wait for it."""
    link = Link(100, 1)
    processors = (
        Processor("cpu", "cpu", 1),
        Processor("gpu", "gpu", 4, link, link, 50),
        Processor("dsp", "dsp", 1, sync_us=30),
    )
    return Soc(
        "toy",
        processors,
        "int8",
        {},
        merge=Link(10, 2),
        contention={frozenset(("cpu", "gpu")): 1.5},
    )


def branch(processor: str, compute_us: float = 1000.0) -> BranchDemand:
    return BranchDemand(processor, compute_us, 10.0, 2048, 1024)


def test_a_branched_segment_pays_every_term() -> None:
    cost = segment_cost(chip(), (branch("cpu"), branch("gpu")), start="a", end="b")
    host, gpu = cost.branches
    assert (host.transfer_in_us, host.compute_us, host.transfer_out_us, host.error_us) == (
        0,
        1500,
        0,
        15,
    )
    assert (gpu.transfer_in_us, gpu.compute_us, gpu.transfer_out_us) == (102, 1500, 101)
    assert (cost.sync_us, cost.merge_us) == (50, 10 + 2 * 2)
    assert cost.latency_us == 102 + 1500 + 101 + 50 + 14


def test_the_slowest_processor_to_wait_for_decides() -> None:
    assert segment_cost(chip(), (branch("gpu"), branch("dsp"))).sync_us == 50


def test_a_segment_alone_pays_neither_merge_nor_contention() -> None:
    assert segment_cost(chip(), (branch("cpu"),)).latency_us == 1000
    assert segment_cost(chip(), (branch("gpu"),)).latency_us == 102 + 1000 + 101 + 50


def test_neighbours_on_one_processor_cross_once() -> None:
    edges = residencies([("cpu",), ("gpu",), ("gpu",), ("cpu", "gpu"), ("gpu",)])
    assert edges == (
        Residency(),
        Residency(False, True),
        Residency(True, False),
        Residency(),
        Residency(),
    )
    there, back = (segment_cost(chip(), (branch("gpu"),), edge).latency_us for edge in edges[1:3])
    assert (there, back) == (102 + 1000, 1000 + 101 + 50)
    assert residencies([]) == ()


@pytest.mark.parametrize(
    ("branches", "stay", "message"),
    [
        ((), Residency(), "no branch, segment a -> b"),
        ((branch("cpu"), branch("cpu")), Residency(), "2 branches on 1 processors"),
        (
            (branch("cpu"), branch("gpu")),
            Residency(before=True),
            "2 branches that meet on the host",
        ),
    ],
)
def test_impossible_segments_are_refused(
    branches: tuple[BranchDemand, ...], stay: Residency, message: str
) -> None:
    with pytest.raises(BadPlan, match=message):
        segment_cost(chip(), branches, stay, start="a", end="b")


def test_an_unknown_processor_is_named() -> None:
    with pytest.raises(UnknownName, match=r"'npu'.*toy"):
        segment_cost(chip(), (branch("npu"),))


def test_a_network_alone_on_the_gpu_crosses_there_and_back_once() -> None:
    soc = load_soc("mi9")
    priced = segment_costs(
        read_ops(DATA / "ops_mi9.csv", soc)["R-34-G"], soc, predict_segments(soc)
    )
    assert [cost.branches[0].transfer_in_us > 0 for cost in priced] == [True, *[False] * 5]
    assert [cost.sync_us > 0 for cost in priced] == [*[False] * 5, True]
    assert priced[0].branches[0].transfer_in_us == soc.processor("gpu").copy_in.cost_us(
        224 * 224 * 3
    )


def test_branches_overlap_and_the_sum_of_the_parts_is_the_whole() -> None:
    soc = load_soc("mi9")
    priced = segment_costs(
        read_ops(DATA / "ops_mi9.csv", soc)["R-34-CD"], soc, predict_segments(soc)
    )
    assert [len(cost.branches) for cost in priced] == [1, 2, 2, 2, 2, 1]
    assert sum(b.macs for cost in priced for b in cost.branches) == 2_528_794_112
    assert predict_ops(DATA / "ops_mi9.csv", soc)["R-34-CD"] == pytest.approx(
        sum(cost.latency_us for cost in priced) / 1000
    )


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
