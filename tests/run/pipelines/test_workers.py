"""Who works at a stage.

Replicas in turn, branches at once, cores, backends, and what each says it did.
"""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import pytest
from support.bundles import branched_bundle
from support.pipeline_bundles import both, chain, first_of, full, reference_bundle

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.errors import BadInput, Stuck
from nnstretch.pipeline import PipelineSpec as Stages
from nnstretch.pipeline import PipelineStage, TensorDecl
from nnstretch.run import write_perfetto
from nnstretch.run.loaded_network import LoadedNetwork
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.prediction import predict_stream, step_us
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.run.pipelines.workers import assign_cores
from nnstretch.schedule.cpu_affinity import affinity


def test_replicas_take_turns_and_results_keep_their_order() -> None:
    with Pipeline(chain(3, replicas=3)) as pipeline:
        assert [
            first_of(result.value()) for result in pipeline.stream(full(item) for item in range(50))
        ] == [6 + item for item in range(50)]
    spans = [span for span in pipeline.trace().spans if span.task.name.startswith("m1#")]
    assert {
        span.processor: {int(s.task.name[3:]) % 3 for s in spans if s.processor == span.processor}
        for span in spans
    } == {"cpu0": {0}, "cpu1": {1}, "cpu2": {2}}


def branched_pipeline() -> Bundle:
    """A branched network as one stage."""
    bundle = branched_bundle()
    ins, outs = bundle.manifest.inputs, bundle.manifest.outputs
    stage = PipelineStage("whole", subgraphs=tuple(sub.name for sub in bundle.manifest.subgraphs))
    pipeline = Stages(
        (stage,),
        tuple(TensorDecl(port.name, port.spec) for port in ins),
        tuple(port.name for port in outs),
    )
    return replace(bundle, manifest=replace(bundle.manifest, pipeline=pipeline))


def test_a_branched_stage_computes_what_its_network_computes() -> None:
    bundle = branched_pipeline()
    network = LoadedNetwork(bundle)
    inputs = [network.random_inputs(seed) for seed in range(6)]
    with Pipeline(bundle) as pipeline:
        for given, result in zip(inputs, pipeline.stream(inputs), strict=True):
            assert np.array_equal(result.value(), network.run_sequential(given))
    assert np.array_equal(
        SequentialPipeline(bundle).run(inputs[0]), network.run_sequential(inputs[0])
    )


def test_cores_are_those_a_stage_names_else_one_of_its_own_where_there_are_enough() -> None:
    plain, bound, two = (
        PipelineStage("a", ("a",)),
        PipelineStage("b", ("b",), cores=(2, 3)),
        PipelineStage("c", ("c",), threads=2),
    )
    python = PipelineStage("p", call="m:f")
    assert assign_cores((plain, python, two), {0, 1, 2, 3}) == [
        [frozenset({0})],
        [None],
        [frozenset({1, 2})],
    ]
    assert assign_cores((plain, bound), {0, 2, 3}) == [[frozenset({0})], [frozenset({2, 3})]]
    assert assign_cores((plain, two), {0, 1}) == [[None], [None]]
    assert assign_cores((replace(plain, replicas=("cpu0", "cpu1")),), {4, 5}) == [
        [frozenset({4}), frozenset({5})]
    ]


def test_the_callers_own_cores_stay_as_they_were() -> None:
    """P8, and a hole of the original.

    Stage 0 changed the affinity of the thread that made it, for good.
    """
    before = affinity()
    bundle = chain(2)
    assert bundle.manifest.pipeline is not None
    first = min(before or {0})
    stages = tuple(replace(stage, cores=(first,)) for stage in bundle.manifest.pipeline.stages)
    bound = replace(
        bundle,
        manifest=replace(
            bundle.manifest, pipeline=replace(bundle.manifest.pipeline, stages=stages)
        ),
    )
    with Pipeline(bound) as pipeline:
        assert first_of(pipeline.run(full(0))) == 3
        assert affinity() == before
        assert [worker.cores for stage in pipeline._executor.workers for worker in stage] == [
            frozenset({first})
        ] * 2
    assert affinity() == before


def test_each_stage_may_have_a_backend_of_its_own_and_says_what_it_did() -> None:
    """T1, and the published runner's check of its statistics.

    One item, some time at every stage.
    """
    with Pipeline(reference_bundle(), backend={"cpu": "onnxruntime", "dsp": "torch"}) as pipeline:
        assert pipeline.run(both(5))[0, 0] == 57
        found = pipeline.statistics()
    assert [(one.stage, one.processors, one.items, one.failed, one.waiting) for one in found] == [
        ("s0", ("cpu",), 1, 0, 0),
        ("s1", ("dsp",), 1, 0, 0),
        ("s2", ("cpu",), 1, 0, 0),
    ]
    assert all(one.busy_us > 0 and one.service_us > 0 for one in found)


def test_a_warm_up_may_be_left_out_of_the_statistics() -> None:
    slow_s = 0.05

    def m1(x: np.ndarray) -> np.ndarray:
        sleep(slow_s if x[0, 0] == 1 else 0)
        return x

    with Pipeline(chain(2, python=[1]), {"stages:m1": m1}) as pipeline:
        pipeline.run(full(0))
        assert pipeline.statistics()[1].service_us > slow_s * 1e6
        pipeline.restart_statistics()
        nothing = [(row.items, row.busy_us, row.service_us) for row in pipeline.statistics()]
        assert nothing == [(0, 0.0, 0.0)] * 2
        pipeline.run(full(1))
        statistics = pipeline.statistics()
        assert [row.items for row in statistics] == [1, 1]
        assert statistics[1].service_us == statistics[1].busy_us < slow_s * 1e6
        pipeline.push(full(1))
        with pytest.raises(Stuck, match="1 items are on their way or wait to be read"):
            pipeline.restart_statistics()


def test_waiting_before_statistics_began_anew_does_not_count() -> None:
    idle_s = 0.2
    with Pipeline(chain(2)) as pipeline:
        pipeline.run(full(0))
        sleep(idle_s)
        began_s = perf_counter()
        pipeline.restart_statistics()
        pipeline.run(full(1))
        ended_s = perf_counter()
        waited_us = [row.starved_us + row.blocked_us for row in pipeline.statistics()]
    assert all(0 <= us <= (ended_s - began_s) * 1e6 for us in waited_us)


def test_a_core_that_is_not_there_is_refused_and_not_silently_ignored() -> None:
    """A hole of the original: affinity had no effect, which users found by timing."""
    stages = PipelineStage("a", ("a",)), PipelineStage("b", ("b",), cores=(2, 9))
    for allowed, may_use in (({0, 2}, "cores 0, 2"), ({2}, "core 2")):
        with pytest.raises(BadInput) as refusal:
            assign_cores(stages, allowed)
        assert str(refusal.value) == (
            f"stage b is bound to core 9, pipeline, this process may use {may_use}; bind=False of"
            " Pipeline(...) ignores the binding"
        )


def test_replicas_of_a_python_stage_are_inside_at_once(tmp_path: Path) -> None:
    """Counted and not timed.

    A barrier lets nobody through before three are there, so 30 items take ten steps and not 30.
    """
    steps: list[int] = []
    together = threading.Barrier(3, lambda: steps.append(1))

    def m1(x: np.ndarray) -> np.ndarray:
        together.wait(20)
        sleep(0.002)
        return np.asarray(x + 2)

    made = chain(3, python=[1], replicas=3)
    write_bundle(tmp_path / "net.nns", made.manifest, made.files)
    with Pipeline(tmp_path / "net.nns", {"stages:m1": m1}) as pipeline:
        found = [
            (result.item, first_of(result.value()))
            for result in pipeline.stream(full(item) for item in range(30))
        ]
        assert (found, len(steps)) == ([(item, item + 6) for item in range(30)], 10)
        one = pipeline.statistics()[1]
    assert (one.processors, one.items, one.replica_items) == (
        ("m1.0", "m1.1", "m1.2"),
        30,
        (10, 10, 10),
    )
    assert sum(one.replica_busy_us) == pytest.approx(one.busy_us)
    spans = [span for span in pipeline.trace().spans if span.task.name.startswith("m1#")]
    assert {(span.processor, int(span.task.name[3:]) % 3) for span in spans} == {
        ("m1.0", 0),
        ("m1.1", 1),
        ("m1.2", 2),
    }
    write_perfetto(tmp_path / "trace.json", {"measured": pipeline.trace()}, pipeline.manifest)
    named = [
        event["args"]["name"]
        for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        if event["name"] == "thread_name"
    ]
    assert [name for name in named if name.startswith("m1")] == ["m1.0", "m1.1", "m1.2"]


def test_replicas_of_a_python_stage_are_on_the_virtual_clock_too() -> None:
    made = chain(3, python=[1], replicas=2)
    subs = tuple(replace(sub, predicted_us={"cpu": 5.0}) for sub in made.manifest.subgraphs)
    manifest = replace(made.manifest, subgraphs=subs)
    spans = [
        span for span in predict_stream(manifest, 6, {}).spans if span.task.name.startswith("m1#")
    ]
    assert {(span.processor, int(span.task.name[3:]) % 2) for span in spans} == {
        ("m1.0", 0),
        ("m1.1", 1),
    }
    assert step_us(manifest, {})["m1"] == (0.0, 0.0)


def test_an_error_in_one_replica_of_a_python_stage_reaches_its_item_alone() -> None:
    def m1(x: np.ndarray) -> np.ndarray:
        if x[0, 0] == 5:
            raise ValueError("lens cap")
        return x

    with Pipeline(chain(3, python=[1], replicas=4), {"stages:m1": m1}) as pipeline:
        failed = [
            result.item
            for result in pipeline.stream(full(item) for item in range(40))
            if result.error is not None
        ]
    assert failed == [4]
