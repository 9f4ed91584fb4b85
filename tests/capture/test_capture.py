"""A network becomes a graph of the operators PyTorch really calls, and back into the same
network.
"""

from __future__ import annotations

import re

import pytest
import torch
from support.random_networks import INPUT, KINDS, Step, network, relative
from support.rebuilt_network import Of, rebuilt
from torch import nn

import nnstretch.capture
from nnstretch.capture import build, trace
from nnstretch.capture.torch_export import capture
from nnstretch.errors import CannotCapture, UnsupportedOp
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef

SMALL = """graph small(%x<1x3x8x8>) {
  %conv2d<1x4x4x4> = conv2d(%x, %conv.weight, %conv.bias, [2, 2], [1, 1])
  %batch_norm<1x4x4x4> = batch_norm(%conv2d, %norm.weight, %norm.bias, %norm.running_mean, %norm.running_var, False, 0.1, 1e-05)
  %relu_<1x4x4x4> = relu(%batch_norm)
  %mean<1x4> = mean.dim(%relu_, [2, 3])
  %linear<1x5> = linear(%mean, %head.weight, %head.bias)
  return %linear
}"""


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = (
            nn.Conv2d(3, 4, 3, 2, 1),
            nn.BatchNorm2d(4),
            nn.Linear(4, 5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu_(self.norm(self.conv(x))).mean((2, 3)))


def printed(graph: Graph) -> str:
    """The golden text, without batch norm's last argument: it says how this PyTorch was built."""
    return re.sub(r"1e-05, (True|False)\)", "1e-05)", str(graph))


def test_a_graph_prints_one_operator_a_line() -> None:
    assert printed(capture(Small(), torch.zeros(1, 3, 8, 8), "small")) == SMALL


def test_work_counts_a_bias_once_per_output_element() -> None:
    graph = capture(Small(), torch.zeros(1, 3, 8, 8), "small")
    assert [node.macs for node in graph.nodes if node.macs] == [4 * 16 * 27 + 4 * 16, 5 * 4 + 5]
    assert graph.params == sum(p.numel() for p in Small().parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_block_is_rebuilt_exactly(kind: str) -> None:
    x = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))
    module = network([Step(kind, 24, 2)])
    graph, error = rebuilt(module, x)
    assert error <= 1e-6
    assert graph.params == sum(p.numel() for p in module.parameters())


def test_the_rebuilt_module_is_made_of_ordinary_layers_under_their_names() -> None:
    captured = trace(Small(), torch.zeros(1, 3, 8, 8), "small")
    module = build(captured.graph, captured.weights)
    assert isinstance(module.conv, nn.Conv2d)
    assert isinstance(module.norm, nn.BatchNorm2d)
    assert set(module.state_dict()) - {"norm.num_batches_tracked"} == {
        w.name for w in captured.graph.weights
    }


@pytest.mark.parametrize(
    "layer",
    [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(3), nn.Linear(8, 2)],
    ids=lambda layer: type(layer).__name__,
)
def test_a_network_that_is_one_layer_is_rebuilt_exactly(layer: nn.Module) -> None:
    graph, error = rebuilt(
        layer.eval(), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    )
    assert error <= 1e-6
    assert {weight.name for weight in graph.weights} <= set(layer.state_dict())


class Worn(nn.Module):
    """Weights that no layer of their own can hold.

    Read twice, of a norm without a layer, or by a product.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.group = (
            nn.Conv2d(8, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.GroupNorm(2, 8),
        )
        self.slope, self.scale = nn.PReLU(), nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.group(self.norm(self.conv(self.norm(self.conv(x)))))
        return self.slope(x).movedim(1, -1) * self.scale


def test_weights_of_no_layer_start_as_pytorch_starts_them() -> None:
    module = Worn()
    built = dict(build(capture(module, torch.zeros(2, 8, 8, 8), "worn")).state_dict())
    for name, weight in module.state_dict().items():
        if name == "conv.weight":
            assert float(built[name].std()) == pytest.approx(float(weight.std()), rel=0.2)
        elif name not in ("conv.bias", "norm.num_batches_tracked"):
            assert torch.equal(built[name], weight), name


def test_a_captured_network_takes_any_batch() -> None:
    module = network([Step("shuffle", 16), Step("attention", 16)])
    captured = trace(module, torch.zeros(INPUT), "net")
    x = torch.randn(5, *INPUT[1:], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert relative(module.eval()(x), build(captured.graph, captured.weights).eval()(x)) <= 1e-6


def test_shapes_are_those_of_the_example_batch() -> None:
    module = network([Step("attention", 16)])
    assert (
        capture(module, torch.zeros(7, *INPUT[1:]), "net").macs
        == 7 * capture(module, torch.zeros(1, *INPUT[1:]), "net").macs
    )


def test_every_module_keeps_its_own_mode() -> None:
    module = Small().train()
    module.norm.eval()
    capture(module, torch.zeros(1, 3, 8, 8))
    assert (module.training, module.conv.training, module.norm.training) == (True, True, False)


def test_capturing_changes_no_weight() -> None:
    module = Small().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    capture(module, torch.randn(2, 3, 8, 8))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_constants_are_computed_once_and_become_buffers() -> None:
    """A mask that is written into in place depends on nothing.

    It is a weight that is not trained.
    """

    def masked(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(4)
        mask[1:] = 2.0
        return layer(x) * mask

    graph, error = rebuilt(Of(masked), torch.randn(2, 4))
    assert error <= 1e-6
    assert [node.op for node in graph.nodes] == ["linear", "mul.Tensor"]
    assert [weight.name.split(".")[0] for weight in graph.weights if not weight.trainable] == [
        "constants"
    ]


def test_assertions_are_left_out() -> None:
    def checked(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = layer(x)
        return y.to(torch.float64).to(dtype=torch.float32)

    graph, error = rebuilt(Of(checked), torch.randn(2, 4))
    assert error <= 1e-6
    assert not any("assert" in node.op for node in graph.nodes)


def test_blocks_that_switch_autocast_or_gradients_off_are_written_out() -> None:
    def wrapped(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            y = layer(x) + 1
        with torch.no_grad():
            scale = y.mean()
        return torch.relu(y) * scale

    graph, error = rebuilt(Of(wrapped), torch.randn(2, 4))
    assert error <= 1e-6
    assert {"linear", "relu", "mean"} <= {node.kind for node in graph.nodes}


def test_control_flow_that_looks_at_values_is_refused_in_one_line() -> None:
    with pytest.raises(CannotCapture) as refusal:
        capture(Of(lambda layer, x: layer(x) if x.sum() > 0 else x), torch.zeros(2, 4), "branching")
    assert str(refusal.value).startswith(
        "cannot capture branching at input 2x4, torch.export refuses: "
    )
    assert "\n" not in str(refusal.value)


def test_a_wrong_input_shape_is_refused_in_one_line() -> None:
    with pytest.raises(CannotCapture, match="cannot capture small at input 1x5x8x8") as refusal:
        capture(Small(), torch.zeros(1, 5, 8, 8), "small")
    assert "\n" not in str(refusal.value)


def test_an_operator_that_pytorch_does_not_have_is_named() -> None:
    spec = TensorSpec((1, 4))
    graph = Graph(
        "made", (Value("x", spec),), (), (Node("y", "made_up", (ValueRef("x"),), (spec,)),), ("y",)
    )
    with pytest.raises(UnsupportedOp, match="no operator made_up, node y"):
        build(graph)


def test_the_package_itself_captures() -> None:
    graph = nnstretch.capture(Small(), torch.zeros(1, 3, 8, 8), "small")  # type: ignore[operator]
    assert printed(graph) == SMALL


def test_a_constant_may_have_the_name_of_a_method() -> None:
    """PyTorch names values after operators, and `to` is also what every module can do."""

    def moved(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x) * torch.arange(4).to(torch.float32)

    graph, error = rebuilt(Of(moved), torch.randn(2, 4))
    assert error <= 1e-6
    assert [weight.name for weight in graph.weights if not weight.trainable] == ["constants.to"]


class Normalized(nn.Module):
    """Weights named as the operators that read them, and as the input."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1))
        self.mul = nn.Parameter(torch.tensor(2.0))
        self.x = nn.Parameter(torch.tensor(0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) * self.mul
        x += self.x
        return x.mean((2, 3)) * x.amax((2, 3))


def test_weights_may_have_the_names_of_operators_and_inputs() -> None:
    module, x = Normalized(), torch.randn(1, 3, 6, 6)
    captured = trace(module, (x,), "normalized")
    names = [value.name for value in (*captured.graph.inputs, *captured.graph.weights)]
    names += [node.name for node in captured.graph.nodes]
    assert len(set(names)) == len(names)
    assert {weight.name for weight in captured.graph.weights} == {"mean", "mul", "x"}
    rebuilt = build(captured.graph, captured.weights)
    assert relative(rebuilt(x), module(x)) < 1e-6


class Variadic(nn.Module):
    """A layer of any number of inputs, behind as many named ones as it is asked for."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        result = self.layer(first)
        for other in others:
            result = result + self.layer(other)
        return result


@pytest.mark.parametrize("count", [1, 3])
def test_the_batch_of_inputs_that_forward_does_not_name_may_vary(count: int) -> None:
    module = Variadic(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)).eval()
    captured = trace(module, (torch.zeros(2, 7, 8),) * count, "net")
    inputs = tuple(torch.randn(3, 7, 8) for _ in range(count))
    with torch.no_grad():
        result = build(captured.graph, captured.weights).eval()(*inputs)
        torch.testing.assert_close(result, module(*inputs), rtol=1e-4, atol=1e-5)
    assert captured.notes == ()


def test_a_batch_that_is_fixed_in_the_graph_is_said_to_be() -> None:
    def scaled(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return layer(x) * (1 / x.shape[0])

    says = "the batch is fixed at 2, that of the example: at another one"
    with pytest.warns(UserWarning, match=f"net: {says}"):
        capture(Of(scaled), torch.zeros(2, 4), "net")
    assert trace(Of(lambda layer, x: layer(x)), torch.zeros(2, 4), "net").notes == ()
