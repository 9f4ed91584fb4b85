"""What one step asks of the engines, before it is cut into tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.engines.program import ChipStep, Program, Reading, Storage
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import (
    MatrixShape,
    matrix_shape,
    vector_operations,
    weight_bytes,
)
from nnstretch.accelerate.steps.split import boxes_behind
from nnstretch.chip.boxes import Box, box_elements, box_shape, intersect
from nnstretch.chip.instances import LOCAL, Binding
from nnstretch.graph import names_read

_MIXES_ROWS = "softmax _softmax log_softmax layer_norm rms_norm group_norm"
MIXES_ROWS = frozenset(_MIXES_ROWS.split())


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes of an operand that lies outside of the local buffers."""

    storage: str
    buffer: str
    size_bytes: int
    kept: bool
    """Whether every tile of output channels needs all of it."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Work of a step: shares are those of one core."""

    cores: int
    shape: MatrixShape | None
    """Each core's products."""
    output_cores: int
    """Cores among which output channels are split; the others receive the same weights."""
    weight_bytes: int
    """Distinct ones, of all cores."""
    weights: int
    """Weights that it reads."""
    simple: float
    special: float
    """Vector operations of each core."""
    streams: tuple[Stream, ...]
    local_reads: tuple[str, ...]
    result: Storage
    mixes_rows: bool
    """Whether an element of the result needs all of its row: softmax, norms."""
    exchanged_bytes: float
    """Bytes that each core receives from others before it starts."""

    @property
    def positions(self) -> int:
        """Return into how many row tiles it can be cut at most."""
        if self.shape is not None:
            return self.shape.positions * (1 if self.shape.weighted else self.shape.count)
        inner = box_shape(self.result.box)[-1] if self.mixes_rows else 1
        return max(1, box_elements(self.result.box) // inner // self.cores)


def layer_work(program: Program, step: ChipStep, rates: ChipRates) -> LayerWork:
    """Return the work of a layer."""
    chip = program.chip
    result = program.storages[step.writes]
    anchor = step.operators[0]
    binding = result.binding
    shape = matrix_shape(chip, anchor, step.boxes[anchor])
    output_cores = 1
    share = shape
    if shape is not None:
        share, output_cores = core_share(chip, anchor, shape, binding)
    simple, special = vector_work(chip, step, binding.cores)
    weights = sum(weight_bytes(chip, name, step.boxes[name]) for name in step.operators)
    if shape is not None and rates.accelerator.matrix.whole_tiles and shape.weighted:
        tiles = shape.count * rates.unit_tiles(shape)
        weights = tiles * rates.rows * rates.columns * chip.element_bytes
    dense = shape is not None and not shape.depthwise and shape.count == 1
    streams, local_reads = operands(program, step, dense)
    exchanged = sum(
        exchanged_bytes(program, step, reading, binding)
        for reading in step.readings
        if program.storages[reading.storage].scope == LOCAL
    )
    return LayerWork(
        binding.cores,
        share,
        output_cores,
        weights,
        weights_read(chip, step.operators),
        simple,
        special,
        streams,
        local_reads,
        result,
        any(chip.nodes[name].kind in MIXES_ROWS for name in step.operators),
        exchanged,
    )


def core_share(
    chip: ChipGraph, name: str, shape: MatrixShape, binding: Binding
) -> tuple[MatrixShape, int]:
    """Return one core's products, and the cores among which output channels are split."""
    rank = len(chip.specs[name].shape)
    channel = 1 if chip.nodes[name].kind.startswith("conv") else rank - 1
    output_cores = heads = 1
    for factor, axis in zip(binding.factors, binding.axes, strict=True):
        if axis == channel:
            output_cores = factor
        elif not shape.weighted and axis < rank - 2:
            heads *= factor
    rows = max(1, binding.cores // output_cores // heads)
    per_group = output_cores if shape.count == 1 or not shape.weighted else 1
    groups = heads if not shape.weighted else output_cores // per_group
    return (
        replace(
            shape,
            count=-(-shape.count // groups),
            positions=-(-shape.positions // rows),
            outputs=-(-shape.outputs // per_group),
        ),
        output_cores,
    )


def weights_read(chip: ChipGraph, operators: Sequence[str]) -> int:
    """Return how many weights operators read."""
    read = names_read(chip.nodes[name] for name in operators)
    return sum(chip.roots[name] in chip.weights for name in read)


def vector_work(chip: ChipGraph, step: ChipStep, cores: int) -> tuple[float, float]:
    """Return simple and special operations of each core."""
    simple = special = 0.0
    for name in step.operators:
        by_element = vector_operations(chip, name)
        elements = box_elements(step.boxes[name]) / cores
        simple += by_element[0] * elements
        special += by_element[1] * elements
    return simple, special


def operands(
    program: Program, step: ChipStep, dense: bool
) -> tuple[tuple[Stream, ...], tuple[str, ...]]:
    """Return operands to stream in, and storages that lie in the local buffers."""
    chip = program.chip
    streams: list[Stream] = []
    local: list[str] = []
    anchor_reads = set(chip.reads[step.operators[0]])
    for reading in step.readings:
        storage = program.storages[reading.storage]
        if storage.scope == LOCAL:
            local.append(reading.storage)
            continue
        size_bytes = chip.bytes_of(reading.tensor, reading.box)
        kept = dense and reading.tensor in anchor_reads
        streams.append(Stream(reading.storage, storage.scope, size_bytes, kept))
    return tuple(streams), tuple(local)


def core_box(box: Box, binding: Binding, core: int) -> Box:
    """Return one core's share of a box."""
    ranges = list(box)
    number = core
    for factor, axis in reversed(tuple(zip(binding.factors, binding.axes, strict=True))):
        start, stop = ranges[axis]
        number, index = divmod(number, factor)
        size = stop - start
        ranges[axis] = (start + index * size // factor, start + (index + 1) * size // factor)
    return tuple(ranges)


def exchanged_bytes(program: Program, step: ChipStep, reading: Reading, binding: Binding) -> float:
    """Return the bytes of a local operand that the middle core does not hold itself."""
    if binding.cores == 1 and program.storages[reading.storage].binding.cores == 1:
        return 0.0
    source = program.storages[reading.storage]
    last = step.operators[-1]
    core = binding.cores // 2
    needed = needed_by_core(program.chip, step.operators, last, step.boxes[last], binding, core)
    area = needed.get(reading.tensor)
    if area is None:
        return 0.0
    at_core = core * source.binding.cores // binding.cores
    present = intersect(area, core_box(source.box, source.binding, at_core))
    missing = box_elements(area) - (0 if present is None else box_elements(present))
    return float(max(0, missing) * program.chip.element_size(reading.tensor))


def needed_by_core(
    chip: ChipGraph,
    operators: Sequence[str],
    last: str,
    box: Box,
    binding: Binding,
    core: int,
) -> dict[str, Box]:
    """Return what a core needs of each tensor to compute its share."""
    return boxes_behind(chip, operators, {last: core_box(box, binding, core)})
