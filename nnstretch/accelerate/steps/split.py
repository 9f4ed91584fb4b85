"""B1: into how many parts a group is cut, and along which dimension.

Factors tried are powers of two below the number of cores, then every number; the first that brings
the peak into the local buffers and divides the dimension. Of the dimensions, the one along which
most operators are cut wins, then fewest parts, then the outermost (Alg. 1 of GraphTurbo).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.operator_work import matrix_shape
from nnstretch.accelerate.steps.peak import group_peak, leaves
from nnstretch.chip.boxes import Box, box_elements, hull, part, whole
from nnstretch.chip.instances import Split


@dataclass(frozen=True, slots=True)
class SplitRules:
    """Options of splitting, with their published defaults."""

    capacity_bytes: int
    """Local buffers of a cluster."""
    cores: int
    recomputed_share: float = 0.10
    """Most of a group's MACs that instances may compute twice."""
    batch_only: bool = False
    batch: int = 0
    """Images that a cluster computes at once."""
    cache: dict[tuple[str, ...], tuple[Split, int]] = field(default_factory=dict, compare=False)


def factors(cores: int, size: int) -> Iterator[int]:
    """Yield the factors tried: powers of two below the number of cores, then every number."""
    power = 1
    while power < min(cores, size + 1):
        yield power
        power *= 2
    yield from range(cores, size + 1)


def first_factor(peak_bytes: int, size: int, rules: SplitRules) -> int | None:
    """Return the first factor that fits and divides, None where there is none."""
    for factor in factors(rules.cores, size):
        if size % factor == 0 and -(-peak_bytes // factor) <= rules.capacity_bytes:
            return factor
    return None


def split_of(chip: ChipGraph, operators: tuple[str, ...], rules: SplitRules) -> tuple[Split, int]:
    """Return the best split of a group and its peak."""
    known = rules.cache.get(operators)
    if known is None:
        peak_bytes = group_peak(chip, operators)
        known = best_split(chip, operators, peak_bytes, rules), peak_bytes
        rules.cache[operators] = known
    return known


def best_split(
    chip: ChipGraph, operators: tuple[str, ...], peak_bytes: int, rules: SplitRules
) -> Split:
    """Return the best split of a group of a known peak."""
    if peak_bytes <= rules.capacity_bytes:
        return Split(1, 0, len(operators))
    last = operators[-1]
    best = Split(1, fits=False)
    best_key: tuple[int, int, int] | None = None
    for place, axis in enumerate(chip.axes(last)):
        if rules.batch_only and axis != 0:
            continue
        factor = first_factor(peak_bytes, chip.specs[last].shape[axis], rules)
        if factor is None or (
            best_key and len(operators) == best_key[0] and factor >= -best_key[1]
        ):
            continue
        split = cut(chip, operators, axis, factor, rules)
        key = (split.operators, -factor, -place)
        if split.fits and (best_key is None or key > best_key):
            best, best_key = split, key
    return best


def cut(
    chip: ChipGraph, operators: tuple[str, ...], axis: int, factor: int, rules: SplitRules
) -> Split:
    """Return the split of a group along a dimension of its last output; `fits` where it is one."""
    axes = cut_axes(chip, operators, axis, factor)
    if axes is None:
        return Split(factor, axis, 0, fits=False)
    boxes = part_boxes(chip, operators, axes, factor, factor // 2)
    if boxes is None:
        return Split(factor, axis, 0, fits=False)
    along = sum(boxes[name] != whole(chip.specs[name].shape) for name in operators)
    macs = sum(work(chip, name) for name in operators)
    macs_of_parts = sum(work(chip, name, boxes[name]) for name in operators) * factor
    fits = along > 0 and macs_of_parts <= macs * (1 + rules.recomputed_share)
    return Split(factor, axis, along, axes, fits)


def cut_axes(
    chip: ChipGraph, operators: Sequence[str], axis: int, factor: int
) -> dict[str, int] | None:
    """Return along which dimension each tensor that leaves a group is cut.

    None where one of them cannot be cut into that many equal parts. Outputs that the last one does
    not depend on are cut along the dimension of the same position.
    """
    places = {name: place for place, name in enumerate(operators)}
    last = operators[-1]
    uncut_box = whole(chip.specs[last].shape)
    uncut = boxes_behind(chip, operators, {last: uncut_box})
    boxes = boxes_behind(chip, operators, {last: part(uncut_box, axis, factor, 0)})
    axes: dict[str, int] = {}
    for name in operators:
        if not leaves(chip, name, places):
            continue
        shape = chip.specs[name].shape
        chosen = axis
        if name in boxes:
            narrowed = [d for d in range(len(shape)) if boxes[name][d] != uncut[name][d]]
            if len(narrowed) != 1:
                return None
            chosen = narrowed[0]
        if chosen >= len(shape) or shape[chosen] % factor:
            return None
        axes[name] = chosen
    return axes


def part_boxes(
    chip: ChipGraph, operators: Sequence[str], axes: dict[str, int], factor: int, index: int
) -> dict[str, Box] | None:
    """Return what one instance computes of each operator, None where it needs nothing of one."""
    wanted: dict[str, Box] = {}
    for name, axis in axes.items():
        wanted[name] = part(whole(chip.specs[name].shape), axis, factor, index)
    boxes = boxes_behind(chip, operators, wanted)
    if any(name not in boxes for name in operators):
        return None
    return boxes


def boxes_behind(
    chip: ChipGraph, operators: Sequence[str], wanted: dict[str, Box]
) -> dict[str, Box]:
    """Return the part of each operator's output, and of what they read, behind parts of outputs."""
    boxes = dict(wanted)
    for name in reversed(operators):
        if name not in boxes:
            continue
        for source, area in chip.read_boxes(name, boxes[name]).items():
            # A concatenation's part may need nothing of one of its inputs.
            if source not in chip.weights and box_elements(area):
                boxes[source] = hull(boxes[source], area) if source in boxes else area
    return boxes


def work(chip: ChipGraph, name: str, box: Box | None = None) -> int:
    """Return the work of a part of an operator: MACs, one an element for others."""
    shape = matrix_shape(chip, name, box)
    if shape is not None:
        return shape.macs
    return chip.specs[name].elements if box is None else box_elements(box)
