"""torch.export itself: making a program, and what its nodes are."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from nnstretch.capture.checks.source_lines import refusal_reason
from nnstretch.capture.memory.views import MemoryViews, written_tensor
from nnstretch.errors import CannotCapture, NnstretchError

BATCH_ARITHMETIC = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floordiv",
    operator.mod: "mod",
}
"""What Python does with batch sizes between tensor operators."""
PURE_FORMS = {
    "bernoulli.float": "bernoulli.p",
    "float_power.Scalar": "float_power.Tensor_Scalar",
    "float_power.Tensor": "float_power.Tensor_Tensor",
    "floor_divide.Tensor": "floor_divide",
    "ldexp": "ldexp.Tensor",
    "normal": "normal_functional",
    "pow.Scalar": "pow.Tensor_Scalar",
    "pow.Tensor": "pow.Tensor_Tensor",
    "transpose": "transpose.int",
}
"""Operators that are called otherwise where they write into nothing."""
WRAPPER_CALLS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})
"""Calls of a nested graph that change no value when evaluated in float32."""
EXPORT_BATCH = 2
"""torch.export takes 0 and 1 for constants, so a batch that may vary is traced with 2."""
MOST_TRIED = EXPORT_BATCH + 1
"""Batch at which a program is tried where a larger one is wanted."""
TOLERANCE = 1e-3
"""Of the largest magnitude: far above rounding, far below another branch's results."""


def export_program(module: nn.Module, examples: tuple[torch.Tensor, ...], name: str) -> Any:
    """Return an ExportedProgram whose batch may vary where network and examples allow it.

    torch.export takes a varying size for at least 2: a squeeze then keeps an axis that it drops at
    a batch of 1, `if x.shape[0] == 1` goes the other way, and a size that meets a fixed one becomes
    it. None of that is an error, so the program is tried at the batch of the examples.

    Raises CannotCapture when torch.export refuses the module.
    """
    if len({e.shape[0] for e in examples if e.dim()}) > 1:
        return export_fixed(module, examples, name)  # Not every first axis is the batch.
    varied = tuple(
        torch.zeros((EXPORT_BATCH, *e.shape[1:]) if e.dim() else (), dtype=e.dtype)
        for e in examples
    )
    dynamic = tuple({0: torch.export.Dim.AUTO} if e.dim() else None for e in varied)
    try:
        # Broad on purpose: torch.export raises dozens of private types, and each means "not with a
        # varying batch".
        # One entry a parameter of forward: `*inputs` is one of several tensors.
        parameters = inspect.signature(module.forward).bind(*dynamic).arguments
        shapes = tuple(parameters.values())
        program = torch.export.export(module, varied, dynamic_shapes=shapes)
    except Exception:
        return export_fixed(module, examples, name)
    if is_faithful(program, module, examples):
        return program
    return export_fixed(module, examples, name)


def export_fixed(module: nn.Module, examples: tuple[torch.Tensor, ...], name: str) -> Any:
    """Return an ExportedProgram at the shapes of the examples.

    Raises CannotCapture when torch.export refuses the module.
    """
    try:
        return torch.export.export(module, examples)
    except NnstretchError:  # of an output that was asked for and is not there
        raise
    except Exception as error:
        shapes = ", ".join("x".join(map(str, e.shape)) for e in examples)
        raise CannotCapture(
            f"cannot capture {name} at input {shapes}, torch.export refuses:"
            f" {refusal_reason(error)}"
        ) from error


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside, each module's previous mode afterwards."""
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for m, training in modes.items():
            m.training = training


def operator_name(target: Any) -> tuple[str, bool]:
    """Return an operator's name without `aten::` and `.default`, and whether it writes in place.

    Raises CannotCapture when the target is no PyTorch operator.
    """
    if target in BATCH_ARITHMETIC:
        return f"py.{BATCH_ARITHMETIC[target]}", False
    if target is operator.getitem:
        return "getitem", False
    if not isinstance(target, torch._ops.OpOverload):
        name = getattr(target, "__name__", target)
        raise CannotCapture(
            f"cannot capture {name}, it is neither a PyTorch operator nor batch arithmetic"
        )
    namespace, _, base = target._schema.name.partition("::")
    in_place = base.endswith("_") and not base.endswith("__")
    overload = "" if target._overloadname == "default" else f".{target._overloadname}"
    name = (base.rstrip("_") if in_place else base) + overload
    name = PURE_FORMS.get(name, name) if in_place else name
    return ("" if namespace == "aten" else f"{namespace}::") + name, in_place


def writes_into_parameters(program: Any) -> bool:
    """Return whether an operator of a program writes into a parameter, or into a view of one."""
    parameters = program.graph_signature.inputs_to_parameters
    views = MemoryViews(partial(resolve_size, batch=EXPORT_BATCH))
    targets = filter(None, map(written_tensor, program.graph.nodes))
    return any(views.chain(target)[-1].name in parameters for target in targets)


def is_active_norm(fx_node: Any) -> bool:
    """Return whether a batch norm writes its statistics: `training=True` whatever the mode is."""
    if not isinstance(fx_node.target, torch._ops.OpOverload) or len(fx_node.args) < 6:
        return False
    if operator_name(fx_node.target)[0] not in ("batch_norm", "instance_norm"):
        return False
    return fx_node.args[3] is not None and bool(fx_node.args[5])


def is_assertion(target: Any) -> bool:
    """Return whether a node is a check on types or shapes that export leaves behind."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name.rpartition("::")[2]
    return name.startswith(("_assert", "sym_constrain_range"))


def module_path(fx_node: Any) -> str:
    """Return the path of the module that a node comes from, empty where there is none."""
    stack = [path for path, _ in (fx_node.meta.get("nn_module_stack") or {}).values()]
    path = stack[-1] if stack else ""
    return "" if path.startswith("_empty") else str(path).partition("@")[0]


def resolve_size(size: Any, batch: int) -> int:
    """Return a size as a number, with a batch in place of symbols."""
    return int(at_batch(size.node.expr, batch) if isinstance(size, torch.SymInt) else size)


def at_batch(expression: Any, batch: int) -> Any:
    """Return a symbolic expression with a batch in place of its symbols."""
    return expression.subs(dict.fromkeys(expression.free_symbols, batch))


def is_faithful(program: Any, module: nn.Module, examples: tuple[torch.Tensor, ...]) -> bool:
    """Return whether program and module compute the same from inputs of the examples' shapes.

    Of large batches the first inputs are enough, if the module takes them and all that torch.export
    took for granted of the batch holds of the large one too. Where the module refuses the numbers
    that are drawn, nothing speaks against the program.
    """
    drawn = draw_like(examples)
    batch = next((x.shape[0] for x in drawn if x.dim()), 1)
    first = tuple(x[:MOST_TRIED] if x.dim() else x for x in drawn)
    tries = (first, drawn) if is_guarded_for(program, batch) else (drawn,)
    tensors = dict(module.named_buffers())
    if writes_into_parameters(program):  # to do so is refused, but only later
        tensors |= module.named_parameters()
    for inputs in tries:
        written = {name: tensor.clone() for name, tensor in tensors.items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                copies = tuple(x.clone() for x in inputs)
                expected = torch.func.functional_call(module, written, copies)
            except Exception:  # Broad on purpose: it is the network's own code.
                continue
            torch.manual_seed(0)
            return is_same(tensors_of(expected), results_at(program, inputs))
    return True


def is_guarded_for(program: Any, batch: int) -> bool:
    """Return whether the guards of a program, which lead to the way it goes, hold at a batch."""
    guards: set[Any] = set()
    for node in program.graph.find_nodes(op="placeholder"):
        for size in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(size, torch.SymInt):
                environment: Any = size.node.shape_env
                guards.update(guard.expr for guard in environment.guards)
    return all(at_batch(guard, batch) for guard in guards)


def results_at(program: Any, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return what a program computes from inputs; nothing where it is not one of their batch."""
    batch = next((x.shape[0] for x in inputs if x.dim()), 1)
    try:
        return tensors_of(ProgramAtBatch(program, batch).run(*program_inputs(program, inputs)))
    except Exception:  # Broad on purpose: any refusal of PyTorch means "not at this batch".
        return []


def draw_like(examples: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Draw numbers in the shapes of the examples; whole numbers, which may be ids, stay."""
    generator = torch.Generator().manual_seed(0)
    drawn: list[torch.Tensor] = []
    for x in examples:
        numbers = torch.randn(x.shape, generator=generator).to(x.dtype)
        drawn.append(numbers if x.is_floating_point() else x)
    return tuple(drawn)


def program_inputs(program: Any, inputs: tuple[torch.Tensor, ...]) -> list[Any]:
    """Return weights and inputs in the order in which the program's graph takes them."""
    tensors = {**program.constants, **program.state_dict}
    remaining = iter(inputs)
    values: list[Any] = []
    for spec in program.graph_signature.input_specs:
        value = next(remaining) if spec.target is None else tensors[spec.target]
        values.append(value.clone() if isinstance(value, torch.Tensor) else value)
    return values


def tensors_of(results: Any) -> list[torch.Tensor]:
    """Return the tensors among results, in PyTorch's order."""
    leaves = torch.utils._pytree.tree_leaves(results)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def is_same(
    expected: list[torch.Tensor], computed: list[torch.Tensor], tolerance: float = TOLERANCE
) -> bool:
    """Return whether two lists of tensors agree in shapes, and but for rounding in numbers."""
    if [x.shape for x in expected] != [x.shape for x in computed]:
        return False
    for wanted, actual in zip(expected, computed, strict=True):
        wanted, actual = wanted.detach().double(), actual.detach().double()
        scale = float(wanted.nan_to_num(0.0, 0.0, 0.0).abs().max()) if wanted.numel() else 0.0
        if not torch.allclose(actual, wanted, 0.0, tolerance * max(scale, 1e-6), equal_nan=True):
            return False
    return True


class ProgramAtBatch(torch.fx.Interpreter):
    """Interpreter of a program at one batch. Raises ValueError where a shape is not as recorded."""

    def __init__(self, program: Any, batch: int) -> None:
        super().__init__(program.graph_module)
        self.batch = batch

    def run_node(self, n: torch.fx.Node) -> Any:
        """Compute a node, assertions about sizes left out."""
        if n.op == "call_function":
            name = getattr(n.target, "_name", getattr(n.target, "__name__", ""))
            if is_assertion(n.target):
                return None
            if name not in WRAPPER_CALLS:
                operator_name(n.target)
        result = super().run_node(n)
        recorded = n.meta.get("val")
        if isinstance(result, torch.Tensor) and isinstance(recorded, torch.Tensor):
            shape = tuple(resolve_size(size, self.batch) for size in recorded.shape)
            if shape != tuple(result.shape):
                raise ValueError(f"{n.name} is {tuple(result.shape)}, recorded is {shape}")
        return result
