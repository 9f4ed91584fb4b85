"""The budget of a profile: everything is inside it, and what had no time is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.fake_meter import FakeMeter, law_us
from support.quiet_watch import quiet_watch

from nnstretch.errors import BadInput, UnsupportedOp
from nnstretch.graph import Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.kernel import MOBILE_FUSION, Kernel
from nnstretch.predict import load_soc
from nnstretch.profile import profile, validation
from nnstretch.profile.budget import CONTENTION_S, NETWORK_S, VALIDATION, Budget, plan_budget
from nnstretch.profile.machine import PinnedProcessor
from nnstretch.profile.profile_request import ProfileRequest, ProfileResult
from nnstretch.profile.profile_run import ProfileRun
from nnstretch.profile.sampling.journal import NAME
from nnstretch.profile.sampling.targets import target_kernels
from nnstretch.profile.validation import HeldOutNetwork, ProfiledProcessor, validate


@dataclass
class FakeClock:
    """Time that passes only where something takes it."""

    now_s: float = 1000.0

    def __call__(self) -> float:
        self.now_s += 1e-4
        return self.now_s


@dataclass
class SlowMeter(FakeMeter):
    """Each call takes the time of what it measures, and of building it."""

    clock: FakeClock = field(default_factory=FakeClock)
    build_s: float = 0.2

    def measure(
        self, chains: Sequence[tuple[Kernel, ...]], rounds: int, /
    ) -> list[tuple[float, ...]]:
        times_us = super().measure(chains, rounds)
        self.clock.now_s += self.build_s + 2 * sum(map(sum, times_us)) / 1e6
        return times_us


def profiled(out: Path, budget_s: float, **wanted: object) -> tuple[ProfileResult, SlowMeter]:
    clock = FakeClock()
    meter = SlowMeter(frozenset({("conv", "relu")}), clock=clock)
    request = ProfileRequest(out, budget_s, "cpu0=0", **wanted)  # type: ignore[arg-type]
    return ProfileRun(request, meter, lambda *_: None, clock, quiet_watch()).run(), meter


def conv_net() -> Graph:
    """Two convolutions over odd maps and channels, as no prior has them."""
    shapes = [(1, 21, 37, 53), (1, 45, 37, 53), (1, 7, 37, 53)]
    weights = [
        Weight(f"w{i}", TensorSpec((b[1], a[1], 3, 3))) for i, (a, b) in enumerate(pairwise(shapes))
    ]
    nodes = []
    for i, shape in enumerate(shapes[1:]):
        read = ValueRef("x" if i == 0 else f"y{i - 1}")
        macs = shape[1] * 37 * 53 * 9 * shapes[i][1]
        args = (read, ValueRef(f"w{i}"), None, (1, 1), (1, 1), (1, 1), 1)
        nodes.append(Node(f"y{i}", "conv2d", args, (TensorSpec(shape),), macs=macs))
    return Graph("odd", (Value("x", TensorSpec(shapes[0])),), tuple(weights), tuple(nodes), ("y1",))


@pytest.mark.parametrize("budget_s", [0, -1, float("inf")])
def test_a_budget_that_is_no_time_is_refused_before_anything_is_made(
    tmp_path: Path, budget_s: float
) -> None:
    with pytest.raises(BadInput, match=f"^budget_s is {budget_s:g}, profile, needed are seconds"):
        profile(tmp_path / "chip", backend="torch", budget_s=budget_s)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("targets", [[3], ("net.py:make",)])
def test_targets_that_are_no_graphs_are_refused_before_anything_is_made(
    tmp_path: Path, targets: Any
) -> None:
    with pytest.raises(BadInput, match=r"^targets\[0\] is .*, needed is Graph$"):
        profile(tmp_path / "chip", targets=targets)
    assert not list(tmp_path.iterdir())


def test_what_a_phase_leaves_goes_to_the_next() -> None:
    clock = FakeClock()
    budget = plan_budget(100.0, 2, clock, -1.0)
    assert budget.planned_s["validation"] == pytest.approx(2 * NETWORK_S)
    many = plan_budget(100.0, 50, clock, -1.0)
    assert many.planned_s["validation"] == pytest.approx(100 * VALIDATION)
    assert sum(budget.planned_s.values()) == pytest.approx(100)
    with budget.spend("sampling"):
        clock.now_s += 30
    assert budget.left_s("sampling") == pytest.approx(100 - 10 - 6 - 10 - 30, abs=0.01)
    assert budget.left_s("validation") == pytest.approx(70, abs=0.01)
    assert budget.taken_s["sampling"] == pytest.approx(30, abs=0.01)
    clock.now_s += 500
    assert budget.left_s("validation") == 0
    assert not budget.allows("validation", 0.1, "the last network")
    assert budget.skipped == ["the last network"]


@pytest.mark.slow
@pytest.mark.parametrize("budget_s", [20.0, 120.0])
def test_a_profile_keeps_its_budget(tmp_path: Path, budget_s: float) -> None:
    result, _ = profiled(tmp_path / "chip", budget_s, most=600)
    assert result.budget.elapsed_s <= budget_s
    card = (tmp_path / "chip" / "CARD.md").read_text()
    assert f"{budget_s:.0f} s for all of this run" in card
    assert "| sampling | " in card


def test_a_profile_that_has_no_time_says_for_what(tmp_path: Path) -> None:
    result, _ = profiled(tmp_path / "chip", 12.0)
    assert result.budget.elapsed_s <= 13
    card = (tmp_path / "chip" / "CARD.md").read_text()
    assert "probes of fusion, taken as not fused" in card
    assert result.budget.skipped


def test_networks_without_time_are_not_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    budget = Budget(20.0, {"validation": 1.0}, clock)

    def measured(processor: ProfiledProcessor, name: str, watch: object) -> HeldOutNetwork:
        clock.now_s += 8
        return HeldOutNetwork(name, processor.place.name, 1.0, 1.0, 1.0, 0.0, 1)

    monkeypatch.setattr(validation, "measure_held_out", measured)
    place = PinnedProcessor("cpu0", 0, 0)
    rows, refused = validate(
        [ProfiledProcessor(place, FakeMeter(), None, MOBILE_FUSION)],  # type: ignore[arg-type]
        ("a", "b", "c"),
        lambda *_: None,
        budget,
        quiet_watch(),
    )
    assert [row.network for row in rows] == ["a", "b"]
    assert (refused, budget.skipped) == ({}, ["validating on c"])
    assert budget.elapsed_s <= 20


@pytest.mark.parametrize(("left_s", "begun"), [(15.0, []), (50.0, ["a", "b", "c"])])
def test_a_network_that_is_converted_begins_only_in_time(
    monkeypatch: pytest.MonkeyPatch, left_s: float, begun: list[str]
) -> None:
    """LiteRT's converter takes longer than other exports; a refusal in no time is no measure."""
    clock = FakeClock()
    budget = Budget(left_s, {"validation": 1.0}, clock)
    names: list[str] = []

    def converted(processor: ProfiledProcessor, name: str, watch: object) -> HeldOutNetwork:
        names.append(name)
        if name == "a":
            raise UnsupportedOp("no form")
        clock.now_s += 19
        return HeldOutNetwork(name, processor.place.name, 1.0, 1.0, 1.0, 0.0, 1)

    monkeypatch.setattr(validation, "measure_held_out", converted)
    place = PinnedProcessor("cpu0", 0, 0)
    meter = FakeMeter(name="litert")
    validate(
        [ProfiledProcessor(place, meter, None, MOBILE_FUSION)],  # type: ignore[arg-type]
        ("a", "b", "c", "d"),
        lambda *_: None,
        budget,
        quiet_watch(),
    )
    assert names == begun
    assert budget.elapsed_s <= left_s
    assert budget.skipped[-1] == "validating on d"
    assert plan_budget(420.0, 5, clock, -1.0, "litert").planned_s["validation"] == 100
    short = plan_budget(30.0, 5, clock, -1.0, "litert").planned_s
    assert (short["validation"], short["surroundings"]) == pytest.approx((0, CONTENTION_S))


def test_networks_are_validated_on_every_processor_and_what_fails_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(processor: ProfiledProcessor, name: str, watch: object) -> HeldOutNetwork:
        if (processor.place.name, name) == ("gpu", "b"):
            raise RuntimeError("no\n kernel")
        return HeldOutNetwork(name, processor.place.name, 1.0, 1.0, 1.0, 0.0, 1)

    monkeypatch.setattr(validation, "measure_held_out", measured)
    places = PinnedProcessor("cpu0", 0, 0), PinnedProcessor("gpu", 0, 1000, "cuda:0")
    rows, refused = validate(
        [ProfiledProcessor(place, FakeMeter(), None, MOBILE_FUSION) for place in places],  # type: ignore[arg-type]
        ("a", "b"),
        lambda *_: None,
        Budget(20.0, {"validation": 1.0}, FakeClock()),
        quiet_watch(),
    )
    assert [(row.network, row.processor) for row in rows] == [
        ("a", "cpu0"),
        ("a", "gpu"),
        ("b", "cpu0"),
    ]
    assert refused == {"b on gpu": "RuntimeError: no kernel"}


@pytest.mark.slow
def test_kernels_of_a_named_network_come_first_and_are_covered(tmp_path: Path) -> None:
    graph = conv_net()
    result, _ = profiled(tmp_path / "chip", 60.0, most=400, targets=(graph,))
    wanted = target_kernels((graph,), MOBILE_FUSION)
    assert len(wanted) == 2
    measured = [sample.kernel.key for sample in result.samples[0]]
    assert set(measured[:2]) == {kernel.key for kernel in wanted}
    near = [s.kernel for s in result.samples[0] if s.kernel.name.startswith("like.")]
    assert len(near) >= 6
    predictor = load_soc(tmp_path / "chip").predictors["cpu0"]
    for kernel in wanted:
        assert predictor.outside(kernel) == ""  # type: ignore[attr-defined]
        assert predictor.estimate(kernel).latency_us == pytest.approx(law_us(kernel), rel=0.1)


@pytest.mark.slow
def test_a_folder_is_extended_by_a_network_and_keeps_what_it_has(tmp_path: Path) -> None:
    out = tmp_path / "chip"
    profiled(out, 30.0, most=300)
    before = (out / NAME).read_text()
    graph = conv_net()
    result, _ = profiled(out, 10.0, targets=(graph,))
    assert result.budget.elapsed_s <= 11
    after = (out / NAME).read_text()
    assert after.startswith(before)
    added = [json.loads(line) for line in after[len(before) :].splitlines()]
    first = [sample["kernel"]["shapes_in"] for sample in added[0]["samples"]]
    assert [[1, 21, 37, 53]] in first
    _, meter = profiled(out, 10.0, targets=(graph,))
    keys = {kernel.key for kernel in target_kernels((graph,), MOBILE_FUSION)}
    assert not keys & {kernel.key for kernel in meter.seen}, "measured once is enough"
