"""`--explain WHAT`: the rule and the numbers behind a step, a group or a tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from nnstretch.accelerate.accelerate import AccelerateResult
from nnstretch.accelerate.engines.placed_program import residencies_of
from nnstretch.accelerate.policies import SCOPES, split_rules
from nnstretch.accelerate.steps.grouping import Refusal, find_groups
from nnstretch.accelerate.steps.layers import layers_of
from nnstretch.accelerate.steps.movement import concatenations, with_concatenations
from nnstretch.accelerate.steps.ordering import breadth_first, depth_first, pending_before_each
from nnstretch.accelerate.steps.slicing import needs_of
from nnstretch.accelerate.steps.worth import PartsWorth, parts_that_do_not_pay
from nnstretch.chip.instances import DDR
from nnstretch.errors import UnknownName, closest

Lines = list[str]


def explain(result: AccelerateResult, what: str) -> Lines:
    """Return why a schedule is as it is, line by line.

    Raises UnknownName for what is neither a step nor a group nor a tensor.
    """
    if what in STEPS:
        return STEPS[what](result)
    groups = [group.name for group in result.schedule.groups]
    if what in groups:
        return explain_group(result, groups.index(what))
    tensors = [node.name for node in result.chip.operators]
    tensors += [value.name for value in result.chip.graph.inputs]
    if what in tensors:
        return explain_tensor(result, what)
    known = [*STEPS, *groups, *tensors]
    near = closest(what, known) or f"; steps are {', '.join(STEPS)}"
    raise UnknownName(f"nothing to explain about {what!r}, it is no step, group or tensor{near}")


def refusals_of(result: AccelerateResult) -> tuple[Refusal, ...]:
    """Return the merges that the last round of grouping refused."""
    options = result.request.options
    if options.policy in SCOPES or result.request.by_hand is not None:
        return ()
    rules = split_rules(result.schedule.rates, options)
    return find_groups(result.chip, rules, options.clean_up)[1]


def explain_group(result: AccelerateResult, number: int) -> Lines:
    """Return a group's split, instances and refused merges."""
    group = result.schedule.groups[number]
    capacity = result.schedule.rates.accelerator.local_bytes
    factor = group.split.factor
    lines = [
        str(group),
        f"peak {group.peak_bytes} B in {factor} parts is {-(-group.peak_bytes // factor)} B,"
        f" the local buffers hold {capacity} B",
    ]
    lines += [str(item) for item in result.schedule.order if item.group == number]
    for refusal in refusals_of(result):
        if refusal.first in group.operators or refusal.second in group.operators:
            lines.append(f"not merged: {refusal}")
    return lines


def explain_tensor(result: AccelerateResult, tensor: str) -> Lines:
    """Return where a tensor lies and why it left a buffer."""
    placed = result.schedule.placed
    names = {s.name for s in placed.program.storages.values() if s.tensor == tensor}
    lines = [f"{tensor} of {result.chip.specs[tensor]}, {result.chip.bytes_of(tensor)} B"]
    for item in residencies_of(placed):
        if item.tensor in names:
            lines.append(str(item))
    for spill in placed.spills:
        if spill.tensor in names:
            target = f"{spill.source} -> {spill.target}"
            lines.append(f"{spill.tensor}: {target}, {spill.size_bytes} B, {spill.rule}")
    if len(lines) == 1:
        lines.append("it lives inside one tile loop, or over the storage of its input")
    return lines


def explain_grouping(result: AccelerateResult) -> Lines:
    """Return groups, and merges that were refused."""
    lines = [str(group) for group in result.schedule.groups]
    lines += [f"not merged: {refusal}" for refusal in refusals_of(result)]
    return lines + [f"computed whole: {worth}" for worth in losing_parts(result)]


def losing_parts(result: AccelerateResult) -> Sequence[PartsWorth]:
    """Return the groups that are computed whole since their parts cost more than they save."""
    options, rates = result.request.options, result.schedule.rates
    by_policy = options.policy not in SCOPES and result.request.by_hand is None
    if not (by_policy and options.parts_margin < math.inf):
        return ()
    groups = find_groups(result.chip, split_rules(rates, options), options.clean_up)[0]
    return parts_that_do_not_pay(result.chip, groups, rates, options.parts_margin)


def explain_slicing(result: AccelerateResult) -> Lines:
    """Return every instance with what it reads and writes."""
    return [str(instance) for instance in result.schedule.order]


def explain_ordering(result: AccelerateResult) -> Lines:
    """Return the order, and the pending bytes of both orders."""
    order = result.schedule.order
    needs = needs_of(order)
    sizes: dict[str, int] = {}
    for instance in order:
        boxes = instance.writes.items()
        sizes[instance.name] = sum(result.chip.bytes_of(name, box) for name, box in boxes)
    names = sorted(sizes, key=lambda name: [int(part) for part in name[1:].split(".")])
    lines = [" ".join(instance.name for instance in order)]
    for label, rule in (("depth", depth_first), ("breadth", breadth_first)):
        pending = pending_before_each(rule(names, needs), needs, sizes)
        lines.append(f"{label} first: at most {max(pending)} B wait for a reader")
    return lines


def explain_binding(result: AccelerateResult) -> Lines:
    """Return cores by dimension of what each instance leaves."""
    lines: Lines = []
    for instance in result.schedule.order:
        for tensor in instance.writes:
            storage = result.schedule.placed.program.storages.get(f"{instance.name}/{tensor}")
            if storage is not None:
                lines.append(f"{storage.name} {storage.binding} {storage.scope}")
    return lines


def explain_movement(result: AccelerateResult) -> Lines:
    """Return the order with a concatenation before each of its readers."""
    order = result.schedule.order
    return list(with_concatenations([item.name for item in order], concatenations(order)))


def explain_layers(result: AccelerateResult) -> Lines:
    """Return the layers of each group."""
    lines: Lines = []
    for group in result.schedule.groups:
        for layer in layers_of(result.chip, group.operators):
            lines.append(f"{group.name}: {' '.join(layer)}")
    return lines


def explain_memory(result: AccelerateResult) -> Lines:
    """Return every residency, then every spill, then what kept weights save."""
    placed = result.schedule.placed
    lines = [str(item) for item in residencies_of(placed)]
    for spill in placed.spills:
        lines.append(f"{spill.tensor}: {spill.source} -> {spill.target}, {spill.rule}")
    for kept in placed.kept_weights:
        size_bytes = kept.region.stop - kept.region.start
        steps = ", ".join(map(str, kept.steps))
        lines.append(f"{kept.name}: {size_bytes} B stay, they cross {DDR} once for steps {steps}")
    return lines


STEPS: dict[str, Callable[[AccelerateResult], Lines]] = {
    "grouping": explain_grouping,
    "slicing": explain_slicing,
    "ordering": explain_ordering,
    "binding": explain_binding,
    "movement": explain_movement,
    "layers": explain_layers,
    "memory": explain_memory,
}
"""Steps that can be explained, in their order."""
