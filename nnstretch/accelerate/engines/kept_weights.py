"""Weights kept in the global buffer between instances, so that they cross DDR once for several.

The instances of a group read the same weights. Where the global buffer has room for them from one
instance to the next, the first one's tiles stay there instead of passing, and the next one's are
fetched from there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from nnstretch.accelerate.engines.placed_program import KeptWeights, PlacedProgram, capacity
from nnstretch.accelerate.engines.tiling import Tiling
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.chip.instances import SHARED, Region
from nnstretch.structure.address_ranges import lowest_gap

Spans = dict[int, list[tuple[int, int]]]
"""Addresses of the global buffer that are taken, by step."""


def keep_weights(placed: PlacedProgram, rates: ChipRates) -> PlacedProgram | None:
    """Return a program that keeps the weights for which there is room, None where it keeps none.

    Weights that are needed again soonest are placed first: of a byte of the buffer they save most.
    """
    room = capacity(rates, SHARED)
    taken = taken_by_storages(placed)
    tilings = dict(placed.tilings)
    kept: dict[int, KeptWeights] = {}
    for steps in sorted(steps_of_equal_weights(placed), key=steps_between):
        size_bytes = placed.works[steps[0]].weight_bytes
        for run, address in runs_with_room(steps, size_bytes, taken, tilings, room):
            name = f"{placed.program.steps[run[0]].name} weights"
            region = Region(SHARED, address, address + size_bytes)
            kept.update(dict.fromkeys(run, KeptWeights(name, region, run)))
            for number in range(run[0], run[-1] + 1):
                taken[number].append((region.start, region.stop))
            for number in run:
                tilings[number] = replace(tilings[number], staging_slots=())
    return replace(placed, tilings=tilings, kept=kept) if kept else None


def steps_of_equal_weights(placed: PlacedProgram) -> list[tuple[int, ...]]:
    """Return the steps, at least two, in which instances of a layer load the same weights.

    Left out is what does not pass the global buffer, or is loaded for each tile of rows.
    """
    steps: dict[object, list[int]] = {}
    chip = placed.program.chip
    for step in placed.program.steps:
        tiling, work = placed.tilings.get(step.number), placed.works.get(step.number)
        if tiling is None or work is None or not tiling.staging_slots or tiling.weights_by_rows:
            continue
        if work.shape is not None:
            boxes = [chip.weight_boxes(name, step.boxes[name]) for name in step.operators]
            parts = tuple(tuple(read.items()) for read in boxes)
            steps.setdefault((step.operators, parts), []).append(step.number)
    return [tuple(numbers) for numbers in steps.values() if len(numbers) > 1]


def steps_between(steps: Sequence[int]) -> float:
    """Return the mean distance of steps that follow each other."""
    return (steps[-1] - steps[0]) / (len(steps) - 1)


def taken_by_storages(placed: PlacedProgram) -> Spans:
    """Return where tensors lie in the global buffer."""
    taken: Spans = defaultdict(list)
    for name, storage in placed.program.storages.items():
        if storage.scope == SHARED:
            region = placed.region(name)
            for number in range(storage.first_step, storage.last_step + 1):
                taken[number].append((region.start, region.stop))
    return taken


def runs_with_room(
    steps: Sequence[int],
    size_bytes: int,
    taken: Spans,
    tilings: Mapping[int, Tiling],
    room_bytes: int,
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield the longest runs of steps, at least two, between which bytes fit; with the address."""
    run: list[int] = []
    spans: set[tuple[int, int]] = set()
    address = 0
    own = set(steps)
    for step in steps:
        first = run[-1] + 1 if run else step
        wider = spans | set(spans_during(range(first, step + 1), own, taken, tilings))
        lowest = lowest_gap(sorted(wider), size_bytes)
        if lowest + size_bytes <= room_bytes:
            run, spans, address = [*run, step], wider, lowest
            continue
        if len(run) > 1:
            yield tuple(run), address
        run, spans = [step], set(spans_during(range(step, step + 1), own, taken, tilings))
        address = lowest_gap(sorted(spans), size_bytes)
        if address + size_bytes > room_bytes:
            run, spans = [], set()
    if len(run) > 1:
        yield tuple(run), address


def spans_during(
    steps: range, own: set[int], taken: Spans, tilings: Mapping[int, Tiling]
) -> Iterator[tuple[int, int]]:
    """Yield what is taken in steps, without slots that `own` steps would not need."""
    for number in steps:
        yield from taken.get(number, ())
        if number in tilings and number not in own:
            for slot in tilings[number].staging_slots:
                yield slot.start, slot.stop
