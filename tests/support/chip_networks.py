"""Networks that tests of accelerators schedule, captured once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from nnstretch.accelerate.chip_graph import ChipGraph, chip_graph
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.capture import default_input, load_model

NETWORKS = Path(__file__).parents[2] / "examples" / "accelerator" / "networks.py"


@cache
def batches(model: str) -> NetworkBatches:
    module = load_model(model)
    examples = getattr(module, "example_inputs", None)
    return NetworkBatches(module, examples or (torch.zeros(default_input(model, module)),), model)


def resnet50(batch: int, element_type: str = "fp16") -> ChipGraph:
    return chip_graph(batches("torchvision:resnet50").graph(batch), element_type)


def bert(batch: int, tokens: int, width: str = "base", layers: int = 2) -> ChipGraph:
    model = f"{NETWORKS}:bert_{width}?tokens={tokens}&layers={layers}&words=100"
    return chip_graph(batches(model).graph(batch), "fp16")
