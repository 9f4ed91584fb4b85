"""Spills from the overflow on: a storage stays in its buffer until what lives exceeds it.

What leaves is chosen by C3 (longest liveness). From its last write before the overflow on it is
copied to DDR piece by piece, some behind each step; where the buffer has room again before its next
use, it is fetched back in the same way, so that weights pass between the pieces and no kernel waits
for all of them. What overflows the buffer at birth is born in DDR and may be fetched back, too. The
way to the global buffer is short: a storage that goes there does so from its first write on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from nnstretch.accelerate.engines.program import ChipStep, Program, Reading, Storage
from nnstretch.chip.boxes import Box, box_shape
from nnstretch.chip.instances import DDR

PIECES = 8
"""Pieces of a copy to DDR, which follow the tiles that they come from."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A storage that leaves its buffer at a step, and when a copy of it is fetched back."""

    storage: str
    step: int
    """At which live storages exceed the buffer."""
    out: int | None
    """Step behind which its first piece is copied out; None where it is born outside."""
    back: int | None
    """Step before which the first piece is fetched; None where it stays outside."""
    next_use: int


@dataclass(frozen=True, slots=True)
class Uses:
    """Steps that read or write a storage, and those that write it, ascending."""

    all: Sequence[int]
    writes: Sequence[int]

    def next_after(self, step: int) -> int:
        """Return the first use after a step, that at it where the storage is not born there."""
        later = (use for use in self.all if use > step or (use == step != self.all[0]))
        return next(later, self.all[-1])


def uses_of(program: Program, names: Collection[str]) -> dict[str, Uses]:
    """Return the steps that use each storage."""
    used: dict[str, list[int]] = {name: [] for name in names}
    written: dict[str, list[int]] = {name: [] for name in names}
    for step in program.steps:
        if step.writes in written:
            written[step.writes].append(step.number)
        for name in {step.writes, *(reading.storage for reading in step.readings)}:
            if name in used:
                used[name].append(step.number)
    return {name: Uses(used[name], written[name]) for name in names}


def plan_departures(
    leaving: Sequence[tuple[str, int]],
    uses: Mapping[str, Uses],
    sizes: Mapping[str, tuple[int, int, int]],
    slots: Sequence[int],
    room_bytes: int,
) -> list[Departure]:
    """Return when each storage that leaves at a step is copied out and fetched back.

    `sizes` are bytes, first and last step of everything in the buffer; `slots` the bytes that the
    tiles of each step need at least.
    """
    live = list(slots)
    ends = dict(leaving)
    for name, (size, first, last) in sizes.items():
        for step in range(first, min(last + 1, ends.get(name, last + 1))):
            live[step] += size
    planned: list[Departure] = []
    for name, overflow in sorted(leaving, key=lambda item: uses[item[0]].next_after(item[1])):
        step = overflow
        size, first, last = sizes[name]
        for place in range(first, overflow):
            if live[place] > room_bytes:
                step = min(step, place)
            if place >= step:
                live[place] -= size
        before = [write for write in uses[name].writes if write < step]
        use = uses[name].next_after(step)
        back = earliest_room(live, size, step, use, last, room_bytes)
        if back is not None:
            for place in range(back, last + 1):
                live[place] += size
        planned.append(Departure(name, step, before[-1] if before else None, back, use))
    return planned


def earliest_room(
    live: Sequence[int], size: int, step: int, use: int, last: int, room_bytes: int
) -> int | None:
    """Return the first step after one from which bytes fit to the end; None if not before a use."""
    if max(live[use : last + 1]) + size > room_bytes:
        return None
    back = use
    while back - 1 > step and live[back - 1] + size <= room_bytes:
        back -= 1
    return back if back < use else None


def with_departures(
    program: Program, departures: Sequence[Departure]
) -> tuple[Program, dict[int, int]]:
    """Return a program that copies storages out and back, and the new number of each step."""
    rewriter = Rewriter(program)
    for departure in departures:
        rewriter.add(departure)
    return rewriter.finish()


class Rewriter:
    """Inserter of copies between the steps of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.storages = dict(program.storages)
        self.behind: dict[int, list[ChipStep]] = {}
        self.before: dict[int, list[ChipStep]] = {}
        self.renamed: dict[str, tuple[int, str]] = {}
        """From a step on, another storage stands for one."""

    def add(self, departure: Departure) -> None:
        """Plan the copies of one storage."""
        name, storage = departure.storage, self.storages[departure.storage]
        source = name
        if departure.out is None:
            self.storages[name] = replace(storage, scope=DDR)
        else:
            source = f"{name} out"
            # Steps of copies are not numbered yet: lives are told by the steps around them.
            self.storages[name] = replace(storage, last_step=departure.step - 1)
            self.storages[source] = replace(storage, name=source, scope=DDR)
            self.renamed[name] = (departure.step, source)
            places = range(departure.out, departure.step)
            self.spread(self.behind, places, storage, name, source, PIECES)
        if departure.back is not None:
            target = f"{name} back"
            self.storages[target] = replace(storage, name=target)
            self.renamed[name] = (departure.next_use, target)
            places = range(departure.back, departure.next_use)
            self.spread(self.before, places, storage, source, target, 1)

    def spread(
        self,
        copies: dict[int, list[ChipStep]],
        places: range,
        storage: Storage,
        source: str,
        target: str,
        least: int,
    ) -> None:
        """Plan to copy a storage in pieces, some beside each of several steps."""
        pieces = pieces_of(storage.box, max(least, len(places)))
        beside: dict[int, list[Box]] = {}
        for index, box in enumerate(pieces):
            beside.setdefault(places[index * len(places) // len(pieces)], []).append(box)
        for place, boxes in beside.items():
            step = self.program.steps[place]
            copies.setdefault(place, []).append(copy_step(step, storage, source, target, boxes))

    def finish(self) -> tuple[Program, dict[int, int]]:
        """Give all steps numbers, and let storages live from their first use to their last."""
        steps: list[ChipStep] = []
        numbers: dict[int, int] = {}
        for step in self.program.steps:
            steps += self.before.get(step.number, [])
            numbers[step.number] = len(steps)
            steps += [self.renamed_step(step), *self.behind.get(step.number, [])]
        numbered = tuple(replace(step, number=place) for place, step in enumerate(steps))
        touched: dict[str, list[int]] = {}
        for step in numbered:
            for name in {step.writes, *(reading.storage for reading in step.readings)}:
                touched.setdefault(name, []).append(step.number)
        storages: dict[str, Storage] = {}
        for name, storage in self.storages.items():
            first, last = numbers[storage.first_step], numbers[storage.last_step]
            if name not in self.program.storages:
                first, last = touched[name][0], touched[name][-1]
            elif not storage.fixed:
                last = max(last, touched[name][-1])
            storages[name] = replace(storage, first_step=first, last_step=last)
        return Program(self.program.chip, numbered, storages), numbers

    def renamed_step(self, step: ChipStep) -> ChipStep:
        """Return a step that uses what stands for each storage by then."""
        readings = tuple(
            replace(reading, storage=self.name_at(reading.storage, step.number))
            for reading in step.readings
        )
        writes = self.name_at(step.writes, step.number)
        return replace(step, readings=readings, writes=writes)

    def name_at(self, name: str, step: int) -> str:
        """Return the storage that stands for one at a step."""
        since, stand_in = self.renamed.get(name, (0, name))
        return stand_in if step >= since else name


def copy_step(
    beside: ChipStep, storage: Storage, source: str, target: str, pieces: Sequence[Box]
) -> ChipStep:
    """Return a step that copies pieces of a storage, in the kernel of a step beside it."""
    readings = tuple(Reading(source, storage.tensor, box) for box in pieces)
    boxes = {storage.tensor: storage.box}
    return ChipStep(0, beside.kernel, beside.instance, (), readings, target, boxes)


def pieces_of(box: Box, most: int) -> list[Box]:
    """Return a box cut into nearly equal pieces along its longest dimension, no more than asked."""
    if not box:
        return [box]
    sizes = box_shape(box)
    axis = sizes.index(max(sizes))
    start, size = box[axis][0], sizes[axis]
    count = max(1, min(most, size))
    pieces: list[Box] = []
    for index in range(count):
        bounds = (start + size * index // count, start + size * (index + 1) // count)
        pieces.append((*box[:axis], bounds, *box[axis + 1 :]))
    return pieces
