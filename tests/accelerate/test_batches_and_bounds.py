"""Batches that clusters do not share evenly, constants of a batch, and outputs nobody computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.tiny_networks import answer
from torch import nn

from nnstretch.accelerate.bounds import least_times_us
from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches

WIDENED = """
import torch
from torch import nn

class Widened(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
        self.example_inputs = (torch.zeros(1, 8),)

    def forward(self, x):
        return torch.relu(self.layer(torch.cat([x, torch.ones(x.shape[0], 8)], 1)))

def make():
    return Widened()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "iterations"), [(1, 1), (5, 2), (8, 2), (9, 3)])
def test_every_input_crosses_ddr_once_where_clusters_do_not_share_a_batch_evenly(
    capsys: pytest.CaptureFixture[str], networks: Path, batch: int, iterations: int
) -> None:
    asked = (f"{networks}:tiny", "--accelerator", "stcp920", "--per-cluster", 1, "--batch")
    alone, together = answer(capsys, *asked, 1), answer(capsys, *asked, batch)
    assert together["iterations"] == iterations
    for key in ("ddr_bytes", "weights_ddr_bytes"):
        assert together[key] == batch * alone[key] > 0


def test_a_cluster_computes_more_than_its_share_in_one_pass(
    capsys: pytest.CaptureFixture[str], networks: Path
) -> None:
    asked = (f"{networks}:tiny", "--accelerator", "stcp920", "--per-cluster", 3, "--batch")
    once, twice = answer(capsys, *asked, 3), answer(capsys, *asked, 5)
    assert (twice["iterations"], twice["ddr_bytes"]) == (1, 2 * once["ddr_bytes"])


def test_constants_of_as_many_rows_as_inputs_are_those_of_the_batch_that_is_carried_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "wide.py").write_text(WIDENED, encoding="utf-8")
    asked = (f"{tmp_path}/wide.py:make", "--accelerator", "stcp920", "--batch", 64, "--check")
    result = answer(capsys, *asked)
    assert result["per_cluster"] > 1, "smaller ones were captured after it"
    assert result["max_abs_error"] == pytest.approx(0, abs=1e-5)


class Halved(nn.Module):
    """A layer of half of its input, which may hand out a buffer and its input as well."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.layer, self.more = nn.Linear(4, 4), more
        self.register_buffer("fixed", torch.arange(600.0).reshape(2, 300))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Compute the layer."""
        y = torch.relu(self.layer(x[:, :4]))
        return (y, self.fixed, x) if self.more else (y,)


@pytest.mark.parametrize("machine", ["stcp920", "nvdla-64"])
def test_outputs_that_nothing_computes_are_no_part_of_the_least_times(machine: str) -> None:
    described = load_accelerator(machine)
    rates = ChipRates(described, described.element_types[0])
    least: list[dict[str, float]] = []
    for more in (False, True):
        network = NetworkBatches(Halved(more), (torch.randn(1, 8),), "halved")
        chip = chip_graph(network.graph(2), rates.element_type)
        least.append(dict(least_times_us(chip, rates)))
    assert least[0] == least[1]
