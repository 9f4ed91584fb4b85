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
from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import LoweredNetwork, NetworkAnalysis, lower, single_processor_plan, stretch
from nnstretch.stretch.lowering.channel_allocation import (
    allocate_channels,
    nearest_sum,
    reachable_sums,
)
from nnstretch.stretch.lowering.two_branch_plan import two_branches
from nnstretch.stretch.weights.branched_module import build_module
from nnstretch.structure.channel_groups import analyze_channels

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
    "timm:rexnet_100": 64,
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_block_can_be_halved(kind: str) -> None:
    captured = trace(network([Step(kind, 32, 2), Step("conv", 24)]), X, kind)
    analysis = NetworkAnalysis(captured.graph)
    survey = two_branches(analysis, kind, ("cpu", "dsp"), (0.5, 0.75), 0.5)
    assert survey.branched_macs > 0.9 * captured.graph.macs, survey.refused
    check_built(lower(analysis, survey.plan), captured, X, hooks=kind != "standard")


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


@cache
def resnet18() -> NetworkAnalysis:
    return NetworkAnalysis(
        trace(load_model("torchvision:resnet18"), torch.zeros(1, 3, 64, 64), "resnet18").graph
    )


def plan_with(
    *branches: Branch, start: str = "maxpool", end: str = "layer1", merge: str = "concat"
) -> Plan:
    before = (Segment("input", start, (Branch("cpu"),)),)
    return Plan(
        "resnet18",
        (1, 3, 64, 64),
        (*before, Segment(start, end, branches, merge), Segment(end, "output", (Branch("cpu"),))),
    )


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            plan_with(Branch("cpu", 1, 32), Branch("dsp", 9, 32), start="layer4", end="avgpool"),
            "depth 9 is impossible, segment layer4",
        ),
        (plan_with(Branch("cpu", 0, 32)), "depth 0 is impossible"),
        (
            plan_with(Branch("cpu", 1, 0)),
            (
                "width 0 is impossible, segment maxpool -> layer1 on cpu, a branch needs at least"
                " one channel"
            ),
        ),
        (
            plan_with(Branch("cpu"), end="layer9"),
            "unknown cut 'layer9', network resnet18, its cuts are relu, maxpool",
        ),
        (plan_with(Branch("cpu"), Branch("cpu")), "two branches on one processor, cpu, cpu"),
        (plan_with(Branch("cpu", activation="sine")), "unknown activation 'sine'"),
        (plan_with(Branch("cpu"), start="layer2", end="layer1"), "not after its start"),
        (Plan("resnet18", (1, 3, 64, 64), ()), "empty plan"),
        (
            Plan("resnet18", (1, 3, 64, 64), (Segment("input", "layer1", (Branch("cpu"),)),)),
            "it must end at 'output'",
        ),
        (
            Plan(
                "resnet18",
                (1, 3, 64, 64),
                (Segment("input", "output", (Branch("cpu", width=500),)),),
            ),
            "output becomes 1x500",
        ),
    ],
)
def test_impossible_plans_are_refused(plan: Plan, said: str) -> None:
    with pytest.raises(BadPlan) as refusal:
        lower(resnet18(), plan)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_gap_between_segments_is_named() -> None:
    segments = (
        Segment("input", "layer1", (Branch("cpu"),)),
        Segment("layer2", "output", (Branch("cpu"),)),
    )
    with pytest.raises(
        BadPlan,
        match="segment 1 starts at 'layer2', plan of resnet18, the one before ends at 'layer1'",
    ):
        lower(resnet18(), Plan("resnet18", (1, 3, 64, 64), segments))


def test_ratios_become_the_nearest_numbers_that_can_be_had() -> None:
    plan = plan_with(Branch("cpu", "0.5x", "0.5x"), Branch("dsp", "1x", "0.75x"))  # type: ignore[arg-type]
    filled = [b.branch for b in lower(resnet18(), plan).segments[1].branches]
    assert [(b.depth, b.width) for b in filled] == [(1, 32), (2, 48)]


def test_a_deeper_branch_repeats_its_last_block() -> None:
    two, four = (lower(resnet18(), plan_with(Branch("cpu", depth, 64))) for depth in (2, 4))
    assert four.params - two.params == 2 * (2 * 64 * 64 * 9 + 4 * 64)


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


def test_a_width_that_groups_cannot_make_is_refused_with_the_nearest() -> None:
    graph = trace(network([Step("grouped", 16)]), X, "grouped").graph
    name = next(cut.name for cut in NetworkAnalysis(graph).cuts if "blocks" in cut.name)
    plan = Plan(
        "grouped",
        INPUT,
        (
            Segment("input", name, (Branch("cpu", width=10),)),
            Segment(name, "output", (Branch("cpu"),)),
        ),
    )
    said = (
        r"width 10 is impossible, segment input -> .* on cpu, channels come in whole groups, 8 is"
        r" the nearest"
    )
    with pytest.raises(BadPlan, match=said):
        lower(graph, plan)


def test_widths_of_a_projection_are_refused_where_there_is_none() -> None:
    graph = trace(network([Step("grouped", 16)]), X, "grouped").graph
    plan = Plan("grouped", INPUT, (Segment("input", "output", (Branch("cpu", width_in=8),)),))
    with pytest.raises(BadPlan, match=r"width_in is 8, .* only branches of a project merge"):
        lower(graph, plan)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 120))
def test_reachable_sums_are_those_of_brute_force(steps: list[int], wanted: int) -> None:
    reached = {sum(steps)}
    for _ in range(140):
        reached |= {n + step for n in reached for step in steps if n + step <= 140}
    assert {n for n in range(141) if reachable_sums(steps, 140) >> n & 1} == {
        n for n in reached if n <= 140
    }
    assert abs(nearest_sum(steps, wanted) - wanted) == min(abs(n - wanted) for n in reached)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 8)), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_shares_make_the_width_or_the_nearest(groups: list[tuple[int, int]], wanted: int) -> None:
    from dataclasses import replace
    from fractions import Fraction

    found = replace(
        analyze_channels(resnet18().graph),
        granularity={root: count for root, (_, count) in enumerate(groups)},
    )
    free = {root: step * count for root, (step, count) in enumerate(groups)}
    shares = allocate_channels(free, found, Fraction(wanted), Fraction(wanted, sum(free.values())))
    made = sum(free[root] * scale for root, scale in shares.items())
    assert made == nearest_sum([step for step, _ in groups], Fraction(wanted))
    assert all(
        scale > 0 and (scale * found.granularity[root]).denominator == 1
        for root, scale in shares.items()
    )


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
