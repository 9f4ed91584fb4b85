"""Weights of a pipeline's parameter groups, which may be replaced while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from threading import RLock

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.pipeline import ParameterGroup, PipelineSpec, find_group
from nnstretch.protocols import Backend
from nnstretch.run.pipelines.assembly import AssembledPipeline
from nnstretch.run.pipelines.stage_functions import SubgraphStage, required_pipeline
from nnstretch.run.pipelines.weight_patching import patch_weights, read_weights
from nnstretch.run.pipelines.workers import make_on_cores


class PipelineParameters:
    """Files of sub-graphs with the weights that new items are computed with."""

    def __init__(self, bundle: Bundle) -> None:
        self._pipeline: PipelineSpec = required_pipeline(bundle)
        self._files = {sub.name: bundle.files[sub.file] for sub in bundle.manifest.subgraphs}
        self.lock = RLock()

    def group(self, name: str) -> ParameterGroup:
        """Return a group. Raises UnknownName."""
        return find_group(self._pipeline, name)

    def read(self, group: ParameterGroup) -> dict[str, np.ndarray]:
        """Return the weights of a group."""
        return read_weights(group, self._files[group.subgraph])

    def patched(self, group: ParameterGroup, values: Mapping[str, np.ndarray]) -> bytes:
        """Return the file of a group with other weights. Raises BadInput for what does not fit."""
        return patch_weights(group, self._files[group.subgraph], values)

    def replacements(
        self, parts: AssembledPipeline, subgraph: str, data: bytes
    ) -> dict[tuple[int, int], Backend]:
        """Load a file for each replica of a sub-graph's stage, by (step, replica)."""
        stage = next(stage for stage in self._pipeline.stages if subgraph in stage.subgraphs)
        names = [node.name for node in parts.stage_graph]
        step, backends = names.index(stage.name), dict[tuple[int, int], Backend]()
        for replica, cores in enumerate(parts.cores[step]):
            loaded = parts.items.opened[step, replica]
            assert isinstance(loaded, SubgraphStage)

            def load(loaded: SubgraphStage = loaded) -> Backend:
                return loaded.load_replacement(subgraph, data)

            backends[step, replica] = make_on_cores(cores, load)
        return backends

    def store(self, subgraph: str, data: bytes) -> None:
        """Put a file in place of a sub-graph's."""
        self._files[subgraph] = data
