"""Plans and parameters spell each other.

A judge's distances agree with the constraints and prices of the search.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution
from support.study_toys import LOOSE, STRETCHER, chip
from support.toy_network import residual

from nnstretch.errors import BadPlan
from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.lowering.lower import lower, single_processor_plan
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search.constraints import NetworkLimits, SegmentLimits, constraints_of
from nnstretch.stretch.search.search import search
from nnstretch.study.evaluate import (
    BUILDABLE_CONSTRAINT,
    PlanEvaluator,
    constraint_violations,
)
from nnstretch.study.parameters import (
    LAST_PROCESSOR_PARAMETER,
    PlanSpace,
    meeting_parameter,
    parameters_from_plan,
    plan_from_parameters,
    processors_parameter,
)

PAIR = PlanSpace(STRETCHER, ("cpu", "dsp"), LOOSE)
TRIO = PlanSpace(STRETCHER, ("cpu", "gpu", "dsp"), LOOSE)
SPACES = {"pair": PAIR, "trio": TRIO}
ORIGINAL = single_processor_plan(STRETCHER.graph, "toy", "cpu")


def judge(
    space: PlanSpace,
    bounds: NetworkLimits = NetworkLimits(),  # noqa: B008
    memory_bytes: int | None = None,
) -> PlanEvaluator:
    return PlanEvaluator(
        space.analysis, CostModel(chip(memory_bytes)), space.processors, space.limits, bounds
    )


def drawn(one: Any) -> st.SearchStrategy[Any]:
    return (
        st.sampled_from(one.choices)
        if isinstance(one, CategoricalDistribution)
        else st.floats(one.low, one.high)
    )


def parameters(space: PlanSpace) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: drawn(one) for name, one in space.distributions.items()})


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_plan_of_parameters_is_spelt_by_parameters_that_give_it_back(
    name: str, data: st.DataObject
) -> None:
    plan = plan_from_parameters(SPACES[name], data.draw(parameters(SPACES[name])))
    assert plan_from_parameters(SPACES[name], parameters_from_plan(SPACES[name], plan)) == plan


@pytest.mark.slow
@pytest.mark.parametrize("name", SPACES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_plan_has_a_price_or_a_reason(name: str, data: st.DataObject) -> None:
    space = SPACES[name]
    verdict = judge(space).evaluate(plan_from_parameters(space, data.draw(parameters(space))))
    assert (
        (verdict.trial is None) == bool(verdict.reason) == (BUILDABLE_CONSTRAINT in verdict.limits)
    )
    if verdict.trial is not None:
        assert verdict.trial.latency_us > 0


@settings(max_examples=60, deadline=None)
@given(
    drawn_=parameters(PAIR),
    alpha=st.floats(0.05, 2),
    beta=st.floats(0.2, 2),
    memory=st.integers(1_000, 100_000),
)
def test_distances_say_the_same_as_the_constraints_of_the_search(
    drawn_: dict[str, Any], alpha: float, beta: float, memory: int
) -> None:
    limits, soc = SegmentLimits(alpha, beta), chip(memory)
    trial = judge(PAIR).evaluate(plan_from_parameters(PAIR, drawn_)).trial
    assert trial is not None
    found = constraint_violations(trial, limits, NetworkLimits(), soc)
    rules = constraints_of(limits, soc)
    refused = any(rule(trial) is not None for rule in rules)
    assert refused == any(value > 0 for value in found.values())
    for name, rule in (
        ("cost_amortised", rules[0]),
        ("no_stragglers", rules[1]),
        ("memory", rules[4]),
    ):
        assert (rule(trial) is not None) == (found[name] > 0)


@settings(max_examples=30, deadline=None)
@given(drawn_=parameters(PAIR))
def test_a_judge_prices_as_everyone_does(drawn_: dict[str, Any]) -> None:
    plan = plan_from_parameters(PAIR, drawn_)
    trial = judge(PAIR).evaluate(plan).trial
    assert trial is not None
    expected = estimate_plan(lower(STRETCHER, plan), chip())
    assert trial.latency_us == pytest.approx(expected.latency_us, rel=1e-12)
    assert (trial.macs, trial.params) == (expected.macs, expected.params)


def test_bounds_are_distances_too() -> None:
    macs, params = STRETCHER.graph.macs, STRETCHER.graph.params
    verdict = judge(
        PAIR, NetworkLimits(min_macs=2 * macs, max_macs=macs / 2, min_params=params)
    ).evaluate(ORIGINAL)
    assert verdict.limits["min_macs"] == pytest.approx(0.5)
    assert verdict.limits["max_macs"] == pytest.approx(1.0)
    assert verdict.limits["min_params"] == 0
    assert not verdict.feasible
    assert judge(PAIR).evaluate(ORIGINAL).feasible


@pytest.mark.slow
@pytest.mark.parametrize(
    "blocks", [((32, 3), (64, 2)), ((16, 2), (64, 4)), ((64, 1), (64, 3), (128, 2))]
)
def test_plans_of_the_exact_search_are_in_the_space_and_cost_the_same(
    blocks: tuple[tuple[int, int], ...],
) -> None:
    analysis = NetworkAnalysis(residual(blocks))
    space = PlanSpace(analysis, ("cpu", "dsp"), LOOSE, "toy")
    for found in search(analysis, chip(), space.processors, LOOSE, top=8, merges=("concat",)).plans:
        assert (
            plan_from_parameters(space, parameters_from_plan(space, found.trial.plan))
            == found.trial.plan
        )
        verdict = judge(space).evaluate(found.trial.plan)
        assert verdict.feasible
        assert verdict.trial is not None
        assert verdict.trial.latency_us == pytest.approx(found.trial.latency_us, rel=1e-9)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(drawn_=parameters(PAIR))
def test_no_feasible_plan_of_the_space_beats_the_exact_search(drawn_: dict[str, Any]) -> None:
    verdict = judge(PAIR).evaluate(plan_from_parameters(PAIR, drawn_))
    assert verdict.trial is not None
    assert not verdict.feasible or verdict.trial.latency_us >= OPTIMUM_US * (1 - 1e-9)


OPTIMUM_US = (
    search(STRETCHER, chip(), ("cpu", "dsp"), LOOSE, merges=("concat",)).plans[0].trial.latency_us
)


def test_parameters_are_the_same_for_every_plan() -> None:
    assert (
        parameters_from_plan(PAIR, ORIGINAL).keys()
        == PAIR.distributions.keys()
        == PAIR.unused_defaults.keys()
    )
    assert TRIO.processor_sets == (
        "cpu",
        "gpu",
        "dsp",
        "cpu+gpu",
        "cpu+dsp",
        "gpu+dsp",
        "cpu+gpu+dsp",
    )


def test_neighbours_alone_on_one_processor_are_one_segment() -> None:
    cut = PAIR.meeting_points[2].name
    told = PAIR.unused_defaults | {meeting_parameter(cut): True, LAST_PROCESSOR_PARAMETER: "cpu"}
    assert [str(s) for s in plan_from_parameters(PAIR, told).segments] == [
        "input -> output [cpu:=x=]"
    ]
    assert len(plan_from_parameters(PAIR, told | {LAST_PROCESSOR_PARAMETER: "dsp"}).segments) == 2
    assert (
        len(plan_from_parameters(PAIR, told | {processors_parameter("input"): "cpu+dsp"}).segments)
        == 2
    )


@pytest.mark.parametrize(
    ("segment", "word"),
    [
        (Segment("input", "output", (Branch("cpu", 1, 8),)), "as it is"),
        (Segment("input", "output", (Branch("npu"),)), "outside the study's space"),
        (Segment("input", "nowhere", (Branch("cpu"),)), "nowhere"),
        (
            Segment("input", "stage0.0", (Branch("cpu", 1, 31), Branch("dsp", 1, 8))),
            "cpu:1x31 is outside",
        ),
    ],
)
def test_a_plan_outside_the_space_is_refused_by_name(segment: Segment, word: str) -> None:
    segments = (
        (segment,)
        if segment.end == "output"
        else (segment, Segment(segment.end, "output", (Branch("cpu"),)))
    )
    with pytest.raises(BadPlan, match=word):
        parameters_from_plan(PAIR, Plan("toy", (1, 3, 16, 16), segments))
