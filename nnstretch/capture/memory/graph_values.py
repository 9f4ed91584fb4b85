"""Values of a graph that is being read, and which of them shows what a tensor holds by now.

A graph is pure: an operator that writes in place becomes a new value. Every exported node that
shows the same memory then has to show the new numbers. Tensors behind a written view get them
written back at once; other views that overlap are taken again when somebody reads them. What is
written back in vain, nobody reads, and is left out of the graph at its end.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from nnstretch.capture.checks.data_dependent import place_of
from nnstretch.capture.constant_folding import ConstantFolder
from nnstretch.capture.exported_program import module_path, operator_name, resolve_size
from nnstretch.capture.memory.inverse_views import write_back
from nnstretch.capture.memory.views import MemoryViews, is_read_after, is_write, written_tensor
from nnstretch.capture.rebuild_module import resolve_operator
from nnstretch.errors import CannotCapture
from nnstretch.graph import Argument, Node, TensorSpec, ValueRef, Weight
from nnstretch.structure.macs import count_macs

IGNORED_KEYWORDS = ("device", "pin_memory", "layout")


class GraphValues:
    """Nodes and weights of a graph, and the value that each exported node's readers read now."""

    def __init__(self, network: str, batch: int, tensors: dict[str, torch.Tensor]) -> None:
        self.network = network
        self.batch = batch
        self.tensors = tensors
        self.weights: dict[str, Weight] = {}
        self.nodes: list[Node] = []
        self.names: dict[str, str] = {}
        """Exported node -> its value."""
        self.specs: dict[str, TensorSpec] = {}
        self.constants = ConstantFolder(network)
        self.views = MemoryViews(self.resolve_size)
        self.stale: dict[str, str] = {}
        """View to take again -> the node that wrote into its memory."""
        self.lost: dict[str, str] = {}
        """Tensor whose numbers no operator gives -> why."""
        self.stack_traces: dict[str, str] = {}

    def name_of(self, fx_node: Any) -> str:
        """Return the value that readers of a node read now.

        Raises CannotCapture where a write changed it in a way that a graph cannot repeat.
        """
        if fx_node.name in self.lost:
            raise CannotCapture(self.lost[fx_node.name])
        if fx_node.name in self.stale:
            self.take_again(fx_node)
        name = self.names.get(fx_node.name)
        return self.add_constant(fx_node.name) if name is None else name

    def take_again(self, view: Any) -> None:
        """Let readers of a view read it as it is after what was written into its memory."""
        if is_write(view):
            self.names[view.name] = self.name_of(self.views.origin(view))
        else:
            self.add_call(view, f"{view.name}_after_{self.stale[view.name]}")
        del self.stale[view.name]

    def add_call(self, fx_node: Any, name: str) -> None:
        """Add the call of a node's operator, in its pure form, and let readers read the result."""
        op, _ = operator_name(fx_node.target)
        outputs = self.output_specs(fx_node.meta.get("val"), op)
        args = tuple(self.convert_argument(arg, fx_node.name) for arg in fx_node.args)
        if op == "linear" and self.is_vector(args[1]):
            op = "matmul"  # No layer has a vector for its weight; PyTorch adds no bias to it.
        kwargs: list[tuple[str, Argument]] = []
        for key, value in fx_node.kwargs.items():
            if key not in IGNORED_KEYWORDS:
                kwargs.append((key, self.convert_argument(value, fx_node.name)))
        macs = count_macs(op.split(".")[0], args, outputs[0], self.specs)
        called = self.to_differentiable(op, args)
        node = Node(name, *called, outputs, module_path(fx_node), tuple(kwargs), macs)
        self.add_node(fx_node, *self.keep_dtype(fx_node, node))

    def is_vector(self, argument: Argument) -> bool:
        """Return whether an argument is a tensor of one axis."""
        return isinstance(argument, ValueRef) and len(self.specs[argument.name].shape) == 1

    def add_node(self, fx_node: Any, *nodes: Node) -> None:
        """Add nodes that compute a node's result, of which the last one gives it."""
        for node in nodes:
            self.nodes.append(node)
            self.specs[node.name] = node.outputs[0]
            self.stack_traces[node.name] = fx_node.meta.get("stack_trace") or ""
        self.names[fx_node.name] = nodes[-1].name

    def keep_dtype(self, fx_node: Any, node: Node) -> tuple[Node, ...]:
        """Return a call, and the cast to the type that what it wrote into in place has.

        A pure operator has the type of the wider operand, and comparisons are bool.
        """
        if not is_write(fx_node):
            return (node,)
        try:
            dtype = self.views.run(fx_node, resolve_operator(node)).dtype
        except Exception:  # Broad on purpose: kernels without numbers raise many types.
            return (node,)
        computed = str(dtype).removeprefix("torch.")
        if computed == node.output.dtype:
            return (node,)
        spec = replace(node.output, dtype=computed)
        call = replace(node, name=f"{node.name}_{computed}", outputs=(spec,))
        args = (ValueRef(call.name), f"torch.{node.output.dtype}")
        return call, Node(node.name, "to.dtype", args, node.outputs, node.module)

    def write(self, writer: Any) -> None:
        """Let readers of all that shows a written memory read what a node wrote into it."""
        target = written_tensor(writer)
        family, chain = self.views.family(writer), self.views.chain(target)
        wanted = [node for node in family if node in chain or is_read_after(node, writer)]
        self.make_variable(family, wanted)
        for node in family:
            if node not in wanted or (node not in chain and self.views.overlap(node, target)):
                self.make_stale(node, writer)
        self.renew(wanted, target, self.names[writer.name])
        for view, behind in pairwise(chain):
            if self.views.is_same(view, behind):
                continue
            if self.is_lost(behind):
                return
            if not self.write_into(view, behind):
                self.lose(chain[chain.index(behind) :], self.overwrite_reason(writer, view, behind))
                return
            self.renew(wanted, behind, self.names[behind.name])

    def write_constants(self, writer: Any) -> None:
        """Let readers read anew what a node that was computed at once wrote into."""
        for node in (writer, *self.views.family(writer)):
            if node.name in self.constants.tensors:
                self.names.pop(node.name, None)
            else:
                self.make_stale(node, writer)

    def make_variable(self, family: list[Any], wanted: list[Any]) -> None:
        """Make constants that are about to be written into weights; what follows is no constant."""
        for node in family:
            if node in wanted and self.is_constant(node):
                self.add_constant(node.name)
            self.constants.tensors.pop(node.name, None)

    def make_stale(self, view: Any, writer: Any) -> None:
        """Let the next reader of a view take it again."""
        self.stale[view.name] = writer.name
        self.lost.pop(view.name, None)

    def renew(self, family: list[Any], written: Any, value: str) -> None:
        """Let readers of a tensor, and of all views of it as a whole, read a new value."""
        for node in family:
            if self.views.is_same(node, written):
                self.names[node.name] = value
                self.stale.pop(node.name, None)
                self.lost.pop(node.name, None)

    def is_constant(self, fx_node: Any) -> bool:
        """Return whether a node depends on no input, and nothing that depends on one read it."""
        return fx_node.name in self.constants.tensors and fx_node.name not in self.names

    def is_lost(self, fx_node: Any) -> bool:
        """Return whether no operator gives the numbers that a tensor has by now."""
        while fx_node.name in self.stale and fx_node.name not in self.lost:
            fx_node = self.views.source(fx_node)
        return fx_node.name in self.lost

    def lose(self, tensors: list[Any], reason: str) -> None:
        """Refuse readers of tensors from this node on."""
        for node in tensors:
            self.lost[node.name] = reason
            self.stale.pop(node.name, None)

    def write_into(self, view: Any, behind: Any) -> bool:
        """Write a view's new value into the tensor behind it; return whether it has an inverse."""
        new, old = self.names[view.name], self.name_of(behind)
        call = write_back(self.views, view, behind, ValueRef(new), ValueRef(old))
        if call is None:
            return False
        name, spec = f"{new}_in_{behind.name}", self.specs[old]
        written: Any = call[1]  # by operators of PyTorch's graph, with its nodes among them
        op, args = call[0], fx.map_arg(written, self.reference)
        self.nodes.append(Node(name, op, args, (spec,), module_path(view)))
        self.specs[name] = spec
        self.names[behind.name] = name
        return True

    def reference(self, node: Any) -> Any:
        """Return a reference to what a node of PyTorch's graph gives now."""
        return ValueRef(self.name_of(node))

    def overwrite_reason(self, writer: Any, view: Any, behind: Any) -> str:
        """Return why what a node writes into a view is not seen by readers of the tensor behind."""
        return (
            f"cannot capture {self.network}, {writer.name} {place_of(writer)} writes into"
            f" {view.name}, a view of {behind.name} that is read later; compute it out of place, or"
            " in a .clone() of the view"
        )

    def add_constant(self, fx_name: str) -> str:
        """Add a folded tensor as a weight, the first time the network reads it."""
        path = f"constants.{fx_name}"
        while path in self.weights:
            path += "_written"
        tensor = self.constants.tensors[fx_name].clone()
        spec = self.tensor_spec(tensor)
        self.names[fx_name] = path
        self.tensors[path] = tensor
        self.specs[path] = spec
        self.weights[path] = Weight(path, spec, trainable=False)
        return path

    def to_differentiable(
        self, op: str, args: tuple[Argument, ...]
    ) -> tuple[str, tuple[Argument, ...]]:
        """Replace operators that PyTorch cannot train through, such as its pure `copy`.

        Of one type, a copy is the source at the target's shape.
        """
        if op != "copy" or len(args) != 2:
            return op, args
        specs = [self.specs.get(arg.name) for arg in args if isinstance(arg, ValueRef)]
        if len(specs) == 2 and all(specs) and specs[0].dtype == specs[1].dtype:  # type: ignore[union-attr]
            return "expand_as", (args[1], args[0])
        return op, args

    def output_specs(self, value: Any, op: str) -> tuple[TensorSpec, ...]:
        """Return shapes and dtypes of a node's results. Raises CannotCapture when it has none."""
        if isinstance(value, (tuple, list)):
            return tuple(self.tensor_spec(item) for item in value)
        if isinstance(value, torch.Tensor):
            return (self.tensor_spec(value),)
        if value is None:
            raise CannotCapture(f"cannot capture {self.network}, {op} returns no tensor")
        return (TensorSpec((), "int64"),)

    def tensor_spec(self, tensor: torch.Tensor) -> TensorSpec:
        """Return shape and dtype of a tensor, symbolic sizes resolved."""
        shape = tuple(self.resolve_size(size) for size in tensor.shape)
        return TensorSpec(shape, str(tensor.dtype).removeprefix("torch."))

    def resolve_size(self, size: Any) -> int:
        """Return a size as a number, with the reader's batch in place of symbols."""
        return resolve_size(size, self.batch)

    def convert_argument(self, value: Any, where: str) -> Argument:
        """Return an argument as a graph stores it. Raises CannotCapture when no graph can."""
        if isinstance(value, torch.fx.Node):
            return ValueRef(self.name_of(value))
        if isinstance(value, (tuple, list)):
            return tuple(self.convert_argument(item, where) for item in value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.SymInt):
            return self.resolve_size(value)
        if isinstance(value, (torch.dtype, torch.memory_format)):
            return str(value)
        if isinstance(value, torch.device):
            return value.type
        raise CannotCapture(
            f"cannot capture {self.network}, {where} is called with a {type(value).__name__}"
        )
