"""Partitions of priced networks: what the table promised is what stages cost."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random
from typing import Any

import pytest
from support.pipeline_graphs import residual

from nnstretch.errors import BadInput, NnstretchError, NoPlan, UnknownName, UnsupportedOp
from nnstretch.kernel import ChannelBlockedLayout
from nnstretch.partition.branched_stages import best_grouping
from nnstretch.partition.export import StageOptions, module_graph_of
from nnstretch.partition.partition import Partition, PartitionRequest, partitions
from nnstretch.partition.search.compute_layers import compute_layers
from nnstretch.partition.search.solver import best_assignments
from nnstretch.partition.search.stage_costs import stage_cost_table
from nnstretch.partition.search.topological_cuts import topological_cuts
from nnstretch.predict import load_soc
from nnstretch.soc import Link, Soc
from nnstretch.soc_instances import instantiate
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.structure.segment_cost import CROSSES, BranchDemand, segment_cost

GRAPH = residual()
MI9 = load_soc("mi9")
PAIRED = replace(MI9, neighbours=(), contention={frozenset({"cpu", "dsp"}): 1.25})
"""With one factor for a pair, as chips of other machines have it."""


def one(stages: int | None, *processors: str, soc: Soc = MI9, **wish: Any) -> Partition:
    return partitions(GRAPH, soc, PartitionRequest(stages, processors, **wish))[0]


def test_candidates_of_a_split_by_hand_come_the_best_first() -> None:
    """Between a convolution and its norm, too, which are one kernel of the whole network."""
    names = [node.name for node in GRAPH.nodes]
    free = tuple(replace(each, copy_in=Link(), copy_out=Link()) for each in MI9.processors)
    soc = replace(MI9, processors=free)
    for split in range(len(names) - 1):
        unit_of = [int(i > split) for i in range(len(names))]
        candidates = partitions(GRAPH, soc, PartitionRequest(top=6), unit_of)
        periods_us = [candidate.bottleneck_us for candidate in candidates]
        assert periods_us == sorted(periods_us), names[split]


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_stages_cost_what_the_table_said(stages: int) -> None:
    """Sums over layers are the price of the stage's own graph, crossing tensors and contention
    included.
    """
    names = ("cpu", "gpu", "dsp")
    choice = best_assignments(
        stage_cost_table(
            GRAPH,
            compute_layers(GRAPH),
            topological_cuts(GRAPH, compute_layers(GRAPH)),
            MI9,
            names,
            CostModel(MI9),
        ),
        stages,
    )[0]
    found = one(stages, *names)
    assert found.bottleneck_us == pytest.approx(choice.bottleneck_us, rel=1e-9)
    assert found.latency_us == pytest.approx(choice.latency_us, rel=1e-9)
    assert found.proven
    assert found.bound_us <= found.bottleneck_us
    assert sum(stage.macs for stage in found.stages) == GRAPH.macs


def test_one_stage_costs_what_predict_says() -> None:
    found = one(1, "gpu")
    work = BranchDemand(
        "gpu",
        CostModel(MI9).estimate_graph(GRAPH, "gpu").latency_us,
        0.0,
        64 * 28 * 28,
        64 * 28 * 28,
    )
    assert found.latency_us == pytest.approx(segment_cost(MI9, [work], CROSSES).latency_us)


def test_a_stage_pays_for_every_tensor_that_crosses_both_ways_and_for_contention() -> None:
    """Cut inside a block: the main path and the shortcut."""
    names = {node.name: i for i, node in enumerate(GRAPH.nodes)}
    unit_of = [int(i > names["relu10"]) for i in range(len(GRAPH.nodes))]
    found = partitions(GRAPH, PAIRED, PartitionRequest(None, ("cpu", "dsp")), unit_of)[0]
    dsp = next(
        share for stage in found.stages for share in stage.shares if share.processor == "dsp"
    )
    first = found.stages[0].shares[0].processor == "dsp"
    size = 64 * 28 * 28
    link = MI9.processor("dsp")
    assert dsp.transfer_in_us == pytest.approx((1 if first else 2) * link.copy_in.cost_us(size))
    assert dsp.transfer_out_us == pytest.approx(
        (2 if first else 1) * link.copy_out.cost_us(size) + link.sync_us
    )
    piece = found.subgraphs[0 if first else 1]
    assert dsp.compute_us == pytest.approx(
        1.25 * CostModel(MI9).estimate_graph(piece, "dsp").latency_us
    )
    assert not found.proven, "another split may be better"
    assert "by hand" in found.why_open
    best = partitions(GRAPH, PAIRED, PartitionRequest(None, ("cpu", "dsp")))[0]
    assert found.bound_us == best.bound_us <= best.bottleneck_us <= found.bottleneck_us


def test_numbers_that_a_partition_is_judged_by() -> None:
    soc, names = instantiate(MI9, ("cpu", "cpu"))
    found = partitions(GRAPH, soc, PartitionRequest(2, names))[0]
    assert found.processors == ("cpu0", "cpu1")
    assert found.ideal_us == pytest.approx(found.single_us["cpu0"] / 2)
    assert found.balance == pytest.approx(
        (sum(s.period_us for s in found.stages) / 2) / max(s.period_us for s in found.stages)
    )
    assert found.bottleneck_us < found.single_us["cpu0"]
    assert found.stages[0].end == found.stages[1].start


def test_as_many_stages_as_are_best_are_never_worse_than_a_number() -> None:
    free = one(None)
    assert all(free.bottleneck_us <= one(count).bottleneck_us * (1 + 1e-9) for count in (1, 2, 3))


def test_several_candidates_differ_and_come_best_first() -> None:
    found = partitions(GRAPH, MI9, PartitionRequest(2, ("cpu", "dsp"), top=4))
    assert len(found) == 4
    assert [p.bottleneck_us for p in found] == sorted(p.bottleneck_us for p in found)
    assert len({(p.processors, tuple(s.end for s in p.stages)) for p in found}) == 4


def test_replicas_take_the_processors_that_are_left() -> None:
    soc, names = instantiate(MI9, ("cpu",) * 4)
    alone, doubled = (
        partitions(GRAPH, soc, PartitionRequest(1, names, replicas))[0]
        for replicas in (False, True)
    )
    assert len(doubled.processors) == 4
    assert doubled.bottleneck_us == pytest.approx(alone.bottleneck_us / 4)
    assert doubled.latency_us == pytest.approx(alone.latency_us)


def test_memory_limits_are_kept() -> None:
    """Six convolutions of 36,864 bytes in int8: the fast processor may hold two."""
    limited = replace(
        MI9,
        processors=tuple(
            replace(p, memory_bytes=2 * 36_864 if p.name == "cpu" else None) for p in MI9.processors
        ),
    )
    found = one(2, "cpu", "dsp", soc=limited)
    params = {share.processor: stage.params for stage in found.stages for share in stage.shares}
    assert params["cpu"] <= 2 * 36_864
    tight = replace(MI9, processors=tuple(replace(p, memory_bytes=36_863) for p in MI9.processors))
    with pytest.raises(NoPlan, match="the weights fit no split's memory"):
        one(2, "cpu", "dsp", soc=tight)


class Lacking:
    """A predictor that never saw convolutions."""

    def __init__(self, inner: Any) -> None:
        self.processor, self.inner = inner.processor, inner

    def estimate(self, kernel: Any) -> Any:
        if kernel.kind == "conv":
            raise UnsupportedOp("conv was never measured")
        return self.inner.estimate(kernel)


def test_layers_go_only_where_their_kernels_were_measured() -> None:
    soc = replace(MI9, predictors={**MI9.predictors, "dsp": Lacking(MI9.predictors["dsp"])})
    with pytest.raises(NoPlan, match=r"kernels never measured: dsp: conv00"):
        one(2, "cpu", "dsp", soc=soc)
    found = one(None, "cpu", "dsp", soc=soc)
    assert found.processors == ("cpu",)
    assert "dsp" not in found.single_us


def test_where_layouts_depend_on_the_split_stages_are_priced_anew_and_nothing_is_claimed() -> None:
    rules = replace(
        MI9.rules("cpu"),
        blocked=ChannelBlockedLayout(block=8, align=8, ops=frozenset({"relu", "add"})),
    )
    soc = replace(PAIRED, fusion={"cpu": rules}, predictors={**MI9.predictors, "cpu": Anything()})
    found = one(2, "cpu", "dsp", soc=soc)
    assert not found.proven
    share = next(
        share for stage in found.stages for share in stage.shares if share.processor == "cpu"
    )
    piece = next(
        p
        for p, stage in zip(found.subgraphs, found.stages, strict=True)
        if stage.shares[0].processor == "cpu"
    )
    assert share.compute_us == pytest.approx(
        1.25 * CostModel(soc).estimate_graph(piece, "cpu").latency_us
    )


class Anything:
    """A millisecond a kernel, copies between layouts too."""

    processor = "cpu"

    def estimate(self, kernel: Any) -> Any:
        from nnstretch.predictor import Estimate

        return Estimate(1000.0, 10.0)


def test_wishes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnknownName, match="unknown processor 'npu'"):
        one(2, "cpu", "npu")
    with pytest.raises(NoPlan, match="4 stages on 3 processors"):
        one(4)
    with pytest.raises(BadInput, match="3 stages and a split into 2"):
        partitions(GRAPH, MI9, PartitionRequest(3), [0] * 5 + [1] * (len(GRAPH.nodes) - 5))
    nothing = replace(GRAPH, nodes=(), outputs=(GRAPH.inputs[0].name,))
    with pytest.raises(BadInput, match="computes nothing, partition"):
        partitions(nothing, MI9, PartitionRequest(2))
    with pytest.raises(UnknownName):
        instantiate(MI9, ("npu", "npu"))


def test_segments_are_divided_like_brute_force() -> None:
    random = Random(3)
    for _ in range(200):
        count = random.randint(1, 6)
        times_us = [float(random.randint(1, 9)) for _ in range(count)]
        used = [frozenset(random.sample("abcd", random.randint(1, 2))) for _ in range(count)]
        for stages in range(1, count + 1):
            ways = []
            for inner in combinations(range(1, count), stages - 1):
                runs = list(pairwise((0, *inner, count)))
                sets = [frozenset().union(*used[a:b]) for a, b in runs]
                if sum(map(len, sets)) == len(frozenset().union(*sets)):
                    ways.append(max(sum(times_us[a:b]) for a, b in runs))

            def stage_us(first: int, last: int, times_us: list[float] = times_us) -> float:
                return sum(times_us[first:last])

            assert best_grouping(stage_us, used, stages)[0] == min(ways, default=float("inf"))


ODD = (True, -1, 0, 1 << 63, 1.5, math.nan, 10**400, "cpu", b"x", {}, (None,), (1,), object(), len)


@pytest.mark.parametrize("name", ["stages", "processors", "replicas", "top"])
def test_a_request_is_checked_by_the_names_of_its_fields(name: str) -> None:
    for odd in ODD:
        if name == "replicas" and isinstance(odd, bool):
            continue
        with pytest.raises(NnstretchError, match=rf"{name}(\[0\])? is |stages, .* candidates"):
            partitions(GRAPH, MI9, PartitionRequest(**{name: odd}))


def test_odd_arguments_of_a_partition_are_told_by_their_names() -> None:
    for name, odd in {"graph": None, "soc": "mi9", "request": 2, "cost_model": 1}.items():
        sound: dict[str, Any] = {"graph": GRAPH, "soc": MI9, "request": PartitionRequest()}
        with pytest.raises(BadInput, match=f"^{name} is "):
            partitions(**(sound | {name: odd}))


def test_cores_of_a_stage_that_is_not_there_are_refused_by_its_name() -> None:
    partition = partitions(GRAPH, MI9, PartitionRequest(1))[0]
    for odd in ("nowhere", 1):
        options = StageOptions(cores={odd: (0,)})  # type: ignore[dict-item]
        with pytest.raises(UnknownName, match=f"unknown stage {odd!r} of cores, .* before, after"):
            module_graph_of(replace(partition, stages=()), (), options)
