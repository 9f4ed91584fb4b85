"""torch.export -> Graph: one forward pass, as the operators PyTorch really calls."""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nnstretch.errors import CannotCapture
from nnstretch.graph import Argument, Graph, Node, Ref, TensorSpec, Value, Weight
from nnstretch.work import macs_of

ARITHMETIC = {operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.floordiv: "floordiv", operator.mod: "mod"}
"""What Python does with batch sizes between tensor operators."""
SHAPED_AFTER = frozenset({torch.ops.aten.new_zeros.default, torch.ops.aten.new_ones.default, torch.ops.aten.new_full.default})
"""They read a tensor for its type only."""
WRAPPERS = frozenset({"wrap_with_autocast", "wrap_with_set_grad_enabled"})
"""Calls of a nested graph that change no value when evaluated in float32."""
EXPORT_BATCH = 2
"""torch.export takes 0 and 1 for constants, so a batch that may vary is traced with 2."""


@dataclass(frozen=True)
class Captured:
    """A graph, and the tensors its weights name."""

    graph: Graph
    weights: Mapping[str, torch.Tensor]


def capture(module: nn.Module, example_input: torch.Tensor | tuple[torch.Tensor, ...], name: str = "network") -> Graph:
    """The graph of one evaluation-mode forward pass at the shape of `example_input`.

    Raises CannotCapture where the work is no fixed graph of tensors (control flow that looks at values).
    """
    return trace(module, example_input, name).graph


def trace(module: nn.Module, example_input: torch.Tensor | tuple[torch.Tensor, ...], name: str = "network") -> Captured:
    """Capture together with the weights; see `capture`."""
    examples = example_input if isinstance(example_input, tuple) else (example_input,)
    batch = examples[0].shape[0] if examples[0].dim() else 1
    with evaluating(module), quiet(), torch.no_grad():
        return read_program(export_program(module, examples, name), batch, name)


def export_program(module: nn.Module, examples: tuple[torch.Tensor, ...], name: str) -> Any:
    """An ExportedProgram whose batch may vary where the network allows it."""
    varied = tuple(torch.zeros((EXPORT_BATCH, *e.shape[1:]), dtype=e.dtype) for e in examples)
    try:
        # Broad on purpose: torch.export raises dozens of private types, and each means "not with a varying batch".
        return torch.export.export(module, varied, dynamic_shapes=tuple({0: torch.export.Dim.AUTO} for _ in varied))
    except Exception:
        pass
    try:
        return torch.export.export(module, examples)
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        shapes = ", ".join("x".join(map(str, e.shape)) for e in examples)
        raise CannotCapture(f"cannot capture {name} at input {shapes}, torch.export refuses: {reason[:300]}") from error


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside, every module's own mode afterwards."""
    modes = {m: m.training for m in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for m, training in modes.items():
            m.training = training


@contextmanager
def quiet() -> Iterator[None]:
    """Export explains itself at length on standard error and in logs; our own error says what matters."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def read_program(program: Any, batch: int, name: str) -> Captured:
    """An ExportedProgram as a Graph with every varying batch set to `batch`."""
    reader = Reader(program, batch, name)
    for fx_node in inlined(program).nodes:
        reader.read(fx_node)
    return reader.result()


def inlined(program: Any) -> torch.fx.Graph:
    """The program's nodes, with blocks that only switch autocast or gradients off written out in place."""
    graph: torch.fx.Graph = program.graph
    for fx_node in list(graph.nodes):
        if fx_node.op != "call_function" or getattr(fx_node.target, "_name", fx_node.target.__name__) not in WRAPPERS:
            continue
        at = next(i for i, arg in enumerate(fx_node.args) if isinstance(arg, torch.fx.Node) and arg.op == "get_attr")
        holder = fx_node.args[at]
        inner = getattr(program.graph_module, holder.target).graph
        places = [n for n in inner.nodes if n.op == "placeholder"]
        with graph.inserting_before(fx_node):
            outputs = graph.graph_copy(inner, dict(zip(places, fx_node.args[at + 1 :], strict=True)))
        for reader in list(fx_node.users):
            reader.replace_all_uses_with(outputs[reader.args[1]])
            graph.erase_node(reader)
        graph.erase_node(fx_node)
        if not holder.users:
            graph.erase_node(holder)
    return graph


class Reader:
    """Walks the exported graph once; in-place operators become plain ones and their readers follow."""

    def __init__(self, program: Any, batch: int, name: str) -> None:
        signature = program.graph_signature
        self.batch, self.name = batch, name
        self.weight_paths: dict[str, str] = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.weight_paths |= dict(getattr(signature, "inputs_to_lifted_tensor_constants", {}))
        self.trainable = set(signature.inputs_to_parameters.values())
        self.tensors: dict[str, torch.Tensor] = {**program.constants, **program.state_dict}
        self.inputs: list[Value] = []
        self.weights: dict[str, Weight] = {}
        self.nodes: list[Node] = []
        self.outputs: tuple[str, ...] = ()
        self.names: dict[str, str] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self.specs: dict[str, TensorSpec] = {}

    def read(self, fx_node: Any) -> None:
        if fx_node.op == "placeholder":
            self.placeholder(fx_node)
        elif fx_node.op == "call_function":
            self.call(fx_node)
        elif fx_node.op == "output":
            leaves = torch.utils._pytree.tree_leaves(fx_node.args)
            self.outputs = tuple(self.names[leaf.name] for leaf in leaves if isinstance(leaf, torch.fx.Node))
        else:
            raise CannotCapture(f"cannot capture {self.name}, {fx_node.name} is {fx_node.op}, control flow inside the network")

    def placeholder(self, fx_node: Any) -> None:
        value = fx_node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise CannotCapture(f"cannot capture {self.name}, input {fx_node.name} is {type(value).__name__}, only tensors are")
        path = self.weight_paths.get(fx_node.name)
        spec = self.spec(value)
        label = path or fx_node.name
        self.names[fx_node.name], self.specs[label] = label, spec
        if path in self.tensors and path not in self.trainable:
            self.constants[fx_node.name] = self.tensors[path].detach().clone()
        if path is None:
            self.inputs.append(Value(label, spec))
        else:
            self.weights[path] = Weight(path, spec, path in self.trainable)

    def call(self, fx_node: Any) -> None:
        if is_assertion(fx_node.target) or self.folds(fx_node):
            return
        op, in_place = operator_name(fx_node.target)
        outputs = self.output_specs(fx_node.meta.get("val"), op)
        args = tuple(self.argument(a, fx_node.name) for a in fx_node.args)
        kept = {k: v for k, v in fx_node.kwargs.items() if k not in ("device", "pin_memory", "layout")}
        kwargs = tuple((k, self.argument(v, fx_node.name)) for k, v in kept.items())
        macs = macs_of(op.split(".")[0], args, outputs[0], self.specs)
        node = Node(fx_node.name, op, args, outputs, module_path(fx_node), kwargs, macs)
        self.nodes.append(node)
        self.names[fx_node.name] = fx_node.name
        self.specs[fx_node.name] = outputs[0]
        if in_place and isinstance(args[0], Ref):
            self.names = {k: fx_node.name if v == args[0].name else v for k, v in self.names.items()}

    def folds(self, fx_node: Any) -> bool:
        """Compute now what depends on no input and no parameter: masks, index tables, coordinate grids.

        They are built by writing into views, which a graph of pure operators could not repeat.
        """
        if not isinstance(fx_node.target, torch._ops.OpOverload):
            return False
        reads = fx_node.all_input_nodes[1:] if fx_node.target in SHAPED_AFTER else fx_node.all_input_nodes
        if any(n.name not in self.constants for n in reads) or not isinstance(fx_node.meta.get("val"), torch.Tensor):
            return False
        if any(isinstance(d, torch.SymInt) for d in fx_node.meta["val"].shape) or is_random(fx_node.target):
            return False
        stand_in = {n: torch.empty(0, dtype=n.meta["val"].dtype) for n in fx_node.all_input_nodes if n.name not in self.constants}
        env = {n: stand_in.get(n, self.constants.get(n.name)) for n in fx_node.all_input_nodes}
        args, kwargs = torch.fx.map_arg((fx_node.args, fx_node.kwargs), lambda n: env[n])
        writes = fx_node.target._schema.is_mutable
        if writes and fx_node.all_input_nodes[0].op == "placeholder":
            return False
        self.constants[fx_node.name] = fx_node.target(*args, **kwargs)
        return True

    def constant(self, fx_name: str) -> str:
        """A folded tensor becomes a weight the first time the network reads it."""
        if fx_name not in self.names:
            path, tensor = f"constants.{fx_name}", self.constants[fx_name].clone()
            self.names[fx_name], self.tensors[path], self.specs[path] = path, tensor, self.spec(tensor)
            self.weights[path] = Weight(path, self.spec(tensor), trainable=False)
        return self.names[fx_name]

    def output_specs(self, value: Any, op: str) -> tuple[TensorSpec, ...]:
        if isinstance(value, (tuple, list)):
            return tuple(self.spec(v) for v in value)
        if isinstance(value, torch.Tensor):
            return (self.spec(value),)
        if value is None:
            raise CannotCapture(f"cannot capture {self.name}, {op} returns no tensor")
        return (TensorSpec((), "int64"),)

    def spec(self, tensor: torch.Tensor) -> TensorSpec:
        return TensorSpec(tuple(self.size(d) for d in tensor.shape), str(tensor.dtype).removeprefix("torch."))

    def size(self, dimension: Any) -> int:
        if isinstance(dimension, torch.SymInt):
            expression = dimension.node.expr
            return int(expression.subs(dict.fromkeys(expression.free_symbols, self.batch)))
        return int(dimension)

    def argument(self, value: Any, where: str) -> Argument:
        if isinstance(value, torch.fx.Node):
            return Ref(self.names[value.name] if value.name in self.names else self.constant(value.name))
        if isinstance(value, (tuple, list)):
            return tuple(self.argument(v, where) for v in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.SymInt):
            return self.size(value)
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return value.type
        raise CannotCapture(f"cannot capture {self.name}, {where} is called with a {type(value).__name__}")

    def result(self) -> Captured:
        needed = live(self.nodes, self.outputs)
        nodes = tuple(node for node in self.nodes if node.name in needed)
        read = {name for node in nodes for name in node.inputs} | set(self.outputs)
        weights = tuple(weight for weight in self.weights.values() if weight.name in read)
        graph = Graph(self.name, tuple(self.inputs), weights, nodes, self.outputs)
        return Captured(graph, {weight.name: self.tensors[weight.name].detach() for weight in weights})


def operator_name(target: Any) -> tuple[str, bool]:
    """PyTorch's name without the namespace `aten` and the overload `default`; and whether it wrote in place."""
    if target in ARITHMETIC:
        return f"py.{ARITHMETIC[target]}", False
    if target is operator.getitem:
        return "getitem", False
    if not isinstance(target, torch._ops.OpOverload):
        raise CannotCapture(f"cannot capture {target}, it is neither a PyTorch operator nor batch arithmetic")
    namespace, _, base = target._schema.name.partition("::")
    in_place = base.endswith("_") and not base.endswith("__")
    base = base.rstrip("_") if in_place else base
    overload = "" if target._overloadname == "default" else f".{target._overloadname}"
    return ("" if namespace == "aten" else f"{namespace}::") + base + overload, in_place


def is_random(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in target.tags


def is_assertion(target: Any) -> bool:
    """Checks on types and shapes that export leaves behind; they compute nothing."""
    name = target._schema.name.rpartition("::")[2] if isinstance(target, torch._ops.OpOverload) else ""
    return name.startswith(("_assert", "sym_constrain_range"))


def module_path(fx_node: Any) -> str:
    stack = [path for path, _ in (fx_node.meta.get("nn_module_stack") or {}).values()]
    path = stack[-1] if stack else ""
    return "" if path.startswith("_empty") else str(path).partition("@")[0]


def live(nodes: list[Node], outputs: tuple[str, ...]) -> set[str]:
    """Names of the nodes that an output depends on."""
    needed = set(outputs)
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.inputs)
    return needed
