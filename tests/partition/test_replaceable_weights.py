"""Weights that a pipeline offers for replacement are those of the network, each for itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.search_instances import chip
from torch import nn

from nnstretch.capture.torch_export import trace
from nnstretch.partition.export import export_partition
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.run.pipelines.pipeline import Pipeline


def folded_norm() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1))
    nn.init.constant_(module[1].running_var, 4.0)
    return module


def tied() -> nn.Module:
    embedding, head = nn.Embedding(10, 8), nn.Linear(8, 10, bias=False)
    head.weight = embedding.weight
    return nn.Sequential(embedding, nn.Tanh(), head)


def equal_norms() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8))


IMAGES, IDS, ROWS = torch.ones(1, 3, 6, 6), torch.arange(6).reshape(2, 3), torch.ones(2, 8)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    ("module", "x", "offered"),
    [
        (folded_norm(), IMAGES, {"2.weight", "2.bias"}),
        (tied(), IDS, set()),
        (equal_norms(), ROWS, {"0.weight", "0.bias", "2.weight", "2.bias"}),
    ],
    ids=["folded", "tied", "equal"],
)
def test_replaced_weights_compute_what_they_do_in_the_network(
    module: nn.Module, x: torch.Tensor, offered: set[str], stages: int, tmp_path: Path
) -> None:
    captured = trace(module.eval(), x, "net")
    partition = partitions(captured.graph, chip(), PartitionRequest(stages=stages))[0]
    export_partition(partition, captured.weights, tmp_path / "p.nns", module=module)
    before = {name: weight.detach().numpy().copy() for name, weight in module.named_parameters()}
    with Pipeline(tmp_path / "p.nns") as pipeline, torch.no_grad():
        names: set[str] = set()
        for group in [group.name for group in pipeline.pipeline.groups]:
            for name, value in pipeline.parameters(group).items():
                assert np.array_equal(value, before[name])
                pipeline.set_parameters(group, {name: value + 0.5})
                names.add(name)
        for name in names:
            module.get_parameter(name).add_(0.5)
        result = pipeline.run(x.numpy())
    np.testing.assert_allclose(result, module(x).detach().numpy(), rtol=1e-3, atol=1e-4)
    assert stages > 1 or names == offered
