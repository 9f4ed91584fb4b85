"""A bundle's sub-graphs as callable numbers: what is computed, whoever decides when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Port
from nnstretch.errors import BadInput
from nnstretch.run.backends.registry import Choice, choose_backends, load_backend
from nnstretch.run.bound_memory import BoundNetwork
from nnstretch.run.tensor_io import from_port, random_for_port, to_port

Values = dict[str, np.ndarray]
"""Tensors of one request by their name in the whole network, as ports hold them.

Each is written once, by one sub-graph.
"""
Given = np.ndarray | Mapping[str, np.ndarray]
"""One array, or arrays by the names of the network's inputs."""


class LoadedNetwork:
    """Every sub-graph loaded once, and the way in and out checked."""

    def __init__(self, bundle: Bundle, backend: Choice = None, threads: int = 1) -> None:
        if threads < 1:
            raise BadInput(
                f"{threads} threads, backends of {bundle.name}, at least 1 has to compute"
            )
        self.manifest, self.threads = bundle.manifest, threads
        self.backends = choose_backends(backend, bundle)
        """Name of the backend by sub-graph."""
        self._subgraphs = {sub.name: sub for sub in bundle.manifest.subgraphs}
        self._loaded = {
            name: load_backend(
                self.backends[name], sub, bundle.files[sub.file], bundle.name, threads
            )
            for name, sub in self._subgraphs.items()
        }
        self._steps = {
            name: (
                self._loaded[name].run,
                tuple(port.name for port in sub.inputs),
                tuple(port.name for port in sub.outputs),
            )
            for name, sub in self._subgraphs.items()
        }
        """What runs a sub-graph, and the names of what it reads and writes.

        Between branches every look-up counts.
        """

    def inputs(self, inputs: Given) -> Values:
        """Return `given` under the network's names and as its ports hold it.

        Each array has exactly the shape and type that was exported; where that is int8 or channels
        last, float32 in PyTorch's order is taken too. Raises BadInput.
        """
        ports = self.manifest.inputs
        if not isinstance(inputs, Mapping):
            if len(ports) > 1:
                raise BadInput(
                    f"one array, {self.manifest.model} has {len(ports)} inputs, give"
                    f" {_names(ports)} by name"
                )
            inputs = {ports[0].name: inputs}
        if inputs.keys() != {port.name for port in ports}:
            raise BadInput(
                f"inputs {', '.join(map(str, inputs)) or 'none'}, {self.manifest.model} expects"
                f" {_names(ports)}"
            )
        return {port.name: to_port(port, inputs[port.name]) for port in ports}

    def bound_session(self) -> BoundNetwork:
        """Return the sub-graphs on memory of their own, for a caller that runs the network again
        and again.
        """
        return BoundNetwork(self.manifest, self._loaded)

    def bound_and_filled(self, inputs: Values) -> BoundNetwork:
        """Return the bound network with every tensor computed from `inputs`, one sub-graph after
        another.
        """
        bound_session = self.bound_session()
        bound_session.enter(inputs)
        for name in self._subgraphs:
            bound_session.calls[name]()
        return bound_session

    def compute(self, subgraph: str, values: Values | BoundNetwork) -> None:
        """Run one sub-graph on what others left in `values`, and leave its outputs there."""
        if isinstance(values, BoundNetwork):
            values.calls[subgraph]()
            return
        run, reads, writes = self._steps[subgraph]
        for name, output in zip(writes, run({name: values[name] for name in reads}), strict=True):
            values[name] = output

    def results(self, subgraph: str, values: Values) -> Sequence[np.ndarray]:
        """Compute one sub-graph on `values` and keep the result nowhere."""
        run, reads, _ = self._steps[subgraph]
        return run({name: values[name] for name in reads})

    def outputs(self, values: Values, raw: bool = False) -> np.ndarray | Values:
        """Return the array where there is one output, arrays by name where there are several.

        Real numbers in PyTorch's order; `raw` gives what the ports hold.
        """
        outputs_ = {
            port.name: values[port.name] if raw else from_port(port, values[port.name])
            for port in self.manifest.outputs
        }
        return next(iter(outputs_.values())) if len(outputs_) == 1 else outputs_

    def run_sequential(self, inputs: Given, raw: bool = False) -> np.ndarray | Values:
        """Run the sub-graphs one after another on the calling thread.

        What any schedule has to reproduce.
        """
        return self.outputs(self.all_tensors(self.inputs(inputs)), raw)

    def all_tensors(self, inputs: Values) -> Values:
        """Return every tensor between sub-graphs, from what `inputs` gave.

        The calling thread computes them one after another.
        """
        values = dict(inputs)
        for name in self._subgraphs:
            self.compute(name, values)
        return values

    def random_inputs(self, seed: int) -> Values:
        """Draw inputs in PyTorch's order: standard normal numbers, or small counts for integers."""
        generator = np.random.default_rng(seed)
        return {port.name: random_for_port(port, generator) for port in self.manifest.inputs}


def _names(ports: tuple[Port, ...]) -> str:
    return ", ".join(port.name for port in ports)
