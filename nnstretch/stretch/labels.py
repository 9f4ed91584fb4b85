"""Best paths through cuts and widths, with bounds on what a path adds up to."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.stretch.edges import Choices
from nnstretch.structure.cuts import Cut

EdgeTable = Mapping[tuple[int, int], Sequence[tuple[int, Choices]]]
SLACK = 1.05
"""With bounds on the whole network, alternatives to the best plan are kept up to this factor of its latency."""
MOST_LABELS = 20_000
"""Labels kept at one cut and width; beyond, the result is no longer called optimal."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the whole network must keep to."""

    min_macs: float
    max_macs: float
    min_params: float

    @property
    def any(self) -> bool:
        return self.min_macs > 0 or self.min_params > 0 or self.max_macs < math.inf


@dataclass(frozen=True, slots=True)
class Label:
    """One way to reach a cut at a width."""

    latency_us: float
    macs: int
    params: int
    previous: Label | None = None
    step: tuple[int, int, Choices, int] | None = None

    def steps(self) -> list[tuple[int, int, Choices, int]]:
        found: list[tuple[int, int, Choices, int]] = []
        label: Label | None = self
        while label is not None and label.step is not None:
            found.append(label.step)
            label = label.previous
        return found[::-1]


@dataclass(frozen=True, slots=True)
class ToGo:
    """Best completions from a state: least latency, most and least MACs, most parameters."""

    latency_us: float
    most_macs: float
    least_macs: float
    most_params: float


def best_labels(cuts: Sequence[Cut], edges: EdgeTable, bounds: Bounds, top: int) -> tuple[list[Label], float, bool]:
    """The `top` fastest labels at the output, a lower bound on the fastest, and whether it is proven optimal."""
    last = len(cuts) - 1
    kept = {key: [(j, choices, thinned(choices, bounds, top)) for j, choices in rows] for key, rows in edges.items()}
    togo = completions(kept, last)
    start = next((key for key in kept if key[0] == 0), None)
    if start is None or start not in togo:
        return [], math.inf, True
    ceiling = incumbent(kept, start, last, bounds) * (SLACK if top > 1 else 1 + 1e-12) if bounds.any else math.inf
    labels: dict[tuple[int, int], list[Label]] = {start: [Label(0.0, 0, 0)]}
    complete = True
    for i in range(last):
        for key in sorted(k for k in labels if k[0] == i):
            states, whole = pareto(labels.pop(key), bounds, top)
            complete &= whole
            for label, j, choices, k in extensions(states, kept.get(key, ())):
                reached = (j, int(choices.width[k]))
                grown = extended(label, i, j, choices, k)
                if j == last or (reached in togo and hopeful(grown, togo[reached], bounds, ceiling)):
                    labels.setdefault(reached, []).append(grown)
    ends = [label for key, found in labels.items() if key[0] == last for label in found if within(label, bounds)]
    best = heapq.nsmallest(top, ends, key=lambda label: label.latency_us)
    bound = best[0].latency_us if complete and best else togo[start].latency_us
    return best, bound, complete


def extended(label: Label, i: int, j: int, choices: Choices, k: int) -> Label:
    macs, params = label.macs + int(choices.macs[k]), label.params + int(choices.params[k])
    return Label(label.latency_us + float(choices.latency_us[k]), macs, params, label, (i, j, choices, k))


def extensions(states: list[Label], rows: Sequence[tuple[int, Choices, np.ndarray]]) -> Iterator[tuple[Label, int, Choices, int]]:
    for j, choices, picks in rows:
        for k in picks.tolist():
            for label in states:
                yield label, j, choices, k


def within(label: Label, bounds: Bounds) -> bool:
    return bounds.min_macs <= label.macs <= bounds.max_macs and label.params >= bounds.min_params


def hopeful(label: Label, togo: ToGo, bounds: Bounds, ceiling: float) -> bool:
    """Whether some completion may satisfy every bound and still be fast enough."""
    return (
        label.latency_us + togo.latency_us <= ceiling
        and label.macs + togo.most_macs >= bounds.min_macs
        and label.macs + togo.least_macs <= bounds.max_macs
        and label.params + togo.most_params >= bounds.min_params
    )


def thinned(choices: Choices, bounds: Bounds, top: int) -> np.ndarray:
    """Indices of choices that fewer than `top` others of the same width dominate."""
    order = np.lexsort((choices.latency_us, choices.width))
    if not len(order):
        return order
    width = choices.width[order]
    first = np.concatenate([[True], width[1:] != width[:-1]])
    rank = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    if not bounds.any:
        return order[rank < top]
    return np.array(staircase(choices, bounds, top, order.tolist(), first.tolist()), dtype=int)


def staircase(choices: Choices, bounds: Bounds, top: int, order: list[int], first: list[bool]) -> list[int]:
    """Within each width, fastest first: what is slower must offer more of what is bounded."""
    picks: list[int] = []
    fronts: list[list[tuple[int, int]]] = []
    macs, params = choices.macs.tolist(), choices.params.tolist()
    for k, opens in zip(order, first, strict=True):
        if opens:
            fronts = [[] for _ in range(top)]
        if enters(fronts, (int(macs[k]), int(params[k])), bounds):
            picks.append(k)
    return picks


def enters(fronts: list[list[tuple[int, int]]], row: tuple[int, int], bounds: Bounds) -> bool:
    """Put a row into the first front that does not dominate it; False where all of them do."""
    for front in fronts:
        if not any(dominates(held, row, bounds) for held in front):
            front[:] = [held for held in front if not dominates(row, held, bounds)] + [row]
            return True
    return False


def dominates(held: tuple[int, int], other: tuple[int, int], bounds: Bounds) -> bool:
    """Whether the first, which is no slower, leaves at least as much freedom under the bounds."""
    if bounds.min_macs > 0 and held[0] < other[0]:
        return False
    if bounds.max_macs < math.inf and held[0] > other[0]:
        return False
    return not (bounds.min_params > 0 and held[1] < other[1])


def pareto(labels: list[Label], bounds: Bounds, top: int) -> tuple[list[Label], bool]:
    """Labels that fewer than `top` others dominate; False where the limit on their number cut some off."""
    kept: list[Label] = []
    fronts: list[list[tuple[int, int]]] = [[] for _ in range(top)]
    for label in sorted(labels, key=lambda one: one.latency_us):
        if enters(fronts, (label.macs, label.params), bounds):
            kept.append(label)
    return kept[:MOST_LABELS], len(kept) <= MOST_LABELS


def completions(edges: Mapping[tuple[int, int], Sequence[tuple[int, Choices, np.ndarray]]], last: int) -> dict[tuple[int, int], ToGo]:
    """Backwards over all states; a state from which the output cannot be reached is absent."""
    found: dict[tuple[int, int], ToGo] = {}
    end = ToGo(0.0, 0.0, 0.0, 0.0)
    for key in sorted(edges, reverse=True):
        rows: list[ToGo] = []
        for j, choices, picks in edges[key]:
            for k in picks.tolist():
                after = end if j == last else found.get((j, int(choices.width[k])))
                if after is not None:
                    macs = float(choices.macs[k])
                    rows.append(
                        ToGo(
                            after.latency_us + float(choices.latency_us[k]),
                            after.most_macs + macs,
                            after.least_macs + macs,
                            after.most_params + float(choices.params[k]),
                        )
                    )
        if rows:
            found[key] = ToGo(
                min(r.latency_us for r in rows),
                max(r.most_macs for r in rows),
                min(r.least_macs for r in rows),
                max(r.most_params for r in rows),
            )
    return found


def incumbent(
    edges: Mapping[tuple[int, int], Sequence[tuple[int, Choices, np.ndarray]]], start: tuple[int, int], last: int, bounds: Bounds
) -> float:
    """Latency of a good plan within the bounds, found by weighing MACs and parameters against time; infinite if none is met."""
    best = math.inf
    for weight in (0.0, *(10.0 ** (p / 2) for p in range(-18, -3))):
        for other in (0.0, weight * 100) if bounds.min_params > 0 else (0.0,):
            label = weighed(edges, start, last, weight, other)
            if label is not None and within(label, bounds):
                best = min(best, label.latency_us)
    return best


def weighed(
    edges: Mapping[tuple[int, int], Sequence[tuple[int, Choices, np.ndarray]]],
    start: tuple[int, int],
    last: int,
    per_mac: float,
    per_param: float,
) -> Label | None:
    """The path of least latency less what MACs and parameters are worth, in microseconds each."""
    best: dict[tuple[int, int], tuple[float, Label]] = {start: (0.0, Label(0.0, 0, 0))}
    for key in sorted(edges):
        if key not in best:
            continue
        value, label = best[key]
        for j, choices, picks in edges[key]:
            if not len(picks):
                continue
            scores = value + choices.latency_us[picks] - per_mac * choices.macs[picks] - per_param * choices.params[picks]
            for k, score in zip(picks.tolist(), scores.tolist(), strict=True):
                reached = (j, int(choices.width[k])) if j != last else (j, 0)
                if reached not in best or score < best[reached][0]:
                    best[reached] = (score, extended(label, key[0], j, choices, k))
    return best[last, 0][1] if (last, 0) in best else None
