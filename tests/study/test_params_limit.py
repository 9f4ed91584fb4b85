"""Trials keep the limit on parameters that the search of their optimum has."""

from __future__ import annotations

import math

import pytest
from support.study_toys import LOOSE, STRETCHER, chip, setting

from nnstretch.plan import Branch, Plan, Segment
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.search import MAX_PARAMS, usual_max_params
from nnstretch.study.config import search_optimum
from nnstretch.study.evaluate import Evaluation, PlanEvaluator
from nnstretch.study.parameters import PlanSpace, parameters_from_plan, plan_from_parameters

SPACE = PlanSpace(STRETCHER, ("cpu", "dsp"), LOOSE, "toy")
PARAMS = STRETCHER.graph.params


def evaluate(plan: Plan, bounds: NetworkLimits) -> Evaluation:
    return PlanEvaluator(
        STRETCHER, CostModel(chip()), SPACE.processors, SPACE.limits, bounds
    ).evaluate(plan)


def two_whole_branches() -> Plan:
    """Both processors hold all layers up to the classifier."""
    end = SPACE.meeting_points[-2].name
    branches = tuple(Branch(p, width=64) for p in SPACE.processors)
    segments = Segment("input", end, branches), Segment(end, "output", (Branch("cpu"),))
    return Plan("toy", STRETCHER.graph.inputs[0].spec.shape, segments)


def test_a_plan_that_the_search_may_not_find_is_no_feasible_trial() -> None:
    evaluation = evaluate(two_whole_branches(), NetworkLimits())
    assert evaluation.trial is not None
    assert evaluation.trial.params > MAX_PARAMS * PARAMS
    expected = evaluation.trial.params / (MAX_PARAMS * PARAMS) - 1
    assert evaluation.limits["max_params"] == pytest.approx(expected)
    assert not evaluation.feasible


def test_who_asks_for_more_parameters_may_have_more() -> None:
    evaluation = evaluate(two_whole_branches(), NetworkLimits(min_params=1.9 * PARAMS))
    assert evaluation.limits["max_params"] <= 0
    assert usual_max_params(STRETCHER.graph, 1.9 * PARAMS) == pytest.approx(2.85 * PARAMS)


def test_the_plans_that_a_study_begins_with_keep_the_limit() -> None:
    result = search_optimum(setting(), STRETCHER, chip(), 5)
    assert result is not None
    for scored in result.plans:
        plan = plan_from_parameters(SPACE, parameters_from_plan(SPACE, scored.trial.plan))
        assert -math.inf < evaluate(plan, NetworkLimits()).limits["max_params"] <= 0
