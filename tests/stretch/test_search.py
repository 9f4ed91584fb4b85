"""Search: the optimum is what brute force finds, bounds hold, and prices are those of the built
plan.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from dataclasses import replace

import pytest
from support.brute_force import BruteForce
from support.optimal_plans import check_is_optimal, least_latency
from support.search_bounds import dear_copies, search_by_arrays
from support.search_instances import NETWORK, chip, four_processors, random_instance
from support.slow_half import half_slow

from nnstretch.errors import BadInput, NoPlan
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.plan import Plan
from nnstretch.stretch.cost.cost_model import CostModel
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search import warm_start
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import (
    NetworkLimits,
    SegmentLimits,
    constraints_of,
)
from nnstretch.stretch.search.label_setting import branch_join
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.search import search
from nnstretch.stretch.search.search_problem import SearchProblem
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw as many questions as `--instances` says."""
    if "instance" in metafunc.fixturenames:
        instances = range(metafunc.config.getoption("--instances"))
        metafunc.parametrize("instance", half_slow(instances))


def test_the_optimum_is_what_brute_force_finds(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instance % 3 == 0:
        search_by_arrays(monkeypatch)
    check_is_optimal(random_instance(instance), least_latency(instance))


@pytest.mark.parametrize("seed", [0, 1, 3, 7])
def test_the_optimum_of_four_processors_is_what_brute_force_finds(seed: int) -> None:
    one = four_processors(seed)
    check_is_optimal(one, BruteForce(one).best())


@pytest.mark.parametrize("seed", [1, 7, 36, 40, 106, 150])
def test_the_optimum_is_found_where_copies_decide_which_widths_may_meet(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faster combination that breaks a rule makes no other pointless, however many there are."""
    monkeypatch.setattr(branch_join, "DOMINANCE_FROM", 0)
    one = dear_copies(seed)
    check_is_optimal(one, BruteForce(one).best())


@pytest.mark.parametrize("seed", half_slow(range(0, 60, 4)))
def test_the_optimum_is_found_where_prices_depend_on_who_works_beside(seed: int) -> None:
    one = random_instance(seed, neighbours=True)
    check_is_optimal(one, BruteForce(one).best())


@pytest.mark.parametrize("seed", half_slow(range(0, 40, 3)))
def test_nothing_beats_the_bound_where_runtimes_copy_between_layouts(seed: int) -> None:
    drawn = random_instance(seed)
    rules = FusionRules(MOBILE_FUSION.pairs, False, ChannelBlockedLayout(16, 4, frozenset({"add"})))
    fusion = dict.fromkeys(drawn.processors, rules)
    one = replace(drawn, soc=replace(drawn.soc, fusion=fusion), bounds=NetworkLimits())
    expected = BruteForce(one).best()
    assert expected is not None
    result = search(
        one.graph,
        one.soc,
        one.processors,
        one.limits,
        width_steps=one.width_steps,
        merges=one.merges,
        max_params=math.inf,
    )
    best_us = result.plans[0].trial.latency_us
    assert 0 < result.lower_bound_us <= expected[0] * (1 + 1e-9)
    assert best_us >= expected[0] * (1 - 1e-9)
    assert not result.optimal or best_us == pytest.approx(expected[0], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", half_slow(range(1, 60, 4)))
def test_few_widths_and_cuts_first_change_no_optimum(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_start, "COARSE_CUTS", 1 + seed % 3)
    monkeypatch.setattr(warm_start, "COARSE_WIDTHS", 2)
    monkeypatch.setattr(warm_start, "WORTH_WIDTHS", 1)
    check_is_optimal(random_instance(seed), least_latency(seed))


def test_few_widths_give_a_plan_within_the_limits_before_the_search_begins() -> None:
    space = SearchSpace(
        NetworkAnalysis(NETWORK), CostModel(chip()), ("cpu", "dsp"), SegmentLimits()
    )
    tables = CostTables(space)
    limits = NetworkLimits(min_macs=0.9 * NETWORK.macs)
    exact = ExactSearch(tables, tuple(segment_options(tables)), limits, 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_start, "COARSE_WIDTHS", 3)
        patch.setattr(warm_start, "WORTH_WIDTHS", 1)
        warm_start.warm_up(exact)
    first = exact.best
    assert first is not None
    assert exact.bound_us == -math.inf, "nothing is proven of all plans yet"
    assert exact.run().best is not None
    assert exact.is_proven(0.0)
    assert exact.best is not None
    assert exact.best.latency_us <= first.latency_us


@pytest.mark.slow
def test_progress_names_its_step_and_comes_at_every_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "COARSE_WIDTHS", 3)
    monkeypatch.setattr(warm_start, "WORTH_WIDTHS", 1)
    steps: Counter[str] = Counter()

    def count(what: str, done: int, of: int) -> None:
        steps[what.partition(":")[0]] += 1

    search(NETWORK, chip(), ("cpu", "dsp"), min_macs=0.9 * NETWORK.macs, progress=count)
    cuts = SearchSpace(
        NetworkAnalysis(NETWORK), CostModel(chip()), ("cpu", "dsp"), SegmentLimits()
    ).last
    for name in ("few widths, pricing", "few options, pricing", "pricing"):
        assert steps[name] >= cuts, name
        assert steps[name] % cuts == 0, name


def test_a_time_limit_leaves_a_plan_however_early() -> None:
    for seconds in (1e-9, 0.05):
        result = search(NETWORK, chip(), ("cpu", "dsp"), time_limit_s=seconds)
        assert result.plans
        assert not result.interrupted
        if result.out_of_time:
            assert not result.optimal
            assert result.plans[0].trial.latency_us <= min(result.original_us.values()) + 1e-9
    for seconds in (-5.0, 0.0):
        with pytest.raises(BadInput, match="time_limit_s is"):
            search(NETWORK, chip(), ("cpu", "dsp"), time_limit_s=seconds)
    assert search(NETWORK, chip(), ("cpu", "dsp"), time_limit_s=1e-9).out_of_time
    assert not search(NETWORK, chip(), ("cpu", "dsp"), time_limit_s=1e9).out_of_time


def test_the_collector_of_cycles_pauses_and_runs_again_whatever_ends_the_search() -> None:
    during: list[bool] = []
    search(NETWORK, chip(), ("cpu", "dsp"), progress=lambda *_: during.append(gc.isenabled()))
    assert during
    assert not any(during)
    assert gc.isenabled()

    def fail(*_: object) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        search(NETWORK, chip(), ("cpu", "dsp"), progress=fail)
    assert gc.isenabled()


def test_only_projections_are_searched_where_only_they_are_asked_for() -> None:
    result = search(
        NETWORK,
        chip(0.5),
        limits=SegmentLimits(alpha=2.0, beta=1.5),
        width_steps=3,
        merges=("project",),
    )
    assert {s.merge for s in result.plans[0].trial.plan.segments if s.branched} <= {"project"}


@pytest.mark.slow
def test_random_instances_ask_for_all_kinds_of_plans() -> None:
    """Or else agreement would say little: some have no plan, some branch, some project."""
    found = [least_latency(seed) for seed in (*range(60), 162)]
    branched = [s for best in found if best is not None for s in best[1].segments if s.branched]
    merges = Counter(s.merge for s in branched)
    assert found.count(None) >= 5
    assert merges["concat"] >= 5
    assert merges["project"] >= 2
    assert max(len(s.branches) for s in branched) == 3


def test_what_search_returns_keeps_every_constraint() -> None:
    limits = SegmentLimits()
    result = search(NETWORK, chip(), ("cpu", "dsp"), limits, top=3)
    assert result.optimal
    assert result.lower_bound_us == pytest.approx(result.plans[0].trial.latency_us)
    assert len({found.trial.plan for found in result.plans}) == len(result.plans)
    for found in result.plans:
        assert [constraint(found.trial) for constraint in constraints_of(limits, chip())] == [
            None
        ] * 5
    assert result.plans[0].trial.latency_us <= min(result.original_us.values()) + 1e-9


@pytest.mark.slow
def test_bounds_on_macs_are_kept_and_impossible_ones_are_explained() -> None:
    free = search(NETWORK, chip(), ("cpu", "dsp"))
    more = search(NETWORK, chip(), ("cpu", "dsp"), min_macs=1.0 * NETWORK.macs)
    assert more.plans[0].trial.macs >= NETWORK.macs
    assert more.plans[0].trial.latency_us >= free.plans[0].trial.latency_us
    odd = 0.9 * NETWORK.macs // 2 * 2 + 1  # every convolution of the network has even MACs
    with pytest.raises(NoPlan, match=r"no plan for toy, bounds MACs .* refused by constraint"):
        search(NETWORK, chip(), ("cpu", "dsp"), min_macs=odd, max_macs=odd)


@pytest.mark.slow
def test_fewer_macs_than_any_plan_has_are_refused_at_once() -> None:
    with pytest.raises(
        NoPlan, match=r"no plan for toy has at most 1e\+06 MACs, the limits leave none below \d"
    ):
        search(NETWORK, chip(), ("cpu", "dsp"), max_macs=1e6)
    some = (
        search(NETWORK, chip(0.5), ("cpu", "dsp"), SegmentLimits(alpha=2.0, beta=1.5))
        .plans[0]
        .trial
    )
    assert (
        search(
            NETWORK,
            chip(0.5),
            ("cpu", "dsp"),
            SegmentLimits(alpha=2.0, beta=1.5),
            max_macs=some.macs,
        )
        .plans[0]
        .trial
        == some
    )


def test_a_plan_that_tables_misjudge_is_no_slower_than_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slowest_original(problem: SearchProblem, _: object) -> Plan:
        return max(problem.originals.values(), key=lambda trial: trial.latency_us).plan

    monkeypatch.setattr(SearchProblem, "plan_from_path", slowest_original)
    result = search(NETWORK, chip(), ("cpu", "dsp"))
    (best,) = result.plans
    assert best.trial.latency_us == min(result.original_us.values())
    assert not result.optimal


@pytest.mark.parametrize("stage", ["pricing segments", "pricing", "following labels"])
def test_an_interrupt_leaves_a_plan_however_early(stage: str) -> None:
    def impatient(what: str, done: int, of: int) -> None:
        if what.partition(":")[0] == stage:
            raise KeyboardInterrupt

    result = search(
        NETWORK, chip(), ("cpu", "dsp"), min_macs=0.9 * NETWORK.macs, progress=impatient
    )
    assert result.interrupted
    assert not result.optimal
    assert result.plans[0].trial.macs >= 0.9 * NETWORK.macs
    assert 0 <= result.lower_bound_us <= result.plans[0].trial.latency_us
    assert result.plans[0].trial.latency_us <= min(result.original_us.values())
    with pytest.raises(NoPlan, match="interrupted"):
        search(
            NETWORK,
            chip(),
            ("cpu", "dsp"),
            min_macs=1.1 * NETWORK.macs,
            progress=impatient if stage != "following labels" else stopped,
        )


def stopped(what: str, done: int, of: int) -> None:
    raise KeyboardInterrupt
