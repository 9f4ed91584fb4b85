"""What one step asks of the engines, before it is cut into tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod

from nnstretch.accelerate.chip_graph import ChipGraph
from nnstretch.accelerate.engines.program import ChipStep, Program, Reading, Storage
from nnstretch.accelerate.machine.rates import ChipRates
from nnstretch.accelerate.operator_work import (
    MatrixShape,
    matrix_shape,
    mixed_elements,
    product_operands,
    row_weight,
    row_weight_bytes,
    vector_operations,
    weight_bytes,
)
from nnstretch.accelerate.steps.split import boxes_behind
from nnstretch.chip.boxes import Box, box_elements, box_shape, intersect
from nnstretch.chip.instances import DDR, LOCAL, Binding
from nnstretch.graph import names_read
from nnstretch.structure.slices.rules import input_boxes


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes of an operand that lies outside of the local buffers."""

    storage: str
    buffer: str
    size_bytes: int
    kept: bool
    """Whether every tile of output channels needs all of it: a product's first operand."""
    cores: int
    """Among which it is split; the others receive the same."""
    columns: bool = False
    """Whether every tile of rows needs all of it: the second operand, which no weight is."""
    matrices: int = 1
    """In it, where several products share nothing else."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Work of a step: shares are those of one core."""

    cores: int
    shape: MatrixShape | None
    """Each core's products."""
    output_cores: int
    """Cores among which output channels are split; the others receive the same weights."""
    weight_bytes: int
    """Distinct ones, of all cores, without those that are streamed."""
    weights: int
    """Weights that it reads so."""
    simple: float
    special: float
    """Vector operations of each core."""
    streams: tuple[Stream, ...]
    local_reads: tuple[str, ...]
    result: Storage
    mixed: int
    """Elements of the result that need each other: softmax, norms."""
    exchanged_bytes: float
    """Bytes that each core receives from others before it starts."""

    @property
    def positions(self) -> int:
        """Return into how many row tiles it can be cut at most."""
        if self.shape is not None:
            return self.shape.positions
        return max(1, box_elements(self.result.box) // self.mixed // self.cores)


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
    weights = loaded_bytes(chip, step)
    if shape is not None and rates.accelerator.matrix.whole_tiles and shape.weighted:
        tiles = shape.count * rates.unit_tiles(shape)
        weights = tiles * rates.rows * rates.columns * chip.element_bytes
    products: Mapping[str, Sequence[Stream]] = {}
    if shape is not None and share is not None and not shape.weighted:
        products = product_streams(chip, step, binding, output_cores, shape.count // share.count)
    dense = shape is not None and not shape.depthwise and shape.count == 1
    streams, local_reads = operands(program, step, dense, products)
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
        weights_read(chip, step.operators) - (row_weight(chip, anchor) is not None),
        simple,
        special,
        streams,
        local_reads,
        result,
        max(mixed_elements(chip, name) for name in step.operators),
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


def loaded_bytes(chip: ChipGraph, step: ChipStep) -> int:
    """Return the bytes of weights that a layer reads, without rows that are streamed."""
    size_bytes = sum(weight_bytes(chip, name, step.boxes[name]) for name in step.operators)
    anchor = step.operators[0]
    return size_bytes - row_weight_bytes(chip, anchor, step.boxes[anchor])


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
    program: Program, step: ChipStep, dense: bool, products: Mapping[str, Sequence[Stream]]
) -> tuple[tuple[Stream, ...], tuple[str, ...]]:
    """Return operands to stream in, and storages that lie in the local buffers.

    `products` are the operands of a product of activations by their tensor.
    """
    chip = program.chip
    streams = list(chain.from_iterable(products[name] for name in products if name in chip.weights))
    local: list[str] = []
    anchor_reads = set(chip.reads[step.operators[0]])
    cores = program.storages[step.writes].binding.cores
    for reading in step.readings:
        storage = program.storages[reading.storage]
        if storage.scope == LOCAL:
            local.append(reading.storage)
        elif reading.tensor in products:
            for stream in products[reading.tensor]:
                streams.append(replace(stream, storage=reading.storage, buffer=storage.scope))
        else:
            size_bytes = chip.bytes_of(reading.tensor, reading.box)
            kept = dense and reading.tensor in anchor_reads
            streams.append(Stream(reading.storage, storage.scope, size_bytes, kept, cores))
    return tuple(streams), tuple(local)


def product_streams(
    chip: ChipGraph, step: ChipStep, binding: Binding, output_cores: int, head_cores: int
) -> dict[str, list[Stream]]:
    """Return the operands of a product of activations by their tensor, as if in DDR.

    One tensor may be both, and the first may be a weight.
    """
    node = chip.nodes[step.operators[0]]
    areas = input_boxes(node, step.boxes[node.name], chip.specs)
    streams: dict[str, list[Stream]] = {}
    for name, columns in zip(product_operands(node), (False, True), strict=True):
        matrix = max(1, prod(box_shape(areas[name])[-2:]))
        for root, part in chip.root_boxes(name, areas[name]).items():
            matrices = max(1, box_elements(part) // matrix)
            cores = output_cores * min(head_cores, matrices) if columns else binding.cores
            size_bytes = chip.bytes_of(root, part)
            stream = Stream(root, DDR, size_bytes, not columns, cores, columns, matrices)
            streams.setdefault(root, []).append(stream)
    return streams


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
