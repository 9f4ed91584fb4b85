"""`--schedule FILE.yaml`: groups, pieces, order, scopes and bindings by hand, and written back.

format: 1
groups:
- {end: layer1, parts: 8}              # everything up to the end of a module or an operator
- {operators: [conv2d_11, ...], parts: 4, axis: 0}
order: [g0.0, g0.1, g1.0]                # all instances; left out, the better of both orders
scopes: {g0.0: global}                   # local, global or ddr of what an instance leaves
bindings: {g0.0: [2, 4]}                 # cores of each dimension, outermost first
keep_weights: true                       # the global buffer may keep weights between instances
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Annotated, Any

import yaml

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.engines.placed_program import capacity
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.policies import (
    ClusterSchedule,
    ScheduleOptions,
    bind,
    order_instances,
    simulate_order,
)
from nnstretch.accelerate.steps.binding import BoundInstance
from nnstretch.accelerate.steps.peak import group_peak
from nnstretch.accelerate.steps.slicing import needs_of, slice_groups
from nnstretch.accelerate.steps.split import SplitRules, cut
from nnstretch.chip.boxes import box_shape
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Binding, Group, Instance, Split
from nnstretch.errors import BadPlan, BrokenFile, closest, name_first
from nnstretch.files.decode import decode, require_format
from nnstretch.files.limits import Length, OneOf, Range
from nnstretch.files.read import read_text
from nnstretch.files.strict_yaml import parse_yaml

FORMAT = 1
Name = Annotated[str, Length(1, 200)]
Scope = Annotated[str, OneOf((LOCAL, SHARED, DDR))]


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A group: everything up to an end, or operators by name."""

    parts: Annotated[int, Range(1, 1 << 20)] = 1
    axis: Annotated[int, Range(0, 7)] = 0
    end: Name = ""
    operators: Annotated[tuple[Name, ...], Length(0, 100_000)] = ()

    def __post_init__(self) -> None:
        if bool(self.end) == bool(self.operators):
            raise ValueError("a group has either an end or operators")


@dataclass(frozen=True, slots=True)
class ChipScheduleFile:
    """A schedule by hand."""

    format: int
    groups: Annotated[tuple[GroupRow, ...], Length(1, 100_000)]
    order: Annotated[tuple[Name, ...], Length(0, 1 << 20)] = ()
    scopes: Annotated[dict[str, Scope], Length(0, 1 << 20)] = field(default_factory=dict)
    bindings: Annotated[
        dict[str, Annotated[tuple[Annotated[int, Range(1, 1 << 16)], ...], Length(1, 8)]],
        Length(0, 1 << 20),
    ] = field(default_factory=dict)
    keep_weights: bool | None = None


def read_schedule(path: Path) -> ChipScheduleFile:
    """Read a schedule. Raises UnknownName without a file, BrokenFile for a wrong one."""
    try:
        data = parse_yaml(read_text(path, "schedule"), str(path))
        require_format(data, (FORMAT,))
        file: ChipScheduleFile = decode(ChipScheduleFile, data, "schedule")
    except ValueError as error:
        raise BrokenFile(f"{path}, {error}") from None
    return file


def schedule_by_hand(
    chip: ChipGraph, rates: ChipRates, options: ScheduleOptions, file: ChipScheduleFile
) -> ClusterSchedule:
    """Return the schedule that a file describes, placed and simulated.

    Raises BadPlan for one that is incomplete, cyclic, out of order or too large.
    """
    groups = groups_of(chip, rates, file.groups)
    instances = slice_groups(chip, groups)
    if file.order:
        order = order_of(instances, file.order)
    else:
        order = order_instances(chip, groups, instances, options)
    bound = bind(chip, groups, order, needs_of(instances), rates, options)
    bound = {**bound, **bound_by_hand(chip, instances, bound, rates, file)}
    if options.keep_weights is None and file.keep_weights is not None:
        options = replace(options, keep_weights=file.keep_weights)
    return simulate_order(chip, groups, order, bound, rates, options)


def groups_of(chip: ChipGraph, rates: ChipRates, rows: Sequence[GroupRow]) -> tuple[Group, ...]:
    """Return the groups of a file. Raises BadPlan where they do not cover the graph once."""
    waiting = [node.name for node in chip.operators]
    groups: list[Group] = []
    for number, row in enumerate(rows):
        names = row.operators or up_to(chip, waiting, row.end)
        if strangers := [name for name in names if name not in waiting]:
            known = closest(strangers[0], waiting)
            raise BadPlan(
                f"group g{number} has {strangers[0]}, the schedule, no operator of that name is"
                f" left{known}"
            )
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise BadPlan(f"group g{number} has {twice[0]} twice, the schedule, name it once")
        ordered = tuple(sorted(names, key=chip.position.__getitem__))
        waiting = [name for name in waiting if name not in set(ordered)]
        groups.append(group_of(chip, rates, number, ordered, row))
    if waiting:
        raise BadPlan(f"no group computes {name_first(waiting)}, the schedule")
    check_acyclic(chip, groups)
    return tuple(groups)


def up_to(chip: ChipGraph, waiting: Sequence[str], end: str) -> tuple[str, ...]:
    """Return the operators up to the last one of a module, or up to an operator."""
    if end == "output":
        return tuple(waiting)
    last = -1
    for place, name in enumerate(waiting):
        module = chip.nodes[name].module
        if name == end or module == end or module.startswith(f"{end}."):
            last = place
    return tuple(waiting[: last + 1]) or (end,)


def group_of(
    chip: ChipGraph, rates: ChipRates, number: int, names: tuple[str, ...], row: GroupRow
) -> Group:
    """Return a group with its split. Raises BadPlan for one that has no such parts."""
    split = Split(1, 0, len(names))
    if row.parts > 1:
        shape = chip.specs[names[-1]].shape
        divides = row.axis < len(shape) and shape[row.axis] % row.parts == 0
        rules = SplitRules(rates.accelerator.local_bytes, rates.accelerator.cores, float("inf"))
        split = cut(chip, names, row.axis, row.parts, rules) if divides else split
        if not divides or not split.fits:
            raise BadPlan(
                f"group g{number} in {row.parts} parts of dimension {row.axis}, the schedule,"
                f" {names[-1]} of {chip.specs[names[-1]]} has no such parts"
            )
    return Group(f"g{number}", names, split, group_peak(chip, names))


def check_acyclic(chip: ChipGraph, groups: Sequence[Group]) -> None:
    """Check that no group needs a later one's result. Raises BadPlan that names both."""
    group_of_operator: dict[str, int] = {}
    for place, group in enumerate(groups):
        group_of_operator.update(dict.fromkeys(group.operators, place))
    for place, group in enumerate(groups):
        for name in group.operators:
            for source in chip.reads[name]:
                if group_of_operator.get(source, place) > place:
                    later = groups[group_of_operator[source]].name
                    raise BadPlan(
                        f"group {group.name} reads {source} of {later}, the schedule, groups stand"
                        " in an order in which each comes after what it reads"
                    )


def order_of(instances: Sequence[Instance], names: Sequence[str]) -> tuple[Instance, ...]:
    """Return instances in the order of a file. Raises BadPlan for one that cannot run."""
    by_name = {instance.name: instance for instance in instances}
    needs = needs_of(instances)
    done: set[str] = set()
    for name in names:
        if name not in by_name or name in done:
            why = "is there twice" if name in done else "is no instance"
            raise BadPlan(f"{name} in the order, the schedule, it {why}{closest(name, [*by_name])}")
        if missing := [need for need in needs[name] if need not in done]:
            raise BadPlan(f"{name} in the order, the schedule, it needs {missing[0]} before it")
        done.add(name)
    if missing := [name for name in by_name if name not in done]:
        others = len(missing) - 1
        raise BadPlan(f"{missing[0]} is not in the order, the schedule, nor are {others} more")
    return tuple(by_name[name] for name in names)


def bound_by_hand(
    chip: ChipGraph,
    instances: Sequence[Instance],
    bound: Mapping[str, BoundInstance],
    rates: ChipRates,
    file: ChipScheduleFile,
) -> dict[str, BoundInstance]:
    """Return what a file says of scopes and bindings. Raises BadPlan for impossible ones."""
    names = [instance.name for instance in instances]
    written = {instance.name: instance for instance in instances}
    changed: dict[str, BoundInstance] = {}
    for name in (*file.scopes, *file.bindings):
        if name not in bound:
            raise BadPlan(f"{name}, the schedule, it is no instance{closest(name, names)}")
        scope = file.scopes.get(name, bound[name].scope)
        if scope == SHARED and rates.accelerator.shared is None:
            raise BadPlan(f"{name} in the global buffer, {rates.accelerator.name}, it has none")
        binding = bound[name].binding
        cores = file.bindings.get(name, binding.factors)
        if prod(cores) > rates.accelerator.cores:
            raise BadPlan(
                f"{name} on {prod(cores)} cores, {rates.accelerator.name}, a cluster has"
                f" {rates.accelerator.cores}"
            )
        if name in file.bindings:
            binding = binding_of(chip, written[name], cores, binding.axes)
        changed[name] = BoundInstance(binding, scope)
        if name in file.scopes:
            check_room(chip, written[name], changed[name], rates)
    return changed


def binding_of(
    chip: ChipGraph, instance: Instance, cores: Sequence[int], axes: tuple[int, ...]
) -> Binding:
    """Return the binding of what an instance leaves. Raises BadPlan where cores share it unevenly.

    Dimensions that are not named are not shared.
    """
    tensor, box = list(instance.writes.items())[-1]
    shape = box_shape(box)
    if len(cores) > len(axes):
        raise BadPlan(
            f"{instance.name} has cores for {len(cores)} dimensions, the schedule, {tensor} of"
            f" {chip.specs[tensor]} has {len(axes)}"
        )
    factors = (*cores, *[1] * (len(axes) - len(cores)))
    for factor, axis in zip(factors, axes, strict=True):
        if shape[axis] % factor:
            raise BadPlan(
                f"{factor} cores share dimension {axis} of {instance.name}, the schedule, {tensor}"
                f" of {'x'.join(map(str, shape))} has {shape[axis]} there"
            )
    return Binding(factors, axes)


def check_room(chip: ChipGraph, instance: Instance, bound: BoundInstance, rates: ChipRates) -> None:
    """Check that what an instance leaves fits the buffer in which it is to lie. Raises BadPlan."""
    tensor, box = list(instance.writes.items())[-1]
    size_bytes = chip.bytes_of(tensor, box)
    room = capacity(rates, bound.scope) * (bound.binding.cores if bound.scope == LOCAL else 1)
    if tensor not in chip.outputs and size_bytes > room:
        where = f"{bound.scope} on {bound.binding.cores} cores"
        raise BadPlan(
            f"{instance.name} leaves {tensor} of {size_bytes} B in {where}, the schedule, there"
            f" {rates.accelerator.name} holds {room} B"
        )


def schedule_document(schedule: ClusterSchedule) -> dict[str, Any]:
    """Return a schedule in the form of the file."""
    storages = schedule.placed.program.storages
    scopes: dict[str, str] = {}
    bindings: dict[str, list[int]] = {}
    for instance in schedule.order:
        last = list(instance.writes)[-1]
        storage = storages.get(f"{instance.name}/{last}")
        if storage is not None and not storage.fixed:
            # What comes back to a buffer would have lain there from the start.
            scopes[instance.name] = storages.get(f"{storage.name} back", storage).scope
            bindings[instance.name] = list(storage.binding.factors)
    return {
        "format": FORMAT,
        "groups": [
            {
                "operators": list(group.operators),
                "parts": group.split.factor,
                "axis": group.split.axis,
            }
            for group in schedule.groups
        ],
        "order": [instance.name for instance in schedule.order],
        "scopes": scopes,
        "bindings": bindings,
        "keep_weights": bool(schedule.placed.kept),
    }


def schedule_yaml(schedule: ClusterSchedule) -> str:
    """Return a schedule as the text of a file that `read_schedule` reads."""
    return str(yaml.safe_dump(schedule_document(schedule), sort_keys=False, width=100))
