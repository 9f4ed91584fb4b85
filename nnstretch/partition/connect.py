"""Connect modules by hand, TVM style, every connection checked when it is made.

config = PipelineConfig()
config["input"]["image"].connect(config[first]["input"]["x"])
config[first]["output"][0].connect(config[second]["input"]["y"])
config[second]["output"][0].connect(config["output"][0])
config["param_group"]["weights"].connect(config[first]["param"])
print(config)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, get_type_hints

from nnstretch.errors import BadInput, UnknownName
from nnstretch.files.checked import check_argument, checked
from nnstretch.files.limits import shorten
from nnstretch.graph import TensorSpec
from nnstretch.partition.module_graph import (
    PIPELINE,
    Endpoint,
    Module,
    ModuleGraph,
    ModuleSettings,
    spec_of,
    topological_order,
    with_connection,
)
from nnstretch.partition.module_graph_text import to_dict, to_text
from nnstretch.pipeline import MAX_CAPACITY, MAX_CORE, MAX_REPLICAS, MAX_THREADS

KINDS = {"input": "input", "output": "output", "param_group": "param"}
LIMITS = {"threads": MAX_THREADS, "capacity": MAX_CAPACITY, "replicas": MAX_REPLICAS}
"""Settings that are numbers from 1."""
MOST_OUTPUTS = 1 << 20
SETTINGS = tuple(field.name for field in fields(ModuleSettings))
MODULE_FIELDS = get_type_hints(Module)


class PipelineConfig:
    """A module graph under construction: a frozen value that each valid connection replaces."""

    @checked
    def __init__(self, graph: ModuleGraph | None = None) -> None:
        self.graph = graph or ModuleGraph()

    def __getitem__(self, key: Module | str) -> ModuleHandle | EndpointHandles:
        """Return a module, or the pipeline's `input`, `output` or `param_group`.

        A module is added by its first use. Raises UnknownName for a key that is neither, BadInput
        for a module of a name that another has.
        """
        if isinstance(key, Module):
            return ModuleHandle(self, self._known(key))
        if not isinstance(key, str) or key not in KINDS:
            raise UnknownName(
                f"unknown key {shorten(key)}, pipeline, it is a Module or one of {', '.join(KINDS)}"
            )
        return EndpointHandles(lambda name: self._pipeline_end(KINDS[key], name))

    def __str__(self) -> str:
        return to_text(self.graph)

    @checked
    def pipe_input(self, name: str, spec: TensorSpec | None = None) -> EndpointHandle:
        """Declare an input that must be connected, with its type where one is given.

        Raises BadInput where the input has another type.
        """
        handle = self._declare(self._pipeline_end("input", name))
        known = dict(self.graph.specs).get(name)
        consumed = [spec_of(self.graph, target) for target in self.graph.targets(handle.end)]
        for present in (known, *consumed):
            if spec is not None and present is not None and spec != present:
                raise BadInput(
                    f"pipeline input {name} is {spec} {spec.dtype}, pipeline, it is {present}"
                    f" {present.dtype} already"
                )
        if spec is not None and known is None:
            self.graph = replace(self.graph, specs=(*self.graph.specs, (name, spec)))
        return handle

    def pipe_output(self, index: int) -> EndpointHandle:
        """Declare an output that must be bound before the pipeline is complete."""
        return self._declare(self._pipeline_end("output", index))

    @checked
    def get_mod_idx(self, module: Module) -> int:
        """Return the module's place in topological order. Raises UnknownName."""
        names = [known.name for known in topological_order(self.graph)]
        if module.name not in names:
            raise UnknownName(
                f"unknown module {module.name!r}, pipeline, it has {', '.join(names) or 'none'}"
            )
        return names.index(module.name)

    def get_config(self) -> dict[str, Any]:
        """Return everything as a dictionary. Raises BadInput that names what is not connected."""
        return to_dict(self.graph)

    def _known(self, module: Module) -> Module:
        for name, kind in MODULE_FIELDS.items():
            check_argument(kind, getattr(module, name), f"{name} of a module")
        for known in self.graph.modules:
            if known.name == module.name and known != module:
                raise BadInput(
                    f"two modules are called {module.name!r}, pipeline, each needs a name of"
                    " its own"
                )
        if module.name == PIPELINE:
            raise BadInput("a module without a name, pipeline, each needs one")
        if module not in self.graph.modules:
            self.graph = replace(self.graph, modules=(*self.graph.modules, module))
        return module

    def _pipeline_end(self, kind: str, name: object) -> EndpointHandle:
        if kind == "output":
            index = _index(name)
            if index is None or index > MOST_OUTPUTS:
                raise UnknownName(
                    f"unknown pipeline output {shorten(name)}, pipeline, outputs are counted from 0"
                )
            return EndpointHandle(self, Endpoint(PIPELINE, kind, str(index)))
        if not isinstance(name, str) or not name or name.startswith("-"):
            raise UnknownName(f"unknown pipeline {kind} {shorten(name)}, pipeline, give it a name")
        return EndpointHandle(self, Endpoint(PIPELINE, kind, name))

    def _declare(self, handle: EndpointHandle) -> EndpointHandle:
        if handle.end not in self.graph.ends:
            self.graph = replace(self.graph, ends=(*self.graph.ends, handle.end))
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
        self.config.graph = with_connection(self.config.graph, self.end, target.end)


@dataclass(frozen=True, slots=True)
class EndpointHandles:
    """The ends of one kind, by name or index."""

    find: Callable[[Any], EndpointHandle]

    def __getitem__(self, name: str | int) -> EndpointHandle:
        return self.find(name)


@dataclass(frozen=True, slots=True)
class ModuleHandle:
    """A module in a configuration: `["input"][name]`, `["output"][index]`, `["param"]`."""

    config: PipelineConfig
    module: Module

    def __getitem__(self, key: str) -> Any:
        if not isinstance(key, str) or key not in ("input", "output", "param"):
            raise UnknownName(
                f"unknown key {shorten(key)}, module {self.module.name}, it is one of input,"
                " output, param"
            )
        if key == "param":
            return EndpointHandle(self.config, Endpoint(self.module.name, "param"))
        return EndpointHandles(self._input if key == "input" else self._output)

    def set(self, **settings: Any) -> ModuleHandle:
        """Change some of `ModuleSettings`.

        Raises UnknownName for another setting, BadInput for what no stage can have.
        """
        name = self.module.name
        if unknown := [setting for setting in settings if setting not in SETTINGS]:
            known = ", ".join(SETTINGS)
            raise UnknownName(f"unknown setting {unknown[0]!r}, module {name}, it has {known}")
        for setting, most in LIMITS.items():
            if not _is_integer(settings.get(setting, 1), 1, most):
                raise BadInput(
                    f"{setting} is {shorten(settings[setting])}, module {name}, give a"
                    f" number from 1 to {most}"
                )
        if settings.get("replicas", 1) > 1 and not self.module.call:
            raise BadInput(
                f"replicas is {settings['replicas']}, module {name}, a network's"
                " replicas are its processors: name several"
            )
        if "processors" in settings:
            settings["processors"] = _processors(settings["processors"], name)
        if "cores" in settings:
            settings["cores"] = _cores(settings["cores"], name)
        graph = self.config.graph
        changed = replace(graph.settings.get(name, ModuleSettings()), **settings)
        self.config.graph = replace(graph, settings={**graph.settings, name: changed})
        return self

    def _input(self, name: str) -> EndpointHandle:
        names = [item.name for item in self.module.inputs]
        if not isinstance(name, str) or name not in names:
            known = ", ".join(names) or "none"
            raise UnknownName(
                f"unknown input {shorten(name)}, module {self.module.name}, it has {known}"
            )
        return EndpointHandle(self.config, Endpoint(self.module.name, "input", name))

    def _output(self, index: int | str) -> EndpointHandle:
        names = [item.name for item in self.module.outputs]
        if isinstance(index, str) and index in names:
            return EndpointHandle(self.config, Endpoint(self.module.name, "output", index))
        number = None if isinstance(index, str) else _index(index)
        if number is None or number >= len(names):
            raise UnknownName(
                f"unknown output {shorten(index)}, module {self.module.name}, it has"
                f" {len(names)}, counted from 0"
            )
        return EndpointHandle(self.config, Endpoint(self.module.name, "output", names[number]))


def _index(name: object) -> int | None:
    """Return the number of an output that is counted from 0, None for what is none."""
    if isinstance(name, str):
        return int(name) if re.fullmatch("[0-9]{1,9}", name) else None
    if not isinstance(name, Integral) or isinstance(name, bool):
        return None
    return int(name) if int(name) >= 0 else None


def _is_integer(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _processors(value: object, module: str) -> tuple[str, ...]:
    names = [*value] if isinstance(value, tuple | list) else [None]
    if not all(isinstance(name, str) and name for name in names):
        raise BadInput(f"processors is {shorten(value)}, module {module}, give a list of names")
    return tuple(map(str, names))


def _cores(value: object, module: str) -> tuple[int, ...]:
    cores = tuple(value) if isinstance(value, tuple | list) else (None,)
    valid = all(_is_integer(core, 0, MAX_CORE) for core in cores)
    if not valid or len(set(cores)) != len(cores):
        raise BadInput(
            f"cores is {shorten(value)}, module {module}, give numbers from 0 to {MAX_CORE}, each"
            " once"
        )
    return cores
