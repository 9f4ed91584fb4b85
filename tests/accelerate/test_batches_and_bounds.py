"""Batches that clusters do not share evenly, constants of a batch, and outputs nobody computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.tiny_networks import answer
from torch import nn
from torch.nn.functional import linear

from nnstretch.accelerate.accelerate import AccelerateRequest, accelerate, result_json
from nnstretch.accelerate.bounds import least_times_us, needed_boxes, read_bytes
from nnstretch.accelerate.chip_graph import chip_graph
from nnstretch.accelerate.machine.load_accelerator import load_accelerator
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.network_batches import NetworkBatches
from nnstretch.accelerate.policies import POLICIES, ScheduleOptions

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


def test_a_network_that_goes_another_way_at_a_batch_is_read_so_there() -> None:
    class Parts(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Compute four inputs at a time."""
            return torch.cat([super(Parts, self).forward(part) for part in x.split(4)])

    network = NetworkBatches(Parts(nn.Linear(8, 4)), (torch.randn(1, 8),), "parts")
    for batch in (2, 8, 3):
        kinds = [node.kind for node in network.graph(batch).nodes]
        assert kinds.count("linear") == -(-batch // 4)


class Partly(nn.Module):
    """A layer, and beside it some features of another."""

    def __init__(self, features: int | None) -> None:
        super().__init__()
        self.layer, self.beside, self.features = nn.Linear(8, 8), nn.Linear(8, 8), features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layers."""
        y = torch.relu(self.layer(x))
        return y if self.features is None else torch.cat([self.beside(x)[:, : self.features], y], 1)


def test_a_layer_of_which_nothing_is_read_is_not_computed() -> None:
    described = load_accelerator("nvdla-64")
    rates = ChipRates(described, "int8")
    moved_bytes: list[int] = []
    for features in (None, 0, 1):
        network = NetworkBatches(Partly(features), (torch.randn(1, 8),), "partly")
        result = result_json(accelerate(network.graph, AccelerateRequest(rates, 1)), network.name)
        moved_bytes.append(result["weights_ddr_bytes"])
    assert 0 < moved_bytes[0] == moved_bytes[1] < moved_bytes[2]


def two_layers() -> NetworkBatches:
    """Two layers whose weights take far longer over DDR than their inputs."""
    layers = nn.Sequential(nn.Linear(64, 128, bias=False), nn.Linear(128, 32, bias=False))
    return NetworkBatches(layers, (torch.zeros(1, 64),), "two layers")


class Words(nn.Module):
    """A layer of the rows of a short and a long table, as many as the tokens of an input."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Embedding(5, 32), nn.Embedding(900, 32)
        self.layer = nn.Linear(32, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        return self.layer(self.short(ids) + self.long(ids))


def words() -> NetworkBatches:
    ids = torch.arange(3).unsqueeze(0) + 2
    return NetworkBatches(Words(), (ids,), "words")


class Tied(nn.Module):
    """Rows of a table, which is the weight of the layer behind them, too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        return linear(self.table(ids), self.table.weight)


def tied() -> NetworkBatches:
    return NetworkBatches(Tied(), (torch.arange(6).unsqueeze(0),), "tied")


class Looked(nn.Module):
    """Sums of rows of one table: of each index and of those at an offset behind it."""

    def __init__(self, offsets: tuple[int, ...]) -> None:
        super().__init__()
        self.table, self.offsets = nn.Embedding(50, 32), offsets

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Compute the sum."""
        return sum(self.table(ids + offset if offset else ids).sin() for offset in self.offsets)


class Ends(nn.Module):
    """A layer of both ends of a long input, and the first rows of a long weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(16, 16), nn.Parameter(torch.ones(512, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        return self.layer(x[:, :16] + x[:, -16:]) + self.rows[:1]


def ends() -> NetworkBatches:
    return NetworkBatches(Ends(), (torch.zeros(1, 4096),), "ends")


@pytest.mark.parametrize("make", [two_layers, words, tied, ends])
@pytest.mark.parametrize("batch", [1, 5, 8])
def test_a_batch_has_one_bound_that_no_policy_beats_with_any_images_a_cluster(
    make: Callable[[], NetworkBatches], batch: int
) -> None:
    machine = replace(load_accelerator("stcp920"), clusters=4)
    rates, network = ChipRates(machine, "int8"), make()
    bounds: set[tuple[float, str]] = set()
    for images in range(1, batch + 1):
        for policy in POLICIES:
            request = AccelerateRequest(rates, batch, ScheduleOptions(policy), images, 0.0)
            result = result_json(accelerate(network.graph, request), network.name)
            assert result["throughput_per_s"] <= result["bound_per_s"] * (1 + 1e-9)
            bounds.add((float(f"{result['bound_per_s']:.9g}"), result["bound_by"]))
    assert len(bounds) == 1, bounds


def test_the_bound_counts_each_weight_once_for_the_share_of_a_cluster() -> None:
    described = load_accelerator("nvdla-64")
    ddr = replace(described.ddr, bytes_per_s=1e9, both_directions=False)
    rates = ChipRates(replace(described, clusters=4, ddr=ddr), "int8")
    result = accelerate(two_layers().graph, AccelerateRequest(rates, 8, per_cluster=8))
    moved_bytes = 64 * 128 + 128 * 32 + 2 * (64 + 32)
    assert result_json(result, "two layers")["bound_per_s"] == pytest.approx(8e9 / moved_bytes)


@pytest.mark.parametrize(
    ("module", "tokens", "rows"),
    [
        (Tied(), 6, 50),
        (Tied(), 80, 50),
        (Looked((0,)), 6, 6),
        (Looked((0, 0)), 6, 6),
        (Looked((0, 3)), 6, 12),
        (Looked((0, 3)), 30, 50),
    ],
)
def test_rows_of_a_table_count_once_and_the_table_at_most(
    module: nn.Module, tokens: int, rows: int
) -> None:
    ids = torch.arange(tokens).unsqueeze(0) % 40
    chip = chip_graph(NetworkBatches(module, (ids,), "table").graph(1), "fp16")
    assert read_bytes(chip, needed_boxes(chip), 1.0)[0] == pytest.approx(rows * 32 * 2)
