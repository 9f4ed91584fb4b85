"""One network on a described machine: exported once, scheduled and simulated once for each case."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch

from nnstretch.accelerate.accelerate import AccelerateRequest, AccelerateResult, accelerate
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import ScheduleOptions
from nnstretch.capture import default_input, load_model

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "tests" / "data" / "accelerators"
NETWORKS = ROOT / "examples" / "accelerator" / "networks.py"
MODELS = {
    "A": "torchvision:resnet50",
    "B": f"{NETWORKS}:bert_base?tokens=128",
    "D": f"{NETWORKS}:bert_large?tokens=384",
    "J": f"{NETWORKS}:conformer",
}
SHOWN = {"A": "ResNet-50", "B": "BERT-base 128", "D": "BERT-large 384", "J": "Conformer"}


@cache
def network(model: str) -> NetworkBatches:
    """Load and export a network once."""
    module = load_model(model)
    examples = getattr(module, "example_inputs", None) or (
        torch.zeros(default_input(model, module)),
    )
    return NetworkBatches(module, examples, model)


@cache
def modelled(
    model: str,
    machine: str,
    policy: str,
    batch: int,
    images: int | None,
    assume: tuple[str, ...] = (),
    overlap: str | None = None,
) -> AccelerateResult:
    """Schedule and simulate one case."""
    described = load_accelerator(machine, assume, policy)
    rates = ChipRates(described, described.element_types[0])
    request = AccelerateRequest(rates, batch, ScheduleOptions(policy, overlap), images)
    return accelerate(network(model).graph, request)


def external(machine: str, quantity: str) -> Iterable[dict[str, str]]:
    """Yield published figures of machines whose name begins so."""
    with (FIGURES / "external.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["machine"].startswith(machine) and row["quantity"].startswith(quantity):
                yield row
