"""What a search refuses, and how it says so."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest
import torch
from support.brute_force import BruteForce
from support.random_networks import INPUT, Step, network
from support.search_bounds import search_by_arrays
from support.search_instances import NETWORK, chip, random_instance
from support.toy_network import residual
from torch import nn

from nnstretch import stretch
from nnstretch.capture.torch_export import capture
from nnstretch.errors import BadInput, NoPlan, UnknownName
from nnstretch.kernel import Kernel
from nnstretch.predict import load_soc
from nnstretch.predictor import Estimate, Predictor
from nnstretch.soc import Link
from nnstretch.stretch.search import feasibility, search_problem
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import (
    NetworkLimits,
    SegmentLimits,
    constraints_of,
)
from nnstretch.stretch.search.early_stop import OutOfTime
from nnstretch.stretch.search.search import search
from nnstretch.structure.arguments import shared_weights
from nnstretch.trial import Trial


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(
        BadInput, match="min_depth is 2, search settings, it must be a share between 0 and 1"
    ):
        SegmentLimits(min_depth=2)


@pytest.mark.parametrize(("name", "said"), [("min_macs", "MACs"), ("min_params", "parameters")])
def test_at_least_infinity_is_refused(name: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"{said} cannot be at least inf and at most inf"):
        search(NETWORK, chip(), ("cpu", "dsp"), **{name: math.inf})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "names"),
    [
        ({"max_params": 0.02}, "max_params"),
        ({"min_macs": 1.2, "min_params": 1.2}, "min_macs, min_params"),
    ],
)
def test_a_limit_that_no_plan_keeps_is_named(bounds: dict[str, float], names: str) -> None:
    original = {"macs": NETWORK.macs, "params": NETWORK.params}
    asked = {name: share * original[name[4:]] for name, share in bounds.items()}
    with pytest.raises(NoPlan, match=f"contradicting: {names}, refused by constraint"):
        search(NETWORK, chip(), ("cpu", "dsp"), SegmentLimits(alpha=1e-4), **asked)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OutOfTime])
@pytest.mark.parametrize(("count", "known"), [(1, ""), (2, ", contradicting: min_macs")])
def test_what_is_known_of_contradicting_limits_is_told_where_the_search_for_them_is_stopped(
    stop: type[BaseException], count: int, known: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedSearch(ExactSearch):
        runs = 0

        def run(self) -> ExactSearch:
            StoppedSearch.runs += 1
            if StoppedSearch.runs == count:
                raise stop
            return super().run()

    monkeypatch.setattr(feasibility, "ExactSearch", StoppedSearch)
    graph = residual(((8, 1),), 8, 8)
    least_macs, least_params = 1.2 * graph.macs, float(graph.params)
    limits = SegmentLimits(alpha=1e-4)
    with pytest.raises(NoPlan) as why:
        search(graph, chip(), limits=limits, min_macs=least_macs, min_params=least_params)
    is_interrupt = stop is KeyboardInterrupt
    ended = "interrupted" if is_interrupt else "out of time"
    assert str(why.value).startswith("no plan for toy, bounds MACs ")
    assert f"parameters){known}, refused by constraint: cost_amortised " in str(why.value)
    assert str(why.value).endswith(f", {ended} before every limit was tried")
    assert why.value.interrupted == is_interrupt
    assert not why.value.out_of_time, "it is known that there is none"


def test_a_search_that_ends_before_its_first_plan_does_not_say_that_there_is_none() -> None:
    met = r"^out of time before any plan for toy within the limits was met, bounds MACs"
    with pytest.raises(NoPlan, match=met) as why:
        search(NETWORK, chip(), max_macs=0.7 * NETWORK.macs, time_limit_s=1e-9)
    assert (why.value.interrupted, why.value.out_of_time) == (False, True)
    assert "refused by" not in str(why.value)


@pytest.mark.slow
def test_a_network_without_a_place_to_branch_is_told_so() -> None:
    layers = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, 4))
    graph = capture(layers, torch.zeros(1, 3, 4, 4), name="mlp")
    reasons = {("cpu", "dsp"): "mlp has 0 cuts where branches may meet"}
    reasons["cpu",] = "nothing branches on cpu alone"
    for processors, reason in reasons.items():
        with pytest.raises(NoPlan, match=f"contradicting: min_macs, {reason}, refused by"):
            search(graph, chip(), processors, min_macs=1.1 * graph.macs)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "unit"), [("min_macs", "MACs"), ("min_params", "parameters")])
def test_more_work_than_any_plan_has_is_refused_at_once(name: str, unit: str) -> None:
    """What the refusal says is left is no less than the most that enumeration finds, and near."""
    has_plan_nearby = []
    for seed in (2, 5, 7, 9):
        one = random_instance(seed)
        too_much = replace(one, bounds=NetworkLimits(**{name: 1e12}))
        with pytest.raises(NoPlan, match=f"at least 1e.12 {unit}, the limits leave none") as why:
            too_much.search()
        highest = float(str(why.value).rsplit(maxsplit=1)[-1])
        above, below = (NetworkLimits(**{name: share * highest}) for share in (1.001, 0.8))
        assert BruteForce(replace(one, bounds=above)).best() is None, seed
        has_plan_nearby.append(BruteForce(replace(one, bounds=below)).best() is not None)
    assert any(has_plan_nearby)


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("alpha", [math.inf, 1e305])
def test_work_is_not_bounded_where_segments_may_take_any_time(alpha: float) -> None:
    limits = SegmentLimits(alpha=alpha)
    least = 1.3 * NETWORK.macs
    free = search(NETWORK, chip(), ("cpu", "dsp"), limits, least, max_params=math.inf)
    assert free.plans[0].trial.macs >= least


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["min_macs", "min_params"])
def test_at_least_minus_infinity_is_no_limit(name: str) -> None:
    for least in (-math.inf, -1.0):
        free = search(NETWORK, chip(), ("cpu", "dsp"), min_meetings=1)
        bound = search(NETWORK, chip(), ("cpu", "dsp"), min_meetings=1, **{name: least})
        assert bound.plans == free.plans
        assert bound.lower_bound_us == free.lower_bound_us


@pytest.mark.parametrize("name", [field.name for field in fields(SegmentLimits)])
def test_limits_are_numbers(name: str) -> None:
    for odd in (None, "0.5", True, math.nan, 10**400, b"x", [0.5]):
        with pytest.raises(BadInput, match=f"^{name} is "):
            SegmentLimits(**{name: odd})


def test_equal_macs_network_has_the_macs_it_is_compared_at() -> None:
    found = search(NETWORK, chip(), ("cpu", "dsp")).plans[0]
    assert found.iso_mac.macs == pytest.approx(found.trial.macs, rel=0.3), (
        "the nearest width that exists"
    )
    assert found.iso_mac.latency_us > 0


def test_a_refusal_carries_demand_limit_and_unit() -> None:
    trial = (
        search(NETWORK, chip(0.5), ("cpu", "dsp"), SegmentLimits(alpha=2.0, beta=1.5))
        .plans[0]
        .trial
    )
    violation = constraints_of(SegmentLimits(alpha=1e-6), chip())[0](trial)
    assert violation is not None
    assert str(violation).startswith("cost_amortised: segment ")
    assert " us, limit " in str(violation)


def test_settings_that_make_no_sense_are_named() -> None:
    with pytest.raises(UnknownName, match="unknown processor 'npu', SoC toy"):
        search(NETWORK, chip(), ("cpu", "npu"))
    with pytest.raises(BadInput, match="beta is -1"):
        SegmentLimits(beta=-1)
    with pytest.raises(BadInput, match="name each once"):
        search(NETWORK, chip(), ("cpu", "cpu"))
    with pytest.raises(BadInput, match="at least 10 and at most 5"):
        search(NETWORK, chip(), min_macs=10, max_macs=5)
    with pytest.raises(BadInput, match="merges are sum"):
        search(NETWORK, chip(), merges=("sum",))
    with pytest.raises(BadInput, match="top is 0"):
        search(NETWORK, chip(), top=0)


def test_refusals_are_counted() -> None:
    result = search(NETWORK, chip(), ("cpu", "dsp"), SegmentLimits(beta=0.05))
    assert Counter(result.refused)["no_stragglers"] > 0
    assert all(len(s.branches) == 1 for s in result.plans[0].trial.segments)


class Tied(nn.Module):
    """Two layers of one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.Sequential(*(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3)))
        self.layers[1].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.layers(torch.relu(self.stem(x))))


def test_parameters_of_layers_that_share_weights_are_not_limited() -> None:
    graph, soc = capture(Tied(), torch.zeros(1, 3, 32, 32)), load_soc("mi9")
    (shared,) = shared_weights(graph)
    assert shared in ("layers.0.weight", "layers.1.weight")
    for bounds in ({"min_params": 1.0}, {"max_params": 1e9}):
        with pytest.raises(BadInput, match=r"share weights .*limit MACs instead"):
            search(graph, soc, **bounds)
    assert search(graph, soc).optimal


def test_a_weight_that_gives_its_shape_too_is_not_shared() -> None:
    module = network([Step("standard", 32, 3), Step("conv", 24)])
    graph = capture(module, torch.zeros(INPUT))
    assert any(node.kind == "reshape_as" for node in graph.nodes)
    assert not shared_weights(graph)
    limits = SegmentLimits(1e3, 1e3, min_width=0.2, main_macs=0.05, segment_macs=0.1)
    result = search(graph, chip(), ("cpu", "dsp"), limits, max_params=0.8 * graph.params)
    trial = result.plans[0].trial
    assert trial.params <= 0.8 * graph.params
    assert trial.params == sum(p.numel() for p in stretch(module, trial.plan).parameters())


class FreeEnd(nn.Module):
    """Layers, and a reshape behind them that takes no time."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 32)
        self.layers = nn.Sequential(*(nn.Conv2d(i, 32, 3, padding=1) for i in widths))
        self.head = nn.Conv2d(32, 7, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)).flatten(2)


def test_a_network_that_takes_no_time_leaves_no_gap() -> None:
    graph, toy, free = residual(((8, 1),), 8, 8), chip(0.0), Link()
    processors = [replace(p, copy_in=free, copy_out=free, sync_us=0.0) for p in toy.processors]
    rates: dict[str, Predictor] = {
        processor.name: NoTime(processor.name) for processor in processors
    }
    soc = replace(toy, predictors=rates, processors=tuple(processors), merge=free)
    result = search(graph, soc, width_steps=2)
    assert result.plans[0].trial.latency_us == 0
    assert result.gap == 0


@dataclass(frozen=True)
class NoTime:
    """A predictor of a processor on which nothing takes any time."""

    processor: str

    def estimate(self, kernel: Kernel, /) -> Estimate:
        return Estimate(0.0, 0.0)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_segments_that_take_no_time_are_bounded(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        search_by_arrays(monkeypatch)
    graph, soc = capture(FreeEnd(), torch.zeros(1, 3, 32, 32)), load_soc("mi9")
    free, demanding = (search(graph, soc, min_macs=share * graph.macs) for share in (0.8, 1.0))
    assert free.optimal
    assert demanding.optimal
    fastest, larger = (result.plans[0].trial for result in (free, demanding))
    assert fastest.latency_us <= larger.latency_us
    assert larger.macs >= graph.macs


def test_an_unknown_fallback_is_refused() -> None:
    graph = capture(Tied(), torch.zeros(1, 3, 32, 32))
    with pytest.raises(BadInput, match="fallback is 'foo', search settings"):
        search(graph, load_soc("mi9"), fallback="foo")


def test_an_original_that_is_the_best_plan_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tables and lowered plans disagree, the original is tried, too."""
    monkeypatch.setattr(search_problem, "agrees", lambda *_: False)
    result = search(residual(((16, 1),)), chip(1e4), ("cpu", "dsp"), top=9)
    plans = [plan.trial.plan.segments for plan in result.plans]
    assert not result.optimal
    assert all(plan not in plans[:n] for n, plan in enumerate(plans))


def test_a_plan_whose_work_is_overstated_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_problem, "agrees", lambda *_: False)
    estimate = search_problem.estimate_plan

    def estimate_less(*args: Any) -> Trial:
        trial = estimate(*args)
        return replace(trial, macs=trial.macs // 2)

    monkeypatch.setattr(search_problem, "estimate_plan", estimate_less)
    with pytest.raises(NoPlan, match="bounds MACs"):
        search(NETWORK, chip(), ("cpu", "dsp"), min_macs=NETWORK.macs)
