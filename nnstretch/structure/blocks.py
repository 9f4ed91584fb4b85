"""Units between neighbouring cuts, and which of them repeat.

Depth scaling drops repeats: units of equal structure that keep their input's shape and dtype, after
the first of their stage. The first is never dropped, since it changes the shape or opens the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nnstretch.graph import Argument, Graph, Node, TensorSpec, ValueRef
from nnstretch.structure.arguments import argument, conv_groups
from nnstretch.structure.cuts import INPUT, Cut, find_cuts, is_size
from nnstretch.structure.macs import WEIGHTED

LONGEST_PERIOD = 4
"""Units that one repeat may span: conv, norm, activation and pool of networks without blocks."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes between two neighbouring cuts."""

    start: Cut
    end: Cut
    nodes: tuple[Node, ...]
    macs: int
    params: int
    repeat_of: str | None = None
    """End of the first unit of its stage, if this unit may be dropped."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Units dropped or kept together: a residual block, or a convolution of a plain stage."""

    units: tuple[Unit, ...]

    @property
    def start(self) -> Cut:
        """Return the cut before the repeated units."""
        return self.units[0].start

    @property
    def end(self) -> Cut:
        """Return the cut behind the repeated units."""
        return self.units[-1].end


@dataclass(frozen=True, slots=True)
class BlockStage:
    """A first block that stays, and the repeats behind it."""

    first_end: Cut
    repeats: tuple[Repeat, ...]

    @property
    def depth(self) -> int:
        """Return the number of blocks in a row: the first and its repeats."""
        return 1 + len(self.repeats)


def find_units(graph: Graph) -> tuple[Unit, ...]:
    """Return units in execution order, repeats marked."""
    plain = plain_units(graph)
    first_of: dict[str, str] = {}
    for stage in find_stages(graph, plain):
        for repeat in stage.repeats:
            first_of.update({unit.end.name: stage.first_end.name for unit in repeat.units})
    return tuple(replace(unit, repeat_of=first_of.get(unit.end.name)) for unit in plain)


def plain_units(graph: Graph) -> tuple[Unit, ...]:
    """Return the units between cuts, repeats unmarked; shared weights count in the first reader."""
    uncounted = {weight.name: weight.spec.elements for weight in graph.weights if weight.trainable}
    units: list[Unit] = []
    start = Cut(INPUT, graph.inputs[0].name, -1)
    for end in find_cuts(graph):
        nodes = graph.nodes[start.position + 1 : end.position + 1]
        params = 0
        for node in nodes:
            params += sum(uncounted.pop(name, 0) for name in node.inputs)
        units.append(Unit(start, end, nodes, sum(node.macs for node in nodes), params))
        start = end
    return tuple(units)


def find_stages(graph: Graph, plain: Sequence[Unit] | None = None) -> tuple[BlockStage, ...]:
    """Return every run of equal, shape-preserving units with the block that opens it."""
    row = UnitRow.of(graph, plain_units(graph) if plain is None else plain)
    stages: list[BlockStage] = []
    i = floor = 0
    while i < len(row.units):
        period, count = row.longest_run(i)
        stage = row.stage_at(i, period, count, floor)
        if stage is None:
            i += 1
            continue
        stages.append(stage)
        i += period * count
        floor = i
    return tuple(stages)


@dataclass(frozen=True, slots=True)
class UnitRow:
    """Units in execution order, with what decides whether they repeat."""

    units: tuple[Unit, ...]
    forms: tuple[object, ...]
    """Structure of each unit; equal where units differ by their weights only."""
    specs_in: tuple[TensorSpec, ...]
    specs_out: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, graph: Graph, units: Sequence[Unit]) -> UnitRow:
        """Return the row of a graph's units."""
        specs = graph.specs()
        return cls(
            tuple(units),
            tuple(structural_hash(graph, unit) for unit in units),
            tuple(specs[unit.start.value] for unit in units),
            tuple(specs[unit.end.value] for unit in units),
        )

    def longest_run(self, i: int) -> tuple[int, int]:
        """Return period and count of equal groups of units from `i` that keep shape and dtype.

        Of several the shortest period that repeats most.
        """
        best_period = 1
        best_count = int(self.specs_in[i] == self.specs_out[i])
        for period in range(1, min(LONGEST_PERIOD, len(self.units) - i) + 1):
            if self.specs_in[i] != self.specs_out[i + period - 1]:
                continue
            count = self.equal_groups(i, period)
            if count > 1 and period * count > best_period * best_count + (best_count > 1):
                best_period = period
                best_count = count
        return best_period, best_count

    def equal_groups(self, i: int, period: int) -> int:
        """Count the groups of `period` units from `i` that are equal to the first."""
        group = self.forms[i : i + period]
        count = 1
        while self.forms[i + period * count : i + period * (count + 1)] == group:
            count += 1
        return count

    def stage_at(self, i: int, period: int, count: int, floor: int) -> BlockStage | None:
        """Return the stage of a run of groups; None where it does no work or nothing repeats.

        Without a block before the run that opens the stage, the first group is that block.
        """
        if not any(unit.macs for unit in self.units[i : i + period]):
            return None
        first = self.stage_opener(i, period, floor)
        begin = i
        if first is None:
            first = i + period - 1
            begin = i + period
        starts = range(begin, i + period * count, period)
        repeats = tuple(Repeat(self.units[start : start + period]) for start in starts)
        return BlockStage(self.units[first].end, repeats) if repeats else None

    def stage_opener(self, i: int, period: int, floor: int) -> int | None:
        """Return the unit before `i` if it ends the shape-changing first block of a stage.

        It does if the units just before do every kind of weighted work that a repeat does.
        """
        missing = weighted_operators(self.units[i : i + period])
        for j in range(i - 1, floor - 1, -1):
            missing -= weighted_operators(self.units[j : j + 1])
            if not missing:
                return i - 1
            if self.specs_out[j].shape[2:] != self.specs_in[i].shape[2:]:
                return None
        return None


def weighted_operators(units: Sequence[Unit]) -> Counter[object]:
    """Count weighted operators by kind, padding and whether they are grouped, widths apart."""
    counts: Counter[object] = Counter()
    for unit in units:
        counts.update(work_signature(node) for node in unit.nodes if node.kind in WEIGHTED)
    return counts


def work_signature(node: Node) -> tuple[object, ...]:
    """Return what makes the work of two nodes equal, widths apart."""
    padding = 0 if node.kind == "linear" else argument(node, 4, 0)
    return node.kind, padding, conv_groups(node) > 1


def structural_hash(graph: Graph, unit: Unit) -> tuple[object, ...]:
    """Return a unit's structure without names: equal ones compute one function of their weights."""
    specs = {weight.name: weight.spec for weight in graph.weights}
    numbers = {unit.start.value: 0}

    def anonymous(item: Argument) -> object:
        if isinstance(item, ValueRef):
            if item.name in specs:
                return ("weight", specs[item.name].shape)
            return ("value", numbers.get(item.name, -1))
        if isinstance(item, tuple):
            return tuple(anonymous(part) for part in item)
        return (type(item).__name__, item)

    rows: list[object] = []
    for node in unit.nodes:
        if not is_size(node):
            numbers[node.name] = len(numbers)
            outputs = tuple((spec.shape, spec.dtype) for spec in node.outputs)
            options = sorted((key, anonymous(item)) for key, item in node.kwargs)
            rows.append((node.op, anonymous(node.args), tuple(options), outputs))
    return tuple(rows)
