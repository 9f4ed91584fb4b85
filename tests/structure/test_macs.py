"""Work of products of two activations, counted beside the MACs of layers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from nnstretch.capture.torch_export import capture
from nnstretch.graph import Argument, Graph, Node, TensorSpec, Value, ValueRef
from nnstretch.structure.macs import attention_macs, count_macs, product_macs

Function = Callable[..., torch.Tensor]
Shapes = tuple[tuple[int, ...], ...]
SHAPES = {
    "q": (2, 4, 9, 16),
    "k": (2, 4, 7, 16),
    "v": (2, 4, 7, 24),
    "mask": (9, 7),
    "a": (3, 5, 6),
    "b": (3, 6, 8),
    "bias": (1, 1, 8),
}


def node_of(op: str, *args: Argument, shape: tuple[int, ...] = (1,)) -> Node:
    return Node("y", op, args, (TensorSpec(shape),))


def refs_to(names: str) -> tuple[ValueRef, ...]:
    return tuple(map(ValueRef, names.split()))


@pytest.mark.parametrize(
    ("node", "macs"),
    [
        (
            node_of("scaled_dot_product_attention", *refs_to("q k v")),
            2 * 4 * 9 * 7 * 16 + 2 * 4 * 9 * 7 * 24,
        ),
        (
            # A mask is no key, whichever operands are one and the same tensor.
            node_of("scaled_dot_product_attention", *refs_to("k k k mask")),
            2 * (2 * 4 * 7 * 7 * 16),
        ),
        (node_of("bmm", *refs_to("a b"), shape=(3, 5, 8)), 3 * 5 * 6 * 8),
        (node_of("matmul", *refs_to("a b"), shape=(3, 5, 8)), 3 * 5 * 6 * 8),
        (node_of("baddbmm", *refs_to("bias a b"), shape=(3, 5, 8)), 3 * 5 * 6 * 8),
        (node_of("einsum", "bij,bjk->bik", refs_to("a b"), shape=(3, 5, 8)), 3 * 5 * 6 * 8),
        (node_of("einsum", "...ij,...jk", refs_to("a b"), shape=(3, 5, 8)), 3 * 5 * 6 * 8),
        (node_of("add.Tensor", *refs_to("a a"), shape=SHAPES["a"]), 0),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_product_of_activations_counts_every_multiplication(node: Node, macs: int) -> None:
    specs = {name: TensorSpec(shape) for name, shape in SHAPES.items()}
    assert product_macs(node, specs) == macs


class Called(nn.Module):
    """A function of tensors as a network."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return self.function(*tensors)


linalg = torch.linalg
KNOWN_TO_TORCH: list[tuple[Function, Shapes, int]] = [
    (lambda a, b: torch.tensordot(a, b, ([0, 2], [2, 1])), ((2, 5, 6), (3, 6, 2)), 5 * 3 * 2 * 6),
    (lambda a, b: torch.tensordot(a, b, ([0, -1], [2, 1])), ((2, 5, 6), (3, 1, 2)), 5 * 3 * 2),
    (lambda a, b: torch.tensordot(a, b, 1), ((2, 5, 6), (6, 3)), 2 * 5 * 3 * 6),
    (torch.inner, ((2, 5, 6), (3, 6)), 2 * 5 * 3 * 6),
    (linalg.matmul, ((2, 5, 6), (2, 6, 3)), 2 * 5 * 3 * 6),
    (lambda *m: linalg.multi_dot(m), ((5, 6), (6, 8)), 5 * 6 * 8),
    # (a (b c)) d: the narrowest first; from the left it would be 410.
    (
        lambda *m: linalg.multi_dot(m),
        ((5, 6), (6, 8), (8, 2), (2, 9)),
        6 * 8 * 2 + 5 * 6 * 2 + 5 * 2 * 9,
    ),
    (lambda *m: linalg.multi_dot(m), ((6,), (6, 8), (8,)), 6 * 8 + 6),
    (lambda *m: torch.chain_matmul(*m), ((9, 2), (2, 8), (8, 3)), 2 * 8 * 3 + 9 * 2 * 3),
    (torch.outer, ((6,), (7,)), 0),
]
COUNTED_BY_HAND: list[tuple[Function, Shapes, int]] = [
    (torch.mv, ((5, 6), (6,)), 5 * 6),
    (torch.addmv, ((5,), (5, 6), (6,)), 5 * 6),
    (torch.addbmm, ((5, 4), (3, 5, 6), (3, 6, 4)), 3 * 5 * 6 * 4),
    (torch.dot, ((6,), (6,)), 6),
    (torch.vdot, ((6,), (6,)), 6),
    (linalg.vecdot, ((2, 1, 6), (5, 6)), 2 * 5 * 6),
    (lambda a, b: linalg.vecdot(a, b, dim=1), ((2, 5, 6), (2, 5, 6)), 2 * 5 * 6),
    (torch.cdist, ((2, 5, 6), (2, 7, 6)), 2 * 5 * 7 * 6),
    (torch.inner, ((2, 5), ()), 0),
]


@pytest.mark.parametrize(("function", "shapes", "macs"), [*KNOWN_TO_TORCH, *COUNTED_BY_HAND])
def test_products_of_every_name_count_what_they_multiply(
    function: Function, shapes: Shapes, macs: int
) -> None:
    assert attention_macs(capture(Called(function), tuple(map(torch.ones, shapes)))) == macs


@pytest.mark.parametrize(("function", "shapes", "macs"), KNOWN_TO_TORCH)
def test_torch_counts_the_same_products(function: Function, shapes: Shapes, macs: int) -> None:
    with FlopCounterMode(display=False) as counter:
        function(*map(torch.ones, shapes))
    assert counter.get_total_flops() == 2 * macs


def test_a_graphs_macs_leave_attention_to_a_count_of_its_own() -> None:
    x = Value("x", TensorSpec((1, 8, 32)))
    product = Node("y", "matmul", refs_to("x x"), (TensorSpec((1, 8, 8)),))
    graph = Graph("net", (x,), (), (product,), ("y",))
    assert graph.macs == 0
    assert attention_macs(graph) == prod((8, 8, 32))


def test_a_linear_layer_written_as_addmm_counts_as_one() -> None:
    specs = {
        "x": TensorSpec((7, 6)),
        "in_out": TensorSpec((6, 8)),
        "out_in": TensorSpec((8, 6)),
        "b": TensorSpec((8,)),
    }
    output = TensorSpec((7, 8))
    addmm = count_macs("addmm", refs_to("b x in_out"), output, specs)
    assert addmm == count_macs("linear", refs_to("x out_in b"), output, specs) == 7 * 8 * (6 + 1)


@pytest.mark.parametrize(
    "layer",
    [
        nn.GRU(6, 5, 2, batch_first=True, bidirectional=True),
        nn.LSTM(6, 5, batch_first=True, proj_size=3),
        nn.RNN(6, 5, nonlinearity="relu", batch_first=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_each_step_of_a_recurrent_layer_costs_its_weights_and_biases(layer: nn.Module) -> None:
    graph = capture(nn.Sequential(layer, FirstResult()), torch.zeros(2, 7, 6))
    assert graph.macs == 2 * 7 * sum(parameter.numel() for parameter in layer.parameters())


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell, nn.RNNCell])
def test_a_cell_costs_what_a_step_of_its_layer_does(kind: type[nn.RNNCellBase]) -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = kind(6, 5)  # type: ignore[call-arg]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = None
            for step in range(3):
                state = self.cell(x[:, step], state)
            return state if isinstance(state, torch.Tensor) else state[0]

    module = Loop()
    graph = capture(module, torch.zeros(2, 3, 6))
    assert graph.macs == 2 * 3 * sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("bias", [False, True])
def test_a_bilinear_layer_costs_its_weights_for_each_row(bias: bool) -> None:
    class Square(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Bilinear(6, 6, 4, bias=bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x, x)

    assert capture(Square(), torch.zeros(7, 6)).macs == 7 * (4 * 6 * 6 + 4 * bias)


class FirstResult(nn.Module):
    """The sequence that a recurrent layer returns, without its last state."""

    def forward(self, results: tuple[torch.Tensor, object]) -> torch.Tensor:
        return results[0]
