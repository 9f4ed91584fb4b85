"""ExportedProgram -> Graph."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from nnstretch.capture.captured_network import CapturedNetwork
from nnstretch.capture.checks.autocast_blocks import autocast_notes
from nnstretch.capture.checks.data_dependent import check_operator
from nnstretch.capture.checks.random_operators import is_active_dropout
from nnstretch.capture.exported_program import (
    WRAPPER_CALLS,
    is_active_norm,
    is_assertion,
    module_path,
)
from nnstretch.capture.memory.graph_values import GraphValues
from nnstretch.capture.memory.views import is_write, written_tensor
from nnstretch.capture.module_layers import distinct_names
from nnstretch.errors import CannotCapture
from nnstretch.graph import Graph, Value, Weight
from nnstretch.structure.cuts import prune_unread

IN_TRAINING = "it is in training mode (training=True), was .eval() left out?"
IS_MEMORY = "which the next inference would read, and a graph remembers nothing"


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
        self.name = name
        paths: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **getattr(signature, "inputs_to_lifted_tensor_constants", {}),
        }
        self.names = names = distinct_names(frozenset(paths.values()))
        self.weight_paths = {node: names[path] for node, path in paths.items()}
        self.weight_names = frozenset(names.values())
        self.trainable = {names[path] for path in signature.inputs_to_parameters.values()}
        self.inputs: list[Value] = []
        self.outputs: tuple[str, ...] = ()
        self.weights_read: set[str] = set()
        self.output_specs = signature.output_specs
        tensors = {**program.constants, **program.state_dict}
        renamed = {names.get(path, path): tensor for path, tensor in tensors.items()}
        self.values = GraphValues(name, batch, renamed)

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
        results: list[Any] = []
        for leaf, spec in zip(leaves, self.output_specs, strict=True):
            if spec.kind.name.endswith("_MUTATION"):
                self.check_mutation(leaf, spec)
            elif isinstance(leaf, torch.fx.Node):
                results.append(leaf)
        if not results:
            raise CannotCapture(f"cannot capture {self.name}, it returns no tensor")
        for result in results:
            if self.values.is_constant(result):
                raise CannotCapture(
                    f"cannot capture {self.name}, its output {result.name} does not depend on its"
                    " input"
                )
        self.outputs = tuple(map(self.values.name_of, results))

    def check_mutation(self, fx_node: Any, spec: Any) -> None:
        """Check that nothing reads what a decomposed program writes into a weight at its end.

        Raises CannotCapture. What it writes into an input, the caller alone would read.
        """
        path = self.names.get(spec.target, spec.target)
        if spec.kind.name == "USER_INPUT_MUTATION" or path.endswith("num_batches_tracked"):
            return
        if path in self.weights_read:
            where = module_path(fx_node) or "forward"
            raise CannotCapture(
                f"cannot capture {self.name}, {fx_node.name} in {where} writes into {path},"
                f" {IS_MEMORY}"
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
        if path is not None and fx_node.users:
            self.weights_read.add(path)
        label = path or self.value_name(fx_node)
        values = self.values
        spec = values.tensor_spec(value)
        values.names[fx_node.name] = label
        values.specs[label] = spec
        if path is None:
            self.inputs.append(Value(label, spec))
            return
        values.weights[path] = Weight(path, spec, path in self.trainable)
        if path in values.tensors and path not in self.trainable:
            values.constants.tensors[fx_node.name] = values.tensors[path].detach().clone()

    def read_call(self, fx_node: Any) -> None:
        """Read a call of an operator; calls that write in place become their pure form."""
        if is_assertion(fx_node.target):
            return
        check_operator(fx_node, self.name)
        self.check_repeatable(fx_node)
        if self.values.constants.try_fold(fx_node):
            if is_write(fx_node):
                self.values.write_constants(fx_node)
            return
        self.values.add_call(fx_node, self.value_name(fx_node))
        if is_write(fx_node):
            self.values.write(fx_node)

    def check_repeatable(self, fx_node: Any) -> None:
        """Check that a node computes the same at every inference. Raises CannotCapture."""
        where = f"cannot capture {self.name}, {fx_node.name} in {module_path(fx_node) or 'forward'}"
        if is_active_dropout(fx_node):
            raise CannotCapture(f"{where} drops numbers by chance, {IN_TRAINING}")
        if is_active_norm(fx_node):
            raise CannotCapture(f"{where} writes its statistics, {IN_TRAINING}")
        target, views = written_tensor(fx_node), self.values.views
        if target is None:
            return
        path = self.weight_paths.get(views.chain(target)[-1].name)
        if path is None or path.endswith("num_batches_tracked"):
            return  # A counter of batch norms in training, which are refused themselves.
        if views.keeps_state(fx_node):
            raise CannotCapture(f"{where} writes into {path}, {IS_MEMORY}")

    def value_name(self, fx_node: Any) -> str:
        """Return the name of what a node computes; no weight's path, such as `mean` or `index`."""
        name: str = fx_node.name
        while name in self.weight_names:
            name += "_value"
        return name

    def build_result(self) -> CapturedNetwork:
        """Return graph and weights of what was read."""
        values = self.values
        nodes = prune_unread(values.nodes, self.outputs)
        read = set(self.outputs)
        for node in nodes:
            read.update(node.inputs)
        weights = tuple(weight for weight in values.weights.values() if weight.name in read)
        graph = Graph(self.name, tuple(self.inputs), weights, nodes, self.outputs)
        tensors = {weight.name: values.tensors[weight.name].detach() for weight in weights}
        return CapturedNetwork(graph, tensors, values.stack_traces)


def inline_wrappers(program: Any) -> torch.fx.Graph:
    """Write blocks that only switch autocast or gradients out in place, and return the nodes."""
    graph: torch.fx.Graph = program.graph
    for fx_node in list(graph.nodes):
        if fx_node.op == "call_function":
            name = getattr(fx_node.target, "_name", fx_node.target.__name__)
            if name in WRAPPER_CALLS:
                inline_call(program, fx_node)
    return graph


def inline_call(program: Any, fx_node: Any) -> None:
    """Write the nested graph that a node calls out in its place."""
    graph = program.graph
    at = [isinstance(a, torch.fx.Node) and a.op == "get_attr" for a in fx_node.args].index(True)
    holder = fx_node.args[at]
    inner = getattr(program.graph_module, holder.target).graph
    parameters = [node for node in inner.nodes if node.op == "placeholder"]
    values = dict(zip(parameters, fx_node.args[at + 1 :], strict=True))
    with graph.inserting_before(fx_node):
        outputs = graph.graph_copy(inner, values)
    for reader in list(fx_node.users):
        reader.replace_all_uses_with(outputs[reader.args[1]])
        graph.erase_node(reader)
    graph.erase_node(fx_node)
    if not holder.users:
        graph.erase_node(holder)
