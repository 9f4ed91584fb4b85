"""Files of many partitions, cut from one export of their network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from nnstretch.capture.torch_export import CapturedNetwork, trace
from nnstretch.errors import UnsupportedOp
from nnstretch.export.onnx import sections
from nnstretch.export.onnx.network_file import NetworkFile
from nnstretch.partition.export import export_partition, export_to_cut
from nnstretch.partition.partition import PartitionRequest, partitions
from nnstretch.partition.pieces import export_pieces
from nnstretch.predict import load_soc
from nnstretch.run.pipelines.pipeline import Pipeline


class Shortcuts(nn.Module):
    """Batch norms to fold, a shortcut over two stages, and a map that two layers read."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU()
        )
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.side = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.relu(self.body(x) + x)
        x = functional.interpolate(x, scale_factor=2, mode="nearest") * 0.5
        x = torch.cat([self.side(x), x], 1).mean((2, 3))
        return self.head(x[:, :8] * x[:, 8:])


@pytest.fixture(scope="module")
def network() -> tuple[nn.Module, CapturedNetwork, NetworkFile]:
    torch.manual_seed(0)
    module = Shortcuts().eval()
    captured = trace(module, torch.zeros(1, 3, 32, 32), "net")
    return module, captured, export_to_cut(captured.graph, captured.weights)


def test_candidates_are_cut_from_one_export_and_compute_the_network(
    network: tuple[nn.Module, CapturedNetwork, NetworkFile],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, captured, whole = network
    soc = load_soc("mi9")
    candidates = partitions(captured.graph, soc, PartitionRequest(3, ("cpu", "dsp", "gpu"), top=4))
    monkeypatch.setattr(sections, "export_model", lambda *_: pytest.fail("exported anew"))
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = module(x).numpy()
    assert len(candidates) == 4
    for number, partition in enumerate(candidates):
        path = tmp_path / f"{number}.nns"
        export_partition(partition, captured.weights, path, module=module, network_file=whole)
        with Pipeline(path) as pipeline:
            pipeline.push(x.numpy())
            np.testing.assert_allclose(pipeline.get().value(), expected, atol=1e-5)


def test_a_section_that_would_read_more_than_it_is_given_is_not_cut(
    network: tuple[nn.Module, CapturedNetwork, NetworkFile],
) -> None:
    _, captured, whole = network
    first, *_, last = [value.name for value in whole.model.graph.output]
    assert whole.section([value.name for value in captured.graph.inputs], [first]) is not None
    assert whole.section([], [last]) is None
    assert whole.section([first], ["nowhere"]) is None


class Twice(nn.Module):
    """One value under two names, or an input beside it."""

    def __init__(self, is_input: bool) -> None:
        super().__init__()
        self.first, self.second, self.is_input = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), is_input

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.second(torch.relu(self.first(x)))
        return y, x if self.is_input else y


@pytest.mark.parametrize(
    ("is_input", "same"), [(False, r"output twice \(conv2d_1\)"), (True, r"input unchanged \(x\)")]
)
def test_outputs_that_are_one_value_are_refused_in_any_number_of_pieces(
    tmp_path: Path, is_input: bool, same: str
) -> None:
    captured = trace(Twice(is_input).eval(), torch.zeros(1, 3, 8, 8), "net")
    graph, weights = captured.graph, captured.weights
    says = f"cannot export net to ONNX, it returns its {same}, choose other outputs"
    for stages in (1, 2):
        partition = partitions(graph, load_soc("mi9"), PartitionRequest(stages))[0]
        with pytest.raises(UnsupportedOp, match=says):
            export_partition(partition, weights, tmp_path / "net.nns")
        with pytest.raises(UnsupportedOp, match=says):
            export_pieces(graph, weights, partition.subgraphs, lambda *_: None)
    assert not list(tmp_path.iterdir())


class WithAnchors(Twice):
    """A head that gives a table of its own beside what it computes."""

    def __init__(self) -> None:
        super().__init__(is_input=False)
        self.register_buffer("anchors", torch.ones(1, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(x)[0], self.anchors


def test_an_output_that_is_a_weight_is_written_by_the_whole_network_and_by_no_piece(
    tmp_path: Path,
) -> None:
    captured = trace(WithAnchors().eval(), torch.zeros(1, 3, 8, 8), "net")
    graph, weights = captured.graph, captured.weights
    pieces = partitions(graph, load_soc("mi9"), PartitionRequest(2))[0]
    says = r"cannot export net to ONNX in pieces, it returns its weight unchanged \(anchors\)"
    with pytest.raises(UnsupportedOp, match=says):
        export_partition(pieces, weights, tmp_path / "net.nns")
    with pytest.raises(UnsupportedOp, match=says):
        export_pieces(graph, weights, pieces.subgraphs, lambda *_: None)
    whole = export_pieces(graph, weights, [graph], lambda *_: None)
    assert whole.manifest.output_names == graph.outputs
