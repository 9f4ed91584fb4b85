"""torch.export -> Graph: one forward pass, as the operators PyTorch really calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from nnstretch.capture.exported_program import (
    eval_mode,
    export_program,
    inline_wrappers,
    is_assertion,
    is_random,
    is_read_after,
    is_view,
    module_path,
    operator_name,
)
from nnstretch.capture.silence import silence_python
from nnstretch.errors import CannotCapture
from nnstretch.graph import Argument, Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.structure.macs import count_macs

SCATTER_OPERATORS = {"slice.Tensor": "slice_scatter", "select.int": "select_scatter"}
"""How to write a slice back into the tensor it was taken from."""
TYPE_ONLY_OPERATORS = frozenset(
    {
        torch.ops.aten.new_zeros.default,
        torch.ops.aten.new_ones.default,
        torch.ops.aten.new_full.default,
    }
)
"""They read a tensor for its type only."""


@dataclass(frozen=True)
class CapturedNetwork:
    """A graph, and the tensors its weights name."""

    graph: Graph
    weights: Mapping[str, torch.Tensor]


def capture(
    module: nn.Module, example_input: torch.Tensor | tuple[torch.Tensor, ...], name: str = "network"
) -> Graph:
    """Capture the graph of one evaluation-mode forward pass at the shape of `example_input`.

    Raises CannotCapture where the work is no fixed graph of tensors (control flow that looks at
    values).
    """
    return trace(module, example_input, name).graph


def trace(
    module: nn.Module, example_input: torch.Tensor | tuple[torch.Tensor, ...], name: str = "network"
) -> CapturedNetwork:
    """Capture together with the weights; see `capture`."""
    examples = example_input if isinstance(example_input, tuple) else (example_input,)
    batch = examples[0].shape[0] if examples[0].dim() else 1
    if (known := recall_captured(module, examples, name)) is not None:
        return known
    with eval_mode(module), silence_python(), torch.no_grad():
        return read_program(export_program(module, examples, name), batch, name)


def recall_captured(
    module: nn.Module, examples: tuple[torch.Tensor, ...], name: str
) -> CapturedNetwork | None:
    """Return the graph that a module was built from, at the same shape, with the weights it has
    now.
    """
    graph = getattr(module, "captured_graph", None)
    if not isinstance(graph, Graph) or [tuple(e.shape) for e in examples] != [
        v.spec.shape for v in graph.inputs
    ]:
        return None
    from nnstretch.capture.rebuild_module import attribute_path

    current = dict(module.named_parameters()) | dict(module.named_buffers())
    return CapturedNetwork(
        replace(graph, name=name),
        {w.name: current[attribute_path(w.name)].detach() for w in graph.weights},
    )


def read_program(program: Any, batch: int, name: str) -> CapturedNetwork:
    """Convert an ExportedProgram to a Graph with every varying batch set to `batch`."""
    reader = ProgramReader(program, batch, name)
    for fx_node in inline_wrappers(program).nodes:
        reader.read_node(fx_node)
    return reader.build_result()


class ProgramReader:
    """Walks the exported graph once.

    In-place operators become plain ones and their readers follow.
    """

    def __init__(self, program: Any, batch: int, name: str) -> None:
        signature = program.graph_signature
        self.batch, self.name = batch, name
        self.weight_paths: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
        }
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
        self.views: dict[str, Any] = {}
        """Nodes that show the memory of their first argument."""

    def read_node(self, fx_node: Any) -> None:
        """Read one node of an exported program.

        Raises CannotCapture when the node is control flow, or an output is constant.
        """
        if fx_node.op == "placeholder":
            self.read_placeholder(fx_node)
        elif fx_node.op == "call_function":
            self.read_call(fx_node)
        elif fx_node.op == "output":
            leaves = torch.utils._pytree.tree_leaves(fx_node.args)
            tensors = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
            if constant := [leaf.name for leaf in tensors if leaf.name not in self.names]:
                raise CannotCapture(
                    f"cannot capture {self.name}, its output {constant[0]} does not depend on its"
                    " input"
                )
            self.outputs = tuple(self.names[leaf.name] for leaf in tensors)
        else:
            raise CannotCapture(
                f"cannot capture {self.name}, {fx_node.name} is {fx_node.op}, control flow inside"
                " the network"
            )

    def read_placeholder(self, fx_node: Any) -> None:
        """Read an input or a weight. Raises CannotCapture when an input is no tensor."""
        value = fx_node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise CannotCapture(
                f"cannot capture {self.name}, input {fx_node.name} is {type(value).__name__}, only"
                " tensors are"
            )
        path = self.weight_paths.get(fx_node.name)
        spec = self.tensor_spec(value)
        label = path or fx_node.name
        self.names[fx_node.name], self.specs[label] = label, spec
        if path in self.tensors and path not in self.trainable:
            self.constants[fx_node.name] = self.tensors[path].detach().clone()
        if path is None:
            self.inputs.append(Value(label, spec))
        else:
            self.weights[path] = Weight(path, spec, path in self.trainable)

    def read_call(self, fx_node: Any) -> None:
        """Read a call of an operator; calls that write in place become their pure form."""
        if is_assertion(fx_node.target) or self.try_fold(fx_node):
            return
        op, in_place = operator_name(fx_node.target)
        outputs = self.output_specs(fx_node.meta.get("val"), op)
        args = tuple(self.convert_argument(a, fx_node.name) for a in fx_node.args)
        kept = {
            k: v for k, v in fx_node.kwargs.items() if k not in ("device", "pin_memory", "layout")
        }
        kwargs = tuple((k, self.convert_argument(v, fx_node.name)) for k, v in kept.items())
        macs = count_macs(op.split(".")[0], args, outputs[0], self.specs)
        called = self.to_differentiable(op, args)
        node = Node(fx_node.name, *called, outputs, module_path(fx_node), kwargs, macs)
        self.nodes.append(node)
        self.names[fx_node.name] = fx_node.name
        self.specs[fx_node.name] = outputs[0]
        if is_view(fx_node):
            self.views[fx_node.name] = fx_node
        if in_place and isinstance(args[0], ValueRef):
            self.refuse_stale_views(fx_node)
            self.redirect_readers(args[0].name, fx_node.name)
            self.write_through(fx_node)

    def to_differentiable(
        self, op: str, args: tuple[Argument, ...]
    ) -> tuple[str, tuple[Argument, ...]]:
        """Replace operators that PyTorch cannot train through, such as its pure `copy`.

        Of one type, what is written is the source at the target's shape.
        """
        if (
            op == "copy"
            and len(args) == 2
            and all(isinstance(a, ValueRef) and a.name in self.specs for a in args)
        ):
            target, source = (self.specs[a.name] for a in args if isinstance(a, ValueRef))
            if target.dtype == source.dtype:
                return "expand_as", (args[1], args[0])
        return op, args

    def redirect_readers(self, old: str, new: str) -> None:
        """Let readers of the old value read the new one from here on."""
        self.names = {k: new if v == old else v for k, v in self.names.items()}

    def write_through(self, fx_node: Any) -> None:
        """Record that an in-place operator on a slice also writes into the tensor behind it, if
        that is read again.

        Raises CannotCapture when the view has no inverse.
        """
        chain = self.view_chain(fx_node.args[0])
        while len(chain) > 1 and not is_read_after(chain[-1], fx_node):
            chain.pop()
        value = fx_node.name
        for view, behind in pairwise(chain):
            op, _ = operator_name(view.target)
            if op not in SCATTER_OPERATORS:
                raise self.overwrite_error(
                    fx_node, f"{view.name}, a view of {behind.name} that is read later"
                )
            old, name = self.names[behind.name], f"{value}_in_{behind.name}"
            arguments = tuple(self.convert_argument(a, view.name) for a in view.args[1:])
            self.nodes.append(
                Node(
                    name,
                    SCATTER_OPERATORS[op],
                    (ValueRef(old), ValueRef(value), *arguments),
                    (self.specs[old],),
                    module_path(fx_node),
                )
            )
            self.specs[name] = self.specs[old]
            self.redirect_readers(old, name)
            value = name

    def view_chain(self, fx_node: Any) -> list[Any]:
        """Return a tensor, the tensor whose memory it shows, and so on to the one that owns it."""
        chain = [fx_node]
        while chain[-1].name in self.views:
            chain.append(chain[-1].args[0])
        return chain

    def refuse_stale_views(self, fx_node: Any) -> None:
        """Refuse views taken before their tensor is written into: they would have to change with
        it.

        Raises CannotCapture when one of them is read later.
        """
        target = fx_node.args[0]
        for view in self.views.values():
            if (
                view is not target
                and target in self.view_chain(view)
                and is_read_after(view, fx_node)
            ):
                raise self.overwrite_error(
                    fx_node, f"{target.name}, of which the view {view.name} is read later"
                )

    def overwrite_error(self, fx_node: Any, what: str) -> CannotCapture:
        """Return the error of a node that writes into what is not its own."""
        return CannotCapture(f"cannot capture {self.name}, {fx_node.name} writes into {what}")

    def try_fold(self, fx_node: Any) -> bool:
        """Compute now what depends on no input and no parameter.

        Masks, index tables, coordinate grids.

        They are built by writing into views, which a graph of pure operators could not repeat.
        """
        if not isinstance(fx_node.target, torch._ops.OpOverload):
            return False
        reads = (
            fx_node.all_input_nodes[1:]
            if fx_node.target in TYPE_ONLY_OPERATORS
            else fx_node.all_input_nodes
        )
        if any(n.name not in self.constants for n in reads) or not isinstance(
            fx_node.meta.get("val"), torch.Tensor
        ):
            return False
        if any(isinstance(d, torch.SymInt) for d in fx_node.meta["val"].shape) or is_random(
            fx_node.target
        ):
            return False
        stand_in = {
            n: torch.empty(0, dtype=n.meta["val"].dtype)
            for n in fx_node.all_input_nodes
            if n.name not in self.constants
        }
        env = {n: stand_in.get(n, self.constants.get(n.name)) for n in fx_node.all_input_nodes}
        args, kwargs = torch.fx.map_arg((fx_node.args, fx_node.kwargs), lambda n: env[n])
        writes = fx_node.target._schema.is_mutable
        if writes and fx_node.all_input_nodes[0].op == "placeholder":
            return False
        self.constants[fx_node.name] = fx_node.target(*args, **kwargs)
        return True

    def add_constant(self, fx_name: str) -> str:
        """Add a folded tensor as a weight, the first time the network reads it."""
        if fx_name not in self.names:
            path, tensor = f"constants.{fx_name}", self.constants[fx_name].clone()
            self.names[fx_name], self.tensors[path], self.specs[path] = (
                path,
                tensor,
                self.tensor_spec(tensor),
            )
            self.weights[path] = Weight(path, self.tensor_spec(tensor), trainable=False)
        return self.names[fx_name]

    def output_specs(self, value: Any, op: str) -> tuple[TensorSpec, ...]:
        """Return shapes and dtypes of a node's results."""
        if isinstance(value, (tuple, list)):
            return tuple(self.tensor_spec(v) for v in value)
        if isinstance(value, torch.Tensor):
            return (self.tensor_spec(value),)
        if value is None:
            raise CannotCapture(f"cannot capture {self.name}, {op} returns no tensor")
        return (TensorSpec((), "int64"),)

    def tensor_spec(self, tensor: torch.Tensor) -> TensorSpec:
        """Return shape and dtype of a tensor, symbolic sizes resolved."""
        return TensorSpec(
            tuple(self.resolve_size(d) for d in tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
        )

    def resolve_size(self, dimension: Any) -> int:
        """Return a size as a number, 1 for a symbolic batch."""
        if isinstance(dimension, torch.SymInt):
            expression = dimension.node.expr
            return int(expression.subs(dict.fromkeys(expression.free_symbols, self.batch)))
        return int(dimension)

    def convert_argument(self, value: Any, where: str) -> Argument:
        """Return an argument as a graph stores it. Raises CannotCapture when no graph can."""
        if isinstance(value, torch.fx.Node):
            return ValueRef(
                self.names[value.name]
                if value.name in self.names
                else self.add_constant(value.name)
            )
        if isinstance(value, (tuple, list)):
            return tuple(self.convert_argument(v, where) for v in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.SymInt):
            return self.resolve_size(value)
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return value.type
        raise CannotCapture(
            f"cannot capture {self.name}, {where} is called with a {type(value).__name__}"
        )

    def build_result(self) -> CapturedNetwork:
        """Return graph and weights of what was read."""
        needed = live_node_names(self.nodes, self.outputs)
        nodes = tuple(node for node in self.nodes if node.name in needed)
        read = {name for node in nodes for name in node.inputs} | set(self.outputs)
        weights = tuple(weight for weight in self.weights.values() if weight.name in read)
        graph = Graph(self.name, tuple(self.inputs), weights, nodes, self.outputs)
        return CapturedNetwork(
            graph, {weight.name: self.tensors[weight.name].detach() for weight in weights}
        )


def live_node_names(nodes: list[Node], outputs: tuple[str, ...]) -> set[str]:
    """Return names of the nodes that an output depends on."""
    needed = set(outputs)
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.inputs)
    return needed


__all__ = [
    "CapturedNetwork",
    "capture",
    "live_node_names",
    "read_program",
    "trace",
]
