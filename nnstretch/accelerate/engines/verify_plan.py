"""Check of a placed program that knows nothing of how it was made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

from nnstretch.accelerate.engines.placed_program import PlacedProgram, capacity, residencies_of
from nnstretch.accelerate.engines.program import ChipStep
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.chip.boxes import box_elements, intersect
from nnstretch.chip.instances import TensorResidency
from nnstretch.errors import BadPlan

BUFFERS = ("local", "global", "ddr")


def verify_plan(placed: PlacedProgram, rates: ChipRates) -> None:
    """Check that no buffer is exceeded, no live tensors overlap, and all is written before read.

    Raises BadPlan that names the tensors, the step and the addresses.
    """
    for defect in defects(placed, rates):
        raise BadPlan(f"the plan is wrong, {placed.program.chip.graph.name}, {defect}")


def defects(placed: PlacedProgram, rates: ChipRates) -> Iterator[str]:
    """Yield what is wrong with a plan."""
    yield from order_defects(placed)
    by_step: dict[tuple[str, int], list[TensorResidency]] = {}
    for item in residencies_of(placed):
        end = item.address + item.size_bytes
        if item.buffer in BUFFERS and end > capacity(rates, item.buffer):
            yield f"{item} ends beyond {capacity(rates, item.buffer)} B"
        for step in range(item.first_step, item.last_step + 1):
            by_step.setdefault((item.buffer, step), []).append(item)
    seen: set[tuple[str, str]] = set()
    for (buffer, step), items in by_step.items():
        ordered = sorted(items, key=lambda item: item.address)
        for first, second in combinations(ordered, 2):
            if second.address >= first.address + first.size_bytes or buffer not in BUFFERS:
                continue
            if (first.tensor, second.tensor) not in seen:
                seen.add((first.tensor, second.tensor))
                yield f"{first} and {second} overlap at step {step}"


def order_defects(placed: PlacedProgram) -> Iterator[str]:
    """Yield reads of what was never written or is free already."""
    written: set[str] = {name for name in placed.program.storages if name.startswith("in/")}
    copied: Counter[str] = Counter()
    copies = Counter(step.writes for step in placed.program.steps if not step.operators)
    for place, step in enumerate(placed.program.steps):
        if step.number != place:
            yield f"step {step.number} {step.name} stands at place {place}"
        for reading in step.readings:
            storage = placed.program.storages[reading.storage]
            if reading.storage not in written:
                yield f"step {step.number} reads {reading.storage} before it is written"
            if not storage.first_step <= step.number <= storage.last_step:
                yield f"step {step.number} reads {reading.storage}, which is free"
        if not step.operators:
            copied[step.writes] += copied_elements(placed, step)
            copies[step.writes] -= 1
            if copies[step.writes]:
                continue
            if copied[step.writes] < needed_elements(placed, step):
                yield f"step {step.number} copies less than {step.writes} holds"
        written.add(step.writes)


def copied_elements(placed: PlacedProgram, step: ChipStep) -> int:
    """Return the elements that a step copies."""
    target = placed.program.storages[step.writes]
    total = 0
    for reading in step.readings:
        shared = intersect(reading.box, target.box)
        total += 0 if shared is None else box_elements(shared)
    return total


def needed_elements(placed: PlacedProgram, step: ChipStep) -> int:
    """Return the elements that a storage of copies must hold."""
    return box_elements(placed.program.storages[step.writes].box)
