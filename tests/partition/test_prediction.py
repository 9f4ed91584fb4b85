"""What `partition` prints, what the bundle predicts and what its schedule gives on the virtual
clock are one number.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.bundle.bundle import read_bundle
from nnstretch.capture.torch_export import trace
from nnstretch.partition.export import export_partition
from nnstretch.partition.partition import Partition, PartitionRequest, partitions
from nnstretch.predict import load_soc
from nnstretch.run.pipelines.metrics import PipelineMetrics, simulate_pipeline
from nnstretch.run.pipelines.prediction import predicted_bottleneck_us
from nnstretch.run.pipelines.sequential import SequentialPipeline

MI9 = load_soc("mi9")
KNOWN = {processor.name: processor for processor in MI9.processors}


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    widths = (3, 16, 24, 32, 32, 32)
    layers = OrderedDict(
        (f"conv{n}", nn.Conv2d(a, b, 3, 2 if n < 2 else 1, 1))
        for n, (a, b) in enumerate(pairwise(widths))
    )
    return nn.Sequential(layers).eval()


def streamed(
    found: Partition, network: nn.Module, folder: Path
) -> tuple[float | None, PipelineMetrics]:
    captured = trace(network, torch.zeros(1, 3, 96, 96))
    export_partition(found, captured.weights, folder / "net.nns", soc="mi9", module=network)
    chain = SequentialPipeline(read_bundle(folder / "net.nns"))
    return (
        predicted_bottleneck_us(chain.manifest, KNOWN),
        simulate_pipeline(chain, np.zeros((1, 3, 96, 96), np.float32), 200, KNOWN)[0],
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stages", "processors", "replicas"),
    [
        (1, "gpu", False),
        (2, "cpu,dsp", False),
        (3, "cpu,gpu,dsp", False),
        (1, "cpu,gpu", True),
        (1, "gpu,dsp", True),
        (1, "cpu,gpu,dsp", True),
        (2, "cpu,gpu,dsp", True),
    ],
)
def test_three_ways_to_one_number(
    stages: int, processors: str, replicas: bool, network: nn.Module, tmp_path: Path
) -> None:
    graph = trace(network, torch.zeros(1, 3, 96, 96)).graph
    for found in partitions(
        graph, MI9, PartitionRequest(stages, tuple(processors.split(",")), replicas, top=2)
    ):
        predicted_us, clock = streamed(found, network, tmp_path)
        assert predicted_us == pytest.approx(found.bottleneck_us, rel=1e-6)
        assert clock.bottleneck_us == pytest.approx(found.bottleneck_us, rel=1e-6)
        assert clock.period_us == pytest.approx(found.bottleneck_us, rel=0.02)
        assert found.balance <= 1


@pytest.mark.slow
def test_of_few_items_the_time_between_all_results_counts(
    network: nn.Module, tmp_path: Path
) -> None:
    graph = trace(network, torch.zeros(1, 3, 96, 96)).graph
    (found,) = partitions(graph, MI9, PartitionRequest(3, ("cpu", "gpu", "dsp"), top=1))
    captured = trace(network, torch.zeros(1, 3, 96, 96))
    export_partition(found, captured.weights, tmp_path / "net.nns", soc="mi9", module=network)
    chain = SequentialPipeline(read_bundle(tmp_path / "net.nns"))
    for items in (2, 3):
        clock = simulate_pipeline(chain, np.zeros((1, 3, 96, 96), np.float32), items, KNOWN)[0]
        ended_us = clock.ended_us
        assert clock.period_us == pytest.approx((ended_us[-1] - ended_us[0]) / (items - 1))
        assert found.bottleneck_us / 2 < clock.period_us <= found.bottleneck_us * 1.001, (
            "copies in and out of the same device hardly meet yet"
        )


@pytest.mark.parametrize("processor", ["cpu", "gpu", "dsp"])
def test_a_network_on_one_processor_is_no_faster_than_itself(
    processor: str, network: nn.Module
) -> None:
    found = partitions(
        trace(network, torch.zeros(1, 3, 96, 96)).graph, MI9, PartitionRequest(1, (processor,))
    )[0]
    assert found.single_us[processor] == pytest.approx(found.bottleneck_us, rel=1e-6)
    assert found.ideal_us == pytest.approx(found.bottleneck_us, rel=1e-6)
