"""The stages of a pipeline one after another on the calling thread."""

from __future__ import annotations

from itertools import chain
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.pipeline_view import functions_of
from nnstretch.errors import BadInput, StageFailed, describe_error
from nnstretch.run.backends.registry import Choice, choose_backends
from nnstretch.run.pipelines.item_tensors import TensorForms, Values
from nnstretch.run.pipelines.stage_functions import (
    Functions,
    PythonStage,
    SubgraphStage,
    required_pipeline,
    stage_factory,
)
from nnstretch.run.tensor_io import random_for_port
from nnstretch.run.time_dilation import REHEARSALS


class SequentialPipeline:
    """The stages of a pipeline in order: what any schedule has to reproduce, and its baseline."""

    def __init__(
        self, bundle: Bundle, functions: Functions | None = None, backend: Choice = None
    ) -> None:
        """Load the stages. Raises BadInput for a bundle without pipeline or a missing function."""
        self.manifest, self.pipeline = bundle.manifest, required_pipeline(bundle)
        self.backends = choose_backends(backend, bundle)
        by_stage = functions_of(self.pipeline, functions or {})
        load = stage_factory(bundle, self.backends, by_stage, at_once=False)
        self._stages: dict[str, SubgraphStage | PythonStage] = {}
        self._home: dict[str, str] = {}
        for stage in self.pipeline.stages:
            self._stages[stage.name] = load(stage.name, 0)
            self._home |= dict.fromkeys(stage.subgraphs, stage.name)
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
                message = f"an item alone failed, stage {name}, {describe_error(error)}"
                raise StageFailed(message, name) from error
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
        """Measure the time of every stage on this host, the least of a few runs."""
        times_s: dict[str, list[float]] = {name: [] for name in self._stages}
        for _ in range(REHEARSALS):
            values = self.from_caller(inputs)
            for name, work in self._stages.items():
                began_s = perf_counter()
                work(values)
                times_s[name].append(perf_counter() - began_s)
        return {name: min(times) for name, times in times_s.items()}

    def latency_s(self, inputs: Any, times: int) -> float:
        """Return the median latency of so many runs."""
        times_s = []
        for _ in range(times):
            began_s = perf_counter()
            self.run(inputs)
            times_s.append(perf_counter() - began_s)
        return median(times_s)

    def random_inputs(self, seed: int) -> Values:
        """Draw random inputs. Raises BadInput for an input without a known shape."""
        read = chain.from_iterable(sub.inputs for sub in self.manifest.subgraphs)
        ports = {port.name: port for port in read}
        generator, values = np.random.default_rng(seed), Values()
        for item in self.pipeline.inputs:
            if item.name in ports:
                values[item.name] = random_for_port(ports[item.name], generator)
            elif item.spec is not None:
                numbers = generator.standard_normal(item.spec.shape)
                values[item.name] = numbers.astype(item.spec.dtype)
            else:
                raise BadInput(
                    f"input {item.name} has no shape, pipeline of {self.manifest.model}, its Python"
                    " stage takes anything: give --input"
                )
        return values
