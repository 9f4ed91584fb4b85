"""Units between neighbouring cuts, and which of them repeat.

Depth scaling drops repeats: units of equal structure that keep their input's shape, after the
first of their stage. The first is never dropped, since it changes the shape or opens the stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.graph import Argument, Graph, Node, ValueRef
from nnstretch.structure.cuts import INPUT, Cut, find_cuts, is_size
from nnstretch.structure.macs import WEIGHTED


@dataclass(frozen=True, slots=True)
class Unit:
    """What lies between two neighbouring cuts."""

    start: Cut
    end: Cut
    nodes: tuple[Node, ...]
    macs: int
    params: int
    repeat_of: str | None = None
    """End of the first unit of its stage, if this unit may be dropped."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Units that are dropped or kept together.

    One residual block, or one convolution of a plain stage.
    """

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
        """Return blocks in a row: the opener and its repeats."""
        return 1 + len(self.repeats)


LONGEST_PERIOD = 4
"""Units that one repeat may span.

Conv, norm, activation and a pool in networks without residual blocks.
"""


def find_units(graph: Graph) -> tuple[Unit, ...]:
    """Return units in execution order, repeats marked."""
    plain = plain_units(graph)
    first_of = {
        u.end.name: stage.first_end.name
        for stage in find_stages(graph, plain)
        for r in stage.repeats
        for u in r.units
    }
    return tuple(
        Unit(u.start, u.end, u.nodes, u.macs, u.params, first_of.get(u.end.name)) for u in plain
    )


def plain_units(graph: Graph) -> tuple[Unit, ...]:
    """Return the units between cuts, repeats unmarked."""
    units: list[Unit] = []
    sizes = {weight.name: weight.spec.elements for weight in graph.weights if weight.trainable}
    counted: set[str] = set()
    start = Cut(INPUT, graph.inputs[0].name, -1)
    for end in find_cuts(graph):
        nodes = graph.nodes[start.position + 1 : end.position + 1]
        read = {name for node in nodes for name in node.inputs if name in sizes} - counted
        counted |= read
        units.append(
            Unit(start, end, nodes, sum(n.macs for n in nodes), sum(sizes[name] for name in read))
        )
        start = end
    return tuple(units)


def find_stages(graph: Graph, plain: Sequence[Unit] | None = None) -> tuple[BlockStage, ...]:
    """Return every run of equal, shape-preserving units with the block that opens it."""
    plain = plain_units(graph) if plain is None else plain
    specs = graph.specs()
    shapes = [(specs[u.start.value].shape, specs[u.end.value].shape) for u in plain]
    forms = [structural_hash(graph, u) for u in plain]
    stages: list[BlockStage] = []
    i = floor = 0
    while i < len(plain):
        period, count = longest_run(forms, shapes, i)
        works = any(plain[j].macs for j in range(i, min(i + period, len(plain))))
        opener = stage_opener(plain, i, period, floor, shapes) if works else None
        spare = count if opener is not None else count - 1
        if works and spare >= 1:
            first = plain[opener] if opener is not None else plain[i + period - 1]
            begin = i if opener is not None else i + period
            repeats = tuple(
                Repeat(tuple(plain[j : j + period]))
                for j in range(begin, i + period * count, period)
            )
            stages.append(BlockStage(first.end, repeats))
            i += period * count
            floor = i
        else:
            i += 1
    return tuple(stages)


def longest_run(
    forms: Sequence[object], shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], i: int
) -> tuple[int, int]:
    """Return period and count of equal, shape-preserving groups of units from `i`.

    The shortest period that repeats most.
    """
    best = (1, 1 if shapes[i][0] == shapes[i][1] else 0)
    for period in range(1, LONGEST_PERIOD + 1):
        if i + period > len(forms) or shapes[i][0] != shapes[i + period - 1][1]:
            continue
        count = 1
        while forms[i + period * count : i + period * (count + 1)] == forms[
            i : i + period
        ] and i + period * (count + 1) <= len(forms):
            count += 1
        if count > 1 and period * count > best[0] * best[1] + (best[1] > 1):
            best = (period, count)
    return best


def stage_opener(
    plain: Sequence[Unit],
    i: int,
    period: int,
    floor: int,
    shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]],
) -> int | None:
    """Return index of the unit before `i` that ends the stage's shape-changing first block, if
    there is one.

    It is one if the units just before do every kind of weighted work that a repeat does.
    """
    wanted = weighted_operators(plain[i : i + period])
    seen: Counter[object] = Counter()
    for j in range(i - 1, floor - 1, -1):
        seen += weighted_operators(plain[j : j + 1])
        if not wanted - seen:
            return i - 1
        if shapes[j][1][2:] != shapes[i][0][2:]:
            return None
    return None


def weighted_operators(group: Sequence[Unit]) -> Counter[object]:
    """Return weighted operators by kind, window and whether they are depthwise.

    Widths and strides apart.
    """
    return Counter(
        signature
        for unit in group
        for node in unit.nodes
        if node.kind in WEIGHTED
        for signature in [work_signature(node)]
    )


def work_signature(node: Node) -> tuple[object, ...]:
    """Return what makes the work of two nodes equal, widths apart."""
    groups = node.args[6] if len(node.args) > 6 else 1
    padding = node.args[4] if len(node.args) > 4 else 0
    return (
        node.kind,
        padding if node.kind != "linear" else 0,
        isinstance(groups, int) and groups > 1,
    )


def structural_hash(graph: Graph, unit: Unit) -> tuple[object, ...]:
    """Return a unit's structure without its names.

    Equal forms compute the same function of different weights.
    """
    specs = {weight.name: weight.spec for weight in graph.weights}
    numbers = {unit.start.value: 0}
    rows: list[object] = []

    def anonymous(argument: Argument) -> object:
        if isinstance(argument, ValueRef):
            if argument.name in specs:
                return ("weight", specs[argument.name].shape)
            return ("value", numbers.get(argument.name, -1))
        if isinstance(argument, tuple):
            return tuple(anonymous(item) for item in argument)
        return (type(argument).__name__, argument)

    for node in unit.nodes:
        if is_size(node):
            continue
        numbers[node.name] = len(numbers)
        rows.append(
            (node.op, tuple(anonymous(a) for a in node.args), tuple(o.shape for o in node.outputs))
        )
    return tuple(rows)
