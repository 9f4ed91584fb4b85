"""A stream of items, predicted or measured, as numbers: throughput, bottleneck, balance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, repeat
from statistics import mean, median
from typing import Any

from nnstretch.bundle.manifest import Manifest
from nnstretch.run.pipelines.item_buffer import ItemResult
from nnstretch.run.pipelines.item_trace import spans_by_step, start_delays_us
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.prediction import bottleneck_us, copy_steps, predict_stream
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.run.pipelines.worker_record import worker_name
from nnstretch.run.pipelines.workers import StageStatistics
from nnstretch.schedule import critical_path_us
from nnstretch.schedule.pipeline_graph import StageGraph, in_flight_limit
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span, Trace


@dataclass(frozen=True)
class PipelineMetrics:
    """Metrics of a stream, in time of the chip where stages are emulated, else of the host."""

    manifest: Manifest
    stage_graph: StageGraph
    ended_us: tuple[float, ...]
    """By item that has a result, in order."""
    latencies_us: tuple[float, ...]
    """Of the same items."""
    service_us: Mapping[str, float]
    """By step, the median of its slowest replica."""
    trace: Trace
    emulated: bool = True
    """Whether stages on one processor share it, as on the chip; threads of this host do not."""
    late_items: int = 0
    """Items whose numbers took longer than their time at any emulated stage."""
    failed_items: int = 0
    """Items that ended with an error instead of a result."""

    @cached_property
    def period_us(self) -> float:
        """Return the time between two results while the pipeline is full, 0 where none came.

        Neither the first items nor the last count where there are enough. Where items were late it
        is no less than the busiest emulated processor takes: results that the host held up behind
        it come closer together for a while.
        """
        if not self.late_items:
            return self._result_gap_us
        return max(self._result_gap_us, self._paced_us)

    @property
    def _result_gap_us(self) -> float:
        skipped = min(in_flight_limit(self.stage_graph), len(self.ended_us) // 3)
        in_order = list(accumulate(self.ended_us, max))
        full = in_order[skipped : len(in_order) - skipped]
        steady = full if len(full) > 1 else in_order
        if len(steady) < 2:
            return self.latencies_us[-1] if self.latencies_us else 0.0
        return (steady[-1] - steady[0]) / (len(steady) - 1)

    @property
    def copies_us(self) -> dict[str, float]:
        """Return the time of both copies of an item, by stage; 0 where none is apart."""
        copies_us = {node.stage: 0.0 for node in self.stage_graph}
        for node in self.stage_graph:
            if node.part:
                copies_us[node.stage] += self.service_us[node.name]
        return copies_us

    @property
    def latency_us(self) -> dict[str, float]:
        """Return the time of both copies and compute of an item, by stage."""
        return {stage: self.service_us[stage] + copies for stage, copies in self.copies_us.items()}

    @property
    def shares_us(self) -> dict[str, float]:
        """Return the longer of compute and copies over the number of replicas, by stage."""
        copies_us, shares_us = self.copies_us, dict[str, float]()
        for node in self.stage_graph:
            if not node.part:
                longer_us = max(self.service_us[node.stage], copies_us[node.stage])
                shares_us[node.stage] = longer_us / node.replicas
        return shares_us

    @property
    def bottleneck_us(self) -> float:
        """Return the time that the busiest processor needs for an item."""
        if not self.emulated:
            return max(self.shares_us.values())
        return bottleneck_us(self.manifest, self.stage_graph, self.service_us)

    @property
    def _paced_us(self) -> float:
        """Return what the busiest emulated processor needs for an item, 0 where there is none.

        A Python stage takes what it takes, its median is no bound.
        """
        if not self.emulated:
            return 0.0
        real = {node.name: 0.0 for node in self.stage_graph if self._is_python(node.stage)}
        return bottleneck_us(self.manifest, self.stage_graph, {**self.service_us, **real})

    def _is_python(self, stage: str) -> bool:
        pipeline = self.manifest.pipeline
        assert pipeline is not None
        return any(item.call for item in pipeline.stages if item.name == stage)

    @property
    def critical_path_us(self) -> float:
        """Return the time of an item through the longest chain of steps."""
        names = [node.name for node in self.stage_graph]
        tasks: list[Task] = []
        for node in self.stage_graph:
            needs = frozenset(names[feeder] for feeder in node.feeders)
            tasks.append(Task(node.name, node.name, needs))
        return critical_path_us(tasks, lambda task: self.service_us[task.name])

    @property
    def balance(self) -> float:
        """Return the mean of the network's stages over the slowest of them.

        Nobody balances Python stages, and no split could.
        """
        pipeline, shares_us = self.manifest.pipeline, self.shares_us
        assert pipeline is not None
        shares = [shares_us[stage.name] for stage in pipeline.stages if not stage.call]
        slowest_us = max(shares, default=0.0)
        return mean(shares) / slowest_us if slowest_us else 1.0

    @property
    def efficiency(self) -> float:
        """Return the bottleneck over the period: 1 where nothing but the slowest stage counts.

        0 where there is no result.
        """
        if not self.ended_us:
            return 0.0
        return self.bottleneck_us / self.period_us if self.period_us else 1.0

    @property
    def overhead_us(self) -> float:
        """Return the median delay between when an item could begin at a stage and when it did."""
        pipeline, nodes = self.manifest.pipeline, self.stage_graph
        assert pipeline is not None
        delays_us = start_delays_us(nodes, spans_by_step(self.trace, pipeline, nodes))
        return median(delays_us or [0.0])


def simulate_pipeline(
    sequential: SequentialPipeline, inputs: Any, items: int, known: Mapping[str, Processor]
) -> tuple[PipelineMetrics, Any]:
    """Run a stream on the virtual clock; return its metrics and the outputs of the first item."""
    manifest, nodes = sequential.manifest, copy_steps(sequential.manifest)
    values = sequential.from_caller(inputs)
    copies = {node.name for node in nodes if node.part}

    def work(task: Task) -> None:
        if task.request == 0 and task.subgraph not in copies:
            sequential.compute(task.subgraph, values)

    trace = predict_stream(manifest, items, known, work)
    spans = spans_by_step(trace, sequential.pipeline, nodes)
    last = [spans[node.name] for node in nodes if node.last]
    ended_us: list[float] = []
    latencies_us: list[float] = []
    for item in range(items):
        ended_us.append(max(of_step[item].end_us for of_step in last))
        start_us = min(of_step[item].start_us for of_step in spans.values())
        latencies_us.append(ended_us[-1] - start_us)
    service_us = {node.name: slowest_us(spans[node.name], node.replicas) for node in nodes}
    times_us = tuple(ended_us), tuple(latencies_us)
    metrics = PipelineMetrics(manifest, nodes, *times_us, service_us, trace)
    return metrics, sequential.to_caller(values)


def slowest_us(spans: Sequence[Span], replicas: int) -> float:
    """Return the median time of an item, of the slowest replica; that sets the pace."""
    by_replica = [spans[replica::replicas] for replica in range(replicas)]
    return max(median(span.duration_us for span in of_one) for of_one in by_replica if of_one)


def measure_pipeline(
    pipeline: Pipeline, inputs: Any, items: int, heard: Callable[[ItemResult], None]
) -> PipelineMetrics:
    """Stream one item again and again through a pipeline; `heard` is called with each result."""
    dilation, ended_us, latencies_us = pipeline.dilation, list[float](), list[float]()
    late_items = failed_items = 0
    for result in pipeline.stream(repeat(inputs, items)):
        heard(result)
        late_items += result.late
        if result.error is not None:
            failed_items += 1
            continue
        ended_us.append(result.ended_us / dilation)
        latencies_us.append(result.latency_us / dilation)
    return PipelineMetrics(
        pipeline.manifest,
        pipeline.stage_graph,
        tuple(ended_us),
        tuple(latencies_us),
        {row.stage: row.service_us / dilation for row in pipeline.statistics()},
        pipeline.trace(),
        pipeline.emulated,
        late_items,
        failed_items,
    )


def processors_busy_us(statistics: tuple[StageStatistics, ...]) -> dict[str, float]:
    """Return the busy time per item, by the processors of each stage together."""
    busy_us: dict[str, float] = {}
    for row in statistics:
        name = worker_name(row.processors)
        busy_us[name] = busy_us.get(name, 0.0) + row.busy_us / max(1, row.items)
    return busy_us
