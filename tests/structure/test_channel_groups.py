"""Channel groups: what scales together, what stays, and why.

And the rewritten shapes are PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from support.random_networks import INPUT, KINDS, Split, Step, network
from torch import nn
from torch.nn import functional as F

from nnstretch.capture import build, trace
from nnstretch.graph import Graph
from nnstretch.stretch.lowering.resize_graph import resize_graph
from nnstretch.structure.channel_groups import ChannelGroups, analyze_channels
from nnstretch.structure.channel_rules.table import RULES, same


class Of(nn.Module):
    """Layers, and a function that calls them."""

    def __init__(self, forward: Callable[..., torch.Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleDict(layers), forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, **self.layers)


def conv(cin: int, cout: int, groups: int = 1, k: int = 1) -> nn.Conv2d:
    return nn.Conv2d(cin, cout, k, padding=k // 2, groups=groups, bias=False)


def analysed(
    module: nn.Module, shape: tuple[int, ...] = (2, 8, 4, 4)
) -> tuple[Graph, ChannelGroups]:
    graph = trace(module, torch.zeros(shape), "net").graph
    return graph, analyze_channels(graph)


def root(found: ChannelGroups, weight: str, axis: int = 0) -> set[int]:
    return found.roots(found.shapes[f"layers.{weight}.weight"][0][axis])


def test_a_chain_has_a_group_between_every_two_layers() -> None:
    graph, found = analysed(Of(lambda x, a, b: b(a(x)), a=conv(8, 16), b=conv(16, 24)))
    assert root(found, "a") == root(found, "b", 1)
    assert root(found, "a") != root(found, "b")
    assert found.axis(graph.inputs[0].name) == 1


@torch.library.custom_op("nnstretch_tests::soft_gate", mutates_args=())
def soft_gate(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tanh(x)


@soft_gate.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_custom_operator_has_its_rule_by_namespace_and_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Of(lambda x, a, b: b(soft_gate(a(x))), a=conv(8, 16), b=conv(16, 24))
    _, found = analysed(module)
    assert root(found, "a") != root(found, "b", 1)
    monkeypatch.setitem(RULES, "nnstretch_tests::soft_gate", same)
    _, found = analysed(module)
    assert root(found, "a") == root(found, "b", 1)


def test_an_addition_ties_its_operands() -> None:
    _, found = analysed(Of(lambda x, a, b: a(x) + b(x), a=conv(8, 16), b=conv(8, 16)))
    assert root(found, "a") == root(found, "b")


def test_a_shortcut_from_the_input_is_a_junction() -> None:
    graph, found = analysed(Of(lambda x, a: a(x) + x, a=conv(8, 8)))
    assert [(j.node, j.argument) for j in found.junctions] == [(graph.outputs[0], 1)]
    assert root(found, "a") != root(found, "a", 1)


def test_a_weight_that_is_added_is_no_shortcut() -> None:
    module = Of(lambda x, a: a(x))
    module.function = lambda x: x + module.embedding  # type: ignore[assignment]
    module.register_parameter("embedding", nn.Parameter(torch.zeros(1, 8, 1, 1)))
    _, found = analysed(module)
    assert not found.junctions


def test_depthwise_and_grouped_convolutions_come_in_whole_groups() -> None:
    _, found = analysed(
        Of(
            lambda x, a, b, c: c(b(a(x))),
            a=conv(8, 32),
            b=conv(32, 32, groups=32),
            c=conv(32, 64, groups=4),
        )
    )
    assert root(found, "a") == root(found, "b") == root(found, "c")
    assert found.granularity[root(found, "a").pop()] == 4
    assert "group width" in found.pinned[root(found, "c", 1).pop()]


def test_a_constant_depthwise_kernel_keeps_the_channels_that_it_filters() -> None:
    kernel = torch.full((16, 1, 3, 3), 1 / 9)
    net = Of(lambda x, a, b: b(F.conv2d(a(x), kernel, groups=16)), a=conv(8, 16), b=conv(16, 8))
    _, found = analysed(net)
    assert "a size that does not scale" in found.pinned[root(found, "a").pop()]


@pytest.mark.parametrize(
    "bound",
    [
        lambda y, low: torch.clamp(y, min=low),
        lambda y, low: y.clamp(max=low),
        lambda y, low: y.clamp_max(low),
        torch.max,
        torch.pow,
    ],
)
def test_a_tensor_that_bounds_values_scales_with_them(
    bound: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    net = Of(lambda x, a: bound(a(x), net.low), a=conv(8, 16))
    net.register_parameter("low", nn.Parameter(torch.zeros(16, 1, 1)))
    _, found = analysed(net)
    assert found.roots(found.shapes["low"][0][0]) == root(found, "a")
    assert not root(found, "a") & found.pinned.keys()


def test_squeeze_and_excitation_follows_what_it_gates() -> None:
    layers = {"a": conv(8, 16), "d": conv(16, 4), "u": conv(4, 16)}
    net = Of(
        lambda x, a, d, u: (y := a(x)) * torch.sigmoid(u(d(y.mean((2, 3), keepdim=True)))), **layers
    )
    _, found = analysed(net)
    assert root(found, "a") == root(found, "u") == root(found, "d", 1)
    assert root(found, "d") != root(found, "a")


def test_a_concatenation_lays_groups_side_by_side() -> None:
    graph, found = analysed(
        Of(lambda x, a, b: torch.cat([a(x), b(x)], 1), a=conv(8, 16), b=conv(8, 24))
    )
    assert found.roots(found.shapes[graph.outputs[0]][0][1]) == root(found, "a") | root(found, "b")
    assert not root(found, "a") & root(found, "b")


def test_readers_of_a_concatenation_scale_its_parts_by_one_ratio() -> None:
    _, found = analysed(
        Of(
            lambda x, a, b, c: c(torch.cat([a(x), b(x)], 1)),
            a=conv(8, 16),
            b=conv(8, 24),
            c=conv(40, 8),
        )
    )
    assert root(found, "c", 1) == root(found, "a") == root(found, "b")
    assert found.granularity[root(found, "c", 1).pop()] == 8


def test_equal_pieces_stay_equal() -> None:
    net = Of(
        lambda x, a, b: (y := a(x).chunk(2, 1)) and y[0] * b(y[1]), a=conv(8, 32), b=conv(16, 16)
    )
    _, found = analysed(net)
    assert root(found, "a") == root(found, "b", 1)
    assert found.granularity[root(found, "a").pop()] == 16


def test_unequal_slices_scale_apart() -> None:
    """A weight whose channels go different ways is two groups."""
    net = Of(
        lambda x, a, b, c: b((y := a(x))[:, :10]).sum() * c(y[:, 10:]),
        a=conv(8, 16),
        b=conv(10, 8),
        c=conv(6, 8),
    )
    _, found = analysed(net)
    assert root(found, "a") == root(found, "b", 1) | root(found, "c", 1)
    assert not root(found, "b", 1) & root(found, "c", 1)


def test_slices_that_something_ties_again_stay_one_group() -> None:
    net = Of(
        lambda x, a, b: b(F.group_norm(a(x), 4)) + a(x)[:, :4].sum(), a=conv(8, 16), b=conv(16, 8)
    )
    _, found = analysed(net)
    scales = dict.fromkeys(root(found, "a"), Fraction(1, 2))
    assert len({scales[r] for r in root(found, "a")}) == 1
    assert not root(found, "a") & found.pinned.keys()


def test_norm_groups_that_straddle_concatenated_parts_stay_whole() -> None:
    """Of 40 channels in 8 groups, parts of 20 keep multiples of 4 each: a half has 20 in 8."""
    net = Of(
        lambda x, a, b, n, c: c(n(torch.cat([a(x), b(x)], 1))),
        a=conv(8, 20),
        b=conv(8, 20),
        n=nn.GroupNorm(8, 40),
        c=conv(40, 8),
    )
    graph, found = analysed(net)
    (group,) = root(found, "a") | root(found, "b") | root(found, "n")
    assert found.granularity[group] == 5
    scales = {group: Fraction(2, 5)}
    narrow = build(resize_graph(graph, found, scales)).eval()
    assert narrow(torch.zeros(2, 8, 4, 4)).shape == (2, 8, 4, 4)


def test_flatten_multiplies_channels() -> None:
    graph, found = analysed(
        Of(lambda x, a, f: f(a(x).flatten(1)), a=conv(8, 16), f=nn.Linear(256, 10))
    )
    half = resize_graph(graph, found, dict.fromkeys(root(found, "a"), Fraction(1, 2)))
    assert half.specs()["layers.f.weight"].shape == (10, 128)


def test_attention_with_keys_narrower_than_values() -> None:
    """Query and key share a depth, the value has its own (LeViT)."""

    def forward(x: torch.Tensor, qkv: nn.Module, out: nn.Module) -> torch.Tensor:
        n, length, _ = x.shape
        q, k, v = qkv(x).view(n, length, 2, 16).split([4, 4, 8], dim=3)
        q, k, v = q.permute(0, 2, 1, 3), k.permute(0, 2, 3, 1), v.permute(0, 2, 1, 3)
        return out(((q @ k).softmax(-1) @ v).transpose(1, 2).reshape(n, length, 16))

    graph, found = analysed(Of(forward, qkv=nn.Linear(8, 32), out=nn.Linear(16, 8)), (2, 6, 8))
    half = resize_graph(graph, found, dict.fromkeys(root(found, "qkv"), Fraction(1, 2)))
    assert half.specs()["layers.qkv.weight"].shape == (16, 8)
    assert half.specs()["layers.out.weight"].shape == (8, 8)


def test_a_window_along_channels_passes_them() -> None:
    """Efficient channel attention: a convolution over the channels themselves."""

    def forward(x: torch.Tensor, a: nn.Module, w: nn.Module) -> torch.Tensor:
        y = a(x)
        return y * w(y.mean((2, 3)).unsqueeze(1)).squeeze(1)[..., None, None]

    net = Of(forward, a=conv(8, 16), w=nn.Conv1d(1, 1, 3, padding=1))
    graph, found = analysed(net)
    half = resize_graph(graph, found, dict.fromkeys(root(found, "a"), Fraction(1, 2)))
    assert half.specs()[half.outputs[0]].shape == (2, 8, 4, 4)


def test_weights_that_are_normalised_first_scale_like_weights() -> None:
    _, found = analysed(network([Step("standard", 24)]), INPUT)
    weight = found.shapes["blocks.0.weight"][0]
    assert not (found.roots(weight[0]) | found.roots(weight[1])) & found.pinned.keys()
    assert (found.roots(weight[2]) | found.roots(weight[3])) <= found.pinned.keys()


def test_an_operator_without_a_rule_pins_what_it_reads_and_is_named() -> None:
    _, found = analysed(Of(lambda x, a: torch.cumsum(a(x), 1), a=conv(8, 16)))
    assert "no width rule for cumsum" in found.pinned[root(found, "a").pop()]


def test_pixels_are_pinned() -> None:
    graph, found = analysed(Of(lambda x, a: a(x), a=conv(8, 16)))
    entry = found.shapes[graph.inputs[0].name][0]
    assert all(found.roots(dim) <= found.pinned.keys() for dim in entry[2:])
    assert not found.roots(entry[1]) & found.pinned.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rewritten_shapes_are_those_that_pytorch_computes(kind: str) -> None:
    """Every free group at half its size (a whole number of its steps).

    Each value has the shape the graph says.
    """
    graph, found = analysed(network([Step(kind, 32, 2), Step("conv", 24)]), INPUT)
    outer = found.roots(found.shapes[graph.inputs[0].name][0][1]) | found.roots(
        found.shapes[graph.outputs[0]][0][1]
    )
    free = set(found.root) - found.pinned.keys() - outer
    scales = {r: Fraction(max(1, found.granularity[r] // 2), found.granularity[r]) for r in free}
    half = resize_graph(graph, found, scales)
    module = build(half).eval()
    seen: dict[str, tuple[int, ...]] = {}

    class Watch(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> object:
            value = super().run_node(n)
            if isinstance(value, torch.Tensor):
                seen[n.name] = tuple(value.shape)
            return value

    with torch.no_grad():
        output = Watch(module).run(torch.zeros(INPUT))
    assert tuple(output.shape) == half.specs()[half.outputs[0]].shape
    shapes = {node.output.shape for node in half.nodes}
    assert set(seen.values()) - {w.spec.shape for w in half.weights} <= shapes | {INPUT}
    assert half.params < graph.params


def test_the_split_block_reaches_widths_that_no_common_ratio_has() -> None:
    _, found = analysed(Split(16), (2, 16, 4, 4))
    assert len(found.roots(found.shapes["mix.0.weight"][0][0])) == 2
