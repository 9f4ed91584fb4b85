"""A network, loaded so that every processor may compute every sub-graph of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from time import perf_counter

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.run.backends.registry import SHAREABLE, Choice
from nnstretch.run.loaded_network import Given, LoadedNetwork, Values

WARM_RUNS = 2
TIMED_RUNS = 5


class ServedNetwork:
    """A loaded network for each processor, one for all where its runtimes allow several callers."""

    def __init__(self, bundle: Bundle, processors: Iterable[str], backend: Choice = None) -> None:
        """Load the bundle's main plan. Raises as `LoadedNetwork` does."""
        names = tuple(processors)
        self.network = LoadedNetwork(bundle, backend)
        self.manifest = self.network.manifest
        kinds = {name.partition(":")[0] for name in self.network.backends.values()}
        self._networks = dict.fromkeys(names, self.network)
        if not kinds <= SHAREABLE:
            for name in names[1:]:
                self._networks[name] = LoadedNetwork(bundle, backend)

    def inputs(self, inputs: Given) -> Values:
        """Return inputs as the ports hold them. Raises BadInput for others."""
        return self.network.inputs(inputs)

    def compute(self, processor: str, subgraph: str, values: Values) -> None:
        """Compute one sub-graph on `values` and add its outputs to them."""
        self._networks[processor].compute(subgraph, values)

    def outputs(self, values: Values) -> dict[str, np.ndarray]:
        """Return the outputs by name, in PyTorch's form."""
        outputs = self.network.outputs(values)
        if isinstance(outputs, np.ndarray):
            return {self.manifest.outputs[0].name: outputs}
        return outputs

    def measured_us(self) -> Mapping[str, float]:
        """Measure what each sub-graph takes alone on this thread: the median of a few runs, us."""
        values = self.network.all_tensors(self.network.inputs(self.network.random_inputs(0)))
        times_us: dict[str, float] = {}
        for sub in self.manifest.subgraphs:
            took_us: list[float] = []
            for _ in range(WARM_RUNS + TIMED_RUNS):
                began_s = perf_counter()
                self.network.results(sub.name, values)
                took_us.append((perf_counter() - began_s) * 1e6)
            times_us[sub.name] = median(took_us[WARM_RUNS:])
        return times_us
