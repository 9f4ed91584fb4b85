"""What pieces of a network pay for copies: their own on every processor, others where they cross."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.pipeline_graphs import residual

from nnstretch.cli.simulate.network_tasks import network_tasks
from nnstretch.cli.simulate.pool import Pool
from nnstretch.files.workload.workload import Cut
from nnstretch.predict import load_soc
from nnstretch.soc import Soc
from nnstretch.soc_instances import instantiate

GRAPH = residual()
MI9 = load_soc("mi9")


def pool_of(*names: str) -> tuple[Pool, Soc]:
    chip, instances = instantiate(MI9, names)
    copies = dict(zip(instances, names, strict=True))
    return Pool(tuple(map(chip.processor, instances)), chip, copies), MI9


@pytest.mark.parametrize("processor", MI9.processor_names)
@pytest.mark.parametrize("cut", ["segments", 4, "layers"])
def test_on_one_processor_cuts_copy_only_what_the_network_reads_and_writes(
    processor: str, cut: Cut
) -> None:
    _, whole_us, none = network_tasks(GRAPH, "whole", *pool_of(processor))
    tasks, pieces_us, transfers_us = network_tasks(GRAPH, cut, *pool_of(processor))
    assert len(tasks) > 1
    assert none == transfers_us == {}
    assert sum(pieces_us.values()) == pytest.approx(sum(whole_us.values())), "nothing fuses across"


def test_between_processors_a_tensor_is_copied_out_and_in_the_mean_of_all_ways() -> None:
    tasks, _, transfers_us = network_tasks(GRAPH, "layers", *pool_of("cpu", "gpu"))
    assert set(transfers_us) == {(need, task.work) for task in tasks for need in task.needs}
    size = GRAPH.specs()[GRAPH.nodes[0].name].elements * MI9.element_bytes
    cpu, gpu = MI9.processor("cpu"), MI9.processor("gpu")
    up_us = cpu.copy_out.cost_us(size) + cpu.sync_us + gpu.copy_in.cost_us(size)
    down_us = gpu.copy_out.cost_us(size) + gpu.sync_us + cpu.copy_in.cost_us(size)
    assert transfers_us["piece0", "piece1"] == pytest.approx((up_us + down_us) / 2)


def test_copies_of_one_processor_have_transfers_between_them() -> None:
    _, _, transfers_us = network_tasks(GRAPH, 2, *pool_of("cpu", "cpu"))
    assert min(transfers_us.values()) > 0
    free = replace(MI9, processors=tuple(replace(p, copy_out=p.copy_in) for p in MI9.processors))
    chip, instances = instantiate(free, ("cpu", "cpu"))
    pool = Pool(tuple(map(chip.processor, instances)), chip, dict.fromkeys(instances, "cpu"))
    assert network_tasks(GRAPH, 2, pool, free)[2] == {}, "a copy that takes no time is none"
