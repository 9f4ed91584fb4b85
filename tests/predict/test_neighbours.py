"""What a processor loses beside another: which kernels, which copies, and where it is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nnstretch.errors import BrokenFile
from nnstretch.kernel import Kernel
from nnstretch.partition.branched_stages import contention_of
from nnstretch.predict import load_soc
from nnstretch.predict.learned import estimate_many
from nnstretch.predict.roofline import Rates, Roofline
from nnstretch.predict.save_soc import save_soc
from nnstretch.soc import BranchedError, Link, Neighbour, Processor, Soc
from nnstretch.soc_instances import instantiate
from nnstretch.structure.segment_cost import BranchDemand, segment_cost

RATES = Rates(1.0, 1000.0, 100.0, 0.0, 0.0, 100.0, 0.0, 0.0, 0.5, 0.0)
"""A multiplication takes 1 ns, a byte 10 ns, a KiB of gathered windows 500 ns."""
SOC = Soc(
    "toy",
    tuple(Processor(name, name, 1) for name in ("cpu", "gpu", "dsp")),
    "int8",
    {name: Roofline(name, "int8", RATES, 0.1) for name in ("cpu", "gpu", "dsp")},
    neighbours=(
        Neighbour("cpu", "dsp", 2.0),
        Neighbour("cpu", "gpu", copy_in=Link(3.0, 1.0)),
    ),
)


def kernel(kind: str, macs: int, size: int, window: int = 1) -> Kernel:
    return Kernel(kind, kind, 16, 16, 64, 64, window, 1, 1, 1, macs, size, size, size)


WIDE = kernel("conv", 1_000_000, 1000)
NARROW = kernel("conv", 10_000, 1000)
GATHERED = kernel("conv", 1_000_000, 1000, window=3)


def test_a_kernel_is_priced_apart_only_beside_what_slows_it() -> None:
    assert SOC.price_key("cpu", ("cpu", "gpu")) == "cpu"
    assert SOC.price_key("cpu", ("cpu", "gpu", "dsp")) == "cpu beside dsp"
    assert SOC.price_key("dsp", ("cpu", "dsp")) == "dsp"
    assert SOC.price_keys(("cpu", "gpu", "dsp")) == ("cpu", "gpu", "dsp", "cpu beside dsp")
    assert replace(SOC, neighbours=()).price_keys(("cpu", "dsp")) == ("cpu", "dsp")


def test_threads_multiply_longer_and_what_waits_for_memory_hides_it() -> None:
    alone, beside = SOC.predictor("cpu"), SOC.predictor("cpu beside dsp")
    assert alone.estimate(WIDE).latency_us == pytest.approx(1 + 1000 + 30)
    assert beside.estimate(WIDE).latency_us == pytest.approx(2 * 1000)
    gathered_us = 0.5 * (1_000_000 / 16 / 64) * 64 / 1024
    assert beside.estimate(GATHERED).latency_us == pytest.approx(2 * (1000 + gathered_us))
    assert beside.estimate(NARROW) == alone.estimate(NARROW)
    for kind in ("dwconv", "add", "pool"):
        busy = kernel(kind, 1_000_000 * (kind == "dwconv"), 1000)
        assert beside.estimate(busy) == alone.estimate(busy)


def test_arrays_are_priced_as_single_kernels_are() -> None:
    beside = SOC.predictor("cpu beside dsp")
    macs = np.array([0, 10_000, 40_000, 1_000_000])
    grid = beside.estimate_grid(replace(WIDE, macs=macs))  # type: ignore[attr-defined, arg-type]
    single = [beside.estimate(replace(WIDE, macs=int(m))).latency_us for m in macs]
    assert grid == pytest.approx(single)
    kernels = [replace(WIDE, macs=int(m)) for m in macs]
    assert estimate_many(beside, kernels).latency_us == pytest.approx(single)


def test_a_branch_starts_behind_what_the_host_does_for_its_neighbour() -> None:
    work = {name: BranchDemand(name, 100.0, 0.0, 2048, 1024) for name in ("cpu", "gpu", "dsp")}

    def start_us(*names: str) -> list[float]:
        cost = segment_cost(SOC, [work[name] for name in names])
        return [branch.transfer_in_us for branch in cost.branches]

    assert start_us("cpu", "gpu") == [5.0, 0.0]
    assert start_us("cpu", "gpu", "dsp") == [5.0, 0.0, 0.0]
    assert start_us("cpu") == start_us("gpu") == [0.0]
    assert start_us("cpu", "dsp") == start_us("gpu", "dsp") == [0.0, 0.0]


def test_a_pipeline_adds_at_most_the_factor_that_a_segment_has_not_paid() -> None:
    work = {name: BranchDemand(name, 100.0, 0.0, 0, 0) for name in ("cpu", "dsp")}
    alone, fork = segment_cost(SOC, [work["cpu"]]), segment_cost(SOC, list(work.values()))
    everybody = frozenset(("cpu", "dsp"))
    assert contention_of("cpu", alone, SOC, everybody) == 2.0
    assert contention_of("cpu", fork, SOC, everybody) == 1.0
    assert contention_of("dsp", fork, SOC, everybody) == 1.0


def test_errors_of_branches_are_those_of_branched_networks_where_some_were_measured() -> None:
    work = [BranchDemand(name, 100.0, 30.0, 0, 0) for name in ("cpu", "dsp")]
    soc = replace(SOC, merge=Link(10.0), branched_error=BranchedError(0.1, 1.3))
    assert [b.error_us for b in segment_cost(soc, work).branches] == pytest.approx([11.0, 11.0])
    assert segment_cost(soc, work[:1]).branches[0].error_us == 30.0
    assert segment_cost(SOC, work).branches[0].error_us == 30.0


def test_neighbours_come_back_from_their_file_and_follow_copies(tmp_path: Path) -> None:
    save_soc(SOC, tmp_path)
    assert load_soc(tmp_path) == SOC
    copied, _ = instantiate(SOC, ("cpu", "cpu", "dsp"))
    assert copied.price_key("cpu1", ("cpu1", "dsp")) == "cpu1 beside dsp"
    assert copied.processor_among("cpu0", ("gpu",)).copy_in == Link(3.0, 1.0)
    assert copied.processor_among("cpu0", ("cpu1",)).copy_in == Link()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"processor": "cpu", "beside": "npu"}], r"neighbours\[0\] is of cpu beside npu"),
        ([{"processor": "cpu", "beside": "cpu"}], r"neighbours\[0\] is of cpu beside cpu"),
        ([{"processor": "cpu", "beside": "dsp"}] * 2, r"neighbours\[1\] .* each pair once"),
        (
            [{"processor": "cpu", "beside": "dsp", "busy_factor": 0.5}],
            r"neighbours\[0\].busy_factor",
        ),
    ],
)
def test_a_wrong_neighbour_is_refused(
    tmp_path: Path, rows: list[dict[str, object]], message: str
) -> None:
    save_soc(SOC, tmp_path)
    path = tmp_path / "soc.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"neighbours": rows}))
    with pytest.raises(BrokenFile, match=message):
        load_soc(tmp_path)
