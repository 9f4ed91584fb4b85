"""Graph and weights -> program: every operator by its rule, then outputs, joins and tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from nnstretch.capture.weight_folding import fold_constants
from nnstretch.errors import UnsupportedOp
from nnstretch.export.cpp.channel_calls import channel_groups
from nnstretch.export.cpp.concat_in_place import write_parts_in_place
from nnstretch.export.cpp.operators import (
    borders,
    composed,
    elementwise,
    lookups,
    norms,
    products,
    shapes,
    shuffles,
    windows,
)
from nnstretch.export.cpp.program import (
    CallGroup,
    CppProgram,
    OperatorCall,
    TensorBuffer,
    TensorView,
    whole_view,
)
from nnstretch.export.cpp.translation import MOST_AXES, Translation, UnsupportedArguments, Views
from nnstretch.graph import Graph, Node, ValueRef
from nnstretch.structure.constants import with_numbers

RULES: dict[str, Callable[[Translation, Node], Views]] = {
    **windows.RULES,
    **norms.RULES,
    **products.RULES,
    **elementwise.RULES,
    **composed.RULES,
    **shapes.RULES,
    **shuffles.RULES,
    **borders.RULES,
    **lookups.RULES,
}
FLOAT, WHOLE = "float32", ("int32", "int64")
KEEPS_TYPE = frozenset(
    {
        *("view", "_unsafe_view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze"),
        *("expand", "slice", "select", "permute", "transpose", "t", "contiguous", "clone", "alias"),
    }
)
"""Operators that move whole numbers as they do others."""
Label = Callable[[str], str]
"""Path of a module in what was captured -> the path that its author knows."""
Placement = Callable[[str], str]
"""Path of a module in what was captured -> the processor of its plan, empty for none."""


def nowhere(_: str) -> str:
    """Leave every call to the policy."""
    return ""


def translate(
    graph: Graph,
    weights: Mapping[str, torch.Tensor],
    granularity: str = "layer",
    placement: Placement = nowhere,
    label: Label = str,
) -> CppProgram:
    """Translate a captured network to calls of the C++ runtime.

    `granularity` says what a task is: one fused `layer`, all layers in a row on one processor of
    the plan (`branch`), the whole `network`, or each pair of channels (`channel`).

    Raises UnsupportedOp with all operators that are missing, how often each occurs and where first;
    BadInput where tasks by `channel` are too many.
    """
    check_inputs(graph)
    constants = fold_constants(graph, weights)
    arrays = {name: as_array(tensor) for name, tensor in constants.tensors.items()}
    translation = Translation(graph, arrays)
    missing: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.name in constants.names:
            continue
        try:
            translation.values[node.name] = translate_node(translation, node, constants.numbers)
        except UnsupportedArguments as error:
            missing.setdefault(str(error), []).append(label(node.module) or node.name)
            translation.values[node.name] = stand_in(node)
    for name in graph.outputs:
        try:
            check_output(translation, name)
        except UnsupportedArguments as error:
            missing.setdefault(f"output {name} with {error}", []).append(name)
    if missing:
        raise UnsupportedOp(refusal(graph, missing))
    outputs = place_outputs(translation, graph)
    calls = write_parts_in_place(tuple(translation.calls))
    used = {view.buffer.name for view in chain.from_iterable(call.views for call in calls)}
    return CppProgram(
        graph.name,
        tuple(TensorBuffer(value.name, "input", value.spec.shape) for value in graph.inputs),
        outputs,
        group_calls(calls, granularity, placement, graph.name),
        {name: array for name, array in translation.weights.items() if name in used},
        frozenset(value.name for value in graph.inputs if value.spec.dtype in WHOLE),
    )


def as_array(tensor: torch.Tensor) -> np.ndarray:
    """Return the numbers of a constant; NumPy has no bfloat16, float32 holds all of it."""
    array: np.ndarray = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


def check_inputs(graph: Graph) -> None:
    """Check that inputs hold float32, or whole numbers, along as many axes as the runtime has.

    Raises UnsupportedOp naming the others.
    """
    others = [v for v in graph.inputs if v.spec.dtype not in (FLOAT, *WHOLE)]
    if others:
        named = ", ".join(f"{value.name} ({value.spec.dtype})" for value in others)
        raise UnsupportedOp(
            f"no C++ for input {named}, network {graph.name}, only float32 is computed, from it and"
            " from int32 and int64; export it as onnx"
        )
    deep = [value.name for value in graph.inputs if len(value.spec.shape) > MOST_AXES]
    if deep:
        raise UnsupportedOp(
            f"no C++ for input {', '.join(deep)}, network {graph.name}, a tensor of more than"
            f" {MOST_AXES} axes; export it as onnx"
        )


def translate_node(t: Translation, node: Node, numbers: Mapping[str, int | float]) -> Views:
    """Translate one node. Raises UnsupportedArguments with the operator and what is missing."""
    rule = RULES.get(node.kind)
    if rule is None:
        raise UnsupportedArguments(node.op)
    moved = node.kind in KEEPS_TYPE and node.output.dtype in WHOLE
    if node.output.dtype != FLOAT and not moved:
        raise UnsupportedArguments(f"{node.op} of {node.output.dtype}")
    try:
        return rule(t, with_numbers(node, numbers))
    except UnsupportedArguments as error:
        raise UnsupportedArguments(f"{node.op} with {error}") from error


def stand_in(node: Node) -> Views:
    """Return views that let the nodes behind a missing operator be checked, too."""
    views = [whole_view(TensorBuffer(node.name, "arena", spec.shape)) for spec in node.outputs]
    return views[0] if len(views) == 1 else tuple(views)


def refusal(graph: Graph, missing: Mapping[str, list[str]]) -> str:
    """Return one line that names every missing operator, its count and the modules that call it."""
    parts: list[str] = []
    for what, places in missing.items():
        modules = ", ".join(dict.fromkeys(places))
        parts.append(f"{what} ({len(places)} times, in {modules})")
    return f"no C++ for {', '.join(parts)}, network {graph.name}, export it as onnx or litert"


def check_output(t: Translation, name: str) -> None:
    """Check that a result is a tensor of numbers, along as many axes as the runtime has.

    Raises UnsupportedArguments for anything else.
    """
    if name not in t.values and name not in t.constants:
        raise UnsupportedArguments("a size, which is no tensor")
    view = t.view_of(ValueRef(name))
    if not view.elements:
        raise UnsupportedArguments("a tensor without elements")
    if len(view.shape) > MOST_AXES:
        raise UnsupportedArguments(f"a tensor of more than {MOST_AXES} axes")


def place_outputs(t: Translation, graph: Graph) -> tuple[TensorBuffer, ...]:
    """Let every result be written into the caller's memory, by a copy where it takes one."""
    outputs: list[TensorBuffer] = []
    labels = output_names(graph.outputs)
    for name, label in zip(graph.outputs, labels, strict=True):
        view = t.view_of(ValueRef(name))
        output = TensorBuffer(label, "output", view.shape)
        outputs.append(output)
        if view.is_whole and view.buffer.storage == "arena":
            retarget(t, view.buffer, output)
        else:
            copy = OperatorCall("Copy", label, (view,), whole_view(output))
            t.calls.append(copy)
    return tuple(outputs)


def output_names(values: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each result: its value's, with a number where it is returned again."""
    counts = Counter(values)
    names: list[str] = []
    for position, value in enumerate(values):
        name = value if counts[value] == 1 else f"{value}_{position}"
        while counts[value] > 1 and (name in counts or name in names):
            name += "_again"
        names.append(name)
    return tuple(names)


def retarget(t: Translation, old: TensorBuffer, new: TensorBuffer) -> None:
    """Replace a buffer by another one of the same size in all calls and values."""

    def moved(view: TensorView | None) -> TensorView | None:
        return replace(view, buffer=new) if view is not None and view.buffer == old else view

    for number, call in enumerate(t.calls):
        write = moved(call.write)
        assert write is not None
        t.calls[number] = replace(call, reads=tuple(map(moved, call.reads)), write=write)
    for name, views in t.values.items():
        if not isinstance(views, tuple) and views.buffer == old:
            t.values[name] = replace(views, buffer=new)


def group_calls(
    calls: tuple[OperatorCall, ...], granularity: str, placement: Placement, network: str
) -> tuple[CallGroup, ...]:
    """Put calls into tasks; calls of one task follow each other.

    Raises BadInput for more tasks than are possible.
    """
    if granularity == "network":
        return (CallGroup("network", placement(calls[0].module) if calls else "", calls),)
    if granularity == "channel":
        return tuple(
            replace(group, name=group.layer_name, placement=placement(group.calls[0].module))
            for group in channel_groups(calls, network)
        )
    groups: list[CallGroup] = []
    for call in calls:
        where = placement(call.module)
        same = bool(groups) and groups[-1].placement == where
        if granularity == "branch" and same:
            groups[-1] = replace(groups[-1], calls=(*groups[-1].calls, call))
        else:
            name = call.module or call.value
            groups.append(CallGroup(name, where, (call,)))
    return tuple(groups)
