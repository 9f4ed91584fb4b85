"""A stream of items, predicted or measured, as numbers.

How fast results come, and how close that is to what the slowest stage allows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, repeat
from statistics import mean, median
from time import perf_counter
from typing import Any

import numpy as np

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest
from nnstretch.bundle.pipeline_view import functions_of, subgraphs_of_stage
from nnstretch.errors import BadInput, StageFailed, one_line
from nnstretch.run.backends.registry import Choice, choose_backends
from nnstretch.run.pipelines.item_buffer import ItemResult, StagePacing
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.stage_functions import (
    Functions,
    PythonStage,
    SubgraphStage,
    TensorForms,
    Values,
    stage_factory,
)
from nnstretch.run.pipelines.workers import StageStatistics
from nnstretch.run.tensor_io import random_for_port
from nnstretch.schedule import StaticPlacement, VirtualExecutor, run_tasks
from nnstretch.schedule.pipeline_graph import (
    StageGraph,
    copy_step_name,
    in_flight_limit,
    spans_by_step,
    stage_graph,
    stages_with_copies,
    start_delays_us,
    stream_durations_us,
    stream_processors,
    stream_tasks,
)
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span, Trace

MARGIN = 1.4
"""Room for a host that is slower while it emulates than alone."""
REHEARSALS = 3


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


def predict_stream(
    manifest: Manifest,
    items: int,
    known: Mapping[str, Processor],
    work: Callable[[Task], object] = lambda _: None,
) -> Trace:
    """Predict a stream of so many items on the virtual clock; all are there from the beginning.

    Raises BadInput where a time was never predicted.
    """
    durations_us, processors = stream_durations_us(manifest), stream_processors(manifest, known)
    tasks = stream_tasks(manifest, items)
    if missing := [
        f"{t.subgraph} on {t.processor}"
        for t in tasks
        if (t.subgraph, t.processor or "") not in durations_us
    ]:
        raise BadInput(
            f"no predicted time of {missing[0]}, pipeline of {manifest.model}, a virtual clock"
            " needs all; partition it for a chip"
        )
    return run_tasks(
        tasks,
        StaticPlacement(tuple(p.name for p in processors)),
        VirtualExecutor(processors, durations_us, work),
    )


def copy_steps(manifest: Manifest) -> StageGraph:
    """Return the stage graph with copies apart where they were predicted."""
    assert manifest.pipeline is not None
    return stage_graph(manifest.pipeline, manifest, stages_with_copies(manifest))


def step_us(manifest: Manifest, known: Mapping[str, Processor]) -> dict[str, tuple[float, ...]]:
    """Return the predicted time of each replica, by step.

    Of a branched stage until its last sub-graph ends; a Python stage has none.
    """
    pipeline, stage_graph = manifest.pipeline, copy_steps(manifest)
    assert pipeline is not None
    spans = spans_by_step(
        predict_stream(manifest, max(step.replicas for step in stage_graph), known),
        pipeline,
        stage_graph,
    )
    return {
        step.name: tuple(span.duration_us for span in spans[step.name][: step.replicas])
        for step in stage_graph
    }


def pacing_for(
    chain: SequentialPipeline, inputs: Any, known: Mapping[str, Processor], cores: int
) -> StagePacing:
    """Return a pace of predicted times on a clock slow enough for this host.

    Every stage fits, and all of them together fit its cores.
    """
    times_us, host_s = step_us(chain.manifest, known), chain.stage_s(inputs)
    slowest_us = bottleneck_us(
        chain.manifest,
        copy_steps(chain.manifest),
        {name: max(times) for name, times in times_us.items()},
    )
    each = [
        host_s[name] * 1e6 / min(times)
        for name, times in times_us.items()
        if name in host_s and min(times) > 0
    ]
    together = sum(host_s.values()) * 1e6 / (slowest_us * max(1, cores)) if slowest_us else 0.0
    return StagePacing(tuple(times_us.values()), max(1.0, MARGIN * max(together, *each)))


@dataclass(frozen=True)
class PipelineMetrics:
    """What a stream of items says, in microseconds of the chip where stages are emulated, else of
    this host.
    """

    manifest: Manifest
    stage_graph: StageGraph
    ended_us: tuple[float, ...]
    """Of every item, in order."""
    latencies_us: tuple[float, ...]
    service_us: Mapping[str, float]
    """By step, the median of its slowest replica."""
    trace: Trace
    emulated: bool = True
    """Whether stages on one processor share it, as on the chip; threads of this host do not."""

    @cached_property
    def period_us(self) -> float:
        """Return the time between two results, in order, while the pipeline is full, us.

        Neither the first items nor the last count where there are enough.
        """
        skipped, in_order = (
            min(in_flight_limit(self.stage_graph), len(self.ended_us) // 3),
            list(accumulate(self.ended_us, max)),
        )
        full = in_order[skipped : len(in_order) - skipped]
        steady = full if len(full) > 1 else in_order
        return (
            (steady[-1] - steady[0]) / (len(steady) - 1)
            if len(steady) > 1
            else self.latencies_us[-1]
        )

    @property
    def copies_us(self) -> dict[str, float]:
        """Return both copies of an item by stage, where they are apart from its compute."""
        return {
            one.stage: sum(
                self.service_us[step.name]
                for step in self.stage_graph
                if step.part and step.stage == one.stage
            )
            for one in self.stage_graph
        }

    @property
    def latency_us(self) -> dict[str, float]:
        """Return copies in, compute and copies out of an item, by stage."""
        return {
            step.stage: self.service_us[step.stage] + self.copies_us[step.stage]
            for step in self.stage_graph
        }

    @property
    def shares_us(self) -> dict[str, float]:
        """Return the longer of compute and copies for an item over its replicas, by stage.

        The largest is the bottleneck.
        """
        times_us = {
            step: max(self.service_us[step.stage], self.copies_us[step.stage])
            for step in self.stage_graph
            if not step.part
        }
        return {step.stage: time_us / step.replicas for step, time_us in times_us.items()}

    @property
    def bottleneck_us(self) -> float:
        """Return what the busiest processor needs for an item."""
        return (
            bottleneck_us(self.manifest, self.stage_graph, self.service_us)
            if self.emulated
            else max(self.shares_us.values())
        )

    @property
    def balance(self) -> float:
        """Return the mean stage over the slowest; Python stages, which nobody balances, apart."""
        pipeline = self.manifest.pipeline
        assert pipeline is not None
        shares = [self.shares_us[stage.name] for stage in pipeline.stages if not stage.call]
        slowest_us = max(shares, default=0.0)
        return mean(shares) / slowest_us if slowest_us else 1.0

    @property
    def efficiency(self) -> float:
        """Return the bottleneck over the time between two results.

        1 where nothing but the slowest stage counts.
        """
        return self.bottleneck_us / self.period_us if self.period_us else 1.0

    @property
    def overhead_us(self) -> float:
        """Return the median delay between when an item could begin at a stage and when it did."""
        pipeline = self.manifest.pipeline
        assert pipeline is not None
        return median(
            start_delays_us(self.stage_graph, spans_by_step(self.trace, pipeline, self.stage_graph))
            or [0.0]
        )


def simulate_pipeline(
    chain: SequentialPipeline, inputs: Any, items: int, known: Mapping[str, Processor]
) -> tuple[PipelineMetrics, Any]:
    """Play predicted times; return the trace and the outputs of the first item, computed in the
    order of the schedule.
    """
    values = chain.from_caller(inputs)
    copies = {step.name for step in copy_steps(chain.manifest) if step.part}

    def work(task: Task) -> None:
        if task.request == 0 and task.subgraph not in copies:
            chain.compute(task.subgraph, values)

    stage_graph = copy_steps(chain.manifest)
    trace = predict_stream(chain.manifest, items, known, work)
    spans = spans_by_step(trace, chain.pipeline, stage_graph)
    lasts = [step.name for step in stage_graph if step.last]
    ended_us = tuple(max(spans[name][item].end_us for name in lasts) for item in range(items))
    starts_us = [min(span[item].start_us for span in spans.values()) for item in range(items)]
    latencies_us = tuple(end - start for end, start in zip(ended_us, starts_us, strict=True))
    service_us = {step.name: slowest_us(spans[step.name], step.replicas) for step in stage_graph}
    return PipelineMetrics(
        chain.manifest, stage_graph, ended_us, latencies_us, service_us, trace
    ), chain.to_caller(values)


def slowest_us(spans: Sequence[Span], replicas: int) -> float:
    """Return the median of an item, of the slowest replica, us: it sets the pace of the turn."""
    return max(
        median(span.duration_us for span in replica_spans)
        for replica in range(replicas)
        if (replica_spans := spans[replica::replicas])
    )


def measure_pipeline(
    pipeline: Pipeline, inputs: Any, items: int, heard: Callable[[ItemResult], None]
) -> PipelineMetrics:
    """Stream one item again and again through a pipeline; every result is `heard`."""
    results = []
    for result in pipeline.stream(repeat(inputs, items)):
        heard(result)
        results.append((result.ended_us / pipeline.dilation, result.latency_us / pipeline.dilation))
    service_us = {
        statistic.stage: statistic.service_us / pipeline.dilation
        for statistic in pipeline.statistics()
    }
    ended_us, latencies_us = (tuple(times) for times in zip(*results, strict=True))
    return PipelineMetrics(
        pipeline.manifest,
        pipeline.stage_graph,
        ended_us,
        latencies_us,
        service_us,
        pipeline.trace(),
        pipeline.emulated,
    )


def bottleneck_us(
    manifest: Manifest, stage_graph: StageGraph, service_us: Mapping[str, float]
) -> float:
    """Return what the busiest processor needs for an item.

    A branched stage has all of its processors as long as it lasts.
    """
    pipeline, load_us = manifest.pipeline, dict[str, float]()
    assert pipeline is not None
    stages = {stage.name: stage for stage in pipeline.stages}
    for step in stage_graph:
        stage = stages[step.stage]
        names = (
            stage.replica_names
            or tuple(dict.fromkeys(sub.processor for sub in subgraphs_of_stage(stage, manifest)))
            or (stage.name,)
        )
        for name in (copy_step_name(name) if step.part else name for name in names):
            load_us[name] = load_us.get(name, 0.0) + service_us[step.name] / step.replicas
    return max(load_us.values())


def predicted_bottleneck_us(manifest: Manifest, known: Mapping[str, Processor]) -> float | None:
    """Return the predicted bottleneck, us, None where not every sub-graph has a time."""
    try:
        return bottleneck_us(
            manifest,
            copy_steps(manifest),
            {name: max(times) for name, times in step_us(manifest, known).items()},
        )
    except BadInput:
        return None


def processors_busy_us(statistics: tuple[StageStatistics, ...]) -> dict[str, float]:
    """Return per item the time by the processors of a stage together, and by who copies for one,
    us.
    """
    busy_us: dict[str, float] = {}
    for statistic in statistics:
        name = "+".join(statistic.processors)
        busy_us[name] = busy_us.get(name, 0.0) + statistic.busy_us / max(1, statistic.items)
    return busy_us
