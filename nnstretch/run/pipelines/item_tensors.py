"""Tensors of an item: how they are held, which stages read them, and when they are dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.bundle.pipeline_view import edges, stage_outputs, torch_spec
from nnstretch.errors import BadInput
from nnstretch.pipeline import PipelineSpec, TensorDecl
from nnstretch.run.tensor_io import (
    copy_if_shared,
    describe_names,
    describe_value,
    from_port,
    matches_spec,
    single_or_named,
    to_port,
)

Values = dict[str, Any]
"""Tensors of an item by name as ports hold them, and whatever Python stages return."""


def dead_tensors(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Return, by stage, tensors without readers after it.

    Where several stages read one, it is dead after the last of them if all others come before that;
    else it stays until the item has left.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    dead: dict[str, list[str]] = {stage.name: [] for stage in pipeline.stages}
    before, home, readers = stage_ancestors(manifest), dict[str, str](), dict[str, list[str]]()
    for stage in pipeline.stages:
        for name in stage_outputs(stage, manifest):
            home[name], readers[name] = stage.name, []
    for edge in edges(pipeline, manifest):
        readers.setdefault(edge.tensor, []).append(edge.target)
    for name, targets in readers.items():
        if "" in targets:
            continue
        last = targets[-1] if targets else home[name]
        if all(target == last or target in before[last] for target in targets):
            dead[last].append(name)
    return {stage: tuple(names) for stage, names in dead.items()}


def shared_tensors(manifest: Manifest) -> frozenset[str]:
    """Return tensors that more than one stage reads, or a stage and the caller."""
    pipeline = manifest.pipeline
    assert pipeline is not None
    names = [edge.tensor for edge in edges(pipeline, manifest)]
    return frozenset(name for name in names if names.count(name) > 1)


def stage_ancestors(manifest: Manifest) -> dict[str, set[str]]:
    """Return, by stage, every stage that an item has passed before it."""
    pipeline = manifest.pipeline
    assert pipeline is not None
    ancestors: dict[str, set[str]] = {stage.name: set() for stage in pipeline.stages}
    for edge in edges(pipeline, manifest):
        if edge.source and edge.target:
            ancestors[edge.target] |= {edge.source} | ancestors[edge.source]
    return ancestors


class TensorForms:
    """Converter of a pipeline's tensors between a port's form and PyTorch's.

    What comes from outside is copied: its owner may write on it while the item is in flight.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._shared = shared_tensors(manifest)
        self._ports: dict[str, Port] = {}
        for sub in manifest.subgraphs:
            for port in (*sub.inputs, *sub.outputs):
                self._ports.setdefault(port.name, port)

    def inward(self, item: TensorDecl, value: Any, stage: str = "") -> Any:
        """Convert a value of a caller, or of the Python stage `stage`, to a port's form.

        Raises BadInput for another shape or type than the pipeline says.
        """
        what = f"output {item.name} of stage {stage}" if stage else f"input {item.name}"
        if (port := self._ports.get(item.name)) is not None:
            return copy_if_shared(to_port(port, value, what), value)
        if item.spec is None:
            return value
        if not matches_spec(value, item.spec):
            raise BadInput(
                f"{what}, expected {item.spec} {item.spec.dtype}, got {describe_value(value)}"
            )
        return np.array(value, order="C")  # no subclass, which may calculate otherwise

    def outward(self, name: str, value: Any) -> Any:
        """Convert a value to the form of a caller or a Python stage."""
        port = self._ports.get(name)
        return value if port is None or torch_spec(port) == port.spec else from_port(port, value)

    def to_python_stage(self, name: str, value: Any) -> Any:
        """Convert an input of a Python stage, which may write only on what no other stage reads."""
        view = self.outward(name, value)
        if (
            name in self._shared
            and isinstance(view, np.ndarray)
            and np.may_share_memory(view, value)
        ):
            view = view.view()
            view.flags.writeable = False
        return view

    def from_caller(self, pipeline: PipelineSpec, inputs: Any, model: str) -> Values:
        """Convert what a caller gives: one input as it is, several by name. Raises BadInput."""
        items = pipeline.inputs
        names = {item.name for item in items}
        if len(items) == 1 and not (isinstance(inputs, Mapping) and inputs.keys() == names):
            inputs = {items[0].name: inputs}
        if not isinstance(inputs, Mapping) or inputs.keys() != names:
            described = f"one {type(inputs).__name__}"
            if isinstance(inputs, Mapping):
                described = describe_names(inputs)
            expected = ", ".join(item.name for item in items)
            raise BadInput(f"inputs {described}, pipeline of {model}, it expects {expected}")
        return {item.name: self.inward(item, inputs[item.name]) for item in items}

    def to_caller(self, outputs: Sequence[str], values: Values) -> Any:
        """Convert what a caller gets: one output as it is, several by name."""
        return single_or_named({name: self.outward(name, values[name]) for name in outputs})
