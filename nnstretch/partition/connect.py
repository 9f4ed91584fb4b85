"""Linking by hand: `config[module]["output"][0].connect(config[other]["input"]["x"])`, checked at
every step.

    config = PipelineConfig()
    config["input"]["image"].connect(config[first]["input"]["x"])
    config[first]["output"][0].connect(config[second]["input"]["y"])
    config[second]["output"][0].connect(config["output"][0])
    config["param_group"]["weights"].connect(config[first]["param"])
    print(config)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nnstretch.errors import BadInput, UnknownName
from nnstretch.graph import TensorSpec
from nnstretch.partition.module_graph import (
    PIPELINE,
    Endpoint,
    Module,
    ModuleGraph,
    ModuleSettings,
    require_complete,
    topological_order,
    with_connection,
)
from nnstretch.partition.module_graph_text import to_dict, to_text
from nnstretch.pipeline import MAX_CAPACITY, MAX_CORE, MAX_REPLICAS, MAX_THREADS

KINDS = {"input": "input", "output": "output", "param_group": "param"}


class PipelineConfig:
    """Holds one frozen `Links`, which a connection that passes every rule replaces."""

    def __init__(self, links: ModuleGraph | None = None) -> None:
        self.links = links or ModuleGraph()

    def __getitem__(self, key: Module | str) -> ModuleHandle | Ends:
        """Return a module, named by its first use; or `input`, `output`, `param_group` of the
        pipeline.

        Raises UnknownName, BadInput.
        """
        if isinstance(key, Module):
            return ModuleHandle(self, self._known(key))
        if key not in KINDS:
            raise UnknownName(
                f"unknown key {str(key)[:40]!r}, pipeline, it is a Module or one of"
                f" {', '.join(KINDS)}"
            )
        return Ends(lambda name: self._named(KINDS[key], name))

    def __str__(self) -> str:
        return to_text(self.links)

    def pipe_input(self, name: str, spec: TensorSpec | None = None) -> EndpointHandle:
        """Declare an input that must be connected before the pipeline is complete, with its type
        where one is given. Raises BadInput where it has another.
        """
        handle = self._declared(self._named("input", name))
        known = dict(self.links.specs).get(name)
        fed = [
            s
            for t in self.links.fed_by(handle.end)
            for s in [_item(self.links.module(t.owner), t.name).spec]
            if s is not None
        ]
        if spec is not None and any(
            partner != spec for partner in (*([known] if known else []), *fed)
        ):
            partner = known or fed[0]
            raise BadInput(
                f"pipeline input {name} is {spec} {spec.dtype}, pipeline, it is {partner}"
                f" {partner.dtype} already"
            )
        if spec is not None and known is None:
            self.links = replace(self.links, specs=(*self.links.specs, (name, spec)))
        return handle

    def pipe_output(self, index: int) -> EndpointHandle:
        """Declare an output that must be bound before the pipeline is complete."""
        return self._declared(self._named("output", index))

    def get_mod_idx(self, module: Module) -> int:
        """Place in topological order. Raises UnknownName."""
        names = [one.name for one in topological_order(self.links)]
        if module.name not in names:
            raise UnknownName(
                f"unknown module {module.name!r}, pipeline, it has {', '.join(names) or 'none'}"
            )
        return names.index(module.name)

    def get_config(self) -> dict[str, Any]:
        """Return everything as a dictionary.

        Raises BadInput that names every end that is not connected.
        """
        return to_dict(self.links)

    def complete(self) -> ModuleGraph:
        """Return the frozen links, once nothing is missing. Raises BadInput."""
        return require_complete(self.links)

    def _known(self, module: Module) -> Module:
        for other in self.links.modules:
            if other.name == module.name and other != module:
                raise BadInput(
                    f"two modules are called {module.name!r}, pipeline, each needs a name of"
                    " its own"
                )
        if module.name == PIPELINE:
            raise BadInput("a module without a name, pipeline, each needs one")
        if module not in self.links.modules:
            self.links = replace(self.links, modules=(*self.links.modules, module))
        return module

    def _named(self, kind: str, name: object) -> EndpointHandle:
        if kind == "output" and not (isinstance(name, int) or str(name).isdecimal()):
            raise UnknownName(
                f"unknown pipeline output {str(name)[:40]!r}, pipeline, outputs are counted from 0"
            )
        if isinstance(name, bool) or not str(name) or str(name).startswith("-"):
            raise UnknownName(f"unknown pipeline {kind} {name!r}, pipeline, give it a name")
        return EndpointHandle(
            self, Endpoint(PIPELINE, kind, str(int(str(name))) if kind == "output" else str(name))
        )

    def _declared(self, handle: EndpointHandle) -> EndpointHandle:
        if handle.end not in self.links.ends:
            self.links = replace(self.links, ends=(*self.links.ends, handle.end))
        return handle


@dataclass(frozen=True, slots=True)
class EndpointHandle:
    """One end that can be connected."""

    config: PipelineConfig
    end: Endpoint

    def connect(self, target: EndpointHandle) -> None:
        """Feed `target` from here.

        Raises BadInput with the rule that forbids it; the configuration is then as it was.
        """
        if not isinstance(target, EndpointHandle) or target.config is not self.config:
            raise BadInput(
                f"cannot connect {self.end} to {getattr(target, 'end', type(target).__name__)},"
                " pipeline, it is no end of this one"
            )
        self.config.links = with_connection(self.config.links, self.end, target.end)


@dataclass(frozen=True, slots=True)
class Ends:
    """Ends of one kind, by name or index."""

    find: Callable[[Any], EndpointHandle]

    def __getitem__(self, name: str | int) -> EndpointHandle:
        return self.find(name)


@dataclass(frozen=True, slots=True)
class ModuleHandle:
    """A module in a configuration.

    `["input"][name]`, `["output"][index]`, `["param"]`, and its settings.
    """

    config: PipelineConfig
    module: Module

    def __getitem__(self, key: str) -> Any:
        if key == "param":
            return EndpointHandle(self.config, Endpoint(self.module.name, "param"))
        if key not in ("input", "output"):
            raise UnknownName(
                f"unknown key {str(key)[:40]!r}, module {self.module.name}, it is one of input,"
                " output, param"
            )
        return Ends(self._input if key == "input" else self._output)

    def set(self, **settings: Any) -> ModuleHandle:
        """Change some of `Settings`: processors, threads, cores, capacity, replicas.

        Raises BadInput for what no stage can have.
        """
        links = self.config.links
        for name, most in (
            ("threads", MAX_THREADS),
            ("capacity", MAX_CAPACITY),
            ("replicas", MAX_REPLICAS),
        ):
            if not _positive_integer(settings.get(name, 1), 1, most):
                raise BadInput(
                    f"{name} is {str(settings[name])[:40]}, module {self.module.name}, give a"
                    f" number from 1 to {most}"
                )
        if settings.get("replicas", 1) > 1 and not self.module.call:
            raise BadInput(
                f"replicas is {settings['replicas']}, module {self.module.name}, a network's"
                " replicas are its processors: name several"
            )
        if "cores" in settings:
            settings["cores"] = _cores(settings["cores"], self.module.name)
        changed = replace(links.settings.get(self.module.name, ModuleSettings()), **settings)
        self.config.links = replace(links, settings={**links.settings, self.module.name: changed})
        return self

    def _input(self, name: str) -> EndpointHandle:
        return EndpointHandle(
            self.config, Endpoint(self.module.name, "input", _item(self.module, name).name)
        )

    def _output(self, index: int | str) -> EndpointHandle:
        outputs = self.module.outputs
        if isinstance(index, str) and any(item.name == index for item in outputs):
            return EndpointHandle(self.config, Endpoint(self.module.name, "output", index))
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(outputs):
            raise UnknownName(
                f"unknown output {str(index)[:40]}, module {self.module.name}, it has"
                f" {len(outputs)}, counted from 0"
            )
        return EndpointHandle(
            self.config, Endpoint(self.module.name, "output", outputs[index].name)
        )


def _positive_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _cores(value: object, module: str) -> tuple[int, ...]:
    cores = tuple(value) if isinstance(value, tuple | list) else ()
    if (
        not isinstance(value, tuple | list)
        or len(set(cores)) != len(cores)
        or not all(_positive_integer(core, 0, MAX_CORE) for core in cores)
    ):
        raise BadInput(
            f"cores is {str(value)[:40]}, module {module}, give numbers from 0 to {MAX_CORE}, each"
            " once"
        )
    return cores


def _item(module: Module, name: str) -> Any:
    for item in module.inputs:
        if item.name == name:
            return item
    known = ", ".join(item.name for item in module.inputs) or "none"
    raise UnknownName(f"unknown input {str(name)[:40]!r}, module {module.name}, it has {known}")
