"""Who works at a stage: replicas in turn, branches at once, cores, backends, and what each says it did."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bundles import branched_bundle
from pipeline_bundles import both, chain, first_of, full, reference_bundle

from nnstretch.bundle import Bundle
from nnstretch.errors import BadInput
from nnstretch.run.network import Network
from nnstretch.run.stream import Pipeline
from nnstretch.run.streamed import Chain
from nnstretch.run.workers import cores_of
from nnstretch.schedule.cores import affinity
from nnstretch.stages import Item, Stage
from nnstretch.stages import Pipeline as Stages


def test_replicas_take_turns_and_results_keep_their_order() -> None:
    with Pipeline(chain(3, replicas=3)) as pipeline:
        assert [first_of(result.value()) for result in pipeline.stream(full(item) for item in range(50))] == [6 + item for item in range(50)]
    spans = [span for span in pipeline.trace().spans if span.task.startswith("m1#")]
    assert {span.processor: {int(s.task[3:]) % 3 for s in spans if s.processor == span.processor} for span in spans} == {"cpu0": {0}, "cpu1": {1}, "cpu2": {2}}


def branched_pipeline() -> Bundle:
    """A branched network as one stage."""
    bundle = branched_bundle()
    ins, outs = bundle.manifest.inputs, bundle.manifest.outputs
    stage = Stage("whole", subgraphs=tuple(sub.name for sub in bundle.manifest.subgraphs))
    pipeline = Stages((stage,), tuple(Item(port.name, port.spec) for port in ins), tuple(port.name for port in outs))
    return replace(bundle, manifest=replace(bundle.manifest, pipeline=pipeline))


def test_a_branched_stage_computes_what_its_network_computes() -> None:
    bundle = branched_pipeline()
    network = Network(bundle)
    inputs = [network.random_inputs(seed) for seed in range(6)]
    with Pipeline(bundle) as pipeline:
        for given, result in zip(inputs, pipeline.stream(inputs), strict=True):
            assert np.array_equal(result.value(), network.in_order(given))
    assert np.array_equal(Chain(bundle).run(inputs[0]), network.in_order(inputs[0]))


def test_cores_are_those_a_stage_names_else_one_of_its_own_where_there_are_enough() -> None:
    plain, bound, two = Stage("a", ("a",)), Stage("b", ("b",), cores=(2, 3)), Stage("c", ("c",), threads=2)
    python = Stage("p", call="m:f")
    assert cores_of((plain, python, two), {0, 1, 2, 3}) == [[frozenset({0})], [None], [frozenset({1, 2})]]
    assert cores_of((plain, bound), {0, 2, 3}) == [[frozenset({0})], [frozenset({2, 3})]]
    assert cores_of((plain, two), {0, 1}) == [[None], [None]]
    assert cores_of((replace(plain, replicas=("cpu0", "cpu1")),), {4, 5}) == [[frozenset({4}), frozenset({5})]]


def test_the_callers_own_cores_stay_as_they_were() -> None:
    """P8, and a hole of the original: stage 0 changed the affinity of the thread that made it, for good."""
    before = affinity()
    bundle = chain(2)
    assert bundle.manifest.pipeline is not None
    first = min(before or {0})
    stages = tuple(replace(stage, cores=(first,)) for stage in bundle.manifest.pipeline.stages)
    bound = replace(bundle, manifest=replace(bundle.manifest, pipeline=replace(bundle.manifest.pipeline, stages=stages)))
    with Pipeline(bound) as pipeline:
        assert first_of(pipeline.run(full(0))) == 3
        assert affinity() == before
        assert [worker.cores for stage in pipeline._relay.workers for worker in stage] == [frozenset({first})] * 2
    assert affinity() == before


def test_each_stage_may_have_a_backend_of_its_own_and_says_what_it_did() -> None:
    """T1, and the published runner's check of its statistics: one item, some time at every stage."""
    with Pipeline(reference_bundle(), backend={"cpu": "onnxruntime", "dsp": "torch"}) as pipeline:
        assert pipeline.run(both(5))[0, 0] == 57
        found = pipeline.statistics()
    assert [(one.stage, one.processors, one.items, one.failed, one.waiting) for one in found] == [
        ("s0", ("cpu",), 1, 0, 0), ("s1", ("dsp",), 1, 0, 0), ("s2", ("cpu",), 1, 0, 0),
    ]  # fmt: skip
    assert all(one.busy_us > 0 and one.service_us > 0 for one in found)


def test_a_core_that_is_not_there_is_refused_and_not_silently_ignored() -> None:
    """A hole of the original: affinity had no effect, which users found by timing."""
    with pytest.raises(BadInput, match="stage b is bound to core 9, pipeline, this process may use 0, 2; pass bind=False"):
        cores_of((Stage("a", ("a",)), Stage("b", ("b",), cores=(2, 9))), {0, 2})
