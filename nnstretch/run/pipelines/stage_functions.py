"""What a stage does with an item.

Its sub-graphs or its Python function, on tensors that earlier stages left with the item.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port, Subgraph, processors_named
from nnstretch.bundle.pipeline_view import edges, stage_outputs, subgraphs_of_stage, torch_spec
from nnstretch.errors import BadInput
from nnstretch.pipeline import PipelineSpec, PipelineStage, TensorDecl
from nnstretch.protocols import Backend, DeviceBackend
from nnstretch.run.backends.registry import DEVICE_MEMORY_PREFIX, load_backend
from nnstretch.run.tensor_io import describe_value, from_port, matches_spec, to_port
from nnstretch.schedule import StaticOrderRunner, static_order
from nnstretch.task import Task

Values = dict[str, Any]
"""Tensors of an item by name as ports hold them, and whatever Python stages hand on."""
Functions = Mapping[str, Callable[..., object]]
"""Python stages by the names that a bundle gives them; inside, by stage."""
Parts = dict[
    str,
    tuple[
        Callable[[Mapping[str, np.ndarray]], Sequence[np.ndarray]],
        tuple[str, ...],
        tuple[str, ...],
        Backend,
    ],
]
"""What runs each sub-graph, the names of what it reads and writes, and whose it is."""


def dead_tensors(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """Return, by stage, tensors without readers after it: an item holds only what is still needed.

    Where several stages read one, the last of them forgets it if all others are before it; else it
    stays until the item has left.
    """
    pipeline = manifest.pipeline
    assert pipeline is not None
    dead: dict[str, list[str]] = {stage.name: [] for stage in pipeline.stages}
    before = stage_ancestors(manifest)
    readers: dict[str, list[str]] = {
        name: [] for stage in pipeline.stages for name in stage_outputs(stage, manifest)
    }
    for edge in edges(pipeline, manifest):
        readers.setdefault(edge.tensor, []).append(edge.target)
    home = {
        name: stage.name for stage in pipeline.stages for name in stage_outputs(stage, manifest)
    }
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
    """Return, by stage, every stage that an item has passed when it comes there."""
    pipeline = manifest.pipeline
    assert pipeline is not None
    ancestors: dict[str, set[str]] = {stage.name: set() for stage in pipeline.stages}
    for edge in edges(pipeline, manifest):
        if edge.source and edge.target:
            ancestors[edge.target] |= {edge.source} | ancestors[edge.source]
    return ancestors


class TensorForms:
    """Tensors of a pipeline between the two ways of holding them.

    As a sub-graph's port does, and as PyTorch has it.

    What comes from outside is copied: its owner may write on it while the item is on its way.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._shared = shared_tensors(manifest)
        self._ports: dict[str, Port] = {}
        for sub in manifest.subgraphs:
            for port in (*sub.inputs, *sub.outputs):
                self._ports.setdefault(port.name, port)

    def inward(self, item: TensorDecl, value: Any, stage: str = "") -> Any:
        """Convert a value from a caller, or from a Python stage that is named, to a port's form.

        Raises BadInput for another shape or type than the pipeline says.
        """
        what = f"output {item.name} of stage {stage}" if stage else f"input {item.name}"
        if (port := self._ports.get(item.name)) is not None:
            array = to_port(port, value, what)
            return array.copy() if np.may_share_memory(array, value) else array
        if item.spec is None:
            return value
        if not matches_spec(value, item.spec):
            raise BadInput(
                f"{what}, expected {item.spec} {item.spec.dtype}, got {describe_value(value)}"
            )
        return np.array(value, order="C")  # no subclass, which may calculate otherwise

    def outward(self, name: str, value: Any) -> Any:
        """Return outputs as a caller or a Python stage takes them."""
        port = self._ports.get(name)
        return value if port is None or torch_spec(port) == port.spec else from_port(port, value)

    def to_python_stage(self, name: str, value: Any) -> Any:
        """Return inputs of a Python stage, which may write on what nobody else reads, and on
        nothing else.
        """
        view = self.outward(name, value)
        if name in self._shared and view is value and isinstance(value, np.ndarray):
            view = value.view()
            view.flags.writeable = False
        return view

    def from_caller(self, pipeline: PipelineSpec, inputs: Any, model: str) -> Values:
        """Convert what a caller gives: one input as it is, several by name. Raises BadInput."""
        items = pipeline.inputs
        names = {item.name for item in items}
        if len(items) == 1 and not (isinstance(inputs, Mapping) and inputs.keys() == names):
            inputs = {items[0].name: inputs}
        if not isinstance(inputs, Mapping) or inputs.keys() != names:
            described = (
                ", ".join(map(str, inputs)) or "none"
                if isinstance(inputs, Mapping)
                else f"one {type(inputs).__name__}"
            )
            raise BadInput(
                f"inputs {described}, pipeline of {model}, it expects"
                f" {', '.join(item.name for item in items)}"
            )
        return {item.name: self.inward(item, inputs[item.name]) for item in items}

    def to_caller(self, outputs: Sequence[str], values: Values) -> Any:
        """Convert what a caller gets: one output as it is, several by name."""
        outputs_ = {name: self.outward(name, values[name]) for name in outputs}
        return next(iter(outputs_.values())) if len(outputs_) == 1 else outputs_


def tensors_on_device(stage: str) -> str:
    """Return which of an item's tensors are in the memory of a stage's device."""
    return f"{stage} on its device"


class SubgraphStage:
    """The loaded sub-graphs of one replica of a stage.

    Several run at once, each where it was placed.
    """

    def __init__(
        self,
        bundle: Bundle,
        stage: PipelineStage,
        backends: Mapping[str, str],
        at_once: bool = True,
        copied: bool = False,
    ) -> None:
        """Prepare a stage's sub-graphs. `copied`: its one sub-graph is on a device, and its caller
        copies there before (`enter`) and from there after (`leave`).
        """
        subs = subgraphs_of_stage(stage, bundle.manifest)
        self._bundle, self._backends, self._threads = bundle, backends, stage.threads
        self._parts: Parts = {sub.name: self._part(sub, bundle.files[sub.file]) for sub in subs}
        self._subgraphs = {sub.name: sub for sub in subs}
        self._at_once = at_once and len({sub.processor for sub in subs}) > 1
        self._runner: StaticOrderRunner | None = None
        self._copied, self._held = subs[0].name if copied else "", tensors_on_device(stage.name)

    def __call__(self, values: Values) -> None:
        """Compute the stage on one item's values."""
        if self._copied:
            values[self._held] = self._remote().execute(values[self._held])
            return
        if not self._at_once:
            for name in self._parts:
                self._run(name, values)
            return
        self._runner = self._runner or branch_runner(
            tuple(self._subgraphs.values()), self._bundle.manifest
        )
        try:
            self._runner.run({name: partial(self._run, name, values) for name in self._parts})
        except BaseException:  # what is in flight ends first, and the next item finds new threads
            self.close()
            raise

    def enter(self, values: Values) -> None:
        """Copy the inputs to the device."""
        values[self._held] = self._remote().upload(
            {name: values[name] for name in self._parts[self._copied][1]}
        )

    def leave(self, values: Values) -> None:
        """Copy the outputs from the device."""
        values.update(
            zip(
                self._parts[self._copied][2],
                self._remote().download(values.pop(self._held)),
                strict=True,
            )
        )

    def load_replacement(self, subgraph: str, data: bytes) -> Any:
        """Load another file for a sub-graph, ready to take its place."""
        return self._part(self._subgraphs[subgraph], data)

    def compute(self, subgraph: str, values: Values) -> None:
        """Compute one of the sub-graphs alone, on the calling thread."""
        self._run(subgraph, values)

    def replace(self, subgraph: str, part: Any) -> None:
        """Put another file in place of a sub-graph's."""
        self._parts[subgraph] = part

    def close(self) -> None:
        """End the threads of its branches."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _run(self, name: str, values: Values) -> None:
        run, reads, names, _ = self._parts[name]
        values.update(zip(names, run({one: values[one] for one in reads}), strict=True))

    def _part(self, sub: Subgraph, data: bytes) -> Any:
        backend: Backend = load_backend(
            self._backends[sub.name], sub, data, self._bundle.name, self._threads
        )
        return (
            backend.run,
            tuple(port.name for port in sub.inputs),
            tuple(port.name for port in sub.outputs),
            backend,
        )

    def _remote(self) -> DeviceBackend:
        backend = self._parts[self._copied][3]
        assert isinstance(backend, DeviceBackend)
        return backend


def branch_runner(subs: Sequence[Subgraph], manifest: Manifest) -> StaticOrderRunner:
    """Return threads for the branches of a stage.

    Which cores they share with other stages' is the system's choice.
    """
    writers = {port.name: sub.name for sub in subs for port in sub.outputs}
    tasks = [
        Task(
            sub.name,
            sub.name,
            frozenset(writers[port.name] for port in sub.inputs if port.name in writers),
            sub.processor,
        )
        for sub in subs
    ]
    names = list(dict.fromkeys(sub.processor for sub in subs))
    processors = processors_named(manifest, names)
    caller = next((p.name for p in processors if p.kind == "cpu"), names[0])
    return StaticOrderRunner(static_order(tasks, processors), caller, dict.fromkeys(names))


class PythonStage:
    """A Python stage: its function takes its inputs and returns its outputs, in PyTorch's form."""

    def __init__(
        self, stage: PipelineStage, function: Callable[..., object], forms: TensorForms
    ) -> None:
        self._stage, self._function, self._forms = stage, function, forms

    def __call__(self, values: Values) -> None:
        """Compute the stage on one item's values."""
        stage = self._stage
        returned = self._function(
            *(self._forms.to_python_stage(item.name, values[item.name]) for item in stage.inputs)
        )
        outputs_ = (
            (returned,)
            if len(stage.outputs) == 1
            else tuple(returned)
            if isinstance(returned, tuple | list)
            else ()
        )
        if len(outputs_) != len(stage.outputs):
            described = (
                len(outputs_)
                if isinstance(returned, tuple | list)
                else f"one {type(returned).__name__}"
            )
            names = ", ".join(item.name for item in stage.outputs)
            raise BadInput(
                f"stage {stage.name} returned {described}, {stage.call}, it has"
                f" {len(stage.outputs)} outputs: a tuple of {names}"
            )
        for item, value in zip(stage.outputs, outputs_, strict=True):
            values[item.name] = self._forms.inward(item, value, stage.name)


def device_stages(bundle: Bundle, backends: Mapping[str, str]) -> frozenset[str]:
    """Return stages whose backend copies to and from its device.

    Of one sub-graph each, since branches meet in the host's memory.
    """
    pipeline = bundle.manifest.pipeline
    assert pipeline is not None
    alone = [stage for stage in pipeline.stages if len(stage.subgraphs) == 1]
    return frozenset(
        stage.name
        for stage in alone
        if backends[stage.subgraphs[0]].startswith(DEVICE_MEMORY_PREFIX)
    )


def stage_factory(
    bundle: Bundle,
    backends: Mapping[str, str],
    functions: Functions,
    at_once: bool = True,
    copied: Container[str] = (),
) -> Callable[[str, int], SubgraphStage | PythonStage]:
    """Return the function that loads what a stage computes with.

    Does not know the pipeline, so that a pipeline nobody holds can end.
    """
    pipeline, forms = bundle.manifest.pipeline, TensorForms(bundle.manifest)
    assert pipeline is not None
    stages = {stage.name: stage for stage in pipeline.stages}

    def opened(name: str, _replica: int) -> SubgraphStage | PythonStage:
        stage = stages[name]
        return (
            PythonStage(stage, functions[name], forms)
            if stage.call
            else SubgraphStage(bundle, stage, backends, at_once, name in copied)
        )

    return opened
