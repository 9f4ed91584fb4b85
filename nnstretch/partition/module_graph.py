"""Modules of a pipeline and their connections: a frozen graph, and the rules of a connection.

Everything is pure: a new graph is made only when every rule holds, so a refused connection changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from nnstretch.errors import BadInput
from nnstretch.graph import TensorSpec
from nnstretch.pipeline import DEFAULT_CAPACITY, TensorDecl

PIPELINE = ""
"""Owner of what belongs to the whole pipeline."""
PIPELINE_KINDS = {
    "input": "pipeline input",
    "output": "pipeline output",
    "param": "parameter group",
}


@dataclass(frozen=True, slots=True)
class Module:
    """A stage of a network, or a Python function, with named inputs and outputs."""

    name: str
    inputs: tuple[TensorDecl, ...]
    outputs: tuple[TensorDecl, ...]
    params: tuple[TensorDecl, ...] = ()
    """Weights that a parameter group may replace."""
    call: str = ""
    """`module:function` of a Python stage."""


@dataclass(frozen=True, slots=True)
class ModuleSettings:
    """Where and how a module runs."""

    processors: tuple[str, ...] = ()
    """One, or one for each replica; empty for a Python stage."""
    threads: int = 1
    cores: tuple[int, ...] = ()
    capacity: int = DEFAULT_CAPACITY
    replicas: int = 1
    """Threads that call a Python stage's function at once, items in turn."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An end of a connection, of a module or of the whole pipeline."""

    owner: str
    """A module's name; empty for the pipeline."""
    kind: str
    """input, output or param; param is a module's parameters or a pipeline's parameter group."""
    name: str = ""
    """Of the input, output or group; an output of the pipeline is its index."""

    def __str__(self) -> str:
        if self.owner == PIPELINE:
            return f"{PIPELINE_KINDS[self.kind]} {self.name}"
        if self.kind == "param":
            return f"{self.owner}.param"
        return f"{self.owner}.{self.kind}({self.name})"


Connection = tuple[Endpoint, Endpoint]
"""Source and target."""


@dataclass(frozen=True, slots=True)
class ModuleGraph:
    """Modules in the order they were named, connections in the order they were made."""

    modules: tuple[Module, ...] = ()
    ends: tuple[Endpoint, ...] = ()
    """Inputs, outputs and groups that were declared; connected ones need not be."""
    specs: tuple[tuple[str, TensorSpec], ...] = ()
    """Declared types of pipeline inputs."""
    connections: tuple[Connection, ...] = ()
    settings: dict[str, ModuleSettings] = field(default_factory=dict)
    """By module; never changed in place."""

    def module(self, name: str) -> Module:
        """Return the module of a name."""
        return next(module for module in self.modules if module.name == name)

    def sources(self) -> dict[Endpoint, Endpoint]:
        """Return the source of each target."""
        return {target: source for source, target in self.connections}

    def targets(self, source: Endpoint) -> tuple[Endpoint, ...]:
        """Return the targets of a source."""
        return tuple(target for start, target in self.connections if start == source)

    def from_pipeline(self, kind: str) -> list[Connection]:
        """Return the connections of pipeline inputs (`input`) or parameter groups (`param`)."""
        return [(s, t) for s, t in self.connections if s.owner == PIPELINE and s.kind == kind]

    def bound_outputs(self) -> list[tuple[int, Endpoint]]:
        """Return index and source of every pipeline output, by index."""
        bound = [(int(t.name), s) for s, t in self.connections if t.owner == PIPELINE]
        return sorted(bound, key=lambda output: output[0])


def spec_of(graph: ModuleGraph, end: Endpoint) -> TensorSpec | None:
    """Return the type of an end's tensor; None for any object, or while nothing declares it.

    A pipeline input without a declared type has that of the first module it feeds.
    """
    if end.owner != PIPELINE:
        module = graph.module(end.owner)
        items = module.inputs if end.kind == "input" else module.outputs
        return next(item.spec for item in items if item.name == end.name)
    declared = dict(graph.specs).get(end.name)
    if end.kind != "input" or declared is not None:
        return declared
    specs = (spec_of(graph, target) for target in graph.targets(end))
    return next((spec for spec in specs if spec is not None), None)


def with_connection(graph: ModuleGraph, source: Endpoint, target: Endpoint) -> ModuleGraph:
    """Return the graph with one more connection. Raises BadInput with the rule that it breaks."""
    if (why := connection_error(graph, source, target)) is not None:
        raise BadInput(f"cannot connect {source} to {target}, pipeline, {why}")
    return replace(graph, connections=(*graph.connections, (source, target)))


def with_connections(graph: ModuleGraph, connections: Iterable[Connection]) -> ModuleGraph:
    """Return the graph with more connections. Raises BadInput with the first broken rule."""
    for source, target in connections:
        graph = with_connection(graph, source, target)
    return graph


def connection_error(graph: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return why a connection is refused, or None."""
    return (
        endpoint_error(source, target)
        or multiplicity_error(graph, source, target)
        or type_error(graph, source, target)
        or cycle_error(graph, source, target)
    )


def endpoint_error(source: Endpoint, target: Endpoint) -> str | None:
    """Return why two endpoints may not be connected, whatever their types, or None."""
    from_pipeline = source.owner == PIPELINE
    to_pipeline = target.owner == PIPELINE
    if source.owner == target.owner:
        return "both ends belong to " + ("the pipeline" if from_pipeline else "one module")
    if not from_pipeline and source.kind == "param":
        return "a module's parameters feed nothing"
    if not from_pipeline and source.kind == "input":
        return "a module's input feeds nothing"
    if from_pipeline and source.kind == "output":
        return "a pipeline output feeds nothing"
    if source.kind == "param" and target.kind != "param":
        return "a parameter group feeds a module's parameters only"
    if from_pipeline and source.kind == "input" and target.kind != "input":
        return "a pipeline input feeds a module's input only"
    if not from_pipeline and target.kind == "param":
        if to_pipeline:
            return "a parameter group is fed by the caller"
        return "only a parameter group feeds a module's parameters"
    if not from_pipeline and not to_pipeline and target.kind == "output":
        return "a module's output is fed by its module"
    if to_pipeline and target.kind == "input":
        return "a pipeline input is fed by the caller"
    return None


def multiplicity_error(graph: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return why an end would be connected too often: fed twice, bound twice, a shared group."""
    if (producer := graph.sources().get(target)) is not None:
        return f"{producer} feeds it already"
    targets = graph.targets(source)
    bound = [end for end in targets if end.owner == PIPELINE]
    if target.owner == PIPELINE and bound:
        return f"it is {bound[0]} already"
    if source.kind == "param" and targets:
        return f"the group feeds {targets[0]} already"
    if source.kind == "param" and not graph.module(target.owner).params:
        return f"{target.owner} has no parameters"
    return None


def type_error(graph: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return how shape or type of two ends differ, or None."""
    if "param" in (source.kind, target.kind) or target.owner == PIPELINE:
        return None
    produced = spec_of(graph, source)
    consumed = spec_of(graph, target)
    if produced is None or consumed is None or produced == consumed:
        return None
    return f"{source} is {produced} {produced.dtype}, {target} is {consumed} {consumed.dtype}"


def cycle_error(graph: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return the cycle that a connection would close, or None."""
    if PIPELINE in (source.owner, target.owner):
        return None
    parents = parents_of(graph)
    paths: list[tuple[str, ...]] = [(source.owner,)]
    seen = set[str]()
    while paths:
        path = paths.pop()
        name = path[0]
        if name == target.owner:
            cycle = f", {' -> '.join([*path, name])}" if len(path) > 1 else ""
            return f"that is a cycle{cycle}"
        if name not in seen:
            seen.add(name)
            paths += [(parent, *path) for parent in parents[name]]
    return None


def parents_of(graph: ModuleGraph) -> dict[str, tuple[str, ...]]:
    """Return the modules that feed each module, each once."""
    parents: dict[str, dict[str, None]] = {module.name: {} for module in graph.modules}
    for source, target in graph.connections:
        if PIPELINE not in (source.owner, target.owner):
            parents[target.owner][source.owner] = None
    return {name: tuple(names) for name, names in parents.items()}


def topological_order(graph: ModuleGraph) -> tuple[Module, ...]:
    """Sort modules level by level: parents before children, a level in the order of naming."""
    parents = parents_of(graph)
    waiting = list(graph.modules)
    ordered: list[Module] = []
    while waiting:
        done = {module.name for module in ordered}
        ordered += [module for module in waiting if done.issuperset(parents[module.name])]
        waiting = [module for module in waiting if not done.issuperset(parents[module.name])]
    return tuple(ordered)


def require_complete(graph: ModuleGraph) -> ModuleGraph:
    """Return the graph if nothing is missing. Raises BadInput that names everything that is."""
    if missing := list(missing_connections(graph)):
        raise BadInput(f"incomplete pipeline, {'; '.join(missing)}, connect each")
    return graph


def missing_connections(graph: ModuleGraph) -> Iterator[str]:
    """Yield what must be connected and is not."""
    sources = graph.sources()
    if not graph.modules:
        yield "it has no module"
    for module in graph.modules:
        yield from missing_of_module(module, sources)
    for end in graph.ends:
        if end.kind == "output" and end not in sources:
            yield f"{end} is bound to nothing"
        elif end.kind != "output" and not graph.targets(end):
            yield f"{end} feeds nothing"
    indices = [index for index, _ in graph.bound_outputs()]
    if not indices:
        yield "it has no output"
    elif indices != list(range(len(indices))):
        yield f"outputs are {', '.join(map(str, indices))}, not 0 to {len(indices) - 1}"


def missing_of_module(module: Module, sources: dict[Endpoint, Endpoint]) -> Iterator[str]:
    """Yield what is missing of a module: an input without a source, a use of its outputs."""
    for item in module.inputs:
        end = Endpoint(module.name, "input", item.name)
        if end not in sources:
            yield f"{end} is fed by nothing"
    if not module.inputs:
        yield f"module {module.name} has no input, so nothing would drive it"
    if not any(source.owner == module.name for source in sources.values()):
        yield f"no output of module {module.name} is used"
