"""Plans of groups: which operators are computed together, and into how many parts each is cut.

A plan is a partition of the operators into connected groups whose order closes no cycle, with a
split for each. Merging neighbours, cutting a group in two, moving an operator over a border and
cutting into other parts lead from plan to plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.steps.peak import group_peak
from nnstretch.accelerate.steps.split import SplitRules, cut, factors
from nnstretch.chip.instances import Group, Split

Operators = tuple[str, ...]
"""Operators of a group in execution order."""
Part = tuple[Operators, Split]


def split_along(
    chip: ChipGraph, operators: Operators, axis: int, factor: int, rules: SplitRules
) -> Split | None:
    """Return a group's split along a dimension of its last output, None where there is none."""
    if factor == 1:
        return Split(1, 0, len(operators))
    shape = chip.specs[operators[-1]].shape
    if axis >= len(shape) or shape[axis] % factor:
        return None
    split = cut(chip, operators, axis, factor, rules)
    return split if split.fits else None


def splits_into(
    chip: ChipGraph, operators: Operators, rules: SplitRules, most_parts: int
) -> tuple[Split, ...]:
    """Return a group's split for every factor up to a limit, whole first.

    Of the dimensions that a factor divides, the one along which most operators are cut is taken,
    then the outermost, as a split decision does (steps/split.py).
    """
    last = operators[-1]
    chosen: list[Split] = []
    for factor in factors(rules.cores, min(max(chip.specs[last].shape), most_parts)):
        along = [split_along(chip, operators, axis, factor, rules) for axis in chip.axes(last)]
        valid = [split for split in along if split is not None]
        if valid:
            chosen.append(max(valid, key=lambda split: split.operators))
    return tuple(chosen)


def groups_of_plan(chip: ChipGraph, plan: Sequence[Part]) -> tuple[Group, ...] | None:
    """Return the groups of a plan, each after what it reads; None where that closes a cycle."""
    ordered = in_order(chip, [operators for operators, _ in plan])
    if ordered is None:
        return None
    splits = dict(plan)
    groups: list[Group] = []
    for operators in ordered:
        peak_bytes = group_peak(chip, operators)
        groups.append(Group(f"g{len(groups)}", operators, splits[operators], peak_bytes))
    return tuple(groups)


def group_of_operator(partition: Sequence[Operators]) -> dict[str, int]:
    """Return the number of each operator's group, by the operator's name."""
    place: dict[str, int] = {}
    for number, names in enumerate(partition):
        place |= dict.fromkeys(names, number)
    return place


def in_order(chip: ChipGraph, partition: Sequence[Operators]) -> tuple[Operators, ...] | None:
    """Return groups of operators, each after what it reads; None where that closes a cycle."""
    place = group_of_operator(partition)
    needs: list[set[int]] = [set() for _ in partition]
    for name, number in place.items():
        needs[number].update(place[s] for s in chip.reads[name] if s in place)
    waiting = sorted(range(len(partition)), key=lambda n: chip.position[partition[n][0]])
    ordered: list[int] = []
    while waiting:
        ready = next((n for n in waiting if needs[n] <= {n, *ordered}), None)
        if ready is None:
            return None
        waiting.remove(ready)
        ordered.append(ready)
    return tuple(partition[number] for number in ordered)


def connected(chip: ChipGraph, operators: Sequence[str]) -> bool:
    """Return whether tensors connect all operators of a group."""
    inside = set(operators)
    seen = {operators[0]}
    frontier = [operators[0]]
    while frontier:
        name = frontier.pop()
        for near in (*chip.reads[name], *chip.readers.get(name, ())):
            if near in inside and near not in seen:
                seen.add(near)
                frontier.append(near)
    return len(seen) == len(inside)


def partitions(chip: ChipGraph) -> Iterator[tuple[Operators, ...]]:
    """Yield every partition of the operators into connected groups that close no cycle."""
    names = [node.name for node in chip.operators]

    def grow(place: int, parts: list[list[str]]) -> Iterator[tuple[Operators, ...]]:
        if place == len(names):
            if all(connected(chip, part) for part in parts):
                ordered = in_order(chip, [tuple(part) for part in parts])
                if ordered is not None:
                    yield ordered
            return
        for part in parts:
            part.append(names[place])
            yield from grow(place + 1, parts)
            part.pop()
        yield from grow(place + 1, [*parts, [names[place]]])

    yield from grow(0, [])


def neighbours(chip: ChipGraph, partition: Sequence[Operators]) -> tuple[tuple[int, int], ...]:
    """Return the pairs of groups of which the second reads the first, by their places."""
    place = group_of_operator(partition)
    pairs: dict[tuple[int, int], None] = {}
    for name, number in place.items():
        for source in chip.reads[name]:
            if place.get(source, number) != number:
                pairs[place[source], number] = None
    return tuple(pairs)


def joined(chip: ChipGraph, *groups: Operators) -> Operators:
    """Return the operators of groups in execution order."""
    return tuple(sorted(chain.from_iterable(groups), key=chip.position.__getitem__))


def cuts(chip: ChipGraph, operators: Operators) -> Iterator[tuple[Operators, Operators]]:
    """Yield a group's first and last operators apart, at each place where both stay connected."""
    for place in range(1, len(operators)):
        first, second = operators[:place], operators[place:]
        if connected(chip, first) and connected(chip, second):
            yield first, second


def moved_borders(
    chip: ChipGraph, first: Operators, second: Operators
) -> Iterator[tuple[Operators, Operators]]:
    """Yield two neighbours with one operator at their border moved from one to the other.

    What no other of the first reads may move to the second, what reads no other of the second to
    the first.
    """
    for name in first:
        kept = tuple(n for n in first if n != name)
        if kept and set(chip.readers.get(name, ())).isdisjoint(kept) and connected(chip, kept):
            yield kept, joined(chip, (name,), second)
    for name in second:
        kept = tuple(n for n in second if n != name)
        if kept and set(chip.reads[name]).isdisjoint(kept) and connected(chip, kept):
            yield joined(chip, first, (name,)), kept
