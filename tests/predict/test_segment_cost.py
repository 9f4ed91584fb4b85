"""Segments cost what the formula says."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.errors import BadPlan, UnknownName
from nnstretch.predict import load_soc, predict_ops
from nnstretch.predict.op_list import predict_segments, read_ops, segment_costs
from nnstretch.soc import Link, Processor, Soc
from nnstretch.structure.segment_cost import BranchDemand, Residency, residencies, segment_cost

DATA = Path(__file__).parents[1] / "data" / "nn_stretch"


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
