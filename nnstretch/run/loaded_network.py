"""A bundle's sub-graphs as callable numbers: what is computed, whatever decides when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Port, Subgraph
from nnstretch.errors import BadInput
from nnstretch.protocols import Backend
from nnstretch.run.backends.registry import Choice, choose_backends, load_backend
from nnstretch.run.bound_memory import BoundNetwork
from nnstretch.run.tensor_io import (
    copy_if_shared,
    describe_names,
    from_ports,
    random_for_port,
    single_or_named,
    to_ports,
)
from nnstretch.schedule.timeout import whole_number

MOST_THREADS = 1024

Values = dict[str, np.ndarray]
"""Tensors of one request by their name in the whole network, as ports hold them.

Each is written once, by one sub-graph.
"""
Given = np.ndarray | Mapping[str, np.ndarray]
"""One array, or arrays by the names of the network's inputs."""


class LoadedSubgraphs:
    """Sub-graphs that were loaded once, called on tensors by name."""

    def __init__(
        self,
        bundle: Bundle,
        subgraphs: Sequence[Subgraph],
        backends: Mapping[str, str],
        threads: int,
    ) -> None:
        """Load sub-graphs. `backends`: by sub-graph, the name of its backend."""
        self.specs = {sub.name: sub for sub in subgraphs}
        self._bundle, self._backend_names, self._threads = bundle.name, backends, threads
        self._reads = {sub.name: sub.input_names for sub in subgraphs}
        self._writes = {sub.name: sub.output_names for sub in subgraphs}
        self.backends = {sub.name: self.load(sub.name, bundle.files[sub.file]) for sub in subgraphs}
        """By sub-graph; another one may take the place of one."""

    def load(self, subgraph: str, data: bytes) -> Backend:
        """Load a file for a sub-graph."""
        name, spec = self._backend_names[subgraph], self.specs[subgraph]
        return load_backend(name, spec, data, self._bundle, self._threads)

    def inputs(self, subgraph: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a sub-graph reads."""
        return {name: values[name] for name in self._reads[subgraph]}

    def results(self, subgraph: str, values: Mapping[str, Any]) -> Sequence[np.ndarray]:
        """Compute one sub-graph on `values` and keep the result nowhere."""
        return self.backends[subgraph].run(self.inputs(subgraph, values))

    def store(self, subgraph: str, outputs: Sequence[Any], values: dict[str, Any]) -> None:
        """Add the outputs of a sub-graph to `values`."""
        for name, output in zip(self._writes[subgraph], outputs, strict=True):
            values[name] = output

    def compute(self, subgraph: str, values: dict[str, Any]) -> None:
        """Compute one sub-graph on `values` and add its outputs to them."""
        self.store(subgraph, self.results(subgraph, values), values)

    def compute_all(self, values: dict[str, Any]) -> None:
        """Compute the sub-graphs one after another on the calling thread."""
        for name in self.specs:
            self.compute(name, values)


class LoadedNetwork:
    """A network's sub-graphs, each loaded once, with its inputs and outputs checked."""

    def __init__(self, bundle: Bundle, backend: Choice = None, threads: int = 1) -> None:
        needed = f"backends of {bundle.name}, from 1 to {MOST_THREADS} compute"
        threads = whole_number("threads", threads, 1, MOST_THREADS, needed)
        self.manifest, self.threads = bundle.manifest, threads
        self.backends = choose_backends(backend, bundle)
        """Name of the backend by sub-graph."""
        self.subgraphs = LoadedSubgraphs(bundle, self.manifest.subgraphs, self.backends, threads)

    def inputs(self, inputs: Given, copied: bool = False) -> Values:
        """Return inputs under the network's names and as its ports hold them.

        Each array has exactly the shape and type that was exported; where that is int8 or channels
        last, float32 in PyTorch's order is taken too. `copied`: the caller may overwrite the arrays
        during the computation. Raises BadInput.
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
                f"inputs {describe_names(inputs)}, {self.manifest.model} expects {_names(ports)}"
            )
        values = to_ports(ports, inputs)
        if copied:
            values = {name: copy_if_shared(array, inputs[name]) for name, array in values.items()}
        return values

    def bound_session(self) -> BoundNetwork:
        """Return the sub-graphs bound to memory, for one that runs the network again and again."""
        return BoundNetwork(self.manifest, self.subgraphs.backends)

    def bound_and_filled(self, inputs: Values) -> BoundNetwork:
        """Return the bound network with every tensor computed from `inputs`."""
        bound_session = self.bound_session()
        bound_session.enter(inputs)
        for call in bound_session.calls.values():
            call()
        return bound_session

    def compute(self, subgraph: str, values: Values | BoundNetwork) -> None:
        """Compute one sub-graph on `values` and add its outputs to them."""
        if isinstance(values, BoundNetwork):
            values.calls[subgraph]()
        else:
            self.subgraphs.compute(subgraph, values)

    def results(self, subgraph: str, values: Values) -> Sequence[np.ndarray]:
        """Compute one sub-graph on `values` and keep the result nowhere."""
        return self.subgraphs.results(subgraph, values)

    def outputs(self, values: Values, raw: bool = False) -> np.ndarray | Values:
        """Return the array where there is one output, arrays by name where there are several.

        Real numbers in PyTorch's order; `raw` gives what the ports hold.
        """
        ports = self.manifest.outputs
        named = (
            {port.name: values[port.name] for port in ports} if raw else from_ports(ports, values)
        )
        return single_or_named(named)

    def run_sequential(self, inputs: Given) -> np.ndarray | Values:
        """Run the sub-graphs one after another: what any schedule has to reproduce."""
        return self.outputs(self.all_tensors(self.inputs(inputs)))

    def all_tensors(self, inputs: Values) -> Values:
        """Return every tensor between sub-graphs, computed one after another from `inputs`."""
        values = dict(inputs)
        self.subgraphs.compute_all(values)
        return values

    def random_inputs(self, seed: int) -> Values:
        """Draw inputs in PyTorch's order: standard normal numbers, or small counts for integers."""
        generator = np.random.default_rng(seed)
        return {port.name: random_for_port(port, generator) for port in self.manifest.inputs}


def _names(ports: tuple[Port, ...]) -> str:
    return ", ".join(port.name for port in ports)
