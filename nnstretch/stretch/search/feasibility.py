"""Whether limits of the whole network leave any plan, and which of them contradict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from nnstretch.errors import NoPlan
from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.multipliers import Multipliers
from nnstretch.stretch.search.branch_and_bound import ExactSearch, Progress
from nnstretch.stretch.search.constraints import NetworkLimits
from nnstretch.stretch.search.early_stop import STOPS, stop_name
from nnstretch.stretch.search.options.segment_option import SegmentOption
from nnstretch.stretch.search.options.segment_options import most_meetings
from nnstretch.stretch.search.options.single_costs import single_costs
from nnstretch.stretch.search.space.cost_tables import CostTables
from nnstretch.stretch.search.space.search_space import SearchSpace
from nnstretch.stretch.search.statistics import least_macs, refusals

USUAL_WORK = 1.25
"""Work over the original's up to which most networks have plans; only beyond it is bounded."""
WORK_BINS = 1.3
"""Factor that bins of merged widths span for a bound on work."""
UNLIMITED_US = 1e30
HIGH_PRICE = 1e6
"""How many times the latency of the slowest plan the original's work is worth."""


def check_reachable(
    tables: CostTables, options: Sequence[SegmentOption], limits: NetworkLimits, progress: Progress
) -> None:
    """Check limits one by one. Raises NoPlan where the rules leave no plan within one."""
    space, meetings = tables.space, limits.min_meetings
    graph = space.analysis.graph
    most = max(0, most_meetings(options, space.last)[0])
    if meetings > most:
        raise NoPlan(
            f"no plan for {graph.name} meets {meetings} times, the limits leave {most} at most"
        )
    if limits.max_macs < math.inf:
        least = least_macs(tables, options)
        if limits.max_macs < least * (1 - 1e-9):
            raise NoPlan(
                f"no plan for {graph.name} has at most"
                f" {limits.max_macs:.4g} MACs, the limits leave none below {least:.4g}"
            )
    demands = (
        ("MACs", limits.min_macs, graph.macs, Multipliers(per_mac=1.0)),
        ("parameters", limits.min_params, graph.params, Multipliers(per_param=1.0)),
    )
    for unit, demand, original, kind in demands:
        if demand <= USUAL_WORK * original:
            continue
        highest = most_work(tables, options, kind, progress)
        if demand > highest * (1 + 1e-9):
            raise NoPlan(
                f"no plan for {graph.name} has at least {demand:.4g} {unit}, the limits leave none"
                f" above {highest:.4g}"
            )


def most_work(
    tables: CostTables, options: Sequence[SegmentOption], kind: Multipliers, progress: Progress
) -> float:
    """Return an upper bound on the MACs or parameters of a plan, whichever has a multiplier.

    At a multiplier so high that latencies do not matter, the least reduced cost tells the most.
    Infinite where the rules let a segment take any time.
    """
    space = tables.space
    graph = space.analysis.graph
    most_us = space.last * max(most_latency_us(option) for option in options)
    if not 0 < most_us < UNLIMITED_US:
        return math.inf
    original = kind.per_mac * graph.macs + kind.per_param * graph.params
    price = HIGH_PRICE * most_us / max(1.0, original)
    prices = Multipliers(price * kind.per_mac, price * kind.per_param)
    report = partial(progress, "bounding work", 1, 1)
    values = cost_to_go(space, options, prices, None, WORK_BINS, report=report)
    return (most_us - float(values.at[0][0])) / price


def most_latency_us(option: SegmentOption) -> float:
    """Return an upper bound on the latency of a segment that keeps to the rules, us."""
    if option.branched:
        return option.bounds.branch_us + option.bounds.communication_us
    us = single_costs([option]).us
    return float(us[np.isfinite(us)].max(initial=0.0))


def no_plan(
    tables: CostTables,
    options: Sequence[SegmentOption],
    limits: NetworkLimits,
    max_params: float,
    stopped_by: type[BaseException] | None,
    progress: Progress,
) -> NoPlan:
    """Return why a search has no plan, as an error to raise; `stopped_by` is what ended it early.

    What `progress` raises ends the search for a reason, and the error says what is known by then.
    """
    space = tables.space
    name, asked = space.analysis.graph.name, asked_text(space, limits, max_params)
    nowhere = nowhere_to_branch(space) and f", {nowhere_to_branch(space)}"
    if stopped_by is not None:
        met = f"before any plan for {name} within the limits was met"
        interrupted = stopped_by is KeyboardInterrupt
        message = f"{stop_name(stopped_by)} {met}, {asked}{nowhere}"
        return NoPlan(message, interrupted=interrupted, out_of_time=not interrupted)
    names, refused, ended = list[str](), "", ""
    interrupted = False
    try:
        counts = ", ".join(f"{rule} {count}" for rule, count in refusals(tables).items())
        refused = f", refused by constraint: {counts or 'none'}"
        for contradicting in contradictions(tables, options, limits, progress):
            names.append(contradicting)
    except STOPS as stop:
        interrupted = isinstance(stop, KeyboardInterrupt)
        ended = f", {stop_name(type(stop))} before every limit was tried"
    against = f", contradicting: {', '.join(names)}" if names else ""
    message = f"no plan for {name}, {asked}{against}{nowhere}{refused}{ended}"
    return NoPlan(message, interrupted=interrupted)


def asked_text(space: SearchSpace, limits: NetworkLimits, max_params: float) -> str:
    """Return the limits of the whole network in words, and what the original has."""
    graph = space.analysis.graph
    wanted = f"bounds MACs {limits.min_macs:.4g} to {limits.max_macs:.4g}"
    wanted += f", parameters from {limits.min_params:.4g} to {max_params:.4g}"
    if limits.min_meetings:
        wanted += f", {limits.min_meetings} meeting points at least"
    for name, most in zip(space.limited, max_params_held(space), strict=True):
        wanted += f", {most / 1e6:.4g}M parameters on {name}"
    return f"{wanted} (original {graph.macs} MACs, {graph.params} parameters)"


def contradictions(
    tables: CostTables,
    options: Sequence[SegmentOption],
    limits: NetworkLimits,
    progress: Progress,
) -> Iterator[str]:
    """Yield which limits of the whole network contradict: without one of them there is a plan.

    All that are set where each must go. A single one stands against what a plan may be: without
    any, the original is a plan.
    """
    unlimited = asdict(NetworkLimits())
    memory_limit = held_limit_name(tables.space)
    names = {
        name: memory_limit if name == "max_held" else name
        for name in unlimited
        if getattr(limits, name) != unlimited[name]
    }
    has_one_to_drop = False
    for name in names if len(names) > 1 else ():
        without = replace(limits, **{name: unlimited[name]})
        if ExactSearch(tables, options, without, 1.0, progress).run().best is not None:
            has_one_to_drop = True
            yield names[name]
    if not has_one_to_drop:
        yield from names.values()


def nowhere_to_branch(space: SearchSpace) -> str:
    """Return why no plan of a space has branches; empty where they may meet somewhere."""
    if not space.processor_sets():
        return f"nothing branches on {space.processors[0]} alone"
    if space.last < 2:
        return f"{space.analysis.graph.name} has 0 cuts where branches may meet"
    return ""


def held_limit_name(space: SearchSpace) -> str:
    """Return which limits on parameters hold in a space, as a user knows them."""
    limits = {"memory": space.limited, "max_params": space.whole_limited}
    return " or ".join(name for name, holds in limits.items() if holds)


def max_params_held(space: SearchSpace) -> tuple[float, ...]:
    """Return the parameters that each processor with a memory limit can hold."""
    soc = space.cost_model.soc
    return tuple((soc.processor(p).memory_bytes or 0) / soc.element_bytes for p in space.limited)
