"""A bundle's sub-graphs as callable numbers: what is computed, whoever decides when."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from nnstretch.bundle import Bundle, Port
from nnstretch.errors import BadInput
from nnstretch.run.onnx_runtime import OnnxRuntime

Values = dict[str, np.ndarray]
"""Tensors of one request by their name in the whole network; each is written once, by one sub-graph."""


class Network:
    """Every sub-graph loaded, and the way in and out checked."""

    def __init__(self, bundle: Bundle) -> None:
        self.manifest = bundle.manifest
        self._subgraphs = {sub.name: sub for sub in bundle.manifest.subgraphs}
        self._backends = {sub.name: OnnxRuntime(sub, bundle.files[sub.file], bundle.name) for sub in bundle.manifest.subgraphs}

    def inputs(self, given: np.ndarray | Mapping[str, np.ndarray]) -> Values:
        """`given` under the network's names, refused unless it is exactly what was exported."""
        ports = self.manifest.inputs
        if not isinstance(given, Mapping):
            if len(ports) > 1:
                raise BadInput(f"one array, {self.manifest.model} has {len(ports)} inputs, give {_names(ports)} by name")
            given = {ports[0].name: given}
        if given.keys() != {port.name for port in ports}:
            raise BadInput(f"inputs {', '.join(map(str, given)) or 'none'}, {self.manifest.model} expects {_names(ports)}")
        return {port.name: _checked(port, given[port.name]) for port in ports}

    def compute(self, subgraph: str, values: Values) -> None:
        """Run one sub-graph on what others left in `values`, and leave its outputs there."""
        sub = self._subgraphs[subgraph]
        outputs = self._backends[subgraph].run({port.name: values[port.name] for port in sub.inputs})
        values.update(zip((port.name for port in sub.outputs), outputs, strict=True))

    def outputs(self, values: Values) -> np.ndarray | Values:
        """The array where there is one output, arrays by name where there are several."""
        found = {port.name: values[port.name] for port in self.manifest.outputs}
        return next(iter(found.values())) if len(found) == 1 else found

    def in_order(self, given: np.ndarray | Mapping[str, np.ndarray]) -> np.ndarray | Values:
        """The sub-graphs one after another on the calling thread: what any schedule has to reproduce."""
        values = self.inputs(given)
        for name in self._subgraphs:
            self.compute(name, values)
        return self.outputs(values)

    def random_inputs(self, seed: int) -> Values:
        """Standard normal numbers, or small counts where the input is an integer."""
        generator = np.random.default_rng(seed)
        return {port.name: _random(port, generator) for port in self.manifest.inputs}


def _random(port: Port, generator: np.random.Generator) -> np.ndarray:
    kind = np.dtype(port.spec.dtype)
    numbers = generator.standard_normal(port.spec.shape) if kind.kind == "f" else generator.integers(0, 2, port.spec.shape)
    return numbers.astype(kind)


def _checked(port: Port, array: object) -> np.ndarray:
    where = f"input {port.name}, expected {port.spec} {port.spec.dtype}"
    if not isinstance(array, np.ndarray):
        raise BadInput(f"{where}, got {type(array).__name__}, not a numpy array")
    shape = "x".join(map(str, array.shape)) or "scalar"
    if array.shape != port.spec.shape or str(array.dtype) != port.spec.dtype:
        raise BadInput(f"{where}, got {shape} {array.dtype}")
    if array.dtype.kind == "f" and (wrong := array.size - int(np.isfinite(array).sum())):
        raise BadInput(f"{where}, got {wrong} of {array.size} numbers that are NaN or infinite")
    return np.ascontiguousarray(array)


def _names(ports: tuple[Port, ...]) -> str:
    return ", ".join(port.name for port in ports)
