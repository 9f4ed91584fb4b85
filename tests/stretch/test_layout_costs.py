"""Copies between layouts.

Where a runtime that keeps maps in blocks of channels has to make them.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from nnstretch.capture.torch_export import capture
from nnstretch.kernel import MOBILE_FUSION, PADDED, ChannelBlockedLayout, FusionRules
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.explain import why_no_meeting
from nnstretch.structure.kernel_fusion import fuse_kernels

ACTIVATIONS = ("relu", "hardtanh", "hardswish", "hardsigmoid", "sigmoid")
ORT = FusionRules(
    frozenset(
        {
            (kind, op)
            for kind in ("conv", "gconv", "dwconv")
            for op in ("batch_norm", "add", *ACTIVATIONS)
        }
        | {("linear", "relu")}
    ),
    False,
    ChannelBlockedLayout(
        16, 4, frozenset({"add", "mul", "relu", "silu", "gelu", "batch_norm", "sigmoid"})
    ),
)
"""As ONNX Runtime 1.31 was seen to run with AVX-512."""


def listed(module: nn.Module, *shape: int, rules: FusionRules = ORT) -> list[str]:
    graph = capture(module.eval(), torch.zeros(shape), "net")
    return [
        (
            k.op
            if k.kind == "reorder"
            else "+".join((f"{k.kind}{'*' if k.layout else ''}", *k.epilogue))
        )
        for k in fuse_kernels(graph, rules)
    ]


def test_an_image_is_read_plain_and_the_head_wants_plain() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    assert listed(net, 1, 3, 16, 16) == ["conv*+relu", "conv*", "to_plain", "gap", "linear"]


def test_an_odd_number_of_channels_is_worked_on_plain() -> None:
    net = nn.Sequential(nn.Conv2d(16, 34, 1), nn.Conv2d(34, 32, 1))
    assert listed(net, 1, 16, 8, 8) == ["to_blocked", "conv*", "to_plain", "conv"]


class Attention(nn.Module):
    """Squeeze and excitation: the map is wanted plain twice and copied once."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.up, self.last = (
            nn.Conv2d(a, b, 1) for a, b in ((32, 32), (32, 16), (16, 32), (32, 32))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        scale = torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3), keepdim=True)))))
        return self.last(x * scale)


def test_squeeze_and_excitation_copies_as_the_runtime_was_seen_to() -> None:
    assert listed(Attention(), 1, 32, 8, 8) == [
        *(
            "to_blocked",
            "conv*",
            "to_plain",
            "gap",
            "to_blocked",
            "conv*+relu",
            "conv*+sigmoid",
            "to_plain",
            "mul",
            "to_blocked",
        ),
        *("conv*", "to_plain"),
    ]


class Dense(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv2d(32, 32, 1),
            nn.Conv2d(32, width, 1),
            nn.Conv2d(32 + width, 32, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return self.c(torch.cat([x, self.b(x)], 1))


@pytest.mark.parametrize(
    ("width", "expected"),
    [(32, ["concat*", "conv*"]), (24, ["to_plain", "to_plain", "concat", "to_blocked", "conv*"])],
)
def test_a_concatenation_of_whole_blocks_stays_in_blocks(width: int, expected: list[str]) -> None:
    assert listed(Dense(width), 1, 32, 8, 8)[3:-1] == expected


def test_padding_is_a_copy_only_where_one_end_needs_more() -> None:
    rules = FusionRules(MOBILE_FUSION.pairs, copies_padding=True)
    for side, padding, layout in ((8, 1, PADDED), (7, 1, ""), (9, 0, "")):
        graph = capture(nn.Conv2d(8, 8, 3, 2, padding).eval(), torch.zeros(1, 8, side, side), "net")
        assert [k.layout for k in fuse_kernels(graph, rules)] == [layout]
    pool = capture(nn.MaxPool2d(3, 2, ceil_mode=True).eval(), torch.zeros(1, 8, 8, 8), "net")
    assert [k.layout for k in fuse_kernels(pool, rules)] == [""]


class Padding(nn.Module):
    """A convolution over a map that an operator of its own pads, as networks made for TensorFlow
    have it.
    """

    def __init__(
        self, amounts: tuple[int, ...], value: float = 0.0, stride: int = 2, side: int = 3
    ) -> None:
        super().__init__()
        self.amounts, self.value = amounts, value
        self.first, self.conv = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, side, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(functional.pad(torch.relu(self.first(x)), self.amounts, value=self.value))


TFLITE = FusionRules(MOBILE_FUSION.pairs, copies_padding=True)


def test_what_same_pads_is_left_to_the_convolution() -> None:
    graph = capture(Padding((0, 1, 0, 1)).eval(), torch.zeros(1, 3, 8, 8), "net")
    first, second = fuse_kernels(graph, TFLITE)
    assert (second.kind, second.op, second.shapes_in, second.shape_out, second.layout) == (
        "conv",
        "conv2d",
        ((1, 8, 8, 8),),
        (1, 8, 4, 4),
        "",
    )
    assert (second.hw_in, second.read_elements) == (64, 8 * 64)
    assert sorted(first.nodes + second.nodes) == sorted(node.name for node in graph.nodes)
    assert [k.kind for k in fuse_kernels(graph)] == [
        "conv",
        "reshape",
        "conv",
    ], "other runtimes pad by themselves"


@pytest.mark.parametrize(
    ("amounts", "value", "stride", "side", "free"),
    [
        ((0, 1, 0, 1), 0.0, 2, 3, True),
        ((1, 0, 1, 0), 0.0, 2, 3, False),
        ((0, 1, 0, 1), 1.0, 2, 3, False),
        ((1, 1, 1, 1), 0.0, 2, 3, False),
        ((1, 1, 1, 1), 0.0, 1, 3, True),
        ((1, 2, 1, 2), 0.0, 2, 5, True),
        ((2, 2, 2, 2), 0.0, 2, 5, False),
        ((0, 1, 1, 1), 0.0, 2, 3, False),
    ],
)
def test_only_zeros_where_same_puts_them_are(
    amounts: tuple[int, ...], value: float, stride: int, side: int, free: bool
) -> None:
    graph = capture(Padding(amounts, value, stride, side).eval(), torch.zeros(1, 3, 8, 8), "net")
    assert len(fuse_kernels(graph, TFLITE)) == (2 if free else 3)


def test_nobody_meets_at_a_map_that_is_padded_for_a_convolution() -> None:
    graph = capture(Padding((0, 1, 0, 1)).eval(), torch.zeros(1, 3, 8, 8), "net")
    analysis = NetworkAnalysis(graph)
    (padded,) = [cut for cut in analysis.cuts if cut.name == "pad"]
    assert padded not in analysis.block_ends
    assert (
        why_no_meeting(analysis, padded)
        == "it is padded for the convolution behind it, the cut before the padding serves as well"
    )


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([8, 12, 16, 18, 32, 34]), min_size=2, max_size=6), st.booleans())
def test_layouts_change_no_work_and_lose_no_node(widths: list[int], pooled: bool) -> None:
    layers: list[nn.Module] = []
    for cin, cout in zip([3, *widths], widths, strict=False):
        layers += [nn.Conv2d(cin, cout, 3, padding=1), nn.SiLU()]
    if pooled:
        layers.insert(2, nn.MaxPool2d(2))
    graph = capture(nn.Sequential(*layers).eval(), torch.zeros(1, 3, 8, 8), "net")
    found, plain = fuse_kernels(graph, ORT), fuse_kernels(graph, FusionRules(ORT.pairs, False))
    assert sum(k.macs for k in found) == sum(k.macs for k in plain)
    assert [k.nodes for k in found if k.kind != "reorder"] == [k.nodes for k in plain]
