"""How modules of a pipeline hang together.

A frozen value, and the one rule book that a new connection must pass.

Everything here is pure: a connection that is refused leaves what was there, since a new value is
made only when every rule holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from nnstretch.errors import BadInput
from nnstretch.graph import TensorSpec
from nnstretch.pipeline import DEFAULT_CAPACITY, TensorDecl

PIPELINE = ""
"""Owner of what belongs to the whole pipeline."""


@dataclass(frozen=True, slots=True)
class Module:
    """A network's piece, or a Python function, with named ends."""

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
    """Of a Python stage: threads that call its function at once, items in turn.

    A network has one for each of its processors.
    """


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One end of a connection: of a module, or of the whole pipeline."""

    owner: str
    """A module's name; empty for the pipeline."""
    kind: str
    """input, output or param; param is a module's parameters or a pipeline's parameter group."""
    name: str = ""
    """Of the input, output or group; an output of the pipeline is its index."""

    def __str__(self) -> str:
        if self.owner == PIPELINE:
            return {
                "input": "pipeline input ",
                "output": "pipeline output ",
                "param": "parameter group ",
            }[self.kind] + self.name
        return (
            f"{self.owner}.{self.kind}({self.name})"
            if self.kind != "param"
            else f"{self.owner}.param"
        )


@dataclass(frozen=True, slots=True)
class ModuleGraph:
    """Modules in the order they were named, connections in the order they were made."""

    modules: tuple[Module, ...] = ()
    ends: tuple[Endpoint, ...] = ()
    """Inputs, outputs and groups that were declared; connected ones need not be."""
    specs: tuple[tuple[str, TensorSpec], ...] = ()
    """Declared types of pipeline inputs."""
    connections: tuple[tuple[Endpoint, Endpoint], ...] = ()
    settings: dict[str, ModuleSettings] = field(default_factory=dict)
    """By module; never changed in place."""

    def module(self, name: str) -> Module:
        """Return the module of a name. Raises UnknownName."""
        return next(module for module in self.modules if module.name == name)

    def sources(self) -> dict[Endpoint, Endpoint]:
        """Return the endpoint that feeds each endpoint that is fed."""
        return {target: source for source, target in self.connections}

    def fed_by(self, source: Endpoint) -> tuple[Endpoint, ...]:
        """Return the endpoints that an endpoint feeds."""
        return tuple(target for connection, target in self.connections if connection == source)


def spec_of(links: ModuleGraph, end: Endpoint) -> TensorSpec | None:
    """Return type of a tensor's end; None where any object may pass, or nobody said yet."""
    if end.owner != PIPELINE:
        module = links.module(end.owner)
        return next(
            item.spec
            for item in (module.inputs if end.kind == "input" else module.outputs)
            if item.name == end.name
        )
    declared = dict(links.specs).get(end.name)
    if end.kind != "input" or declared is not None:
        return declared
    return next(
        (spec for target in links.fed_by(end) if (spec := spec_of(links, target)) is not None), None
    )


def with_connection(links: ModuleGraph, source: Endpoint, target: Endpoint) -> ModuleGraph:
    """Return the links with one connection more.

    Raises BadInput with the rule that it breaks; `links` stays as it is.
    """
    if (why := connection_error(links, source, target)) is not None:
        raise BadInput(f"cannot connect {source} to {target}, pipeline, {why}")
    return replace(links, connections=(*links.connections, (source, target)))


def connection_error(links: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return why a connection is refused, or None."""
    return (
        endpoint_error(source, target)
        or already_connected(links, source, target)
        or type_error(links, source, target)
        or would_close_cycle(links, source, target)
    )


def endpoint_error(source: Endpoint, target: Endpoint) -> str | None:
    """Return why two endpoints may not be connected, whatever their types, or None."""
    from_pipeline, to_pipeline = source.owner == PIPELINE, target.owner == PIPELINE
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
        return (
            "only a parameter group feeds a module's parameters"
            if not to_pipeline
            else "a parameter group is fed by the caller"
        )
    if not from_pipeline and not to_pipeline and target.kind == "output":
        return "a module's output is fed by its module"
    if to_pipeline and target.kind == "input":
        return "a pipeline input is fed by the caller"
    return None


def already_connected(links: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return the error of an end that is fed twice, an output that leaves twice, or a group with
    two modules.
    """
    if (already := links.sources().get(target)) is not None:
        return f"{already} feeds it already"
    others = links.fed_by(source)
    if target.owner == PIPELINE and (bound := [end for end in others if end.owner == PIPELINE]):
        return f"it is {bound[0]} already"
    if source.kind == "param" and others:
        return f"the group feeds {others[0]} already"
    if source.kind == "param" and not links.module(target.owner).params:
        return f"{target.owner} has no parameters"
    return None


def type_error(links: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return the error of ends whose shape or type differ; those of pipeline inputs agree with the
    first module that they feed.
    """
    if "param" in (source.kind, target.kind) or target.owner == PIPELINE:
        return None
    mine, theirs = spec_of(links, source), spec_of(links, target)
    if mine is None or theirs is None or mine == theirs:
        return None
    return f"{source} is {mine} {mine.dtype}, {target} is {theirs} {theirs.dtype}"


def would_close_cycle(links: ModuleGraph, source: Endpoint, target: Endpoint) -> str | None:
    """Return whether a module would feed itself, however many modules lie between."""
    if PIPELINE in (source.owner, target.owner):
        return None
    parents = parents_of(links)
    above: list[tuple[str, tuple[str, ...]]] = [(source.owner, (source.owner,))]
    seen = set[str]()
    while above:
        name, path = above.pop()
        if name == target.owner:
            return (
                f"that is a cycle, {' -> '.join([*path, path[0]])}"
                if len(path) > 1
                else "that is a cycle"
            )
        if name not in seen:
            seen.add(name)
            above += [(parent, (parent, *path)) for parent in parents[name]]
    return None


def parents_of(links: ModuleGraph) -> dict[str, tuple[str, ...]]:
    """Return modules that feed each module, each once."""
    pairs = [(s.owner, t.owner) for s, t in links.connections if PIPELINE not in (s.owner, t.owner)]
    return {
        module.name: tuple(dict.fromkeys(s for s, t in pairs if t == module.name))
        for module in links.modules
    }


def topological_order(links: ModuleGraph) -> tuple[Module, ...]:
    """Return modules in passes that each take everyone whose parents were taken before.

    Within a pass as they were named.
    """
    parents, done, ordered = parents_of(links), set[str](), list[Module]()
    while len(ordered) < len(links.modules):
        ready = [
            m for m in links.modules if m.name not in done and done.issuperset(parents[m.name])
        ]
        ordered += ready
        done |= {module.name for module in ready}
    return tuple(ordered)


def require_complete(links: ModuleGraph) -> ModuleGraph:
    """Return the module graph if nothing is missing.

    Raises BadInput that names everything that is.
    """
    if missing := list(missing_connections(links)):
        raise BadInput(f"incomplete pipeline, {'; '.join(missing)}, connect each")
    return links


def missing_connections(links: ModuleGraph) -> Iterable[str]:
    """Return the names of what must be connected and is not."""
    sources = links.sources()
    if not links.modules:
        yield "it has no module"
    for module in links.modules:
        yield from (
            f"{end} is fed by nothing"
            for item in module.inputs
            if (end := Endpoint(module.name, "input", item.name)) not in sources
        )
        if not module.inputs:
            yield f"module {module.name} has no input, so nothing would drive it"
        if not any(source.owner == module.name for source in sources.values()):
            yield f"no output of module {module.name} is used"
    for end in links.ends:
        if end.kind == "output" and end not in sources:
            yield f"{end} is bound to nothing"
        elif end.kind != "output" and not links.fed_by(end):
            yield f"{end} feeds nothing"
    indices = sorted(int(end.name) for end in sources if end.owner == PIPELINE)
    if not indices:
        yield "it has no output"
    elif indices != list(range(len(indices))):
        yield f"outputs are {', '.join(map(str, indices))}, not 0 to {len(indices) - 1}"
