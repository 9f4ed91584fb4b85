"""Whether a .tflite file is the sub-graph that its manifest speaks of, before a runtime sees it.

LiteRT follows offsets and indices of a file as they are. Here each is checked: tables inside the
file, tensors and buffers that exist, constants as long as their shapes, operators that only
compute, and at the edges the tensors of the manifest.
Source: schema.fbs of LiteRT 2.3, whose slots stand below by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from nnstretch.bundle.manifest import Subgraph
from nnstretch.bundle.model_files.edges import TensorInfo, argument_order, check_order
from nnstretch.bundle.model_files.flatbuffer import Table, root_table

IDENTIFIER = b"TFL3"
MODEL_CODES, MODEL_GRAPHS, MODEL_BUFFERS, MODEL_METADATA, MODEL_SIGNATURES = 1, 2, 4, 6, 7
CODE_OLD, CODE_CUSTOM, CODE = 0, 1, 3
GRAPH_TENSORS, GRAPH_INPUTS, GRAPH_OUTPUTS, GRAPH_OPERATORS = 0, 1, 2, 3
TENSOR_SHAPE, TENSOR_TYPE, TENSOR_BUFFER, TENSOR_NAME, TENSOR_QUANTIZATION = 0, 1, 2, 3, 4
TENSOR_VARIABLE, TENSOR_SPARSITY, TENSOR_SIGNATURE, TENSOR_VARIANTS = 5, 6, 7, 9
BUFFER_DATA, BUFFER_OFFSET, BUFFER_SIZE = 0, 1, 2
OPERATOR_CODE, OPERATOR_INPUTS, OPERATOR_OUTPUTS, OPERATOR_OPTIONS = 0, 1, 2, 4
OPERATOR_OPTIONS_TYPE, OPERATOR_MUTATING, OPERATOR_INTERMEDIATES = 3, 7, 8
SCALES, ZERO_POINTS, DETAILS_TYPE, QUANTIZED_AXIS = 2, 3, 4, 6
SIGNATURE_INPUTS, SIGNATURE_OUTPUTS, SIGNATURE_GRAPH = 0, 1, 4
ELEMENT_TYPES = {
    0: ("float32", 32),
    1: ("float16", 16),
    2: ("int32", 32),
    3: ("uint8", 8),
    4: ("int64", 64),
    6: ("bool", 8),
    7: ("int16", 16),
    9: ("int8", 8),
    10: ("float64", 64),
    15: ("uint32", 32),
    16: ("uint16", 16),
    17: ("int4", 4),
}
"""By code: name and bits of one element."""
NOT_COMPUTED = frozenset(
    {
        *(7, 10, 13, 15, 16, 24, 27, 29, 30, 33, 35, 44, 46, 52),  # tables, recurrent networks
        *(31, 32, 51, 118, 119, 127, 129),  # calls, custom code, control flow
        *(136, 137, 138, 139, 142, 143, 144, 146, 148, 149),  # state and random numbers
    }
)
LAST_OPERATOR = 161
"""Codes behind it are StableHLO's."""
RESHAPE, SQUEEZE = 22, 43
CONV_2D, DEPTHWISE_CONV_2D, AVERAGE_POOL_2D, L2_POOL_2D, MAX_POOL_2D = 3, 4, 1, 12, 17
TRANSPOSE_CONV = 67
WINDOWS = {
    CONV_2D: (1, (1, 2), (4, 5)),
    DEPTHWISE_CONV_2D: (2, (1, 2, 3), (5, 6)),
    AVERAGE_POOL_2D: (5, (1, 2, 3, 4), ()),
    L2_POOL_2D: (5, (1, 2, 3, 4), ()),
    MAX_POOL_2D: (5, (1, 2, 3, 4), ()),
    TRANSPOSE_CONV: (49, (1, 2), ()),
}
"""By operator: type of its options, slots of sizes without a default, and of dilations (1)."""
MAX_WINDOW = 1 << 16
MAX_RANK = 8
MAX_NAME = 4096
MAX_ELEMENTS = 1 << 32
MAX_OPERATORS = 100_000
MAX_READS = 1_000_000
"""Tensors that all operators read together: lists in a file may be shared."""


@dataclass(frozen=True, slots=True)
class TfliteTensor:
    """A tensor as the file declares it."""

    name: str
    info: TensorInfo
    constant: bool


def check_tflite(data: bytes, subgraph: Subgraph, where: str) -> None:
    """Check a file against its manifest. Raises BrokenFile, or ValueError with `WHAT, WHY`."""
    model = root_table(memoryview(data), IDENTIFIER, "the model")
    graphs = model.tables(MODEL_GRAPHS, "a graph")
    if len(graphs) != 1:
        raise ValueError(f"{len(graphs)} graphs, a sub-graph is one, without control flow")
    buffers = read_buffers(model)
    tensors = read_tensors(graphs[0], buffers)
    codes = read_codes(model)
    inputs = _indices(graphs[0], GRAPH_INPUTS, len(tensors))
    outputs = _indices(graphs[0], GRAPH_OUTPUTS, len(tensors))
    check_order_of_operators(graphs[0], codes, tensors, (inputs, outputs))
    _check_signatures(model, len(tensors))
    for entry in model.tables(MODEL_METADATA, "metadata"):
        if entry.number(1, "I") >= len(buffers):
            raise ValueError(f"metadata in buffer {entry.number(1, 'I')} of {len(buffers)}")
    reads = [tensors[index] for index in inputs]
    order = argument_order([tensor.name for tensor in reads])
    check_order(where, "reads", subgraph.inputs, [reads[index].info for index in order])
    check_order(where, "writes", subgraph.outputs, [tensors[index].info for index in outputs])


def constant_kernels(data: bytes) -> list[int]:
    """Return the elements of each convolution's kernel in a file that was checked."""
    model = root_table(memoryview(data), IDENTIFIER, "the model")
    (graph,) = model.tables(MODEL_GRAPHS, "a graph")
    tensors, codes = read_tensors(graph, read_buffers(model)), read_codes(model)
    kernels: list[int] = []
    for operator in graph.tables(GRAPH_OPERATORS, "an operator"):
        if codes[operator.number(OPERATOR_CODE, "I")] in (
            CONV_2D,
            DEPTHWISE_CONV_2D,
            TRANSPOSE_CONV,
        ):
            kernel = tensors[operator.numbers(OPERATOR_INPUTS, "i")[1]]
            if kernel.constant:
                kernels.append(prod(size or 0 for size in kernel.info.shape or ()))
    return kernels


def read_buffers(model: Table) -> tuple[int, ...]:
    """Return the bytes of each buffer. Raises ValueError where one lies outside the file."""
    sizes: list[int] = []
    for number, buffer in enumerate(model.tables(MODEL_BUFFERS, "a buffer")):
        vector = buffer.vector(BUFFER_DATA, 1)
        offset, size = buffer.number(BUFFER_OFFSET, "Q"), buffer.number(BUFFER_SIZE, "Q")
        if offset > 1 and (vector.items or offset + size > len(model.data)):
            raise ValueError(
                f"buffer {number} at byte {offset} of {len(model.data)}, {size} bytes, cut off"
            )
        sizes.append(size if offset > 1 else vector.items)
    return tuple(sizes)


def read_codes(model: Table) -> tuple[int, ...]:
    """Return the operators that the file uses. Raises ValueError for one that is not computed."""
    codes: list[int] = []
    for entry in model.tables(MODEL_CODES, "an operator code"):
        code = max(entry.number(CODE_OLD, "b"), entry.number(CODE, "i"))
        if entry.text(CODE_CUSTOM) or code in NOT_COMPUTED or not 0 <= code <= LAST_OPERATOR:
            raise ValueError(
                f"operator code {code}, custom code, control flow, state or an unknown one"
            )
        codes.append(code)
    return tuple(codes)


def read_tensors(graph: Table, buffers: Sequence[int]) -> tuple[TfliteTensor, ...]:
    """Return the tensors. Raises ValueError where a constant does not fill its shape."""
    tensors: list[TfliteTensor] = []
    for number, entry in enumerate(graph.tables(GRAPH_TENSORS, "a tensor")):
        where = f"tensor {number}"
        code = entry.number(TENSOR_TYPE, "b")
        if code not in ELEMENT_TYPES:
            raise ValueError(f"{where} of element type {code}, unknown")
        dtype, bits = ELEMENT_TYPES[code]
        shape = entry.numbers(TENSOR_SHAPE, "i")
        if len(shape) > MAX_RANK or min(shape, default=0) < 0 or prod(shape) > MAX_ELEMENTS:
            raise ValueError(f"{where} of shape {str(shape)[:80]}, limit {MAX_ELEMENTS} elements")
        signature = entry.numbers(TENSOR_SIGNATURE, "i")
        if signature and signature != shape:
            raise ValueError(f"{where} of shape {shape} with signature {signature[:8]}, open sizes")
        _check_plain(entry, where)
        buffer = entry.number(TENSOR_BUFFER, "I")
        if buffer >= len(buffers):
            raise ValueError(f"{where} in buffer {buffer} of {len(buffers)}")
        needed = -(-prod(shape) * bits // 8)
        if buffers[buffer] not in (0, needed):
            raise ValueError(f"{where} of {needed} bytes in a buffer of {buffers[buffer]}")
        _check_quantization(entry, shape, where)
        name = entry.text(TENSOR_NAME, MAX_NAME).decode(errors="replace")
        tensors.append(TfliteTensor(name, TensorInfo(shape, dtype), buffers[buffer] > 0))
    return tuple(tensors)


def _check_plain(entry: Table, where: str) -> None:
    if entry.number(TENSOR_VARIABLE, "B"):
        raise ValueError(f"{where}, it is a variable, a sub-graph keeps no state")
    if entry.table(TENSOR_SPARSITY, where) or entry.vector(TENSOR_VARIANTS, 4).items:
        raise ValueError(f"{where}, it is sparse or a variant, tensors are dense")


def _check_quantization(entry: Table, shape: tuple[int, ...], where: str) -> None:
    table = entry.table(TENSOR_QUANTIZATION, f"quantization of {where}")
    if table is None:
        return
    scales = table.vector(SCALES, 4).items
    zero_points = table.vector(ZERO_POINTS, 8).items
    axis = table.number(QUANTIZED_AXIS, "i")
    channels = 1
    if scales > 1:
        channels = shape[axis] if 0 <= axis < len(shape) else 0
    if table.number(DETAILS_TYPE, "B") or scales not in (0, channels):
        raise ValueError(f"{where}, {scales} scales on axis {axis} of {shape}")
    if zero_points not in (0, scales):
        raise ValueError(f"{where}, {zero_points} zero points for {scales} scales")


def check_order_of_operators(
    graph: Table,
    codes: Sequence[int],
    tensors: Sequence[TfliteTensor],
    edges: tuple[Sequence[int], Sequence[int]],
) -> None:
    """Raise ValueError unless every tensor is written once, before it is read: no cycle."""
    inputs, outputs = edges
    known = {index for index, tensor in enumerate(tensors) if tensor.constant}
    for index in inputs:
        _write(index, "an input", known)
    operators = graph.tables(GRAPH_OPERATORS, "an operator")
    if not 1 <= len(operators) <= MAX_OPERATORS:
        raise ValueError(f"{len(operators)} operators, needed are 1 to {MAX_OPERATORS}")
    reads = 0
    for number, operator in enumerate(operators):
        where = f"operator {number}"
        code = operator.number(OPERATOR_CODE, "I")
        if code >= len(codes):
            raise ValueError(f"{where} of code {code}, the file has {len(codes)}")
        read = _indices(operator, OPERATOR_INPUTS, len(tensors), optional=True)
        reads += len(read)
        if reads > MAX_READS:
            raise ValueError(f"{where}, operators up to it read {reads} tensors, limit {MAX_READS}")
        for index in read:
            if index >= 0 and index not in known:
                raise ValueError(f"{where} reads tensor {index} before it is written, a cycle")
        if (
            operator.vector(OPERATOR_INTERMEDIATES, 4).items
            or operator.vector(OPERATOR_MUTATING, 1).items > len(read)
            or any(operator.numbers(OPERATOR_MUTATING, "B"))
        ):
            raise ValueError(f"{where}, it keeps state")
        written = _indices(operator, OPERATOR_OUTPUTS, len(tensors))
        if not written:
            raise ValueError(f"{where} writes nothing")
        for index in written:
            _write(index, where, known)
        _check_options(operator, codes[code], where)
    if missing := [index for index in outputs if index not in known]:
        raise ValueError(f"output tensor {missing[0]}, which nothing writes")


def _write(index: int, writer: str, known: set[int]) -> None:
    if index in known:
        raise ValueError(f"{writer} writes tensor {index}, it is written twice")
    known.add(index)


def _check_options(operator: Table, code: int, where: str) -> None:
    """Check sizes that LiteRT divides by, and lists inside of options."""
    options_type = operator.number(OPERATOR_OPTIONS_TYPE, "B")
    options = operator.table(OPERATOR_OPTIONS, f"options of {where}")
    if code in (RESHAPE, SQUEEZE) and options is not None:
        options.vector(0, 4)
    if code not in WINDOWS:
        return
    wanted, sizes, dilations = WINDOWS[code]
    if options is None or options_type != wanted:
        raise ValueError(f"{where}, options of type {options_type}, needed is {wanted}")
    values = [options.number(slot, "i") for slot in sizes]
    values += [options.number(slot, "i", default=1) for slot in dilations]
    if not all(1 <= size <= MAX_WINDOW for size in values):
        raise ValueError(f"{where}, strides, kernels and dilations {values}, 1 to {MAX_WINDOW}")


def _indices(table: Table, slot: int, count: int, optional: bool = False) -> tuple[int, ...]:
    """Return tensor numbers, -1 for one that was left out. Raises ValueError out of range."""
    indices = table.numbers(slot, "i")
    least = -1 if optional else 0
    if wrong := [index for index in indices if not least <= index < count]:
        raise ValueError(f"{table.what} refers to tensor {wrong[0]}, there are {count}")
    return indices


def _check_signatures(model: Table, count: int) -> None:
    entries = 0
    for signature in model.tables(MODEL_SIGNATURES, "a signature"):
        if signature.number(SIGNATURE_GRAPH, "I"):
            raise ValueError("a signature of another graph, there is one")
        for slot in (SIGNATURE_INPUTS, SIGNATURE_OUTPUTS):
            entries += signature.vector(slot, 4).items
            if entries > MAX_READS:
                raise ValueError(f"signatures of {entries} tensors, limit {MAX_READS}")
            for entry in signature.tables(slot, "a signature's tensor"):
                if entry.number(1, "I") >= count:
                    raise ValueError(f"a signature of tensor {entry.number(1, 'I')} of {count}")
