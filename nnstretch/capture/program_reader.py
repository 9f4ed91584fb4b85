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
    inline_wrappers,
    is_active_norm,
    is_assertion,
    module_path,
)
from nnstretch.capture.memory.graph_values import GraphValues
from nnstretch.capture.memory.views import is_write, written_tensor
from nnstretch.errors import CannotCapture
from nnstretch.graph import Graph, Value, Weight
from nnstretch.structure.cuts import prune_unread

IN_TRAINING = "it is in training mode (training=True), was .eval() left out?"


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
        self.weight_paths: dict[str, str] = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **getattr(signature, "inputs_to_lifted_tensor_constants", {}),
        }
        self.weight_names = frozenset(self.weight_paths.values())
        self.trainable = set(signature.inputs_to_parameters.values())
        self.inputs: list[Value] = []
        self.outputs: tuple[str, ...] = ()
        self.values = GraphValues(name, batch, {**program.constants, **program.state_dict})

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
        results = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        if not results:
            raise CannotCapture(f"cannot capture {self.name}, it returns no tensor")
        for result in results:
            if self.values.is_constant(result):
                raise CannotCapture(
                    f"cannot capture {self.name}, its output {result.name} does not depend on its"
                    " input"
                )
        self.outputs = tuple(map(self.values.name_of, results))

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
