"""B3: instances of each group, and which instance needs which.

Edges between the instances of two groups start complete; an edge stays only where the consumer's
slice overlaps the producer's.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.steps.peak import leaves
from nnstretch.accelerate.steps.split import boxes_behind
from nnstretch.chip.boxes import Box, DisjointBoxes, part, whole
from nnstretch.chip.instances import Group, Instance

Needs = dict[str, tuple[str, ...]]
"""Instances that each instance needs."""


def slice_groups(chip: ChipGraph, groups: Sequence[Group]) -> tuple[Instance, ...]:
    """Return the instances of all groups, group by group."""
    instances: list[Instance] = []
    for number, group in enumerate(groups):
        for index in range(group.split.factor):
            instances.append(slice_group(chip, group, number, index))
    return tuple(instances)


def slice_group(chip: ChipGraph, group: Group, number: int, index: int) -> Instance:
    """Return one part of a group; an operator of which it needs nothing is left out."""
    places = {name: place for place, name in enumerate(group.operators)}
    writes: dict[str, Box] = {}
    for name in group.operators:
        if not leaves(chip, name, places):
            continue
        box = whole(chip.specs[name].shape)
        if group.split.factor > 1:
            box = part(box, group.split.axes[name], group.split.factor, index)
        writes[name] = box
    boxes = boxes_behind(chip, group.operators, writes)
    reads = {name: box for name, box in boxes.items() if name not in places}
    computed = {name: boxes[name] for name in group.operators if name in boxes}
    return Instance(f"{group.name}.{index}", number, index, computed, reads, writes)


class Writers:
    """Instances by the tensors that they leave."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self.instances: dict[str, list[Instance]] = {}
        for instance in instances:
            for name in instance.writes:
                self.instances.setdefault(name, []).append(instance)
        self.boxes = {
            name: DisjointBoxes([writer.writes[name] for writer in writers])
            for name, writers in self.instances.items()
        }

    def overlapping(self, name: str, box: Box) -> list[Instance]:
        """Return the instances whose output overlaps a part of a tensor."""
        if name not in self.boxes:
            return []
        return [self.instances[name][place] for place in self.boxes[name].overlapping(box)]


def needs_of(instances: Sequence[Instance]) -> Needs:
    """Return which instances each instance needs: those whose output overlaps what it reads."""
    writers = Writers(instances)
    needs: Needs = {}
    for instance in instances:
        needed: dict[str, None] = {}
        for name, box in instance.reads.items():
            needed.update(dict.fromkeys(w.name for w in writers.overlapping(name, box)))
        needs[instance.name] = tuple(needed)
    return needs
