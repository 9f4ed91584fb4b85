"""A stream of items, predicted or measured, as numbers: throughput, bottleneck, balance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, repeat
from statistics import mean, median
from typing import Any

from nnstretch.bundle.manifest import Manifest
from nnstretch.run.pipelines.item_buffer import ItemResult
from nnstretch.run.pipelines.item_trace import spans_by_step, start_delays_us
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.prediction import (
    bottleneck_us,
    copy_steps,
    predict_stream,
    replica_totals_us,
)
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
    replica_us: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By step, the median of each replica; where nobody says, all are as the slowest."""

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

    @cached_property
    def times_us(self) -> dict[str, tuple[float, ...]]:
        """Return the time of each replica, by step."""
        return {
            node.name: self.replica_us.get(node.name, (self.service_us[node.name],) * node.replicas)
            for node in self.stage_graph
        }

    @cached_property
    def slowest_us(self) -> dict[str, float]:
        """Return the time of each step on that replica of its stage where an item takes longest."""
        totals_us = replica_totals_us(self.stage_graph, self.times_us)
        slowest = {stage: each_us.index(max(each_us)) for stage, each_us in totals_us.items()}
        return {
            node.name: self.times_us[node.name][slowest[node.stage]] for node in self.stage_graph
        }

    @property
    def copies_us(self) -> dict[str, float]:
        """Return the time of both copies of an item, by stage; 0 where none is apart."""
        copies_us = {node.stage: 0.0 for node in self.stage_graph}
        for node in self.stage_graph:
            if node.part:
                copies_us[node.stage] += self.slowest_us[node.name]
        return copies_us

    @property
    def latency_us(self) -> dict[str, float]:
        """Return the time of both copies and compute of an item, by stage."""
        totals_us = replica_totals_us(self.stage_graph, self.times_us)
        return {stage: max(each_us) for stage, each_us in totals_us.items()}

    @property
    def shares_us(self) -> dict[str, float]:
        """Return the longer of compute and copies over the number of replicas, by stage."""
        copies = tuple(node for node in self.stage_graph if node.part)
        copies_us, shares_us = replica_totals_us(copies, self.times_us), dict[str, float]()
        for node in self.stage_graph:
            if not node.part:
                each_us = self.times_us[node.name]
                longer_us = map(max, each_us, copies_us.get(node.stage, each_us))
                shares_us[node.stage] = max(longer_us) / node.replicas
        return shares_us

    @property
    def bottleneck_us(self) -> float:
        """Return the time that the busiest processor needs for an item."""
        if not self.emulated:
            return max(self.shares_us.values())
        return bottleneck_us(self.manifest, self.stage_graph, self.times_us)

    @property
    def _paced_us(self) -> float:
        """Return what the busiest emulated processor needs for an item, 0 where there is none.

        A Python stage takes what it takes, its median is no bound.
        """
        if not self.emulated:
            return 0.0
        python = [node for node in self.stage_graph if self._is_python(node.stage)]
        real = {node.name: (0.0,) * node.replicas for node in python}
        return bottleneck_us(self.manifest, self.stage_graph, {**self.times_us, **real})

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
        return critical_path_us(tasks, lambda task: self.slowest_us[task.name])

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
    replica_us = {node.name: medians_us(spans[node.name], node.replicas) for node in nodes}
    service_us = {name: max(times_us) for name, times_us in replica_us.items()}
    ends = tuple(ended_us), tuple(latencies_us)
    metrics = PipelineMetrics(manifest, nodes, *ends, service_us, trace, replica_us=replica_us)
    return metrics, sequential.to_caller(values)


def medians_us(spans: Sequence[Span], replicas: int) -> tuple[float, ...]:
    """Return the median time of an item on each replica; of the slowest where one had none."""
    by_replica = [spans[replica::replicas] for replica in range(replicas)]
    known = [median(span.duration_us for span in of_one) for of_one in by_replica if of_one]
    slowest_us = max(known, default=0.0)
    return tuple(known) + (slowest_us,) * (replicas - len(known))


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
