"""Good plans beside the best: partition by excluded options (Lawler, 1972)."""

from __future__ import annotations

import math

from nnstretch.stretch.search.bounds.cost_to_go import cost_to_go
from nnstretch.stretch.search.bounds.multipliers import CostToGo
from nnstretch.stretch.search.branch_and_bound import ExactSearch
from nnstretch.stretch.search.label_setting.label_search import LabelSearch
from nnstretch.stretch.search.label_setting.labels import PlanPath


def k_best(search: ExactSearch, count: int) -> list[PlanPath]:
    """Return up to `count` good plans that differ from the best, and each other, in an option.

    They come from label searches of limited effort: not proven second and third.
    """
    if not count or search.best is None:
        return []
    values = cost_to_go(search.space, search.options, search.planes.best, None, search.bins.trials)
    paths = [search.best]
    waiting: list[tuple[PlanPath, frozenset[int]]] = []
    excluded: frozenset[int] = frozenset()
    for n in range(count):
        branched = [m for m in paths[-1].option_numbers if search.options[m].branched]
        for k, number in enumerate(branched, 1):
            search.report_progress("alternatives", n * len(branched) + k, count * len(branched))
            path = best_without(search, values, excluded | {number})
            if path is not None:
                waiting.append((path, excluded | {number}))
        known = {path.option_numbers for path in paths}
        waiting = [entry for entry in waiting if entry[0].option_numbers not in known]
        waiting.sort(key=lambda entry: entry[0].latency_us)
        if not waiting:
            break
        path, excluded = waiting.pop(0)
        paths.append(path)
    return paths[1:]


def best_without(
    search: ExactSearch, values: CostToGo, excluded: frozenset[int]
) -> PlanPath | None:
    """Return the best plan that label searches give without some options, None without any."""
    only = [n for n in values.options if n not in excluded]
    total_us = values.total(search.limits)
    for margin in search.schedule.margins:
        ceiling_us = math.inf
        if margin < math.inf:
            ceiling_us = total_us + margin * abs(search.bound_us)
        run = LabelSearch(
            search.space,
            search.options,
            [values],
            search.limits,
            search.schedule.greedy_beam,
            0.0,
            None,
            only,
            ceiling_us,
        ).run()
        if run.best is not None:
            return run.best
    return None
