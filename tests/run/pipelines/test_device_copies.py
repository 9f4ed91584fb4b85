"""Copies to and from a device go on while it computes: in prediction and when emulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run.pipelines.test_item_trace import arrows, events_of, rows
from support.pipeline_bundles import MAP, chain, reference

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest
from nnstretch.bundle.validate import check_manifest
from nnstretch.pipeline import PipelineStage
from nnstretch.run.pipelines.item_buffer import StagePacing
from nnstretch.run.pipelines.metrics import simulate_pipeline
from nnstretch.run.pipelines.pipeline import Pipeline
from nnstretch.run.pipelines.prediction import bottleneck_us, copy_steps, predict_stream, step_us
from nnstretch.run.pipelines.sequential import SequentialPipeline
from nnstretch.run.results.stream_json import StreamRequest
from nnstretch.schedule.pipeline_graph import IN, OUT, StageNode, stage_graph, stages_with_copies

X = np.ones(MAP.shape, np.float32)


def copying(bundle: Bundle, times_us: Mapping[str, tuple[float, float, float]]) -> Bundle:
    """The bundle on devices: by stage, microseconds of copies in, compute and copies out."""
    pipeline = bundle.manifest.pipeline
    assert pipeline is not None

    def placed(stage: PipelineStage) -> PipelineStage:
        into_us, _, out_us = times_us[stage.name]
        places = stage.replicas or (f"dev-{stage.name}",)
        return (
            replace(
                stage,
                copy_in_us=dict.fromkeys(places, into_us),
                copy_out_us=dict.fromkeys(places, out_us),
            )
            if into_us + out_us
            else stage
        )

    stages = tuple(placed(stage) for stage in pipeline.stages)
    home = {name: stage for stage in stages for name in stage.subgraphs}
    subs = tuple(
        replace(
            sub,
            processor=(home[sub.name].replicas or (f"dev-{home[sub.name].name}",))[0],
            predicted_us=dict.fromkeys(
                home[sub.name].replicas or (f"dev-{home[sub.name].name}",),
                sum(times_us[home[sub.name].name]),
            ),
        )
        for sub in bundle.manifest.subgraphs
    )
    manifest = replace(bundle.manifest, subgraphs=subs, pipeline=replace(pipeline, stages=stages))
    check_manifest(manifest)
    return replace(bundle, manifest=manifest)


def test_a_stage_with_copies_is_three_steps_and_feeders_and_readers_are_at_its_ends() -> None:
    pipeline = reference()[0].pipeline
    assert pipeline is not None
    flow = stage_graph(pipeline, reference()[0], {"s1"})
    assert [step.name for step in flow] == ["s0", "s1 copy in", "s1", "s1 copy out", "s2"]
    assert [step.feeders for step in flow] == [(), (0,), (1,), (2,), (3, 0)]
    assert [step.readers for step in flow] == [(1, 4), (2,), (3,), (4,), ()]
    assert [step.fed for step in flow] == [True, True, False, False, False]
    assert [step.stage for step in flow] == ["s0", "s1", "s1", "s1", "s2"]
    assert [step.part for step in flow] == ["", IN, "", OUT, ""]
    assert [step.capacity for step in flow[1:4]] == [
        pipeline.stages[1].capacity,
        1,
        1,
    ], "two places for inputs on the device, two for outputs"


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(1, 20), st.integers(0, 9)), min_size=1, max_size=4
    ),
    st.integers(1, 3),
)
def test_a_result_comes_whenever_the_slowest_of_compute_and_copies_is_through(
    times: list[tuple[int, int, int]], capacity: int
) -> None:
    times_us = {f"m{n}": (float(a), float(b), float(c)) for n, (a, b, c) in enumerate(times)}
    bundle = copying(chain(len(times), capacity=capacity), times_us)
    found, output = simulate_pipeline(SequentialPipeline(bundle), X, 40, {})
    slowest_us = max(max(b, a + c) for a, b, c in times_us.values())
    assert found.bottleneck_us == pytest.approx(slowest_us)
    assert found.period_us == pytest.approx(slowest_us, rel=0.1), (
        "copies of one device take turns, and two places each bound how far it runs ahead"
    )
    assert found.trace.spans[-1].end_us >= 40 * slowest_us
    alone, _ = simulate_pipeline(SequentialPipeline(bundle), X, 1, {})
    assert alone.latencies_us == pytest.approx(
        (sum(a + b + c for a, b, c in times_us.values()),)
    ), "of an item alone nothing overlaps"
    assert found.latency_us == pytest.approx({name: sum(parts) for name, parts in times_us.items()})
    assert np.array_equal(output, X + len(times) * (len(times) + 1) / 2)


def test_no_two_items_are_in_one_place_of_a_device() -> None:
    """Copies in are at most two items ahead of compute, and compute of copies out."""
    bundle = copying(chain(3), {"m0": (0, 1, 0), "m1": (1, 10, 1), "m2": (0, 1, 0)})
    trace = predict_stream(bundle.manifest, 20, {})
    at = {span.task.name: span for span in trace.spans}
    for item in range(2, 20):
        assert at[f"m1 copy in#{item}"].start_us >= at[f"m1#{item - 2}"].end_us
        assert at[f"m1#{item}"].start_us >= at[f"m1 copy out#{item - 2}"].end_us
    assert any(at[f"m1 copy in#{n + 1}"].start_us < at[f"m1#{n}"].end_us for n in range(4, 16)), (
        "and they are ahead"
    )
    assert {at[f"m1 copy in#{n}"].processor for n in range(20)} == {"dev-m1.copy"}


def test_emulated_devices_keep_the_timetable_and_the_numbers() -> None:
    times_us = {
        "m0": (2000.0, 6000.0, 2000.0),
        "m1": (0.0, 5000.0, 0.0),
        "m2": (3000.0, 5000.0, 3000.0),
    }
    bundle = copying(chain(3), times_us)
    pace = StagePacing(tuple(step_us(bundle.manifest, {}).values()))
    with Pipeline(bundle, pace=pace, bind=False) as pipeline:
        assert [one.stage for one in pipeline.statistics()] == [
            step.name for step in copy_steps(bundle.manifest)
        ]
        assert all(np.array_equal(result.value(), X + 6) for result in pipeline.stream([X] * 12))
        booked_us = {one.stage: one.busy_us / one.items for one in pipeline.statistics()}
        assert booked_us == pytest.approx(
            {
                "m0 copy in": 2000,
                "m0": 6000,
                "m0 copy out": 2000,
                "m1": 5000,
                "m2 copy in": 3000,
                "m2": 5000,
                "m2 copy out": 3000,
            }
        )
        at = {span.task.name: span for span in pipeline.trace().spans}
    both = [at[f"m2 copy {way}#{n}"] for n in range(12) for way in ("in", "out")]
    both.sort(key=lambda span: span.start_us)
    assert all(one.end_us <= two.start_us + 1e-3 for one, two in pairwise(both)), (
        "one engine copies in and out"
    )
    times_us = {name: (time_us,) for name, time_us in booked_us.items()}
    steps = copy_steps(bundle.manifest)
    assert bottleneck_us(bundle.manifest, steps, times_us) == pytest.approx(6000)


def test_weights_change_between_items_of_a_device() -> None:
    manifest, files = reference()
    times = dict.fromkeys(("s0", "s1", "s2"), (1.0, 2.0, 1.0))
    bundle = copying(Bundle(manifest, files, name="reference.nns"), times)
    pace = StagePacing(tuple(step_us(bundle.manifest, {}).values()))
    given_ = {"data_a": X, "data_b": X}
    with Pipeline(bundle, pace=pace, bind=False) as pipeline:
        before = pipeline.run(given_)
        pipeline.set_parameters("param_0", {"one": np.array([11], np.float32)})
        after = pipeline.run(given_)
    assert not np.array_equal(before, after)


def test_arrows_of_a_trace_go_through_the_copies() -> None:
    found = events_of(
        copying(chain(3), {"m0": (0, 5, 0), "m1": (1, 5, 1), "m2": (0, 5, 0)}).manifest, 2
    )
    assert list(rows(found).values()) == [
        "m0 on dev-m0",
        "m1 on dev-m1",
        "m1 on dev-m1.copy",
        "m2 on dev-m2",
    ]
    assert [(a, b) for name, a, b in arrows(found) if name == "item 1"] == [
        ("m0#1", "m1 copy in#1"),
        ("m1 copy in#1", "m1#1"),
        ("m1#1", "m1 copy out#1"),
        ("m1 copy out#1", "m2#1"),
    ]
    assert {event["args"]["stage"] for event in found if event["ph"] == "X"} == {"m0", "m1", "m2"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda stage: replace(stage, copy_out_us={}), "in and out for the same processors"),
        (lambda stage: replace(stage, copy_in_us={"dev-m1": 9.0}), "part of no predicted time"),
        (lambda stage: replace(stage, copy_in_us={"dev-m1": -1.0}), "part of no predicted time"),
        (
            lambda stage: replace(stage, copy_in_us={"dev-m1": float("nan")}),
            "part of no predicted time",
        ),
        (
            lambda stage: replace(stage, copy_in_us={"moon": 1.0}, copy_out_us={"moon": 1.0}),
            "part of no predicted time",
        ),
    ],
)
def test_copies_that_cannot_be_are_refused(
    change: Callable[[PipelineStage], PipelineStage], said: str
) -> None:
    manifest = copying(chain(2), {"m0": (0, 5, 0), "m1": (1, 5, 1)}).manifest
    pipeline = manifest.pipeline
    assert pipeline is not None
    stages = tuple(change(stage) if stage.name == "m1" else stage for stage in pipeline.stages)
    with pytest.raises(ValueError, match=rf"stage 'm1', .*{said}"):
        check_manifest(replace(manifest, pipeline=replace(pipeline, stages=stages)))


def test_a_stage_that_is_called_like_another_ones_copy_keeps_its_name() -> None:
    manifest: Manifest = copying(chain(2), {"m0": (1, 5, 1), "m1": (1, 5, 1)}).manifest
    pipeline = manifest.pipeline
    assert pipeline is not None
    stages = (pipeline.stages[0], replace(pipeline.stages[1], name="m0 copy in"))
    renamed = replace(manifest, pipeline=replace(pipeline, stages=stages))
    assert stages_with_copies(renamed) == {"m0 copy in"}
    names = [step.name for step in copy_steps(renamed)]
    assert len(set(names)) == len(names)


def test_a_step_knows_its_stage() -> None:
    assert StageNode("a copy in", (), (), True, False, part=IN).stage == "a"
    assert StageNode("a copy in", (), (), True, False).stage == "a copy in"


def test_nothing_begins_before_what_it_needs_is_over_on_the_timetable() -> None:
    """Copies that take no time and Python stages pass on when an item was there."""
    bundle = copying(
        chain(4, python=[2]),
        {
            "m0": (0.0, 300.0, 5.0),
            "m1": (0.0, 300.0, 5.0),
            "m2": (0, 0, 0),
            "m3": (5.0, 300.0, 0.0),
        },
    )
    pace = StagePacing(tuple(step_us(bundle.manifest, {}).values()))
    with Pipeline(bundle, {"stages:m2": lambda x: x + 3}, pace=pace, bind=False) as pipeline:
        assert all(np.array_equal(result.value(), X + 10) for result in pipeline.stream([X] * 30))
        at, stage_graph = (
            {span.task.name: span for span in pipeline.trace().spans},
            pipeline.stage_graph,
        )
    for step in stage_graph:
        for feeder in step.feeders:
            for n in range(30):
                assert (
                    at[f"{step.name}#{n}"].start_us
                    >= at[f"{stage_graph[feeder].name}#{n}"].end_us - 1e-3
                )


def test_unlike_replicas_are_judged_by_the_slower_one_however_many_items() -> None:
    """A CPU that copies with its own cores beside a device.

    Copies of the CPU are part of its compute.
    """
    bundle = copying(chain(2, replicas=2), {"m0": (0, 5, 0), "m1": (4, 10, 4)})
    manifest, pipeline = bundle.manifest, bundle.manifest.pipeline
    assert pipeline is not None
    stage = replace(
        pipeline.stages[1],
        copy_in_us={"cpu0": 0.0, "cpu1": 4.0},
        copy_out_us={"cpu0": 0.0, "cpu1": 4.0},
    )
    mixed = replace(
        bundle,
        manifest=replace(manifest, pipeline=replace(pipeline, stages=(pipeline.stages[0], stage))),
    )
    for items in (40, 41):
        found, _ = simulate_pipeline(SequentialPipeline(mixed), X, items, {})
        assert found.bottleneck_us == pytest.approx(18 / 2)
        assert found.period_us == pytest.approx(18 / 2, rel=0.1)


def test_times_of_a_stage_are_those_of_one_replica() -> None:
    """One copies in for long, the other out: no item does both."""
    bundle = copying(chain(2, replicas=2), {"m0": (0, 5, 0), "m1": (4, 10, 4)})
    manifest, pipeline = bundle.manifest, bundle.manifest.pipeline
    assert pipeline is not None
    first, second = pipeline.stages
    turned = {"copy_in_us": {"cpu0": 8.0, "cpu1": 1.0}, "copy_out_us": {"cpu0": 0.0, "cpu1": 7.0}}
    stages = first, replace(second, **turned)
    mixed = replace(bundle, manifest=replace(manifest, pipeline=replace(pipeline, stages=stages)))
    sequential = SequentialPipeline(mixed)
    found, _ = simulate_pipeline(sequential, X, 40, {})
    assert found.latency_us == pytest.approx({"m0": 5, "m1": 18})
    assert found.copies_us["m1"] == pytest.approx(8)
    assert found.shares_us["m1"] == pytest.approx(10 / 2)
    assert found.critical_path_us == pytest.approx(5 + 18)
    request = StreamRequest(mixed, sequential, X, 40, {})
    assert request.predicted_sequential_us == pytest.approx(5 + 18)


def test_names_that_would_meet_those_of_copies_leave_the_stage_whole() -> None:
    manifest = copying(chain(2), {"m0": (0, 5, 0), "m1": (1, 5, 1)}).manifest
    assert stages_with_copies(manifest) == {"m1"}
    first, second = manifest.subgraphs
    for name, processor in (("m1 copy in", "cpu"), ("m0", "dev-m1.copy")):
        other = replace(first, name=name, processor=processor, predicted_us={processor: 5.0})
        pipeline = manifest.pipeline
        assert pipeline is not None
        stages = (replace(pipeline.stages[0], subgraphs=(name,)), pipeline.stages[1])
        assert not stages_with_copies(
            replace(manifest, subgraphs=(other, second), pipeline=replace(pipeline, stages=stages))
        )
