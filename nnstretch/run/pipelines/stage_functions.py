"""What a stage computes on an item: its sub-graphs or its Python function."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Subgraph, processors_named
from nnstretch.bundle.pipeline_view import subgraphs_of_stage
from nnstretch.errors import BadInput
from nnstretch.pipeline import PipelineSpec, PipelineStage
from nnstretch.protocols import Backend, DeviceBackend
from nnstretch.run.backends.registry import DEVICE_MEMORY_PREFIX
from nnstretch.run.loaded_network import LoadedSubgraphs
from nnstretch.run.pipelines.item_tensors import TensorForms, Values
from nnstretch.schedule import StaticOrderRunner, static_order, subgraph_tasks
from nnstretch.soc import host_of

Functions = Mapping[str, Callable[..., object]]
"""Python stages by the names that a bundle gives them; inside, by stage."""


def required_pipeline(bundle: Bundle) -> PipelineSpec:
    """Return a bundle's pipeline. Raises BadInput where it has none."""
    if bundle.manifest.pipeline is None:
        raise BadInput(
            f"no pipeline, bundle {bundle.name}, it has branches only; `nnstretch partition` makes"
            " one"
        )
    return bundle.manifest.pipeline


def tensors_on_device(stage: str) -> str:
    """Return the name under which an item has its tensors in the memory of a stage's device."""
    return f"{stage} on its device"


class SubgraphStage:
    """The loaded sub-graphs of one replica of a stage; branches run at once, each where placed."""

    def __init__(
        self,
        bundle: Bundle,
        stage: PipelineStage,
        backends: Mapping[str, str],
        at_once: bool = True,
        copied: bool = False,
    ) -> None:
        """Load a stage's sub-graphs. `copied`: its one sub-graph is on a device, and its caller
        copies there before (`enter`) and from there after (`leave`).
        """
        subs = subgraphs_of_stage(stage, bundle.manifest)
        self._manifest = bundle.manifest
        self._subgraphs = LoadedSubgraphs(bundle, subs, backends, stage.threads)
        self._at_once = at_once and len({sub.processor for sub in subs}) > 1
        self._runner: StaticOrderRunner | None = None
        self._copied, self._on_device = (
            subs[0].name if copied else "",
            tensors_on_device(stage.name),
        )

    def __call__(self, values: Values) -> None:
        """Compute the stage on one item's values."""
        if self._copied:
            values[self._on_device] = self._device().execute(values[self._on_device])
        elif self._at_once:
            self._run_branches(values)
        else:
            self._subgraphs.compute_all(values)

    def compute(self, subgraph: str, values: Values) -> None:
        """Compute one of the sub-graphs on the calling thread."""
        self._subgraphs.compute(subgraph, values)

    def enter(self, values: Values) -> None:
        """Copy the inputs to the device."""
        inputs = self._subgraphs.inputs(self._copied, values)
        values[self._on_device] = self._device().upload(inputs)

    def leave(self, values: Values) -> None:
        """Copy the outputs from the device."""
        outputs = self._device().download(values.pop(self._on_device))
        self._subgraphs.store(self._copied, outputs, values)

    def load_replacement(self, subgraph: str, data: bytes) -> Backend:
        """Load another file for a sub-graph, ready to take its place."""
        return self._subgraphs.load(subgraph, data)

    def replace(self, backends: Mapping[str, Backend]) -> None:
        """Put other backends in place of those of sub-graphs."""
        self._subgraphs.backends |= backends

    def close(self) -> None:
        """End the threads of its branches."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _run_branches(self, values: Values) -> None:
        subgraphs = self._subgraphs
        if self._runner is None:
            self._runner = branch_runner(tuple(subgraphs.specs.values()), self._manifest)
        try:
            calls = {name: partial(subgraphs.compute, name, values) for name in subgraphs.specs}
            self._runner.run(calls)
        except BaseException:  # what is in flight ends first, and the next item starts new threads
            self.close()
            raise

    def _device(self) -> DeviceBackend:
        backend = self._subgraphs.backends[self._copied]
        assert isinstance(backend, DeviceBackend)
        return backend


def branch_runner(subs: Sequence[Subgraph], manifest: Manifest) -> StaticOrderRunner:
    """Return threads for the branches of a stage; the system chooses their cores."""
    names = list(dict.fromkeys(sub.processor for sub in subs))
    processors = processors_named(manifest, names)
    caller = host_of(processors) or names[0]
    order = static_order(subgraph_tasks(subs), processors)
    return StaticOrderRunner(order, caller, dict.fromkeys(names))


class PythonStage:
    """A Python stage: its function takes its inputs and returns its outputs, in PyTorch's form."""

    def __init__(
        self, stage: PipelineStage, function: Callable[..., object], forms: TensorForms
    ) -> None:
        self._stage, self._function, self._forms = stage, function, forms

    def __call__(self, values: Values) -> None:
        """Compute the stage on one item's values."""
        stage, forms = self._stage, self._forms
        inputs = [forms.to_python_stage(item.name, values[item.name]) for item in stage.inputs]
        outputs = self._outputs(self._function(*inputs))
        for item, value in zip(stage.outputs, outputs, strict=True):
            values[item.name] = forms.inward(item, value, stage.name)

    def _outputs(self, returned: object) -> tuple[object, ...]:
        """Return as many outputs as the stage has. Raises BadInput."""
        stage = self._stage
        if len(stage.outputs) == 1:
            return (returned,)
        outputs = tuple(returned) if isinstance(returned, tuple | list) else ()
        if len(outputs) == len(stage.outputs):
            return outputs
        described = f"one {type(returned).__name__}"
        if isinstance(returned, tuple | list):
            described = str(len(outputs))
        names = ", ".join(item.name for item in stage.outputs)
        raise BadInput(
            f"stage {stage.name} returned {described}, {stage.call}, it has"
            f" {len(stage.outputs)} outputs: a tuple of {names}"
        )


def device_stages(bundle: Bundle, backends: Mapping[str, str]) -> frozenset[str]:
    """Return stages whose backend copies to and from its device.

    They have one sub-graph each, since branches meet in the host's memory.
    """
    names: set[str] = set()
    for stage in required_pipeline(bundle).stages:
        if len(stage.subgraphs) == 1:
            backend = backends[stage.subgraphs[0]]
            if backend.startswith(DEVICE_MEMORY_PREFIX):
                names.add(stage.name)
    return frozenset(names)


def stage_factory(
    bundle: Bundle,
    backends: Mapping[str, str],
    functions: Functions,
    at_once: bool = True,
    copied: Container[str] = (),
) -> Callable[[str, int], SubgraphStage | PythonStage]:
    """Return the function that loads a replica of a stage.

    It does not refer to the pipeline, so that an unreferenced pipeline can end.
    """
    forms = TensorForms(bundle.manifest)
    stages = {stage.name: stage for stage in required_pipeline(bundle).stages}

    def load(name: str, _replica: int) -> SubgraphStage | PythonStage:
        if stages[name].call:
            return PythonStage(stages[name], functions[name], forms)
        return SubgraphStage(bundle, stages[name], backends, at_once, name in copied)

    return load
