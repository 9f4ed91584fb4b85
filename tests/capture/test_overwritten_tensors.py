"""Networks that write into slices and views of tensors are rebuilt exactly, or refused."""

from __future__ import annotations

import pytest
import torch
from support.rebuilt_network import Of, rebuilt
from torch import nn

from nnstretch.capture import build, trace
from nnstretch.errors import CannotCapture


def test_writing_into_a_slice_writes_into_the_tensor_behind_it() -> None:
    """Swin v2 zeroes a third of a copied bias in place."""

    def zeroed(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x).clone()
        y[:, 1:3].zero_()
        y[0].mul_(2)
        return y + 1

    graph, error = rebuilt(Of(zeroed), torch.randn(2, 4))
    assert error <= 1e-6
    assert {"slice_scatter", "select_scatter"} <= {node.kind for node in graph.nodes}


def test_writing_into_a_view_of_all_of_a_tensor_writes_into_it() -> None:
    def written(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x).clone()
        y[...] += x
        y[..., :] *= 2
        shown = y.detach()
        shown -= 1
        y[:, :4].mul_(3)
        return y + shown

    assert rebuilt(Of(written), torch.randn(2, 4))[1] <= 1e-6


def test_what_is_computed_is_written_into_a_slice_of_a_constant() -> None:
    def filled(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(2, 4)
        y[1, 0] = 3.0
        y[:, 2:] = layer(x)[:, :2]
        twice = y * 2
        y[0] += x[0]
        return twice + y

    graph, error = rebuilt(Of(filled), torch.randn(2, 4))
    assert error <= 1e-6
    assert any(w.name.startswith("constants.") for w in graph.weights)


def test_a_copy_into_a_slice_can_be_trained_through() -> None:
    def copying(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x).clone()
        y[:, :2] = y[:, 2:] * 2
        return y

    captured = trace(module := Of(copying), x := torch.randn(2, 4), "net")
    built = build(captured.graph, captured.weights)
    built(x).square().sum().backward()
    assert rebuilt(module, x)[1] <= 1e-6
    assert all(p.grad is not None for p in built.parameters())


def test_writing_into_another_view_that_is_read_again_is_refused() -> None:
    def flattened(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        y.view(-1).relu_()
        return y + 1

    with pytest.raises(
        CannotCapture,
        match="cannot capture net, relu_ writes into view, a view of linear that is read later",
    ):
        trace(Of(flattened), torch.randn(2, 4), "net")


def test_a_view_that_was_taken_before_its_tensor_changed_is_refused() -> None:
    def stale(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        half = y[:, :2]
        y.relu_()
        return half + y[:, 2:]

    with pytest.raises(
        CannotCapture,
        match=r"relu_ writes into linear, of which the view slice_[0-9]+ is read later",
    ):
        trace(Of(stale), torch.randn(2, 4), "net")


def test_pieces_may_be_overwritten_when_nobody_reads_the_whole_again() -> None:
    def pieces(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        left, right = layer(x).chunk(2, 1)
        return torch.cat([left.relu_(), right], 1)

    assert rebuilt(Of(pieces), torch.randn(2, 4))[1] <= 1e-6
