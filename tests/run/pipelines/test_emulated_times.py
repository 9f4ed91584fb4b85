"""Emulated stages: no item is faster than its stages, and no stream than its slowest stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline_bundles import (
    bundled,
    chain,
    module_for,
    onnx_file,
    op,
    reference_bundle,
)

from nnstretch.bundle.bundle import Bundle
from nnstretch.partition.build_manifest import ModuleFile
from nnstretch.partition.connect import PipelineConfig
from nnstretch.run.pipelines import item_buffer
from nnstretch.run.pipelines.item_buffer import ItemBuffer, StagePacing
from nnstretch.run.pipelines.metrics import PipelineMetrics
from nnstretch.run.pipelines.prediction import copy_steps
from nnstretch.run.pipelines.stage_functions import required_pipeline
from nnstretch.run.pipelines.workers import replica_processors
from nnstretch.schedule.executors.timetable import MADE_UP_S
from nnstretch.trace import Trace

ORIGIN_S = 1000.0
NOISE_US = 1e-6
"""A clock far from its zero has few digits left."""


@dataclass
class Host:
    """A clock that stands until it is set."""

    now_s: float = ORIGIN_S

    def sleep_until(self, deadline_s: float) -> None:
        self.now_s = max(self.now_s, deadline_s)


@dataclass(frozen=True)
class HostTimes:
    """What the host adds to an item, seconds."""

    push_s: float
    wake_s: tuple[float, ...]
    """By stage, from when it could begin to when its thread does."""
    compute_s: tuple[float, ...]


def host_times(stages: int) -> st.SearchStrategy[HostTimes]:
    delays_s = st.tuples(*[st.floats(0, 4 * MADE_UP_S)] * stages)
    return st.builds(HostTimes, st.floats(0, 5 * MADE_UP_S), delays_s, delays_s)


def emulated(
    bundle: Bundle, stage_us: tuple[float, ...], dilation: float, items: list[HostTimes]
) -> PipelineMetrics:
    """Stream items through the stages of a bundle on a host whose every delay is given."""
    host, nodes, stages = Host(), copy_steps(bundle.manifest), required_pipeline(bundle).stages
    names = [replica_processors(stage, bundle) for stage in stages]
    pace = StagePacing(tuple((time_us,) for time_us in stage_us), dilation)
    computing_s: list[float] = []

    def opened(_stage: str, _replica: int) -> Any:
        return lambda _values: host.sleep_until(host.now_s + computing_s[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_buffer, "perf_counter", lambda: host.now_s)
        patch.setattr(item_buffer, "sleep_until", host.sleep_until)
        buffer = ItemBuffer(nodes, names, len(items), opened, False, pace, len(items))
        calls = [buffer.stage_function(stage, 0) for stage, _ in enumerate(nodes)]
        pushed_s, free_s = ORIGIN_S, [ORIGIN_S] * len(nodes)
        for item, times in enumerate(items):
            host.now_s = pushed_s = pushed_s + times.push_s
            buffer.put(item, {})
            passed_s: list[float] = []
            for stage, node in enumerate(nodes):
                fed_s = max((passed_s[feeder] for feeder in node.feeders), default=pushed_s)
                host.now_s = max(fed_s, free_s[stage]) + times.wake_s[stage]
                computing_s.append(times.compute_s[stage])
                calls[stage](item)
                free_s[stage] = host.now_s
                passed_s.append(host.now_s)
        entries = [buffer.at(item) for item in range(len(items))]
    latencies_us = tuple((e.ended_s - e.pushed_s) * 1e6 / dilation for e in entries)
    ended_us = tuple((e.ended_s - ORIGIN_S) * 1e6 / dilation for e in entries)
    service_us = {node.name: time_us for node, time_us in zip(nodes, stage_us, strict=True)}
    late_items = sum(entry.late for entry in entries)
    times_us = ended_us, latencies_us, service_us
    return PipelineMetrics(bundle.manifest, nodes, *times_us, Trace(()), late_items=late_items)


def side_by_side() -> Bundle:
    """Return a pipeline of two stages that read one input, each with an output."""
    config, files = PipelineConfig(), dict[str, ModuleFile]()
    for number, (name, processor) in enumerate((("left", "cpu"), ("right", "dsp"))):
        files[name] = onnx_file([op("Add", f"{name}_x c", name)], [f"{name}_x"], [name], c=1)
        module = module_for(name, files[name])
        config[module].set(processors=(processor,))
        config["input"]["x"].connect(config[module]["input"][f"{name}_x"])
        config[module]["output"][0].connect(config["output"][number])
    return bundled(config.graph, files)


@cache
def bundles() -> dict[str, Bundle]:
    return {
        "a stage": chain(1),
        "stages of one processor": chain(2),
        "cpu, dsp, cpu": reference_bundle(),
        "side by side": side_by_side(),
    }


@settings(max_examples=60)
@given(st.data())
def test_no_item_and_no_stream_is_faster_than_its_stages(data: st.DataObject) -> None:
    bundle = bundles()[data.draw(st.sampled_from(sorted(bundles())))]
    count = len(required_pipeline(bundle).stages)
    stage_us = data.draw(st.tuples(*[st.floats(50, 2000)] * count))
    items = data.draw(st.lists(host_times(count), min_size=1, max_size=8))
    metrics = emulated(bundle, stage_us, data.draw(st.floats(1, 8)), items)
    assert min(metrics.latencies_us) >= metrics.critical_path_us - NOISE_US
    # A start that is later than is made up for delays a result, also where nothing else is late.
    if metrics.late_items or max(max(times.wake_s) for times in items) <= MADE_UP_S:
        assert metrics.bottleneck_us <= metrics.period_us + NOISE_US


def test_a_late_start_of_the_host_is_made_up_for() -> None:
    """Waking a thread costs an item nothing, unless the host is later than is made up for."""
    quick, slow = HostTimes(0.0, (2e-4, 2e-4), (0.0, 0.0)), HostTimes(0.0, (0.0, 3e-3), (0.0, 0.0))
    assert emulated(chain(2), (500, 300), 1.0, [quick]).latencies_us == pytest.approx([800])
    assert emulated(chain(2), (500, 300), 1.0, [slow]).latencies_us == pytest.approx([2800])


def test_the_critical_path_of_stages_side_by_side_is_the_longer_one() -> None:
    idle = HostTimes(0.0, (0.0, 0.0), (0.0, 0.0))
    metrics = emulated(side_by_side(), (900, 400), 1.0, [idle] * 3)
    assert metrics.critical_path_us == pytest.approx(900)
    assert metrics.latencies_us[0] == pytest.approx(900)
