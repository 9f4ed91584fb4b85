"""Networks that write into slices and views of tensors are rebuilt exactly, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.rebuilt_network import Of, rebuilt
from support.view_programs import SHAPE, ViewProgram
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


def flattened(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    y.view(-1).relu_()
    return y + 1


def taken_before(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    half = y[:, :2]
    y.relu_()
    return half + y[:, 2:]


def sibling(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    low, middle = y[:, :3], y[:, 1:]
    low.mul_(3)
    return torch.cat([low, middle], 1)


def decoded_boxes(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x).sigmoid().t()
    corners, sizes, box = y[:2], y[2:4], y[:3]
    corners.mul_(2).sub_(0.5)
    sizes.pow_(2)
    return box


def two_shapes(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    flat, square = y.flatten(), y.view(-1, 2, 2)
    square.add_(1)
    return flat * 2


def overwritten_piece_by_piece(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    left, right = y.chunk(2, 1)
    left.add_(right)
    right.mul_(left)
    return y


def nested(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """`first` is written through `part`, which nobody reads after `across` was written."""
    y = layer(x)
    part, across = y[:, :3], y[:, 1:2]
    first = part[:, :1]
    across.add_(5)
    first.mul_(2)
    return y


def switched_off(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    nn.functional.dropout(y, 0.5, False)[0].add_(1)
    return y


def new_shape(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    row = y[1]
    row.unsqueeze_(0)
    row.mul_(2)
    return y


def constant_read_twice(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(2, 4)
    before = layer(x) + y
    y[0] = 1.0
    return before + y


def constant_in_pieces(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(2, 4)
    left, right = y[:, :2], y[:, 2:]
    left.copy_(layer(x)[:, :2])
    right.add_(1)
    return y + x


VIEWS = [
    *(flattened, taken_before, sibling, decoded_boxes, two_shapes, overwritten_piece_by_piece),
    *(nested, switched_off, new_shape, constant_read_twice, constant_in_pieces),
]


@pytest.mark.parametrize("function", VIEWS, ids=lambda function: function.__name__)
def test_whatever_shows_a_written_memory_shows_what_was_written(
    function: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    assert rebuilt(Of(function), torch.randn(2, 4))[1] <= 1e-6


def shaped(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    y.view(x.shape[0], 2, 2)[:, 0].relu_()
    return y + 1


def of_the_batch_twice(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x) @ layer(x).t()
    y.view(-1)[::2].relu_()
    return y.sum(1)


def half_of_the_batch(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    y[: x.shape[0] // 2].relu_()
    return y + 1


def last_of_the_batch(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = layer(x)
    y[x.shape[0] - 1].relu_()
    return y + 1


VARYING = [flattened, two_shapes, shaped, of_the_batch_twice, half_of_the_batch, last_of_the_batch]


@pytest.mark.parametrize("function", VARYING, ids=lambda function: function.__name__)
def test_writing_into_a_view_leaves_the_batch_open(
    function: Callable[[nn.Module, torch.Tensor], torch.Tensor],
) -> None:
    captured = trace(module := Of(function).eval(), torch.randn(4, 4), "net")
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        result = build(captured.graph, captured.weights).eval()(x)
        torch.testing.assert_close(result, module(x))


def check_program(seed: int) -> None:
    """Drawn views and writes are captured as PyTorch computes them, or refused."""
    module, x = ViewProgram(seed).eval(), torch.randn(SHAPE)
    with torch.no_grad():
        expected = module(x.clone())
    try:
        captured = trace(module, x, "net")
    except CannotCapture:
        return
    results = build(captured.graph, captured.weights).eval()(x.clone())
    results = results if isinstance(results, tuple) else (results,)
    for wanted, result in zip(expected, results, strict=True):
        precise = wanted.dtype != torch.float16
        torch.testing.assert_close(result, wanted, rtol=1e-4 if precise else 0.02, atol=1e-4)


def test_a_few_drawn_views_and_writes_are_exact_or_refused() -> None:
    for seed in (0, 14, 1073, 1204):
        check_program(seed)


@pytest.mark.slow
def test_many_drawn_views_and_writes_are_exact_or_refused() -> None:
    for seed in range(40):
        check_program(seed)


def test_writing_into_a_view_without_an_inverse_is_refused_with_line_and_advice() -> None:
    def across(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        y.diagonal().relu_()
        return y + 1

    says = (
        r"cannot capture net, relu_ in forward, rebuilt_network.py:\d+, writes into"
        r" diagonal, a view of linear that is read later; compute it out of place, or in a .clone"
    )
    with pytest.raises(CannotCapture, match=says):
        trace(Of(across), torch.randn(2, 4), "net")


def test_a_view_without_an_inverse_may_be_overwritten_when_nobody_reads_the_whole_again() -> None:
    def across(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x).diagonal().relu_() + 1

    assert rebuilt(Of(across), torch.randn(2, 4))[1] <= 1e-6


def test_an_operator_in_place_keeps_the_type_of_what_it_writes_into() -> None:
    def widened(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x).half() + 8
        y += torch.full((1,), 0.003)
        return y.float()

    def compared(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        y.gt_(0)
        return y / 2

    def wrapped(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = (layer(x) > -9).int()
        y += torch.full((4,), 2**31 - 1)
        return y.float()

    torch.manual_seed(0)  # no sum of a layer lies where rounding it to half is a matter of order
    for function in (widened, compared, wrapped):
        graph, error = rebuilt(Of(function), torch.randn(2, 4))
        assert error == 0
        assert "to" in {node.kind for node in graph.nodes}


def test_a_cast_copies_and_may_be_written_into() -> None:
    def cast(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        half = y.half()
        half.mul_(2.0)
        columns = y.t().reshape(-1)
        columns.add_(1)
        return (half + y).sum() + columns

    graph, error = rebuilt(Of(cast), torch.randn(2, 4))
    assert error <= 1e-3
    assert not {node.kind for node in graph.nodes} & {"slice_scatter", "select_scatter"}


def test_pieces_may_be_overwritten_when_nobody_reads_the_whole_again() -> None:
    def pieces(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        left, right = layer(x).chunk(2, 1)
        return torch.cat([left.relu_(), right], 1)

    assert rebuilt(Of(pieces), torch.randn(2, 4))[1] <= 1e-6
