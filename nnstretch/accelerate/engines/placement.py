"""Program -> program with addresses: what does not fit leaves the chip, and every loop has slots.

Storages are spilled by longest liveness until live ones fit each buffer; then each step's tiles
must find their slots in what is free, else the longest-lived local storage of that step goes, too.
Where engines run ahead across layers, what overflows a buffer leaves for DDR then, not from its
first write on, and comes back when there is room (late_spills.py).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from nnstretch.accelerate.engines.choose_tiling import (
    bypass_tiling,
    choose_tiling,
    least_slots_bytes,
    smallest_slots_bytes,
)
from nnstretch.accelerate.engines.late_spills import (
    plan_departures,
    uses_of,
    with_departures,
)
from nnstretch.accelerate.engines.layer_work import LayerWork, layer_work
from nnstretch.accelerate.engines.placed_program import PlacedProgram, Spill, capacity, place_bytes
from nnstretch.accelerate.engines.program import ChipStep, Program
from nnstretch.accelerate.engines.tiling import Tiling
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.steps.memory import (
    Block,
    assign_addresses,
    longest_lived,
    overflows,
)
from nnstretch.chip.instances import DDR, LOCAL, SHARED
from nnstretch.errors import BadPlan
from nnstretch.structure.address_ranges import free_gaps, lowest_gap

PLACINGS = 3
"""Times that late spills are tried before all are of whole lives."""


def place_program(
    program: Program, rates: ChipRates, overlapped: bool, late: bool = False
) -> PlacedProgram:
    """Return a program with addresses.

    `late` lets what overflows a buffer stay there until then. Raises BadPlan where a layer does not
    fit even alone.
    """
    whole_lives: set[str] = set()
    for _ in range(PLACINGS if late else 0):
        placer = Placer(program, rates, overlapped, whole_lives)
        placer.place()
        if not placer.moved_again:
            return placer.placed()
        whole_lives |= placer.moved_again
    placer = Placer(program, rates, overlapped, None)
    placer.place()
    return placer.placed()


class Placer:
    """Search for addresses that spills storages until everything fits."""

    def __init__(
        self,
        program: Program,
        rates: ChipRates,
        overlapped: bool,
        whole_lives: Collection[str] | None,
    ) -> None:
        self.program = program
        self.storages = dict(program.storages)
        self.rates = rates
        self.overlapped = overlapped
        self.whole_lives = whole_lives
        """What leaves its buffer for all of its life; None where everything that leaves does."""
        self.moved_again: set[str] = set()
        """What was to stay until an overflow, or to come back, and finds no place there."""
        self.spills: list[Spill] = []
        self.departures: dict[str, str] = {}
        self.addresses: dict[str, int] = {}
        self.works: dict[int, LayerWork] = {}
        self.tilings: dict[int, Tiling] = {}
        self.live: dict[str, dict[int, dict[str, tuple[int, int]]]] = {LOCAL: {}, SHARED: {}}
        """What lies where at each step of a buffer, by storage."""
        self.ddr_end = 0

    def place(self) -> None:
        """Find addresses, and tile loops where late spills have theirs. Raises BadPlan."""
        for scope in (LOCAL, SHARED, DDR):
            self.spill_overflow(scope)
            while not self.assign(scope):
                pass
        for scope in (LOCAL, SHARED):
            for block in self.blocks(scope):
                self.occupy(scope, block.name, self.addresses[block.name])
        while not self.moved_again and not self.tile_all():
            pass

    def placed(self) -> PlacedProgram:
        """Return the program with addresses."""
        program = replace(self.program, storages=self.storages)
        spills, late = tuple(self.spills), bool(self.departures)
        return PlacedProgram(program, self.addresses, self.works, self.tilings, spills, late)

    def blocks(self, scope: str) -> list[Block]:
        """Return what lies in a buffer."""
        return [
            Block(s.name, place_bytes(s), s.first_step, s.last_step)
            for s in self.storages.values()
            if s.scope == scope
        ]

    def spill_overflow(self, scope: str) -> None:
        """Spill until live storages fit a buffer. Raises BadPlan where DDR is too small."""
        room = capacity(self.rates, scope)
        leaving: list[tuple[str, int]] = []
        for overflow in overflows(self.blocks(scope), room):
            name = overflow.block.name
            if scope == DDR:
                raise BadPlan(
                    f"layer {self.program.steps[overflow.step].name} does not fit even alone,"
                    f" {self.rates.accelerator.name}, tensors of {overflow.live_bytes} B are live"
                    f" in the {scope} of {room} B"
                )
            late = self.whole_lives is not None and name not in self.whole_lives
            if late and self.next_buffer(name) == DDR:
                leaving.append((name, overflow.step))
            else:
                self.note_spill(name, overflow.step, f"live storages exceed {room} B")
        if leaving:
            self.let_leave(scope, leaving)

    def let_leave(self, scope: str, leaving: list[tuple[str, int]]) -> None:
        """Let storages leave a buffer for DDR when it overflows, and come back."""
        room = capacity(self.rates, scope)
        sizes = {b.name: (b.size_bytes, b.first_step, b.last_step) for b in self.blocks(scope)}
        uses = uses_of(self.program, {name for name, _ in leaving})
        program = replace(self.program, storages=self.storages)
        slots = least_slots_bytes(program, self.rates, scope)
        departures = plan_departures(leaving, uses, sizes, slots, room)
        self.program, numbers = with_departures(program, departures)
        self.storages = dict(self.program.storages)
        for departure in departures:
            name, step = departure.storage, numbers[departure.step]
            self.departures |= dict.fromkeys((name, f"{name} out", f"{name} back"), name)
            rule = f"longest liveness at step {step}, live storages exceed {room} B"
            if departure.back is not None:
                rule += f", back from step {self.storages[f'{name} back'].first_step} on"
            self.spills.append(Spill(name, scope, DDR, self.storages[name].size_bytes, rule))

    def note_spill(self, name: str, step: int, rule: str) -> None:
        """Put a storage into the next buffer, without an address yet."""
        storage = self.storages[name]
        target = self.next_buffer(name)
        if name in self.departures:
            self.moved_again.add(self.departures[name])
        reason = f"longest liveness at step {step}, {rule}"
        self.spills.append(Spill(name, storage.scope, target, storage.size_bytes, reason))
        self.storages[name] = replace(storage, scope=target)

    def next_buffer(self, name: str) -> str:
        """Return the buffer to which a storage goes that has no room in its own."""
        storage = self.storages[name]
        fits = storage.size_bytes <= self.rates.accelerator.shared_bytes
        return SHARED if storage.scope == LOCAL and fits else DDR

    def assign(self, scope: str) -> bool:
        """Give addresses to what lies in a buffer; spill where fragments leave no room."""
        blocks = self.blocks(scope)
        if scope == DDR:
            for block in blocks:
                self.add_to_ddr(block.name)
            return True
        addresses = assign_addresses(blocks)
        room = capacity(self.rates, scope)
        for block in blocks:
            if addresses[block.name] + block.size_bytes > room:
                step = block.first_step
                live = [b for b in blocks if b.first_step <= step <= b.last_step]
                rule = f"no gap of {block.size_bytes} B is free"
                self.note_spill(longest_lived(live).name, step, rule)
                return False
        self.addresses.update((block.name, addresses[block.name]) for block in blocks)
        return True

    def add_to_ddr(self, name: str) -> None:
        """Give a storage an address of its own in DDR."""
        self.addresses[name] = self.ddr_end
        self.ddr_end += self.storages[name].size_bytes

    def occupy(self, scope: str, name: str, address: int) -> None:
        """Note where a storage lies."""
        storage = self.storages[name]
        self.addresses[name] = address
        end = address + place_bytes(storage)
        for step in range(storage.first_step, storage.last_step + 1):
            self.live[scope].setdefault(step, {})[name] = (address, end)

    def tile_all(self) -> bool:
        """Choose the tile loops that are missing; return whether nothing had to move."""
        moved = False
        for step in self.program.steps:
            while step.operators and step.number not in self.tilings:
                if not self.tile(step):
                    self.move_out(step)
                    moved = True
        return not moved

    def tile(self, step: ChipStep) -> bool:
        """Choose a step's tile loop; return whether its slots find room."""
        if step.number not in self.works:
            program = replace(self.program, storages=self.storages)
            self.works[step.number] = layer_work(program, step, self.rates)
        gaps: list[list[tuple[int, int]]] = []
        for scope in (LOCAL, SHARED):
            taken = list(self.live[scope].get(step.number, {}).values())
            gaps.append(free_gaps(taken, capacity(self.rates, scope)))
        work = self.works[step.number]
        tiling = choose_tiling(work, self.rates, gaps[0], gaps[1], self.overlapped)
        if tiling is not None:
            self.tilings[step.number] = tiling
        return tiling is not None

    def move_out(self, step: ChipStep) -> None:
        """Move the longest-lived storage out of a step's way. Raises BadPlan without one."""
        scope = LOCAL if self.live[LOCAL].get(step.number) else SHARED
        names = self.live[scope].get(step.number, {})
        if not names:
            self.compute_from_ddr(step)
            return
        live = [
            Block(name, end - start, self.storages[name].first_step, self.storages[name].last_step)
            for name, (start, end) in names.items()
        ]
        name = longest_lived(live).name
        storage = self.storages[name]
        steps = range(storage.first_step, storage.last_step + 1)
        for number in steps:
            del self.live[scope][number][name]
        self.note_spill(name, step.number, "its tiles find no slots")
        self.place_again(name, steps)
        self.forget_users(name)

    def place_again(self, name: str, steps: range) -> None:
        """Give a storage that moved an address in its new buffer, else in DDR."""
        storage = self.storages[name]
        if storage.scope == SHARED:
            taken: set[tuple[int, int]] = set()
            for step in steps:
                taken.update(self.live[SHARED].get(step, {}).values())
            address = lowest_gap(sorted(taken), storage.size_bytes)
            if address + storage.size_bytes <= capacity(self.rates, SHARED):
                self.occupy(SHARED, name, address)
                for step in steps:
                    self.tilings.pop(step, None)
                return
            self.note_spill(name, steps[0], "no gap is free")
        self.add_to_ddr(name)

    def forget_users(self, name: str) -> None:
        """Let the steps that read or write a storage be tiled again."""
        storage = self.storages[name]
        for number in range(storage.first_step, storage.last_step + 1):
            step = self.program.steps[number]
            if step.writes == name or any(r.storage == name for r in step.readings):
                self.works.pop(number, None)
                self.tilings.pop(number, None)

    def compute_from_ddr(self, step: ChipStep) -> None:
        """Let a layer that does not fit even alone bypass the buffers. Raises BadPlan.

        It is refused where the machine has no such way.
        """
        if not self.rates.accelerator.ddr_fallback:
            raise self.does_not_fit(step)
        buffer, needed = self.shortfall(step)
        rule = f"smallest tiles do not fit {capacity(self.rates, buffer)} B, fallback: {DDR}"
        self.spills.append(Spill(step.name, buffer, DDR, needed, rule))
        self.tilings[step.number] = bypass_tiling(self.works[step.number], self.rates)

    def shortfall(self, step: ChipStep) -> tuple[str, int]:
        """Return the buffer that is too small for a step's finest tiles, and what they need."""
        needed = smallest_slots_bytes(self.works[step.number], self.rates)
        too_small = needed[SHARED] > capacity(self.rates, SHARED)
        buffer = SHARED if too_small and needed[LOCAL] <= capacity(self.rates, LOCAL) else LOCAL
        return buffer, needed[buffer]

    def does_not_fit(self, step: ChipStep) -> BadPlan:
        """Return the refusal of a step that does not fit even alone."""
        buffer, needed = self.shortfall(step)
        name = "a local buffer" if buffer == LOCAL else "the global buffer"
        return BadPlan(
            f"layer {step.name} does not fit even alone, {self.rates.accelerator.name}, its"
            f" smallest tiles need {needed} B of {name}'s {capacity(self.rates, buffer)} B,"
            f" fallback: {DDR} would compute it from {DDR}"
        )
