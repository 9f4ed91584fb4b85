"""B5: which cores share which dimension of an instance's output, and where that output lies.

The order is walked from its end: a consumer's binding says which binding it wants of its producers.
Where two consumers want different ones, the producer's output goes to the global buffer (Alg. 4 of
GraphTurbo).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.steps.split import boxes_behind
from nnstretch.chip.boxes import Box, box_shape, part
from nnstretch.chip.instances import LOCAL, SHARED, Binding, Group, Instance


@dataclass(frozen=True, slots=True)
class BoundInstance:
    """Binding and scope of what an instance leaves."""

    binding: Binding
    scope: str


def plain_factors(sizes: Sequence[int], cores: int) -> tuple[int, ...]:
    """Return cores for each dimension, outermost first.

    A dimension takes the largest divisor of the number of cores that divides it and that the
    dimensions before it have not used up.
    """
    factors: list[int] = []
    remaining = cores
    for size in sizes:
        factor = largest_divisor(cores, size, remaining)
        factors.append(factor)
        remaining //= factor
    return tuple(factors)


def largest_divisor(cores: int, size: int, most: int) -> int:
    """Return the largest divisor of the number of cores that divides `size` and `most`."""
    for factor in range(most, 0, -1):
        if cores % factor == 0 and size % factor == 0 and most % factor == 0:
            return factor
    return 1


def plain_binding(chip: ChipGraph, tensor: str, box: Box, cores: int) -> Binding:
    """Return the binding of a tensor's part without regard to its neighbours."""
    axes = chip.axes(tensor)
    shape = box_shape(box)
    return Binding(plain_factors([shape[axis] for axis in axes], cores), axes)


def bind_instances(
    chip: ChipGraph,
    groups: Sequence[Group],
    order: Sequence[Instance],
    needs: Mapping[str, Sequence[str]],
    cores: int,
    propagate: bool = False,
) -> dict[str, BoundInstance]:
    """Return binding and scope of each instance.

    `propagate` lets an instance that inherited its binding pass it on, too; read literally, the
    published algorithm does not.
    """
    by_name = {instance.name: instance for instance in order}
    bound: dict[str, Binding] = {}
    scopes = {instance.name: LOCAL for instance in order}
    for instance in reversed(order):
        tensor = main_output(groups[instance.group], instance)
        plain = plain_binding(chip, tensor, instance.writes[tensor], cores)
        inherited = bound.get(instance.name)
        inherits = inherited is not None and scopes[instance.name] == LOCAL
        binding = plain
        if inherits and inherited is not None and inherited.cores >= plain.cores:
            binding = inherited
        bound[instance.name] = binding
        if inherits and not propagate:
            continue
        wanted = wanted_bindings(chip, groups[instance.group], instance, binding)
        for need in needs[instance.name]:
            producer = by_name[need]
            source = main_output(groups[producer.group], producer)
            wish = wanted.get(source)
            if wish is None or not divides(wish, producer.writes[source]):
                continue
            if need not in bound:
                bound[need] = wish
            elif bound[need].factors != wish.factors:
                scopes[need] = SHARED
    return {name: BoundInstance(binding, scopes[name]) for name, binding in bound.items()}


def main_output(group: Group, instance: Instance) -> str:
    """Return the last tensor that an instance leaves."""
    return [name for name in group.operators if name in instance.writes][-1]


def divides(binding: Binding, box: Box) -> bool:
    """Return whether a part's sizes are multiples of a binding's factors."""
    shape = box_shape(box)
    return all(
        shape[axis] % factor == 0
        for factor, axis in zip(binding.factors, binding.axes, strict=True)
    )


def wanted_bindings(
    chip: ChipGraph, group: Group, instance: Instance, binding: Binding
) -> dict[str, Binding]:
    """Return the binding of each tensor that an instance reads which matches its own."""
    tensor = main_output(group, instance)
    box = instance.writes[tensor]
    matched: dict[str, dict[int, int]] = {name: {} for name in instance.reads}
    uncut = boxes_behind(chip, group.operators, {tensor: box})
    for factor, axis in zip(binding.factors, binding.axes, strict=True):
        if factor == 1:
            continue
        narrowed = boxes_behind(chip, group.operators, {tensor: part(box, axis, factor, 0)})
        for name in instance.reads:
            if name not in narrowed or name not in uncut:
                continue
            changed = [d for d, bounds in enumerate(narrowed[name]) if bounds != uncut[name][d]]
            if len(changed) == 1:
                matched[name][changed[0]] = factor
    wanted: dict[str, Binding] = {}
    for name, factors in matched.items():
        if factors:
            axes = chip.axes(name)
            wanted[name] = Binding(tuple(factors.get(axis, 1) for axis in axes), axes)
    return wanted
