"""ExportedProgram -> Graph."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from nnstretch.capture.captured_network import CapturedNetwork
from nnstretch.capture.checks.autocast_blocks import autocast_notes
from nnstretch.capture.checks.data_dependent import check_operator
from nnstretch.capture.checks.random_operators import is_active_dropout
from nnstretch.capture.constant_folding import ConstantFolder
from nnstretch.capture.exported_program import (
    inline_wrappers,
    is_active_norm,
    is_assertion,
    module_path,
    operator_name,
    resolve_size,
)
from nnstretch.capture.memory_views import MemoryViews
from nnstretch.errors import CannotCapture
from nnstretch.graph import Argument, Graph, Node, TensorSpec, Value, ValueRef, Weight
from nnstretch.structure.cuts import prune_unread
from nnstretch.structure.macs import count_macs

SCATTER_OPERATORS = {"slice.Tensor": "slice_scatter", "select.int": "select_scatter"}
"""How to write a slice back into the tensor it was taken from."""
WHOLE_VIEWS = frozenset({"alias", "detach"})
"""Views of all of a tensor, in its shape: `x[...]`, `x.detach()`."""
IN_TRAINING = "it is in training mode (training=True), was .eval() left out?"
IGNORED_KEYWORDS = ("device", "pin_memory", "layout")


def read_program(program: Any, batch: int, name: str) -> CapturedNetwork:
    """Convert an ExportedProgram to a Graph with every varying batch set to `batch`."""
    notes = autocast_notes(program)
    reader = ProgramReader(program, batch, name)
    for fx_node in inline_wrappers(program).nodes:
        reader.read_node(fx_node)
    return replace(reader.build_result(), notes=notes)


class ProgramReader:
    """Walk over an exported graph; in-place operators become plain ones, and readers follow."""

    def __init__(self, program: Any, batch: int, name: str) -> None:
        signature = program.graph_signature
        self.batch = batch
        self.name = name
        self.weight_paths: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **getattr(signature, "inputs_to_lifted_tensor_constants", {}),
        }
        self.weight_names = frozenset(self.weight_paths.values())
        self.trainable = set(signature.inputs_to_parameters.values())
        self.tensors: dict[str, torch.Tensor] = {**program.constants, **program.state_dict}
        self.inputs: list[Value] = []
        self.weights: dict[str, Weight] = {}
        self.nodes: list[Node] = []
        self.outputs: tuple[str, ...] = ()
        self.names: dict[str, str] = {}
        """Exported node -> the value that its readers read now."""
        self.specs: dict[str, TensorSpec] = {}
        self.constants = ConstantFolder(name)
        self.views = MemoryViews()
        self.stack_traces: dict[str, str] = {}

    def read_node(self, fx_node: Any) -> None:
        """Read one node of an exported program. Raises CannotCapture when it is control flow."""
        if fx_node.op == "placeholder":
            self.read_placeholder(fx_node)
        elif fx_node.op == "call_function":
            self.read_call(fx_node)
        elif fx_node.op == "output":
            self.read_outputs(fx_node)
        else:
            raise CannotCapture(
                f"cannot capture {self.name}, {fx_node.name} is {fx_node.op}, control flow inside"
                " the network"
            )

    def read_outputs(self, fx_node: Any) -> None:
        """Read the network's outputs. Raises CannotCapture when one is constant, or none is."""
        leaves = torch.utils._pytree.tree_leaves(fx_node.args)
        names = [leaf.name for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        if not names:
            raise CannotCapture(f"cannot capture {self.name}, it returns no tensor")
        for name in names:
            if name not in self.names:
                raise CannotCapture(
                    f"cannot capture {self.name}, its output {name} does not depend on its input"
                )
        self.outputs = tuple(self.names[name] for name in names)

    def read_placeholder(self, fx_node: Any) -> None:
        """Read an input or a weight. Raises CannotCapture when an input is no tensor."""
        value = fx_node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            raise CannotCapture(
                f"cannot capture {self.name}, input {fx_node.name} is {type(value).__name__}, only"
                " tensors are"
            )
        path = self.weight_paths.get(fx_node.name)
        label = path or self.value_name(fx_node)
        spec = self.tensor_spec(value)
        self.names[fx_node.name] = label
        self.specs[label] = spec
        if path is None:
            self.inputs.append(Value(label, spec))
            return
        self.weights[path] = Weight(path, spec, path in self.trainable)
        if path in self.tensors and path not in self.trainable:
            self.constants.tensors[fx_node.name] = self.tensors[path].detach().clone()

    def read_call(self, fx_node: Any) -> None:
        """Read a call of an operator; calls that write in place become their pure form."""
        if is_assertion(fx_node.target):
            return
        check_operator(fx_node, self.name)
        self.check_repeatable(fx_node)
        if self.constants.try_fold(fx_node):
            self.views.record(fx_node)
            return
        op, in_place = operator_name(fx_node.target)
        outputs = self.output_specs(fx_node.meta.get("val"), op)
        args = tuple(self.convert_argument(arg, fx_node.name) for arg in fx_node.args)
        kwargs: list[tuple[str, Argument]] = []
        for key, value in fx_node.kwargs.items():
            if key not in IGNORED_KEYWORDS:
                kwargs.append((key, self.convert_argument(value, fx_node.name)))
        macs = count_macs(op.split(".")[0], args, outputs[0], self.specs)
        called = self.to_differentiable(op, args)
        name, module = self.value_name(fx_node), module_path(fx_node)
        self.nodes.append(Node(name, *called, outputs, module, tuple(kwargs), macs))
        self.names[fx_node.name] = name
        self.specs[name] = outputs[0]
        self.stack_traces[name] = fx_node.meta.get("stack_trace") or ""
        self.views.record(fx_node)
        if in_place and isinstance(args[0], ValueRef):
            self.write_in_place(fx_node, args[0].name)

    def check_repeatable(self, fx_node: Any) -> None:
        """Check that a node computes the same at every inference. Raises CannotCapture."""
        where = f"cannot capture {self.name}, {fx_node.name} in {module_path(fx_node) or 'forward'}"
        if is_active_dropout(fx_node):
            raise CannotCapture(f"{where} drops numbers by chance, {IN_TRAINING}")
        if is_active_norm(fx_node):
            raise CannotCapture(f"{where} writes its statistics, {IN_TRAINING}")
        if not operator_name(fx_node.target)[1] or not isinstance(fx_node.args[0], torch.fx.Node):
            return
        path = self.weight_paths.get(self.views.chain(fx_node.args[0])[-1].name)
        if path is None or path.endswith("num_batches_tracked"):
            return  # A counter of batch norms in training, which are refused themselves.
        if self.views.keeps_state(fx_node):
            raise CannotCapture(
                f"{where} writes into {path}, which the next inference would read, and a graph"
                " remembers nothing"
            )

    def value_name(self, fx_node: Any) -> str:
        """Return the name of what a node computes; no weight's path, such as `mean` or `index`."""
        name: str = fx_node.name
        while name in self.weight_names:
            name += "_value"
        return name

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

    def write_in_place(self, fx_node: Any, target: str) -> None:
        """Let readers of a value read what an operator wrote into it.

        Raises CannotCapture when a view of the old value is read later, or cannot be written back.
        """
        stale = self.views.stale(fx_node)
        if stale is not None:
            written = fx_node.args[0].name
            raise self.overwrite_error(
                fx_node, f"{written}, of which the view {stale.name} is read later"
            )
        for node in self.views.chain(fx_node.args[0]):
            self.make_variable(node.name)
        value = self.names[fx_node.name]
        self.redirect_readers(target, value)
        for view, behind in pairwise(self.views.chain_read_after(fx_node)):
            value = self.write_back(fx_node, value, view, behind)

    def redirect_readers(self, old: str, new: str) -> None:
        """Let readers of the old value read the new one from this node on."""
        self.names = {key: new if value == old else value for key, value in self.names.items()}

    def write_back(self, fx_node: Any, value: str, view: Any, behind: Any) -> str:
        """Write a view's new value into the tensor behind it, and return the tensor's new value.

        Raises CannotCapture when the view has no inverse.
        """
        op, _ = operator_name(view.target)
        if op in WHOLE_VIEWS:
            self.redirect_readers(self.names[behind.name], value)
            return value
        if op not in SCATTER_OPERATORS:
            raise self.overwrite_error(
                fx_node, f"{view.name}, a view of {behind.name} that is read later"
            )
        old = self.names[behind.name]
        name = f"{value}_in_{behind.name}"
        position = tuple(self.convert_argument(arg, view.name) for arg in view.args[1:])
        args = (ValueRef(old), ValueRef(value), *position)
        spec = self.specs[old]
        self.nodes.append(Node(name, SCATTER_OPERATORS[op], args, (spec,), module_path(fx_node)))
        self.specs[name] = spec
        self.redirect_readers(old, name)
        return name

    def overwrite_error(self, fx_node: Any, what: str) -> CannotCapture:
        """Return the error of a node that writes into what others still read."""
        return CannotCapture(f"cannot capture {self.name}, {fx_node.name} writes into {what}")

    def add_constant(self, fx_name: str) -> str:
        """Add a folded tensor as a weight, the first time the network reads it."""
        path = f"constants.{fx_name}"
        tensor = self.constants.tensors[fx_name].clone()
        spec = self.tensor_spec(tensor)
        self.names[fx_name] = path
        self.tensors[path] = tensor
        self.specs[path] = spec
        self.weights[path] = Weight(path, spec, trainable=False)
        return path

    def make_variable(self, fx_name: str) -> None:
        """Make a constant that is written to a weight, so that later nodes read new values."""
        if fx_name in self.constants.tensors and fx_name not in self.names:
            self.add_constant(fx_name)
        self.constants.tensors.pop(fx_name, None)

    def output_specs(self, value: Any, op: str) -> tuple[TensorSpec, ...]:
        """Return shapes and dtypes of a node's results. Raises CannotCapture when it has none."""
        if isinstance(value, (tuple, list)):
            return tuple(self.tensor_spec(item) for item in value)
        if isinstance(value, torch.Tensor):
            return (self.tensor_spec(value),)
        if value is None:
            raise CannotCapture(f"cannot capture {self.name}, {op} returns no tensor")
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
            name = self.names.get(value.name)
            return ValueRef(self.add_constant(value.name) if name is None else name)
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
            f"cannot capture {self.name}, {where} is called with a {type(value).__name__}"
        )

    def build_result(self) -> CapturedNetwork:
        """Return graph and weights of what was read."""
        nodes = prune_unread(self.nodes, self.outputs)
        read = set(self.outputs)
        for node in nodes:
            read.update(node.inputs)
        weights = tuple(weight for weight in self.weights.values() if weight.name in read)
        graph = Graph(self.name, tuple(self.inputs), weights, nodes, self.outputs)
        tensors = {weight.name: self.tensors[weight.name].detach() for weight in weights}
        return CapturedNetwork(graph, tensors, self.stack_traces)
