"""A stretched network starts from the original's numbers, chosen by the stated rule."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from support.random_networks import INPUT, KINDS, Step, network, relative
from torch import nn

from nnstretch.capture import CapturedNetwork, trace
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch import LoweredNetwork, NetworkAnalysis, lower, stretch
from nnstretch.stretch.weights.branched_module import build_module
from nnstretch.stretch.weights.inheritance import (
    divide_repeated,
    fit_group_width,
    inherit_segments,
    selection_matrix,
)

X = torch.randn(INPUT, generator=torch.Generator().manual_seed(0))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)).mean((2, 3))


def chain(loud: list[int]) -> nn.Module:
    """Filters of equal norm, but the loud ones three times the others, the first of them
    loudest.
    """
    torch.manual_seed(0)
    module = Chain()
    with torch.no_grad():
        module.a.weight.div_(module.a.weight.flatten(1).norm(dim=1)[:, None, None, None])
        for rank, channel in enumerate(loud):
            module.a.weight[channel] *= 3 - rank / 100
    return module


def plan(*branches: Branch, merge: str = "concat", end: str = "a") -> Plan:
    return Plan(
        "chain",
        INPUT,
        (Segment("input", end, branches, merge), Segment(end, "output", (Branch("cpu"),))),
    )


def inherited(
    stretched: LoweredNetwork, weights: Mapping[str, torch.Tensor]
) -> list[list[dict[str, torch.Tensor]]]:
    """Starting weights per segment and branch."""
    return [values for values, _ in inherit_segments(stretched, weights)]


def starts(
    module: nn.Module, wanted: Plan
) -> tuple[CapturedNetwork, list[list[dict[str, torch.Tensor]]]]:
    captured = trace(module, X, wanted.model)
    return captured, inherited(lower(captured.graph, wanted), captured.weights)


def test_the_loudest_filters_are_kept_in_their_order() -> None:
    module = chain([12, 3, 7, 1, 5, 0, 14, 9])
    _, values = starts(module, plan(Branch("cpu", width=8)))
    kept = [0, 1, 3, 5, 7, 9, 12, 14]
    assert torch.equal(values[0][0]["a.weight"], module.a.weight[kept])
    assert torch.equal(values[0][0]["a.bias"], module.a.bias[kept])
    assert torch.equal(values[1][0]["b.weight"], module.b.weight[:, kept])


def test_branches_share_the_work() -> None:
    """The first takes the most important channels, the second those not taken yet."""
    module = chain([12, 3, 7, 1, 5, 0, 14, 9])
    _, values = starts(module, plan(Branch("cpu", width=8), Branch("dsp", width=8)))
    assert torch.equal(values[0][0]["a.weight"], module.a.weight[[0, 1, 3, 5, 7, 9, 12, 14]])
    assert torch.equal(values[0][1]["a.weight"], module.a.weight[[2, 4, 6, 8, 10, 11, 13, 15]])


@pytest.mark.parametrize("merge", ["concat", "project"])
def test_two_halves_that_keep_everything_compute_the_original(merge: str) -> None:
    module = chain([2, 9])
    both = stretch(module, plan(Branch("cpu", width=8), Branch("dsp", width=8)))
    with torch.no_grad():
        assert relative(module.eval()(X), both.eval()(X)) <= 1e-5


@pytest.mark.parametrize("end", ["blocks.0", "blocks.1", "relu"])
@pytest.mark.parametrize("start", ["input", "stem", "blocks.0"])
def test_a_cut_with_a_dot_in_its_name_projects_the_original(start: str, end: str) -> None:
    """Adapters are called after the cut: `adapt_blocks.0_in.conv.weight`."""
    if start == end:
        return
    module = Dotted().eval()
    branches = (Branch("cpu"), Branch("dsp"))
    before = (Segment("input", start, (Branch("cpu"),)),) if start != "input" else ()
    behind = Segment(end, "output", (Branch("cpu"),))
    both = stretch(
        module, Plan("dotted", INPUT, (*before, Segment(start, end, branches, "project"), behind))
    )
    with torch.no_grad():
        assert relative(module(X), both.eval()(X)) <= 1e-5
    adapters = [weight for name, weight in both.named_parameters() if "_in.conv" in name]
    assert adapters
    assert all(weight.any() for weight in adapters)


class Dotted(nn.Module):
    """Blocks whose cuts are called `blocks.0` and so on."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)))
        self.adapt_head = nn.Conv2d(16, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.adapt_head(self.blocks(self.stem(x)).relu()).mean((2, 3))


def test_a_channel_that_two_branches_kept_is_read_at_half_weight() -> None:
    module = chain([4])
    both = stretch(module, plan(Branch("cpu", width=16), Branch("dsp", width=16)))
    with torch.no_grad():
        assert relative(module.eval()(X), both.eval()(X)) <= 1e-5


def test_dropped_repeats_leave_the_others_as_they_were() -> None:
    module = network([Step("residual", 16, 3)])
    captured = trace(module, X, "net")
    lowered = lower(
        captured.graph, Plan("net", INPUT, (Segment("input", "output", (Branch("cpu", depth=2),)),))
    )
    values = inherited(lowered, captured.weights)[0][0]
    assert {name for name in values if "blocks.2" in name} == set()
    assert all(torch.equal(value, captured.weights[name]) for name, value in values.items())


def test_a_copied_block_starts_as_the_block_it_copies() -> None:
    module = network([Step("residual", 16, 2)])
    captured = trace(module, X, "net")
    lowered = lower(
        captured.graph, Plan("net", INPUT, (Segment("input", "output", (Branch("cpu", depth=5),)),))
    )
    values = inherited(lowered, captured.weights)[0][0]
    copies = [name for name in values if "_copy" in name]
    assert copies
    for name in copies:
        module_path, _, leaf = name.rpartition(".")
        assert torch.equal(
            values[name], captured.weights[f"{module_path.rpartition('_copy')[0]}.{leaf}"]
        )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_has_an_ancestor_or_is_a_selection(kind: str) -> None:
    """Unbranched, everything is the original's.

    Half as wide, every weight still has a starting value of its shape.
    """
    captured = trace(network([Step(kind, 32, 2)]), X, kind)
    analysis = NetworkAnalysis(captured.graph)
    whole = lower(analysis, Plan(kind, INPUT, (Segment("input", "output", (Branch("cpu"),)),)))
    values = inherited(whole, captured.weights)[0][0]
    assert all(
        torch.equal(values[weight.name], captured.weights[weight.name])
        for weight in captured.graph.weights
    )
    halves = tuple(Branch(processor, width="0.5x") for processor in ("cpu", "dsp"))  # type: ignore[arg-type]
    segments = (Segment("input", "blocks", halves), Segment("blocks", "output", (Branch("cpu"),)))
    halved = lower(analysis, Plan(kind, INPUT, segments))
    for segment, rows in zip(halved.segments, inherited(halved, captured.weights), strict=True):
        for branch, row in zip(segment.branches, rows, strict=True):
            added = {w.name for w in branch.graph.weights if w.name.startswith("adapt_")}
            assert {w.name for w in branch.graph.weights} - added <= row.keys()
            assert all(
                row[w.name].shape == w.spec.shape for w in branch.graph.weights if w.name in row
            )


def test_tables_that_no_rule_tracks_come_along() -> None:
    """An index table is read by position only; forgetting it would read row 0 everywhere."""

    class Indexed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.table = nn.Conv2d(3, 8, 1), nn.Parameter(torch.arange(5.0))
            self.register_buffer("where", torch.tensor([4, 2, 0, 1, 3, 2, 1, 4]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).mean((2, 3)) + self.table[self.where]

    module = Indexed()
    same = stretch(module, Plan("indexed", INPUT, (Segment("input", "output", (Branch("cpu"),)),)))
    with torch.no_grad():
        assert relative(module.eval()(X), same.eval()(X)) <= 1e-6


@pytest.mark.slow
def test_inheriting_starts_nearer_to_the_original_than_chance() -> None:
    module = network([Step("residual", 32, 3), Step("inverted", 32, 2)])
    captured = trace(module, X, "net")
    branches = (Branch("cpu", width=24), Branch("dsp", width=16))
    segments = (Segment("input", "blocks", branches), Segment("blocks", "output", (Branch("cpu"),)))
    lowered = lower(captured.graph, Plan("net", INPUT, segments))
    torch.manual_seed(0)
    with torch.no_grad():
        expected = module.eval()(X)
        warm = relative(expected, build_module(lowered, captured.weights).eval()(X))
        cold = relative(expected, build_module(lowered).eval()(X))
    assert warm < cold


def test_selections_and_shares() -> None:
    target, source = torch.tensor([2, 0]), torch.tensor([0, 2, 2, 1])
    assert selection_matrix(target, source).tolist() == [[0, 0.5, 0.5, 0], [1, 0, 0, 0]]
    weight = torch.ones(1, 3)
    assert divide_repeated(weight, torch.tensor([0, 1, 1]), 1).tolist() == [[1, 0.5, 0.5]]
    assert fit_group_width(torch.tensor([[1.0, 2.0]]), (1, 3)).tolist() == [[1, 2, 1]]


def test_what_is_handed_on_knows_which_channels_it_stands_for() -> None:
    module = chain([12, 3, 7, 1, 5, 0, 14, 9])
    both = stretch(module, plan(Branch("cpu", width=8), Branch("dsp", width=8)))
    assert both.segments[0].stands_for.tolist() == [
        0,
        1,
        3,
        5,
        7,
        9,
        12,
        14,
        2,
        4,
        6,
        8,
        10,
        11,
        13,
        15,
    ]
    projected = stretch(
        module, plan(Branch("cpu", width=8), Branch("dsp", width=8), merge="project")
    )
    assert sorted(projected.segments[0].stands_for.tolist()) == list(range(16))
    assert both.segments[1].stands_for.tolist() == list(range(8))
