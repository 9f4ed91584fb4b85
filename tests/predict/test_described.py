"""A described accelerator as a processor: promises of predictors, and the simulator's own times."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.shipped_forms import OPS, WINDOWED
from support.slow_half import half_slow

from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import ScheduleOptions, schedule_cluster
from nnstretch.accelerate.pricing.kernel_times import kernel_times
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.files.package_data import package_data
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.predict import load_soc, save_soc
from nnstretch.predict.described import DescribedAccelerator
from nnstretch.predict.load_soc import soc_sha256
from nnstretch.structure.kernel_fusion import fuse_kernels
from nnstretch.testing.predictor_suite import PredictorSuite
from nnstretch.testing.strategies import KernelForm, KernelSize, kernel_of_form

PHONE = Path(__file__).parents[2] / "examples" / "accelerator" / "phone"
READER = "nnstretch.accelerate.machine.load_accelerator"
FORMS = tuple(
    KernelForm(kind, op, 3 if kind in WINDOWED else 1) for kind, op in sorted(OPS.items())
)
MACHINES = ("nvdla-512", "stcp920", "ethos-u55-128", "zigzag-tpu-like")


def rates_of(machine: str) -> ChipRates:
    described = load_accelerator(machine)
    return ChipRates(described, described.element_types[0])


@pytest.mark.parametrize("machine", half_slow(MACHINES))
@pytest.mark.parametrize("serial", [False, True], ids=["layers", "none"])
class TestDescribed(PredictorSuite):
    @pytest.fixture
    def predictor(self, machine: str, serial: bool) -> DescribedAccelerator:
        return DescribedAccelerator("npu", "int8", rates_of(machine), machine, serial=serial)

    @pytest.fixture
    def forms(self) -> tuple[KernelForm, ...]:
        return FORMS


@pytest.mark.slow
@given(
    st.integers(1, 64),
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(2, 12),
    st.sampled_from(MACHINES),
)
@example(16, 3, 3, 2, "stcp920")  # three products on eight cores, then seven
def test_more_products_of_the_same_rows_are_never_faster(
    channels: int, side: int, batch: int, factor: int, machine: str
) -> None:
    size = KernelSize(channels, channels, side, batch)
    kernel = kernel_of_form(KernelForm("matmul", "matmul", 1), size)
    prices = []
    for times in (1, factor, factor + 1, 2 * factor + 1):
        more = replace(kernel, read_elements=times * kernel.read_elements)
        prices.append(kernel_times(more, rates_of(machine), 1).matrix_us.item())
    assert prices == sorted(prices)


def kernel_graph(cin: int, cout: int, side: int, window: int, depthwise: bool, relu: bool) -> Graph:
    """One convolution with a bias, alone in its graph."""
    groups = cin if depthwise else 1
    cout = cin if depthwise else cout
    spec = TensorSpec((1, cout, side, side))
    weights = (
        Weight("w", TensorSpec((cout, cin // groups, window, window))),
        Weight("b", TensorSpec((cout,))),
    )
    args = (ValueRef("x"), ValueRef("w"), ValueRef("b"), (1, 1), (window // 2,) * 2, (1, 1), groups)
    macs = spec.elements * (cin // groups * window * window + 1)
    nodes = [Node("conv", "conv2d", args, (spec,), macs=macs)]
    if relu:
        nodes.append(Node("relu", "relu", (ValueRef("conv"),), (spec,)))
    inputs = (Value("x", TensorSpec((1, cin, side, side))),)
    return Graph("one", inputs, weights, tuple(nodes), (nodes[-1].name,))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("nvdla-2048", "nvdla-64", "zigzag-tpu-like")),
    st.integers(1, 80),
    st.integers(1, 80),
    st.integers(1, 24),
    st.sampled_from((1, 3, 5)),
    st.booleans(),
    st.booleans(),
)
def test_engines_of_one_kernel_work_as_long_as_in_the_simulator(
    machine: str, cin: int, cout: int, side: int, window: int, depthwise: bool, relu: bool
) -> None:
    rates = rates_of(machine)
    graph = kernel_graph(cin, cout, side, window, depthwise, relu)
    chip = chip_graph(graph, rates.element_type)
    schedule = schedule_cluster(chip, rates, ScheduleOptions("lb", "none"))
    busy: dict[str, float] = {}
    for item in schedule.instructions:
        busy[item.engine] = busy.get(item.engine, 0.0) + item.duration_us
    (kernel,) = fuse_kernels(graph)
    times = kernel_times(kernel, rates, chip.element_bytes)
    assert times.matrix_us.item() == pytest.approx(busy["matrix"], rel=1e-9)
    assert times.vector_us.item() == pytest.approx(busy.get("vector", 0.0), rel=1e-9)

    moved = chip.bytes_of("x") + chip.bytes_of(graph.outputs[0])
    ends_us = rates.transfer_us(moved, "ddr", "local", 1)  # the whole graph's, no kernel's
    inside = times.serial_us - times.maps_in_us - times.maps_out_us
    # Tiles are rounded up to whole bytes, so the simulator may move a few more.
    assert inside.item() + ends_us == pytest.approx(schedule.latency_us, rel=2e-2)
    assert inside.item() + ends_us <= schedule.latency_us * (1 + 1e-9)


def test_arrays_of_counts_have_the_prices_of_single_kernels() -> None:
    predictor = load_soc(PHONE).predictors["npu"]
    assert isinstance(predictor, DescribedAccelerator)
    form = KernelForm("conv", "conv2d", 3)
    sizes = [KernelSize(16 * n, 32 * n, 14, 1) for n in range(1, 9)]
    kernels = [kernel_of_form(form, size) for size in sizes]
    names = ("cin", "cout", "macs", "read_elements", "write_elements", "weight_elements")
    counts = {name: np.array([getattr(kernel, name) for kernel in kernels]) for name in names}
    grid = predictor.estimate_grid(replace(kernels[0], **counts))
    singles = [predictor.estimate(kernel).latency_us for kernel in kernels]
    assert grid.tolist() == pytest.approx(singles, rel=1e-12)


def test_a_chip_with_a_described_processor_is_priced(tmp_path: Path) -> None:
    soc = load_soc(PHONE)
    assert not soc.calibrated
    save_soc(soc, tmp_path / "copy")
    assert load_soc(tmp_path / "copy").predictors == soc.predictors


def folder_with(tmp_path: Path, **fields: object) -> Path:
    folder = tmp_path / "chip"
    shutil.copytree(PHONE, folder)
    data = json.loads((folder / "npu.json").read_text())
    (folder / "npu.json").write_text(json.dumps(data | fields))
    return folder


def test_a_description_may_lie_in_the_chips_folder(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, accelerator="npu.yaml")
    text = (package_data("accelerators") / "nvdla-512.yaml").read_text()
    (folder / "npu.yaml").write_text(text)
    rates = load_soc(folder).predictors["npu"].rates  # type: ignore[attr-defined]
    assert rates == load_soc(PHONE).predictors["npu"].rates  # type: ignore[attr-defined]
    before = soc_sha256(folder)
    (folder / "npu.yaml").write_text(text.replace("value: 10,", "value: 11,"))
    assert soc_sha256(folder) != before
    with pytest.raises(BadInput, match=r"npu\.yaml"):
        save_soc(load_soc(folder), tmp_path / "copy")


@pytest.mark.parametrize("machine", ["npu.yml", "npu.yaml", "nvdla-512"])
def test_the_hash_of_a_chip_is_of_the_machines_that_price_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    shipped = tmp_path / "shipped" / "accelerators"
    shutil.copytree(package_data("accelerators"), shipped)
    folder = folder_with(tmp_path, accelerator=machine)
    described = shipped / "nvdla-512.yaml"
    if machine != "nvdla-512":
        described = described.rename(folder / machine)
    monkeypatch.setattr(f"{READER}.package_data", (tmp_path / "shipped").joinpath)
    before = soc_sha256(folder), load_soc(folder).predictors
    text = described.read_text()
    described.write_text(text.replace("clock: {value: 1,", "clock: {value: 0.1,"))
    assert described.read_text() != text
    after = soc_sha256(folder), load_soc(folder).predictors
    assert after[0] != before[0]
    assert after[1] != before[1]
    described.write_text(text)
    assert soc_sha256(folder) == before[0]


def test_the_hash_of_a_chip_without_described_machines_is_of_its_files_alone(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "chip"
    shutil.copytree(package_data("latency_predictors") / "mi9", folder)
    (folder / "unused.yaml").write_text("a: 1\n")
    digest = sha256()
    for path in sorted([*folder.glob("*.json"), folder / "unused.yaml"]):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    assert soc_sha256(folder) == digest.hexdigest()


def test_wrong_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"unknown accelerator 'nvdla-513'"):
        load_soc(folder_with(tmp_path / "a", accelerator="nvdla-513"))
    with pytest.raises(BrokenFile, match=r"npu\.json"):
        load_soc(folder_with(tmp_path / "b", lanes=4))
    with pytest.raises(BadInput, match="unknown field 'size'"):
        load_soc(folder_with(tmp_path / "c", assume=["size=3"]))
