"""Program -> program with addresses: what does not fit leaves the chip, and every loop has slots.

Storages are spilled by longest liveness until live ones fit each buffer; then each step's tiles
must find their slots in what is free, else the longest-lived local storage of that step goes, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.accelerate.engines.layer_work import LayerWork, layer_work
from nnstretch.accelerate.engines.program import ChipStep, Program, Storage
from nnstretch.accelerate.engines.tiling import Tiling, choose_tiling
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.steps.memory import (
    Block,
    assign_addresses,
    first_overflow,
    free_gaps,
    longest_lived,
)
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Region, TensorResidency
from nnstretch.errors import BadPlan


@dataclass(frozen=True, slots=True)
class Spill:
    """A storage that left the buffer in which it should lie."""

    tensor: str
    source: str
    target: str
    size_bytes: int
    rule: str


@dataclass(frozen=True)
class PlacedProgram:
    """A program whose storages have addresses and whose layers have tile loops."""

    program: Program
    addresses: Mapping[str, int]
    """In each storage's buffer; of the local buffers, the same in each core."""
    works: Mapping[int, LayerWork]
    tilings: Mapping[int, Tiling]
    spills: tuple[Spill, ...]

    def region(self, name: str) -> Region:
        """Return the addresses of a storage."""
        storage = self.program.storages[name]
        start = self.addresses[name]
        return Region(storage.scope, start, start + place_bytes(storage))


def residencies_of(placed: PlacedProgram) -> tuple[TensorResidency, ...]:
    """Return where every storage and every slot of a tile loop lies, and when."""
    residencies: list[TensorResidency] = []
    for name, storage in placed.program.storages.items():
        region = placed.region(name)
        residencies.append(
            TensorResidency(
                name,
                region.buffer,
                region.start,
                region.stop - region.start,
                storage.first_step,
                storage.last_step,
            )
        )
    for number, tiling in placed.tilings.items():
        step = placed.program.steps[number]
        for region in tiling.slots:
            size_bytes = region.stop - region.start
            residencies.append(
                TensorResidency(
                    f"{step.name} slot", region.buffer, region.start, size_bytes, number, number
                )
            )
    return tuple(residencies)


def place_bytes(storage: Storage) -> int:
    """Return the bytes of a storage in its buffer; of the local buffers, in each core."""
    if storage.scope == LOCAL:
        return -(-storage.size_bytes // storage.binding.cores)
    return storage.size_bytes


def capacity(rates: ChipRates, scope: str) -> int:
    """Return the size of a buffer: of the local buffers, that of one core."""
    machine = rates.accelerator
    if scope == LOCAL:
        return machine.local.size_bytes
    if scope == SHARED:
        return machine.shared_bytes
    return machine.ddr.size_bytes or 1 << 62


def place_program(program: Program, rates: ChipRates, overlapped: bool) -> PlacedProgram:
    """Return a program with addresses.

    Raises BadPlan where a layer does not fit even alone.
    """
    placer = Placer(program, rates, overlapped)
    while not placer.try_place():
        pass
    return placer.placed()


class Placer:
    """Search for addresses that spills storages until everything fits."""

    def __init__(self, program: Program, rates: ChipRates, overlapped: bool) -> None:
        self.program = program
        self.rates = rates
        self.overlapped = overlapped
        self.spills: list[Spill] = []
        self.addresses: dict[str, int] = {}
        self.works: dict[int, LayerWork] = {}
        self.tilings: dict[int, Tiling] = {}
        self.by_step: dict[str, dict[int, list[tuple[int, int]]]] = {}

    def placed(self) -> PlacedProgram:
        """Return what was found."""
        return PlacedProgram(
            self.program, self.addresses, self.works, self.tilings, tuple(self.spills)
        )

    def blocks(self, scope: str) -> list[Block]:
        """Return what lies in a buffer."""
        return [
            Block(s.name, place_bytes(s), s.first_step, s.last_step)
            for s in self.program.storages.values()
            if s.scope == scope
        ]

    def try_place(self) -> bool:
        """Return whether everything fits; spill something and return False where it does not."""
        for scope in (LOCAL, SHARED):
            if self.spill_overflow(scope):
                return False
        for scope in (LOCAL, SHARED, DDR):
            if not self.assign(scope):
                return False
        return all(self.tile(step) for step in self.program.steps)

    def spill_overflow(self, scope: str) -> bool:
        """Spill until live storages fit a buffer; return whether anything went."""
        went = False
        room = capacity(self.rates, scope)
        while (step := first_overflow(self.blocks(scope), room)) is not None:
            self.spill_at(scope, step, f"live storages exceed {room} B")
            went = True
        return went

    def spill_at(self, scope: str, step: int, rule: str) -> None:
        """Move the longest-lived storage of a step out of a buffer. Raises BadPlan without one."""
        live = [b for b in self.blocks(scope) if b.first_step <= step <= b.last_step]
        if not live:
            raise self.does_not_fit(self.program.steps[step], scope)
        name = longest_lived(live).name
        storage = self.program.storages[name]
        target = DDR
        if scope == LOCAL and storage.size_bytes <= self.rates.accelerator.shared_bytes:
            target = SHARED
        reason = f"longest liveness at step {step}, {rule}"
        self.spills.append(Spill(name, scope, target, storage.size_bytes, reason))
        self.program = self.program.rescoped(name, target)
        self.works.clear()
        self.tilings.clear()

    def does_not_fit(self, step: ChipStep, scope: str) -> BadPlan:
        """Return the refusal of a step that does not fit even alone."""
        from nnstretch.accelerate.engines.tiling import smallest_slots_bytes

        work = self.works.get(step.number)
        needed = 0 if work is None else smallest_slots_bytes(work, self.rates)
        return BadPlan(
            f"layer {step.name} does not fit even alone, {self.rates.accelerator.name}, its"
            f" smallest tiles need {needed} B of the {scope} buffer's"
            f" {capacity(self.rates, scope)} B"
        )

    def assign(self, scope: str) -> bool:
        """Give addresses to what lies in a buffer; spill where fragments leave no room."""
        blocks = self.blocks(scope)
        addresses = assign_addresses(blocks)
        room = capacity(self.rates, scope)
        for block in blocks:
            if addresses[block.name] + block.size_bytes > room:
                self.spill_at(scope, block.first_step, f"no gap of {block.size_bytes} B is free")
                return False
        self.addresses.update(addresses)
        taken: dict[int, list[tuple[int, int]]] = {}
        for block in blocks:
            start = addresses[block.name]
            for step in range(block.first_step, block.last_step + 1):
                taken.setdefault(step, []).append((start, start + block.size_bytes))
        self.by_step[scope] = taken
        return True

    def tile(self, step: ChipStep) -> bool:
        """Choose a step's tile loop; spill where its slots find no room."""
        if not step.operators or step.number in self.tilings:
            return True
        work = self.works.get(step.number)
        if work is None:
            work = layer_work(self.program, step, self.rates)
            self.works[step.number] = work
        gaps: list[Sequence[tuple[int, int]]] = []
        for scope in (LOCAL, SHARED):
            taken = self.by_step[scope].get(step.number, [])
            gaps.append(free_gaps(taken, capacity(self.rates, scope)))
        tiling = choose_tiling(work, self.rates, gaps[0], gaps[1], self.overlapped)
        if tiling is None:
            scope = self.crowded(step.number)
            self.spill_at(scope, step.number, "its tiles find no slots")
            return False
        self.tilings[step.number] = tiling
        return True

    def crowded(self, step: int) -> str:
        """Return the buffer from which something must go so that a step's slots fit."""
        local = any(b.first_step <= step <= b.last_step for b in self.blocks(LOCAL))
        shared = any(b.first_step <= step <= b.last_step for b in self.blocks(SHARED))
        return LOCAL if local or not shared else SHARED
