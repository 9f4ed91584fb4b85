"""Policies: what is computed together, where results lie, what overlaps.

ddr         one layer a kernel, every result in DDR
gb          one layer a kernel, results in the global buffer where they fit
lb          one layer a kernel, results in the local buffers where they fit
ordered     groups in parts that fit, ordered depth or breadth first
graphturbo  the same, with engines running ahead across layers
best        the fastest of many by simulation (best_schedule.py)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.engines.dependencies import Needs, needs_of
from nnstretch.accelerate.engines.instructions import instructions_of
from nnstretch.accelerate.engines.kept_weights import keep_weights
from nnstretch.accelerate.engines.placed_program import PlacedProgram
from nnstretch.accelerate.engines.placement import place_program
from nnstretch.accelerate.engines.program import build_program
from nnstretch.accelerate.engines.simulate import end_times_us
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.steps.binding import (
    BoundInstance,
    bind_instances,
    main_output,
    plain_binding,
)
from nnstretch.accelerate.steps.grouping import group_operators
from nnstretch.accelerate.steps.layers import layers_of
from nnstretch.accelerate.steps.ordering import best_order, breadth_first, depth_first
from nnstretch.accelerate.steps.peak import group_peak
from nnstretch.accelerate.steps.slicing import needs_of as instance_needs
from nnstretch.accelerate.steps.slicing import slice_groups
from nnstretch.accelerate.steps.split import SplitRules
from nnstretch.accelerate.steps.worth import whole_where_parts_do_not_pay
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Group, Instance, Instruction, Split
from nnstretch.errors import BadInput, BadPlan

POLICIES = ("ddr", "gb", "lb", "ordered", "graphturbo", "best")
SCOPES = {"ddr": DDR, "gb": SHARED, "lb": LOCAL}
"""Where the results of layers lie, by policy."""


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """Choices of a schedule."""

    policy: str = "graphturbo"
    overlap: str | None = None
    """none, kernel or layers; None for what the policy is known by."""
    order: str = "best"
    """depth, breadth or best: the one of fewer pending bytes."""
    batch_only: bool = False
    propagate: bool = False
    recomputed_share: float = 0.10
    clean_up: bool = True
    parts_margin: float = 1.0
    """Parts of a group may cost this many times what they save; else it is computed whole."""
    keep_weights: bool | None = None
    """Whether the global buffer may keep weights between instances; None for what the policy does.
    """

    @property
    def overlaps(self) -> str:
        """Return what overlaps."""
        if self.overlap is not None:
            return self.overlap
        return "layers" if self.policy in ("graphturbo", "best") else "none"

    @property
    def keeps_weights(self) -> bool:
        """Return whether the global buffer may keep weights between instances."""
        return self.policy == "best" if self.keep_weights is None else self.keep_weights


@dataclass(frozen=True)
class ClusterSchedule:
    """One cluster's schedule for its share of the batch, simulated."""

    groups: tuple[Group, ...]
    order: tuple[Instance, ...]
    placed: PlacedProgram
    instructions: tuple[Instruction, ...]
    needs: Needs
    overlap: str
    latency_us: float
    rates: ChipRates

    @property
    def kernels(self) -> int:
        """Return the kernels that are launched."""
        return len(self.order)


def schedule_cluster(
    chip: ChipGraph, rates: ChipRates, options: ScheduleOptions
) -> ClusterSchedule:
    """Schedule a graph on one cluster and simulate it.

    Raises BadInput for `gb` without a global buffer; BadPlan where a layer does not fit.
    """
    if options.policy in SCOPES:
        groups = layer_groups(chip)
    else:
        groups = group_operators(chip, split_rules(rates, options), options.clean_up)
        if options.parts_margin < math.inf:
            whole = whole_where_parts_do_not_pay(chip, groups, rates, options.parts_margin)
            # What does not fit whole, not even in tiles, may fit in parts.
            with suppress(BadPlan):
                return schedule_groups(chip, whole, rates, options)
    return schedule_groups(chip, groups, rates, options)


def split_rules(rates: ChipRates, options: ScheduleOptions) -> SplitRules:
    """Return the options of splitting on a machine."""
    machine = rates.accelerator
    return SplitRules(
        machine.local_bytes,
        machine.cores,
        options.recomputed_share,
        options.batch_only,
    )


def layer_groups(chip: ChipGraph) -> tuple[Group, ...]:
    """Return every layer as a group that is computed whole."""
    layers = layers_of(chip, [node.name for node in chip.operators])
    groups: list[Group] = []
    for number, layer in enumerate(layers):
        groups.append(Group(f"g{number}", layer, Split(1, 0, len(layer)), group_peak(chip, layer)))
    return tuple(groups)


def schedule_groups(
    chip: ChipGraph, groups: Sequence[Group], rates: ChipRates, options: ScheduleOptions
) -> ClusterSchedule:
    """Schedule groups on one cluster and simulate them."""
    if options.policy == "gb" and rates.accelerator.shared is None:
        raise BadInput(f"policy gb needs a global buffer, {rates.accelerator.name}, it has none")
    instances = slice_groups(chip, groups)
    needs = instance_needs(instances)
    order = order_instances(chip, groups, instances, options)
    bound = bind(chip, groups, order, needs, rates, options)
    return simulate_order(chip, groups, order, bound, rates, options)


def order_instances(
    chip: ChipGraph,
    groups: Sequence[Group],
    instances: Sequence[Instance],
    options: ScheduleOptions,
) -> tuple[Instance, ...]:
    """Return instances in the order in which they run."""
    needs = instance_needs(instances)
    by_name = {instance.name: instance for instance in instances}
    names = list(by_name)
    if options.policy in SCOPES:
        return tuple(instances)
    sizes = {
        instance.name: sum(chip.bytes_of(name, box) for name, box in instance.writes.items())
        for instance in instances
    }
    if options.order == "depth":
        order = depth_first(names, needs)
    elif options.order == "breadth":
        order = breadth_first(names, needs)
    else:
        order = best_order(names, needs, sizes)
    return tuple(by_name[name] for name in order)


def bind(
    chip: ChipGraph,
    groups: Sequence[Group],
    order: Sequence[Instance],
    needs: dict[str, tuple[str, ...]],
    rates: ChipRates,
    options: ScheduleOptions,
) -> dict[str, BoundInstance]:
    """Return binding and scope of every instance's output."""
    cores = rates.accelerator.cores
    scope = SCOPES.get(options.policy)
    if scope is None:
        bound = bind_instances(chip, groups, order, needs, cores, options.propagate)
        if rates.accelerator.shared is None:
            for name, item in bound.items():
                bound[name] = replace(item, scope=DDR if item.scope == SHARED else item.scope)
        return bound
    bound = {}
    for instance in order:
        tensor = main_output(groups[instance.group], instance)
        binding = plain_binding(chip, tensor, instance.writes[tensor], cores)
        bound[instance.name] = BoundInstance(binding, scope)
    return bound


def simulate_order(
    chip: ChipGraph,
    groups: Sequence[Group],
    order: Sequence[Instance],
    bound: dict[str, BoundInstance],
    rates: ChipRates,
    options: ScheduleOptions,
) -> ClusterSchedule:
    """Place bound instances in order, write their instructions and simulate them.

    Where engines run ahead, spills from the overflow on and spills of whole lives are both
    simulated: early stores flow with the layers that compute them, late ones leave them alone. So
    are both of weights that the global buffer keeps and that pass it: what is kept saves bytes over
    DDR, but may have to wait until its place is free.
    """
    inner = SCOPES.get(options.policy, LOCAL)
    program = build_program(chip, groups, order, bound, inner, rates.accelerator.cores)
    overlaps = options.overlaps
    placings = [place_program(program, rates, overlaps != "none", overlaps == "layers")]
    if placings[0].late:
        placings.append(place_program(program, rates, overlaps != "none"))
    if options.keeps_weights:
        keeping = (keep_weights(placed, rates) for placed in placings)
        placings += [placed for placed in keeping if placed is not None]
    schedules: list[ClusterSchedule] = []
    for placed in placings:
        instructions = instructions_of(placed, rates)
        needs = needs_of(instructions, overlaps, rates.accelerator.most_at_once)
        latency_us = max(end_times_us(instructions, needs), default=0.0)
        schedules.append(
            ClusterSchedule(
                tuple(groups),
                tuple(order),
                placed,
                instructions,
                needs,
                overlaps,
                latency_us,
                rates,
            )
        )
    return min(schedules, key=lambda schedule: schedule.latency_us)
