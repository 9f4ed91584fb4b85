"""Plans become modules.

What is described is what is built, and a plan that branches nothing changes nothing.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from support.random_networks import INPUT, KINDS, Step, network, randomise, recipes, relative
from torch import nn

from nnstretch.capture import CapturedNetwork, default_input, load_model, trace
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import LoweredNetwork, NetworkAnalysis, lower, single_processor_plan, stretch
from nnstretch.stretch.lowering.two_branch_plan import two_branches
from nnstretch.stretch.weights.branched_module import build_module

torch.set_num_threads(1)


X = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))


WIDTHS = st.sampled_from((0.25, 0.5, 0.7))


DEPTHS = st.sampled_from((0.34, 0.5, 0.75, 1.0))


ZOO = {
    "torchvision:resnet18": 64,
    "torchvision:mobilenet_v3_small": 64,
    "torchvision:shufflenet_v2_x0_5": 64,
    "torchvision:squeezenet1_1": 64,
    "torchvision:efficientnet_b0": 64,
    "torchvision:regnet_y_400mf": 64,
    "timm:convnext_atto": 64,
    "timm:ghostnet_050": 64,
    "timm:rexnet_100?depth_mult=0.5": 64,
    "timm:nf_regnet_b0": 64,
    "timm:dla46_c": 64,
    "timm:test_vit?img_size=64": 64,
    "timm:coat_lite_tiny?img_size=64": 64,
}


def counted_macs(module: nn.Module, x: torch.Tensor) -> int:
    """Work that hooks see in layers: an account of the built module, apart from the description."""
    total = 0

    def hook(layer: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal total
        weight: torch.Tensor = layer.weight  # type: ignore[assignment]
        total += output.numel() * weight[0].numel() + (
            output.numel() if layer.bias is not None else 0
        )

    handles = [
        m.register_forward_hook(hook)
        for m in module.modules()
        if isinstance(m, (nn.Conv2d, nn.Linear))
    ]
    with torch.no_grad():
        module.eval()(x)
    for handle in handles:
        handle.remove()
    return total


def check_built(
    lowered: LoweredNetwork, captured: CapturedNetwork, x: torch.Tensor, hooks: bool = True
) -> None:
    """Parameters, work, shape and gradients of the module are those of the description."""
    module = build_module(lowered, captured.weights)
    assert sum(p.numel() for p in module.parameters()) == lowered.params
    assert not hooks or counted_macs(module, x) == lowered.macs
    module.train()
    output = module(x)
    assert output.shape == captured.graph.specs()[captured.graph.outputs[0]].shape
    output.square().mean().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_block_can_be_halved(kind: str) -> None:
    captured = trace(network([Step(kind, 32, 2), Step("conv", 24)]), X, kind)
    analysis = NetworkAnalysis(captured.graph)
    survey = two_branches(analysis, kind, ("cpu", "dsp"), (0.5, 0.75), 0.5)
    assert survey.branched_macs > 0.9 * captured.graph.macs, survey.refused
    check_built(lower(analysis, survey.plan), captured, X, hooks=kind != "standard")


@pytest.mark.slow
@given(
    recipe=recipes,
    depths=st.tuples(DEPTHS, DEPTHS),
    width=WIDTHS,
    merge=st.sampled_from(("concat", "project")),
)
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],
)
@example(
    recipe=((Step("dense", 16), Step("grouped", 16)), False),
    depths=(0.34, 0.34),
    width=0.25,
    merge="project",
)
def test_any_plan_of_any_network_is_built_as_described(
    recipe: tuple[tuple[Step, ...], bool], depths: tuple[float, float], width: float, merge: str
) -> None:
    captured = trace(module := network(*recipe), X, "drawn")
    analysis = NetworkAnalysis(captured.graph)
    same = build_module(
        lower(analysis, single_processor_plan(captured.graph, "drawn", "cpu")), captured.weights
    )
    with torch.no_grad():
        assert relative(module.eval()(X), same.eval()(X)) <= 1e-5
    assert sum(p.numel() for p in same.parameters()) == sum(p.numel() for p in module.parameters())
    plan = two_branches(analysis, "drawn", ("cpu", "dsp"), depths, width).plan
    if merge == "project":
        plan = Plan(
            plan.model, plan.input_shape, tuple(projected(segment) for segment in plan.segments)
        )
    standard = any(step.kind == "standard" for step in recipe[0])
    check_built(lower(analysis, plan), captured, X, hooks=not standard)


def projected(segment: Segment) -> Segment:
    return (
        Segment(segment.start, segment.end, segment.branches, "project")
        if segment.branched
        else segment
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_a_plan_that_branches_nothing_is_the_original(name: str) -> None:
    module = load_model(name)
    randomise(module)
    shape = (1, 3, ZOO[name], ZOO[name])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    plan = Plan(name, shape, (Segment("input", "output", (Branch("cpu"),)),))
    same = stretch(module, plan).eval()
    assert sum(p.numel() for p in same.parameters()) == sum(p.numel() for p in module.parameters())
    with torch.no_grad():
        assert relative(module.eval()(x), same(x)) <= 1e-5


@pytest.mark.slow
def test_a_segment_owns_no_weights_that_its_end_does_not_need() -> None:
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    captured = trace(load_model("timm:test_vit?img_size=64").eval(), x, "test_vit")
    analysis = NetworkAnalysis(captured.graph)
    survey = two_branches(analysis, "test_vit", ("cpu", "dsp"), (0.5, 0.5), 0.5)
    check_built(lower(analysis, survey.plan), captured, x, hooks=False)


@cache
def resnet18() -> NetworkAnalysis:
    return NetworkAnalysis(
        trace(load_model("torchvision:resnet18"), torch.zeros(1, 3, 64, 64), "resnet18").graph
    )


def test_a_dropped_block_leaves_the_weights_that_it_cast_for_those_behind_it() -> None:
    class CastNorm(nn.LayerNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight.to(torch.float32)  # before the tensor: in the unit before it
            x = x.to(torch.float32)
            return nn.functional.layer_norm(x, self.normalized_shape, weight, None, 1e-6)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = CastNorm(8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return x + self.linear(self.norm(x)) * table

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks, self.norm = nn.ModuleList(Block() for _ in range(4)), CastNorm(8)
            self.angles = nn.Parameter(torch.randn(4, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            table = self.angles.cos()
            for block in self.blocks:
                x = block(x, table)
            return self.norm(x)

    x = torch.randn(2, 4, 8)
    captured = trace(Tokens(), x, "cast")
    analysis = NetworkAnalysis(captured.graph)
    for depth in (1, 2, 3, 5, 6):
        plan = Plan("cast", (2, 4, 8), (Segment("input", "output", (Branch("cpu", depth),)),))
        check_built(lower(analysis, plan), captured, x)


def test_default_inputs_are_what_networks_are_made_for() -> None:
    assert default_input("torchvision:resnet18", load_model("torchvision:resnet18")) == (
        1,
        3,
        224,
        224,
    )
    assert default_input("timm:test_vit", load_model("timm:test_vit")) == (1, 3, 160, 160)


class Context(nn.Module):
    """A map plus one number for each of its channels."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the sum."""
        return x + self.mix(x.mean((2, 3), keepdim=True))


class LastOfBatch(nn.Module):
    """One input of a batch plus the sum of two."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the sum."""
        return self.mix(x[-1:]) + x[:2].sum(0)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Context(), (1, 16, 8, 8)),
        (LastOfBatch(), (3, 5)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.LayerNorm((4, 6, 6))), (1, 3, 8, 8)),
    ],
)
def test_sums_that_broadcast_pixels_or_batches_get_no_adapter(
    module: nn.Module, shape: tuple[int, ...]
) -> None:
    one = (Branch("cpu"),)
    stretched = stretch(module.eval(), Plan("net", shape, (Segment("input", "output", one),)))
    x = torch.randn(shape)
    assert not [name for name, _ in stretched.named_parameters() if "adapt_" in name]
    torch.testing.assert_close(stretched.eval()(x), module(x))


def test_a_sum_that_broadcasts_pixels_is_adapted_along_its_channels() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), Context(), nn.Conv2d(16, 8, 1)).eval()
    one, two = (Branch("cpu"),), (Branch("cpu", width=12), Branch("dsp", width=4))
    ends = (("input", "0", one), ("0", "1", two), ("1", "output", one))
    plan = Plan("net", (1, 3, 8, 8), tuple(Segment(*end) for end in ends))
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(stretch(net, plan).eval()(x), net(x), atol=1e-4, rtol=0.0)
