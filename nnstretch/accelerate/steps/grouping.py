"""B2: which operators are computed together.

Groups start as single operators. Straight, diamond and branch merges repeat until none is left;
each is allowed where it does not push the larger factor of one part onto another (Alg. 2 of
GraphTurbo). A clean-up joins what little is left at the borders.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.steps.split import SplitRules, split_of
from nnstretch.chip.instances import Group, Split

CLEAN_UP_OPERATORS = 3


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why two groups were not merged."""

    pattern: str
    first: str
    """Last operator of the first group."""
    second: str
    """First operator of the second."""
    reason: str

    def __str__(self) -> str:
        return f"{self.pattern} merge of ..{self.first} and {self.second}..: {self.reason}"


def group_operators(chip: ChipGraph, rules: SplitRules, clean_up: bool = True) -> tuple[Group, ...]:
    """Return the groups of a graph in an order in which each comes after what it reads."""
    return find_groups(chip, rules, clean_up)[0]


def find_groups(
    chip: ChipGraph, rules: SplitRules, clean_up: bool = True
) -> tuple[tuple[Group, ...], tuple[Refusal, ...]]:
    """Return the groups, and the merges that were refused in the last round."""
    merger = GroupMerger(chip, rules)
    count = 0
    while count != len(merger.members):
        count = len(merger.members)
        merger.refusals.clear()
        merger.merge_straight()
        merger.merge_diamonds()
        merger.merge_branches()
    if clean_up:
        merger.clean_up()
    return merger.groups(), tuple(merger.refusals)


class GroupMerger:
    """Graph of groups in which neighbours are merged."""

    def __init__(self, chip: ChipGraph, rules: SplitRules) -> None:
        self.chip = chip
        self.rules = rules
        self.refusals: list[Refusal] = []
        self.members: dict[int, tuple[str, ...]] = {}
        self.group_of: dict[str, int] = {}
        for place, node in enumerate(chip.operators):
            self.members[place] = (node.name,)
            self.group_of[node.name] = place
        self.producers: dict[int, set[int]] = {place: set() for place in self.members}
        self.consumers: dict[int, set[int]] = {place: set() for place in self.members}
        for name, place in self.group_of.items():
            for source in chip.reads[name]:
                if source in self.group_of:
                    self.producers[place].add(self.group_of[source])
                    self.consumers[self.group_of[source]].add(place)

    def factor(self, group: int) -> Split:
        """Return the split of a group."""
        return split_of(self.chip, self.members[group], self.rules)[0]

    def merged_split(self, groups: tuple[int, ...]) -> Split:
        """Return the split that groups would have as one."""
        return split_of(self.chip, self.joined(groups), self.rules)[0]

    def joined(self, groups: tuple[int, ...]) -> tuple[str, ...]:
        """Return the operators of several groups in execution order."""
        names = chain.from_iterable(self.members[group] for group in groups)
        return tuple(sorted(names, key=self.chip.position.__getitem__))

    def merge_straight(self) -> None:
        """Merge a group with its only consumer, where that reads nothing else."""
        for first in list(self.members):
            while first in self.members and len(self.consumers[first]) == 1:
                second = next(iter(self.consumers[first]))
                if len(self.producers[second]) != 1 or self.leaves_early(first):
                    break
                if not self.keeps_factor("straight", first, second):
                    break
                self.merge((first, second))

    def leaves_early(self, group: int) -> bool:
        """Return whether a tensor of a group is an output of the network."""
        return any(name in self.chip.outputs for name in self.members[group])

    def keeps_factor(self, pattern: str, first: int, second: int) -> bool:
        """Return whether a straight or branch merge is allowed, and note why where it is not."""
        before, after = self.factor(first), self.factor(second)
        if not (before.fits and after.fits):
            return self.refuse(pattern, first, second, "a part alone has no split that fits")
        if after.factor < before.factor:
            reason = f"{after.factor} parts of the second are fewer than {before.factor}"
            return self.refuse(pattern, first, second, reason)
        together = self.merged_split((first, second))
        if not together.fits:
            return self.refuse(pattern, first, second, "together no split fits")
        if together.factor > after.factor:
            reason = f"together {together.factor} parts, more than {after.factor} of the second"
            return self.refuse(pattern, first, second, reason)
        return True

    def refuse(self, pattern: str, first: int, second: int, reason: str) -> bool:
        """Note a merge that is not allowed; return False."""
        ends = self.members[first][-1], self.members[second][0]
        self.refusals.append(Refusal(pattern, *ends, reason))
        return False

    def merge_diamonds(self) -> None:
        """Merge the paths between an entry and an exit with the exit."""
        for last in sorted(self.members):
            if last in self.members and len(self.producers[last]) > 1:
                middle = self.diamond(last)
                if middle:
                    self.merge_diamond((*middle, last))

    def diamond(self, last: int) -> tuple[int, ...] | None:
        """Return the groups between the one entry of all paths into a group and that group."""
        frontier = set(self.producers[last])
        region: set[int] = set()
        while len(frontier) > 1:
            latest = max(frontier, key=self.end_position)
            frontier.remove(latest)
            inside = self.consumers[latest] <= region | {last}
            if not inside or not self.producers[latest] or self.leaves_early(latest):
                return None
            region.add(latest)
            frontier |= self.producers[latest] - region
        return tuple(sorted(region)) or None

    def end_position(self, group: int) -> int:
        """Return the place of a group's last operator."""
        return self.chip.position[self.members[group][-1]]

    def merge_diamond(self, groups: tuple[int, ...]) -> None:
        """Merge the parts of a diamond where the factor stays below the largest of them."""
        splits = [self.factor(group) for group in groups]
        together = self.merged_split(groups)
        first, last = groups[0], groups[-1]
        if not (together.fits and all(split.fits for split in splits)):
            self.refuse("diamond", first, last, "no split fits")
            return
        largest = max(split.factor for split in splits)
        if together.factor > largest:
            reason = f"together {together.factor} parts, more than {largest} of its parts"
            self.refuse("diamond", first, last, reason)
            return
        self.merge(groups)

    def merge_branches(self) -> None:
        """Merge one of several producers of a group with it, where it has no other consumer."""
        for last in sorted(self.members):
            for first in sorted(self.producers.get(last, ())):
                single = self.consumers[first] == {last} and not self.leaves_early(first)
                if (
                    len(self.producers[last]) > 1
                    and single
                    and self.keeps_factor("branch", first, last)
                ):
                    self.merge((first, last))
                    break

    def merge(self, groups: tuple[int, ...]) -> int:
        """Make groups one, under the first one's number; return it."""
        names = self.joined(groups)
        keep, absorbed = groups[0], set(groups)
        producers = set().union(*(self.producers.pop(group) for group in groups)) - absorbed
        consumers = set().union(*(self.consumers.pop(group) for group in groups)) - absorbed
        for group in groups:
            del self.members[group]
        self.members[keep], self.producers[keep], self.consumers[keep] = names, producers, consumers
        for name in names:
            self.group_of[name] = keep
        for producer in producers:
            self.consumers[producer] = self.consumers[producer] - absorbed | {keep}
        for consumer in consumers:
            self.producers[consumer] = self.producers[consumer] - absorbed | {keep}
        return keep

    def clean_up(self) -> None:
        """Join groups of few operators with the one that produces their input."""
        changed = True
        while changed:
            changed = False
            for group in sorted(self.members, key=self.end_position):
                if len(self.members[group]) <= CLEAN_UP_OPERATORS and self.join_producer(group):
                    changed = True
                    break

    def join_producer(self, group: int) -> bool:
        """Join a group with a producer whose factor does not grow; return whether there was one."""
        for producer in sorted(self.producers[group], key=self.end_position, reverse=True):
            before = self.factor(producer)
            together = self.merged_split((producer, group))
            grows = not together.fits or together.factor > before.factor
            if not before.fits or grows or self.closes_cycle(producer, group):
                continue
            self.merge((producer, group))
            return True
        return False

    def closes_cycle(self, first: int, second: int) -> bool:
        """Return whether a path leads from a group to another through a third."""
        frontier = list(self.consumers[first] - {second})
        seen = set(frontier)
        while frontier:
            for consumer in self.consumers[frontier.pop()]:
                if consumer == second:
                    return True
                if consumer not in seen:
                    seen.add(consumer)
                    frontier.append(consumer)
        return False

    def groups(self) -> tuple[Group, ...]:
        """Return the groups in an order in which each comes after what it reads."""
        waiting = {group: len(producers) for group, producers in self.producers.items()}
        ready = [group for group, count in waiting.items() if not count]
        groups: list[Group] = []
        while ready:
            group = min(ready, key=lambda number: self.chip.position[self.members[number][0]])
            ready.remove(group)
            names = self.members[group]
            split, peak_bytes = split_of(self.chip, names, self.rules)
            groups.append(Group(f"g{len(groups)}", names, split, peak_bytes))
            for consumer in self.consumers[group]:
                waiting[consumer] -= 1
                if not waiting[consumer]:
                    ready.append(consumer)
        return tuple(groups)
