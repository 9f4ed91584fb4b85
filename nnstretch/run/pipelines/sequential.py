"""The stages of a pipeline one after another on the calling thread."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.pipeline_view import functions_of
from nnstretch.errors import BadInput, StageFailed, one_line
from nnstretch.run.backends.registry import Choice, choose_backends
from nnstretch.run.pipelines.stage_functions import (
    Functions,
    PythonStage,
    SubgraphStage,
    TensorForms,
    Values,
    stage_factory,
)
from nnstretch.run.tensor_io import random_for_port
from nnstretch.run.time_dilation import REHEARSALS


class SequentialPipeline:
    """The stages of a pipeline one after another on the calling thread.

    What any schedule has to reproduce, and its baseline.
    """

    def __init__(
        self, bundle: Bundle, functions: Functions | None = None, backend: Choice = None
    ) -> None:
        """Load a pipeline. Raises BadInput for a bundle without a pipeline or a missing
        function.
        """
        if bundle.manifest.pipeline is None:
            raise BadInput(
                f"no pipeline, bundle {bundle.name}, it has branches only; `nnstretch partition`"
                " makes one"
            )
        self.manifest, self.pipeline = bundle.manifest, bundle.manifest.pipeline
        self.backends = choose_backends(backend, bundle)
        opened = stage_factory(
            bundle, self.backends, functions_of(self.pipeline, functions or {}), at_once=False
        )
        self._stages: dict[str, SubgraphStage | PythonStage] = {
            stage.name: opened(stage.name, 0) for stage in self.pipeline.stages
        }
        self._home = {
            name: stage.name for stage in self.pipeline.stages for name in stage.subgraphs
        }
        self._forms = TensorForms(bundle.manifest)

    def run(self, inputs: Any) -> Any:
        """Run an item; outputs as the pipeline gives them. Raises StageFailed when a stage
        raises.
        """
        values = self.from_caller(inputs)
        for name, work in self._stages.items():
            try:
                work(values)
            except Exception as error:
                raise StageFailed(
                    f"an item alone failed, stage {name}, {type(error).__name__}:"
                    f" {one_line(error)}",
                    name,
                ) from error
        return self.to_caller(values)

    def from_caller(self, inputs: Any) -> Values:
        """Convert what a caller gives."""
        return self._forms.from_caller(self.pipeline, inputs, self.manifest.model)

    def to_caller(self, values: Values) -> Any:
        """Convert what a caller gets."""
        return self._forms.to_caller(self.pipeline.outputs, values)

    def compute(self, name: str, values: Values) -> None:
        """Compute one sub-graph or Python stage."""
        work = self._stages[self._home.get(name, name)]
        if isinstance(work, SubgraphStage):
            work.compute(name, values)
        else:
            work(values)

    def stage_s(self, inputs: Any) -> dict[str, float]:
        """Measure what every stage takes here alone, the least of a few."""
        times_s: dict[str, list[float]] = {name: [] for name in self._stages}
        for _ in range(REHEARSALS):
            values = self.from_caller(inputs)
            for name, work in self._stages.items():
                began_s = perf_counter()
                work(values)
                times_s[name].append(perf_counter() - began_s)
        return {name: min(times) for name, times in times_s.items()}

    def latency_s(self, inputs: Any, times: int) -> float:
        """Return the median latency of so many runs, s."""
        times_s = []
        for _ in range(times):
            began_s = perf_counter()
            self.run(inputs)
            times_s.append(perf_counter() - began_s)
        return median(times_s)

    def random_inputs(self, seed: int) -> Values:
        """Draw random inputs. Raises BadInput where an input has no shape that anybody said."""
        ports = {port.name: port for sub in self.manifest.subgraphs for port in sub.inputs}
        generator, values = np.random.default_rng(seed), Values()
        for item in self.pipeline.inputs:
            if item.name not in ports and item.spec is None:
                raise BadInput(
                    f"input {item.name} has no shape, pipeline of {self.manifest.model}, its Python"
                    " stage takes anything: give --input"
                )
            if item.name in ports:
                values[item.name] = random_for_port(ports[item.name], generator)
            elif item.spec is not None:
                values[item.name] = generator.standard_normal(item.spec.shape).astype(
                    item.spec.dtype
                )
        return values
