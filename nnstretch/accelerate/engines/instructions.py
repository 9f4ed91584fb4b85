"""C2 and C4: the instructions of every tile, engine by engine, in program order.

A weight tile crosses DDR to the global buffer (DMA), goes on to the local buffers (hoisting), then
the matrix and the vector unit compute, and a result that does not stay is stored. The addresses
that an instruction reads and writes say what it must wait for.
"""

from __future__ import annotations

from nnstretch.accelerate.engines.layer_work import LayerWork, Stream
from nnstretch.accelerate.engines.placed_program import PlacedProgram
from nnstretch.accelerate.engines.program import ChipStep, Reading, Storage
from nnstretch.accelerate.engines.tiling import (
    Tiling,
    result_tile_bytes,
    stream_tile,
    stream_tile_bytes,
    tile_shape,
    tile_weight_bytes,
    weight_tiles,
)
from nnstretch.accelerate.machine.rates import HOST, MATRIX, PORT, VECTOR, ChipRates
from nnstretch.chip.boxes import Box
from nnstretch.chip.instances import DDR, LOCAL, SHARED, Instruction, Region

PASSING = "passing"
"""Where the bytes of a copy wait between being read and written in one memory: two places."""


def instructions_of(placed: PlacedProgram, rates: ChipRates) -> tuple[Instruction, ...]:
    """Return the instructions of a program in program order."""
    emitter = Emitter(placed, rates)
    for step in placed.program.steps:
        emitter.add_step(step)
    return tuple(emitter.instructions)


class Emitter:
    """Writer of instructions, step by step."""

    def __init__(self, placed: PlacedProgram, rates: ChipRates) -> None:
        self.placed = placed
        self.rates = rates
        self.instructions: list[Instruction] = []
        self.kernel = -1
        self.step = 0
        self.queued_tiles = 0
        self.tiles_there: dict[tuple[str, bool], int] = {}
        """Number of the last tile of each operand that a step has moved."""
        self.copies = 0
        """Those within a memory."""

    def add_step(self, step: ChipStep) -> None:
        """Add the instructions of a step, with a launch before a new kernel."""
        self.step = step.number
        if step.kernel != self.kernel:
            self.kernel = step.kernel
            if self.rates.accelerator.launch_us:
                self.emit(f"launch {step.instance}", HOST, self.rates.accelerator.launch_us)
        if step.operators:
            self.add_layer(step)
        else:
            self.add_concatenation(step)

    def emit(
        self,
        name: str,
        engine: str,
        duration_us: float,
        reads: tuple[Region, ...] = (),
        writes: tuple[Region, ...] = (),
        size_bytes: int = 0,
    ) -> None:
        """Append an instruction."""
        self.instructions.append(
            Instruction(
                name, engine, duration_us, reads, writes, self.kernel, self.step, size_bytes
            )
        )

    def add_concatenation(self, step: ChipStep) -> None:
        """Add the copies of each piece."""
        target = self.placed.program.storages[step.writes]
        region = self.placed.region(step.writes)
        for index, reading in enumerate(step.readings):
            source = self.placed.program.storages[reading.storage]
            part = region.share(index, len(step.readings))
            # The first piece of what comes back takes all of its place.
            if source.box == target.box and (index or step.number > target.first_step):
                part = share_of_box(region, reading.box, target.box)
            elif source.box == target.box:
                part = region
            self.add_copy(f"{step.name} {reading.storage}", reading, target, part)

    def add_copy(self, name: str, reading: Reading, target: Storage, part: Region) -> None:
        """Add the copy of a piece: one crossing, or two within a memory outside of the cores."""
        rates, cores = self.rates, target.binding.cores
        origin = self.placed.program.storages[reading.storage].scope
        size_bytes = self.placed.program.chip.bytes_of(reading.tensor, reading.box)
        source = self.placed.region(reading.storage)
        if origin != target.scope:
            engine = rates.engine(origin, target.scope)
            cost_us = rates.transfer_us(size_bytes, origin, target.scope, cores)
            self.emit(name, engine, cost_us, (source,), (part,), size_bytes)
        elif origin == LOCAL:
            cost_us = rates.exchange_us(size_bytes / cores, cores)
            self.emit(name, PORT, cost_us, (source,), (part,), size_bytes)
        else:
            cost_us = rates.transfer_us(size_bytes, origin, origin, cores)
            passing = Region(PASSING, self.copies % 2, self.copies % 2 + 1)
            self.copies += 1
            load, store = rates.engine(origin, LOCAL), rates.engine(LOCAL, origin)
            self.emit(f"{name} load", load, cost_us, (source,), (passing,), size_bytes)
            self.emit(f"{name} store", store, cost_us, (passing,), (part,), size_bytes)

    def add_layer(self, step: ChipStep) -> None:
        """Add the tile loop of a layer."""
        work, tiling = self.placed.works[step.number], self.placed.tilings[step.number]
        local = tuple(self.placed.region(name) for name in work.local_reads)
        if work.exchanged_bytes:
            cost_us = self.rates.exchange_us(work.exchanged_bytes, work.cores)
            moved = int(work.exchanged_bytes * work.cores)
            self.emit(f"{step.name} exchange", PORT, cost_us, local, (), moved)
        slot: tuple[Region, ...] = ()
        self.tiles_there = {}
        for output in range(tiling.outputs):
            for index in range(tiling.inputs):
                number = output * tiling.inputs + index
                if number < weight_tiles(work, tiling) and not tiling.weights_by_rows:
                    slot = self.load_weights(step, work, tiling, number)
                for row in range(tiling.rows):
                    if tiling.weights_by_rows and index == tiling.inputs - 1:
                        slot = self.load_weights(step, work, tiling, output * tiling.rows + row)
                    elif row and work.shape is None:
                        slot = self.load_weights(step, work, tiling, row)
                    self.add_tile(step, work, tiling, (output, index, row), slot, local)

    def load_weights(
        self, step: ChipStep, work: LayerWork, tiling: Tiling, number: int
    ) -> tuple[Region, ...]:
        """Add the transfer of a weight tile; return where it lies."""
        if not work.weight_bytes:
            return ()
        distinct, _ = tile_weight_bytes(work, tiling)
        place = number
        if self.rates.accelerator.matrix.weight_tiles:
            # The tiles of one layer queue up behind those of the layer before.
            place = self.queued_tiles
            self.queued_tiles += 1
        slot = tiling.weight_slots[place % len(tiling.weight_slots)]
        rates, name = self.rates, f"{step.name} weights {number}"
        engine = rates.engine(DDR, LOCAL)
        kept = self.placed.kept.get(step.number)
        if kept is None and not tiling.staging_slots:
            cost_us = rates.transfer_us(distinct, DDR, LOCAL, work.cores)
            self.emit(name, engine, cost_us, (), (slot,), distinct)
            return (slot,)
        if kept is None:
            staging = tiling.staging_slots[number % len(tiling.staging_slots)]
        else:
            staging = kept.region.share(number, weight_tiles(work, tiling))
        if kept is None or kept.steps[0] == step.number:
            cost_us = rates.transfer_us(distinct, DDR, SHARED, work.cores)
            self.emit(name, engine, cost_us, (), (staging,), distinct)
        cost_us = rates.transfer_us(distinct, SHARED, LOCAL, work.cores)
        self.emit(f"{name} hoist", PORT, cost_us, (staging,), (slot,), distinct)
        return (slot,)

    def add_tile(
        self,
        step: ChipStep,
        work: LayerWork,
        tiling: Tiling,
        place: tuple[int, int, int],
        weights: tuple[Region, ...],
        local: tuple[Region, ...],
    ) -> None:
        """Add what one tile loads, computes and stores."""
        output, index, row = place
        number = (output * tiling.inputs + index) * tiling.rows + row
        reads = list(local)
        for stream, slots in zip(work.streams, tiling.stream_slots, strict=True):
            reads.append(self.load_operand(step, work, tiling, stream, slots, place))
        streamed = work.result.scope != LOCAL
        result = tiling.result_slots[number % len(tiling.result_slots)]
        piece = output * tiling.rows + row
        target = self.placed.region(step.writes).share(piece, tiling.outputs * tiling.rows)
        if not streamed:
            result = target
        name = f"{step.name} {number}"
        if work.shape is not None:
            cost_us = self.rates.matrix_us(tile_shape(work.shape, tiling, self.rates))
            self.emit(name, MATRIX, cost_us, (*weights, *reads), (result,))
        if index != tiling.inputs - 1:
            return
        parts = tiling.outputs * tiling.rows
        cost_us = self.rates.vector_us(work.simple / parts, work.special / parts)
        if cost_us or work.shape is None:
            operands = (result, *reads) if work.shape is not None else (*weights, *reads)
            self.emit(f"{name} vector", VECTOR, cost_us, operands, (result,))
        if streamed:
            size_bytes = result_tile_bytes(work, tiling)
            scope = work.result.scope
            cost_us = self.rates.transfer_us(size_bytes, LOCAL, scope, work.cores)
            engine = self.rates.engine(LOCAL, scope)
            self.emit(f"{name} store", engine, cost_us, (result,), (target,), size_bytes)

    def load_operand(
        self,
        step: ChipStep,
        work: LayerWork,
        tiling: Tiling,
        stream: Stream,
        slots: tuple[Region, ...],
        place: tuple[int, int, int],
    ) -> Region:
        """Add the transfer of an operand's tile, unless it is there; return where it lies."""
        number = stream_tile(work, stream, tiling, place)
        slot = slots[number % len(slots)]
        key = stream.storage, stream.columns
        # What is added to a sum is there with its first part.
        added_before = place[1] and not (stream.kept or stream.columns)
        if self.tiles_there.get(key) == number or added_before:
            return slot
        self.tiles_there[key] = number
        size_bytes = stream_tile_bytes(work, stream, tiling)
        cost_us = self.rates.transfer_us(size_bytes, stream.buffer, LOCAL, work.cores)
        engine = self.rates.engine(stream.buffer, LOCAL)
        reads: tuple[Region, ...] = ()
        name = f"{step.name} weights {number}"
        if stream.storage in self.placed.program.storages:
            reads = (self.placed.region(stream.storage),)
            name = f"{step.name} {stream.storage} {number}"
        self.emit(name, engine, cost_us, reads, (slot,), size_bytes)
        return slot


def share_of_box(region: Region, inner: Box, outer: Box) -> Region:
    """Return the share of a region that a part holds which was cut along one dimension."""
    for (start, stop), (begin, end) in zip(inner, outer, strict=True):
        if (start, stop) != (begin, end):
            first = region.share(start - begin, end - begin)
            last = region.share(stop - begin - 1, end - begin)
            return Region(region.buffer, first.start, last.stop)
    return region
