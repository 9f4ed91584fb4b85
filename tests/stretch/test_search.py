"""Search: the optimum is what brute force finds, bounds hold, and prices are those of the built
plan.
"""

from __future__ import annotations

import gc
import math
from collections import Counter
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from support.brute_force import (
    NETWORK,
    BruteForce,
    Instance,
    chip,
    four_processors,
    random_instance,
    within,
)
from torch import nn

from nnstretch.capture.torch_export import capture
from nnstretch.errors import BadInput, NoPlan, UnknownName
from nnstretch.kernel import MOBILE_FUSION, ChannelBlockedLayout, FusionRules
from nnstretch.plan import Plan
from nnstretch.predict import load_soc
from nnstretch.stretch.cost.cost_model import CostModel, estimate_plan
from nnstretch.stretch.lowering.lower import lower
from nnstretch.stretch.lowering.network_analysis import NetworkAnalysis
from nnstretch.stretch.search import warm_start
from nnstretch.stretch.search.bounds import cost_to_go as bounds_over_options
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.constraints import (
    NetworkLimits,
    SegmentLimits,
    branched_segments,
    constraints_of,
)
from nnstretch.stretch.search.options.segment_options import segment_options
from nnstretch.stretch.search.search import MAX_PARAMS, search
from nnstretch.stretch.search.search_problem import SearchProblem
from nnstretch.stretch.search.search_result import ScoredPlan
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace


@cache
def least_latency(seed: int) -> tuple[float, Plan] | None:
    """What brute force finds for a random instance."""
    return BruteForce(random_instance(seed)).best()


def check_is_optimal(one: Instance, expected: tuple[float, Plan] | None) -> ScoredPlan | None:
    """The search and brute force agree, and what the search found is what it says."""
    found = one.answer()
    assert (found is None) == (expected is None)
    if found is None or expected is None:
        return found
    analysis = NetworkAnalysis(one.graph)
    (latency_us, plan), trial = expected, estimate_plan(lower(analysis, found.trial.plan), one.soc)
    assert estimate_plan(lower(analysis, plan), one.soc).latency_us == pytest.approx(
        latency_us, rel=1e-9
    ), "brute force prices whole plans"
    assert found.trial.latency_us == pytest.approx(latency_us, rel=1e-9)
    assert (trial.latency_us, trial.macs, trial.params) == (
        found.trial.latency_us,
        found.trial.macs,
        found.trial.params,
    )
    assert within(one.bounds, trial.macs, trial.params, len(branched_segments(trial)))
    assert [constraint(trial) for constraint in constraints_of(one.limits, one.soc)] == [None] * 5
    return found


def half_slow(numbers: range) -> list[object]:
    """Leave every second number to `make check`."""
    slow = numbers[1::2]
    return [pytest.param(n, marks=pytest.mark.slow) if n in slow else n for n in numbers]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Draw as many questions as `--instances` says."""
    if "instance" in metafunc.fixturenames:
        instances = range(metafunc.config.getoption("--instances"))
        metafunc.parametrize("instance", half_slow(instances))


def test_the_optimum_is_what_brute_force_finds(
    instance: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instance % 3:  # few options of few widths have no windows otherwise
        monkeypatch.setattr(bounds_over_options, "WINDOW_FROM", 0)
    check_is_optimal(random_instance(instance), least_latency(instance))


@pytest.mark.parametrize("seed", [0, 1, 3, 7])
def test_the_optimum_of_four_processors_is_what_brute_force_finds(seed: int) -> None:
    one = four_processors(seed)
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


@cache
def free_weights(seed: int) -> tuple[str, int] | None:
    """The processor that holds most bytes in an instance's best plan; None where none branches."""
    one = random_instance(seed)
    answer = one.answer()
    if answer is None or not any(s.branched for s in answer.trial.plan.segments):
        return None
    by_processor = answer.trial.weight_bytes(one.soc.element_bytes)
    return max(by_processor.items(), key=lambda item: item[1])


def forgetful(seed: int, share: float) -> Instance | None:
    """An instance where one processor has memory for less than the best plan wants from it."""
    weights = free_weights(seed)
    if weights is None:
        return None
    one, (name, wanted_bytes) = random_instance(seed), weights
    processors = tuple(
        replace(p, memory_bytes=int(share * wanted_bytes)) if p.name == name else p
        for p in one.soc.processors
    )
    return replace(one, soc=replace(one.soc, processors=processors))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.6, 0.95])
def test_memory_that_binds_is_kept_to_and_the_rest_is_still_optimal(share: float) -> None:
    checked = 0
    for seed in range(40):
        one = forgetful(seed, share)
        if one is not None:
            check_is_optimal(one, BruteForce(one).best())
            checked += 1
        if checked == 3:
            return
    pytest.fail(f"only {checked} instances have memory that binds")


def test_alternatives_fit_memory_too_and_where_nothing_fits_that_is_said() -> None:
    free = search(NETWORK, chip(), ("cpu", "dsp"), top=3)
    held = free.plans[0].trial.weight_bytes(1)
    assert held["dsp"] > 0
    soc = chip()
    tight = replace(
        soc,
        processors=(soc.processors[0], replace(soc.processors[1], memory_bytes=held["dsp"] // 2)),
    )
    for found in search(NETWORK, tight, ("cpu", "dsp"), top=3).plans:
        assert constraints_of(SegmentLimits(), tight)[-1](found.trial) is None
    nothing = replace(soc, processors=tuple(replace(p, memory_bytes=10) for p in soc.processors))
    with pytest.raises(NoPlan, match=r"1e-05M parameters on cpu, 1e-05M parameters on dsp"):
        search(NETWORK, nothing, ("cpu", "dsp"))


@cache
def branched_params(seed: int) -> int | None:
    """Parameters of an instance's best plan without bounds; None where it branches nowhere."""
    answer = unbounded(seed).answer()
    if answer is None or not any(s.branched for s in answer.trial.plan.segments):
        return None
    return answer.trial.params


def unbounded(seed: int) -> Instance:
    """An instance that asks for no least parameters or meeting points."""
    one = random_instance(seed)
    return replace(one, bounds=replace(one.bounds, min_params=0.0, min_meetings=0))


@pytest.mark.parametrize("share", [pytest.param(0.85, marks=pytest.mark.slow), 0.97])
def test_parameters_that_are_bounded_from_above_leave_the_optimum_below(share: float) -> None:
    binding = 0
    for seed in range(14):
        params = branched_params(seed)
        if params is not None:
            bound = replace(unbounded(seed), max_params=share * params)
            answer = check_is_optimal(bound, BruteForce(bound).best())
            assert answer is None or answer.trial.params <= bound.max_params
            binding += answer is not None
    assert binding >= 3


def test_parameters_are_bounded_by_default() -> None:
    limits = SegmentLimits(alpha=5.0, beta=2.0)
    free = search(NETWORK, chip(0.2), ("cpu", "dsp"), limits, max_params=math.inf)
    usual = search(NETWORK, chip(0.2), ("cpu", "dsp"), limits)
    assert usual.plans[0].trial.params <= MAX_PARAMS * NETWORK.params
    assert free.plans[0].trial.latency_us <= usual.plans[0].trial.latency_us
    most = search(
        NETWORK, chip(0.2), ("cpu", "dsp"), limits, max_params=0.9 * NETWORK.params, top=3
    )
    assert all(found.trial.params <= 0.9 * NETWORK.params for found in most.plans)


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


def test_bounds_on_macs_are_kept_and_impossible_ones_are_explained() -> None:
    free = search(NETWORK, chip(), ("cpu", "dsp"))
    more = search(NETWORK, chip(), ("cpu", "dsp"), min_macs=1.0 * NETWORK.macs)
    assert more.plans[0].trial.macs >= NETWORK.macs
    assert more.plans[0].trial.latency_us >= free.plans[0].trial.latency_us
    with pytest.raises(NoPlan, match=r"no plan for toy, bounds MACs .* refused by constraint"):
        search(NETWORK, chip(), ("cpu", "dsp"), min_macs=50.0 * NETWORK.macs)


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


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(
        BadInput, match="min_depth is 2, search settings, it must be a share between 0 and 1"
    ):
        SegmentLimits(min_depth=2)


@pytest.mark.parametrize(("name", "said"), [("min_macs", "MACs"), ("min_params", "parameters")])
def test_at_least_infinity_is_refused(name: str, said: str) -> None:
    with pytest.raises(BadInput, match=f"{said} cannot be at least inf and at most inf"):
        search(NETWORK, chip(), ("cpu", "dsp"), **{name: math.inf})


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
    (shared,) = graph.shared_weights
    assert shared in ("layers.0.weight", "layers.1.weight")
    for bounds in ({"min_params": 1.0}, {"max_params": 1e9}):
        with pytest.raises(BadInput, match=r"share weights .*limit MACs instead"):
            search(graph, soc, **bounds)
    assert search(graph, soc).optimal


def test_an_unknown_fallback_is_refused() -> None:
    graph = capture(Tied(), torch.zeros(1, 3, 32, 32))
    with pytest.raises(BadInput, match="fallback is 'foo', search settings"):
        search(graph, load_soc("mi9"), fallback="foo")
