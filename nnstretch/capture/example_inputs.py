"""Tensors to capture a module with: shapes and types as the user, the module or timm says them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from nnstretch.capture.captured_network import SizeRange
from nnstretch.capture.onnx.inputs import match_inputs
from nnstretch.errors import BadInput, describe_error
from nnstretch.files.model_text import format_input_shapes
from nnstretch.graph import Graph, InputShape, TensorSpec, Value, ValueRef
from nnstretch.plan import Plan

DEFAULT_INPUT = (1, 3, 224, 224)
BYTES = 256
TABLES = frozenset({"embedding", "embedding_bag"})
PICKING = frozenset({"index", "index_select", "gather", "take", "take_along_dim"})
UNCHANGED = frozenset({"to", "_to_copy", "view", "reshape", "expand", "unsqueeze", "squeeze"})
"""Operators that pass integers on as they are."""
NO_IMAGES = (nn.Embedding, nn.Conv1d, nn.Conv3d, nn.RNNBase)
"""First layers of networks that read no images."""


def example_inputs(
    spec: str, module: nn.Module, wanted: Sequence[InputShape] = ()
) -> tuple[torch.Tensor, ...]:
    """Return zeros for every input of a module.

    What is not wanted otherwise is as the network was read from its file, or `default_input`.
    Raises BadInput for inputs that it has not, and where none can be guessed.
    """
    graph = captured_graph(module)
    if graph is not None:
        matched = match_inputs(wanted, graph.input_names, spec)
        declared = []
        for value in graph.inputs:
            shape = matched.get(value.name, InputShape(value.spec.shape))
            check_fits_file(shape, value, spec, getattr(module, "size_ranges", {}))
            declared.append(InputShape(shape.shape, value.name, value.spec.dtype))
    elif wanted:
        declared = order_inputs(spec, module, wanted)
    else:
        declared = [InputShape(default_input(spec, module))]
    return tuple(zeros(shape, input_dtype(module), spec) for shape in declared)


def check_fits_file(
    wanted: InputShape, value: Value, spec: str, ranges: Mapping[str, Sequence[SizeRange]]
) -> None:
    """Check a wanted input against what a file says of it. Raises BadInput."""
    if wanted.dtype and wanted.dtype != value.spec.dtype:
        raise BadInput(
            f"{wanted.dtype} is asked for, {spec}, its input {value.name} is {value.spec.dtype}"
        )
    of_file = ranges.get(value.name, ())
    sizes = "x".join(str(a) if a == b else f"[{a:g} to {b:g}]" for a, b in of_file)
    fits = [a <= size <= b for size, (a, b) in zip(wanted.shape, of_file, strict=False)]
    if of_file and (len(wanted.shape) != len(of_file) or not all(fits)):
        asked = "x".join(map(str, wanted.shape))
        raise BadInput(f"{asked} is asked for, {spec}, its input {value.name} is {sizes}")


def example_input(module: nn.Module, plan: Plan) -> torch.Tensor:
    """Return zeros for the one input of a planned module. Raises BadInput when memory ends."""
    shape = InputShape(plan.input_shape, dtype=plan.input_dtype)
    return zeros(shape, input_dtype(module), plan.model)


def captured_graph(module: nn.Module) -> Graph | None:
    """Return the graph of a module that came from a file."""
    graph = getattr(module, "captured_graph", None)
    return graph if isinstance(graph, Graph) else None


def input_dtype(module: nn.Module) -> str:
    """Return the type of a module's first input: its file's, its attribute's, or float32."""
    graph = captured_graph(module)
    if graph is not None and graph.inputs:
        return graph.inputs[0].spec.dtype
    said = getattr(module, "input_dtype", "float32")
    return str(said).removeprefix("torch.")


def order_inputs(spec: str, module: nn.Module, wanted: Sequence[InputShape]) -> list[InputShape]:
    """Return wanted inputs in the order of the module's `forward`. Raises BadInput for a gap."""
    names = parameter_names(module)
    if not any(item.name for item in wanted):
        check_complete(spec, module, wanted)
        return list(wanted)
    matched = match_inputs(wanted, names, spec)
    for name in names[: len(matched)]:
        if name not in matched:
            raise BadInput(
                f"no shape of input {name}, {spec}, its forward takes {', '.join(names)} and the"
                " inputs before a named one must be named"
            )
    ordered = [matched[name] for name in names[: len(matched)]]
    check_complete(spec, module, ordered)
    return ordered


def check_complete(spec: str, module: nn.Module, ordered: Sequence[InputShape]) -> None:
    """Check that `forward` needs no more inputs than are wanted. Raises BadInput."""
    names = parameter_names(module)
    missing = [name for name in names[len(ordered) :] if is_required(module, name)]
    if not missing:
        return
    named = [replace(item, name=name) for name, item in zip(names, ordered, strict=False)]
    named += [InputShape((1, 128), name) for name in missing]
    raise BadInput(
        f"no shape of input {', '.join(missing)}, {spec}, its forward takes {', '.join(names)}, say"
        f" each, for instance --input '{format_input_shapes(named)}'"
    )


def parameter_names(module: nn.Module) -> list[str]:
    """Return the names of what `forward` takes by position."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(module.forward).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind in positional]


def random_input(spec: TensorSpec, generator: torch.Generator, values: int = 2) -> torch.Tensor:
    """Draw a tensor of a shape and type: standard normal numbers, or integers below `values`."""
    kind = getattr(torch, spec.dtype)
    if kind.is_floating_point:
        return torch.randn(spec.shape, generator=generator).to(kind)
    return torch.randint(0, values, spec.shape, generator=generator).to(kind)


def draw_inputs(graph: Graph, seed: int) -> dict[str, torch.Tensor]:
    """Draw an input by name: standard normal numbers, or integers that the network may read."""
    generator = torch.Generator().manual_seed(seed)
    drawn: dict[str, torch.Tensor] = {}
    for value in graph.inputs:
        values = integer_values(graph, value.name)
        drawn[value.name] = random_input(value.spec, generator, values)
    return drawn


@contextmanager
def running_on_drawn_inputs(name: str) -> Iterator[None]:
    """Raise BadInput where a network cannot be run on what was drawn: some indices fit no table."""
    try:
        yield
    except (IndexError, RuntimeError) as error:
        if "index" not in str(error).lower():
            raise
        raise BadInput(
            f"cannot run {name} to compare with it, inputs are random numbers,"
            f" {describe_error(error)}"
        ) from error


def integer_values(graph: Graph, name: str) -> int:
    """Return how many values an integer input may be drawn from.

    The rows of the smallest table that it picks from; all bytes where it picks from none; 0 and 1
    where what is picked is computed from it. Of 0 and 1 alone sums of squares cancel in a network
    that reads bytes, and every float32 result is as good as any other.
    """
    specs = graph.specs()
    passed, computed = {name}, {name}
    values = BYTES
    for node in graph.nodes:
        if computed.isdisjoint(node.inputs):
            continue
        if node.kind in TABLES and isinstance(node.args[0], ValueRef):
            is_same = not passed.isdisjoint(node.inputs)
            values = min(values, specs[node.args[0].name].shape[0] if is_same else 2)
        elif node.kind in PICKING:
            values = 2
        elif node.output.dtype.startswith("int"):
            computed.add(node.name)
            if node.kind in UNCHANGED:
                passed.add(node.name)
    return values


def zeros(shape: InputShape, dtype: str, spec: str) -> torch.Tensor:
    """Return zeros of a shape. Raises BadInput where memory does not hold them."""
    try:
        return torch.zeros(shape.shape, dtype=getattr(torch, shape.dtype or dtype))
    except (RuntimeError, AttributeError) as error:
        raise BadInput(
            f"input {shape} is too large, {spec}, {str(error).splitlines()[0][:120]}"
        ) from error


def default_input(spec: str, module: nn.Module) -> tuple[int, ...]:
    """Return the input shape that file, timm or module names, batch 1; else 1x3x224x224.

    Raises BadInput for a module that says none and reads no image.
    """
    graph = captured_graph(module)
    if graph is not None:
        return graph.inputs[0].spec.shape
    config = getattr(module, "default_cfg", None) or {}
    size = getattr(module, "input_shape", None) or config.get("input_size")
    if size:
        return (1, *size) if len(size) == 3 else tuple(size)
    refuse_guess(spec, module)
    return DEFAULT_INPUT


def refuse_guess(spec: str, module: nn.Module) -> None:
    """Refuse to guess the input of a module that plainly reads no single image. Raises BadInput."""
    required = [name for name in parameter_names(module) if is_required(module, name)]
    layer = next((m for m in module.modules() if next(m.parameters(False), None) is not None), None)
    if len(required) > 1:
        why = f"its forward takes {', '.join(required)}"
        example = ";".join(f"{name}=1,128" for name in required)
    elif isinstance(layer, NO_IMAGES):
        why = f"its first layer, {type(layer).__name__}, reads no image"
        example = "1,128:int64" if isinstance(layer, nn.Embedding) else "1,16,128"
    elif isinstance(layer, nn.Conv2d) and layer.in_channels != DEFAULT_INPUT[1]:
        why = f"its first layer reads {layer.in_channels} channels"
        example = f"1,{layer.in_channels},{DEFAULT_INPUT[2]},{DEFAULT_INPUT[3]}"
    else:
        return
    raise BadInput(f"no input shape of {spec}, {why}, say it, for instance --input '{example}'")


def is_required(module: nn.Module, name: str) -> bool:
    """Return whether `forward` cannot be called without this argument."""
    parameter = inspect.signature(module.forward).parameters[name]
    return parameter.default is inspect.Parameter.empty
