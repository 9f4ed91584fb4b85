"""Items stream through a bundle's stages: right numbers in order, bounded memory, and errors that reach exactly their items."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import branched_bundle
from pipeline_bundles import bundled, chain, chain_config, framed, reference

from nnstretch.bundle import Bundle
from nnstretch.errors import BadInput, Cancelled, StageFailed, Stuck, UnknownName
from nnstretch.run.belt import Result
from nnstretch.run.crafts import forgotten
from nnstretch.run.edges import infinite
from nnstretch.run.network import Network
from nnstretch.run.stream import Pipeline
from nnstretch.run.streamed import Chain
from nnstretch.run.workers import cores_of
from nnstretch.schedule.cores import affinity
from nnstretch.schedule.flow import depth
from nnstretch.stages import Item, Stage
from nnstretch.stages import Pipeline as Stages

RAISED = {"one": np.array([11], np.float32), "two": np.array([12], np.float32)}


def full(value: float) -> np.ndarray:
    return np.full((3, 3), value, np.float32)


def both(value: float) -> dict[str, np.ndarray]:
    return {"data_a": full(value), "data_b": full(value)}


def reference_bundle() -> Bundle:
    return Bundle(*reference(), name="reference.nns")


def test_five_items_with_parameters_replaced_come_out_in_order() -> None:
    """P5, P6, P7 of the published test: five pairs of inputs, nothing read meanwhile, then five results."""
    with Pipeline(reference_bundle()) as pipeline:
        assert pipeline.run(both(3))[0, 0] == 43
        pipeline.set_parameters("param_0", RAISED)
        assert [pipeline.push(both(value)) for value in (3, 4, 5, 6, 7)] == [1, 2, 3, 4, 5]
        assert pipeline.open_items == 5
        results = [pipeline.get(20) for _ in range(5)]
    assert [(result.item, float(result.value()[0, 0])) for result in results] == [(1, 93), (2, 100), (3, 107), (4, 114), (5, 121)]
    assert [one.items for one in pipeline.statistics()] == [6, 6, 6]


def test_items_on_their_way_keep_the_parameters_they_were_pushed_with() -> None:
    gate = threading.Event()

    def load(value: float) -> tuple[np.ndarray, np.ndarray]:
        gate.wait(20)
        return full(value), full(value)

    with Pipeline(Bundle(*framed(), name="framed.nns"), {"camera.read:load": load, "boxes:draw": first_of}) as pipeline:
        for value in (3, 4):
            pipeline.push(value)
        pipeline.set_parameters("param_0", RAISED)
        pipeline.push(3)
        pipeline.set_parameters("param_0", {"two": np.array([2], np.float32)})
        pipeline.push(3)
        gate.set()
        assert [pipeline.get(20).value() for _ in range(4)] == [43, 50, 93, 43 + 3 * 10]
        assert {name: float(array[0]) for name, array in pipeline.parameters("param_0").items()} == {"one": 11, "two": 2}


def first_of(array: np.ndarray) -> float:
    return float(array[0, 0])


def test_parameters_that_do_not_fit_leave_everything_as_it_was() -> None:
    """E10, E11: no parameters, an unknown group; and an unknown or misshapen weight."""
    with Pipeline(reference_bundle()) as pipeline:
        with pytest.raises(BadInput, match="no parameters, parameter group param_0"):
            pipeline.set_parameters("param_0", None)  # type: ignore[arg-type]
        with pytest.raises(UnknownName, match="unknown parameter group 'param_1', pipeline, it has param_0"):
            pipeline.set_parameters("param_1", RAISED)
        with pytest.raises(BadInput, match="parameter one is 2 float32"):
            pipeline.set_parameters("param_0", {**RAISED, "one": np.zeros(2, np.float32)})
        assert pipeline.run(both(3))[0, 0] == 43


def test_what_does_not_fit_is_refused_at_the_push_and_takes_no_place() -> None:
    """float64 into a float32 input, a wrong shape, a missing and an unknown name."""
    with Pipeline(reference_bundle()) as pipeline:
        wrong: list[tuple[Any, str]] = [
            ({"data_a": full(1).astype(np.float64), "data_b": full(1)}, "input data_a, expected 3x3 float32, got 3x3 float64"),
            ({"data_a": full(1), "data_b": np.zeros((3, 4), np.float32)}, "input data_b, expected 3x3 float32, got 3x4 float32"),
            ({"data_a": full(1)}, "inputs data_a, pipeline of reference, it expects data_a, data_b"),
            (both(1) | {"data_c": full(1)}, "inputs data_a, data_b, data_c, pipeline of reference, it expects data_a, data_b"),
            (full(1), "inputs one ndarray, pipeline of reference, it expects data_a, data_b"),
            ({"data_a": full(np.nan), "data_b": full(1)}, "9 of 9 numbers that are NaN"),
        ]
        for inputs, message in wrong:
            with pytest.raises(BadInput, match=message):
                pipeline.push(inputs)
        assert pipeline.push(both(3)) == 0
        assert pipeline.get(20).value()[0, 0] == 43


def test_a_slow_reader_stops_the_writer_and_nothing_is_dropped() -> None:
    pushed = 0

    def push_all() -> None:
        nonlocal pushed
        for pushed in range(100):
            pipeline.push(full(pushed), timeout_s=0.5)

    with Pipeline(chain(4), results=3) as pipeline:
        limit = depth(pipeline.flow) + 3
        with pytest.raises(Stuck, match=f"no room for one more item, pipeline of test, {limit} are on their way or wait to be read, at most {limit}"):
            push_all()
        assert pushed == limit
        assert first_of(pipeline.get(20).value()) == 10
        assert pipeline.push(full(pushed), timeout_s=20) == limit
        assert [first_of(pipeline.get(20).value()) for _ in range(limit)] == [10 + item for item in range(1, limit + 1)]
        with pytest.raises(Stuck, match=r"no result of item \d+ in 0 s, pipeline of test, 0 are on their way"):
            pipeline.get(timeout_s=0)


def sometimes(every: int, error: type[Exception]) -> Callable[[np.ndarray], np.ndarray]:
    def m1(x: np.ndarray) -> np.ndarray:
        if int(x[0, 0] - 1) % every == every - 1:
            raise error(f"no good: {int(x[0, 0] - 1)}")
        return np.asarray(x + 2)

    return m1


def test_a_stage_that_raises_fails_exactly_its_items_by_name() -> None:
    with Pipeline(chain(4, python=[1]), {"stages:m1": sometimes(10, KeyError)}) as pipeline:
        results = list(pipeline.stream(full(item) for item in range(100)))
    failed = [result for result in results if result.error is not None]
    assert [result.item for result in failed] == list(range(9, 100, 10))
    assert [first_of(result.value()) for result in results if result.error is None] == [10 + item for item in range(100) if item % 10 != 9]
    for result in failed:
        assert str(result.error) == f"item {result.item} failed, stage m1, KeyError: 'no good: {result.item}'"
        assert isinstance(result.error, StageFailed)
        assert (result.error.stage, result.error.item) == ("m1", result.item)
        assert isinstance(result.error.__cause__, KeyError)
        with pytest.raises(StageFailed, match="stage m1"):
            result.value()
    assert [(one.items, one.failed) for one in pipeline.statistics()] == [(100, 0), (100, 10), (90, 0), (90, 0)]


def test_a_stage_that_raises_may_stop_the_pipeline() -> None:
    results: list[Result] = []

    def push_all() -> None:
        for item in range(1000):
            pipeline.push(full(item), timeout_s=20)
            results.extend([pipeline.get()] if item > 5 else [])

    with Pipeline(chain(3, python=[1]), {"stages:m1": sometimes(5, ValueError)}, on_error="stop") as pipeline:
        with pytest.raises(Cancelled, match="no item is taken, pipeline of test, item 4 failed and it stops there"):
            push_all()
        results += [pipeline.get(20) for _ in range(pipeline.open_items)]
    assert [result.item for result in results] == list(range(len(results)))
    kinds = [type(result.error) for result in results]
    assert kinds == [type(None)] * 4 + [StageFailed] + [Cancelled] * (len(results) - 5)


@pytest.mark.parametrize(("made", "message"), [
    (lambda x: (x, x), r"input x2, expected 3x3 float32, got tuple, not a numpy array"),
    (lambda x: x.astype(np.float64), r"input x2, expected 3x3 float32, got 3x3 float64"),
    (lambda x: None, r"input x2, expected 3x3 float32, got NoneType"),
])  # fmt: skip
def test_what_a_python_stage_returns_is_checked(made: Callable[[np.ndarray], Any], message: str) -> None:
    with Pipeline(chain(3, python=[1]), {"stages:m1": made}) as pipeline:
        pipeline.push(full(1))
        with pytest.raises(StageFailed, match=message):
            pipeline.get(20).value()


def test_python_stages_take_and_give_anything() -> None:
    given: dict[str, Callable[..., Any]] = {
        "camera.read:load": lambda frame: (full(frame["v"]), full(frame["v"])),
        "boxes:draw": lambda x: ["drawn", first_of(x)],
    }
    with Pipeline(Bundle(*framed(), name="framed.nns"), given) as pipeline:
        assert [result.value() for result in pipeline.stream({"v": value} for value in (3, 4))] == [["drawn", 43.0], ["drawn", 50.0]]
    with pytest.raises(BadInput, match="stage after runs boxes:draw, pipeline, nobody passed it"):
        Pipeline(Bundle(*framed(), name="framed.nns"), {"camera.read:load": len})


def test_closing_finishes_what_is_on_its_way_and_its_results_can_still_be_read() -> None:
    pipeline = Pipeline(chain(3))
    for item in range(7):
        pipeline.push(full(item))
    pipeline.close()
    pipeline.close()
    assert [first_of(pipeline.get(0).value()) for _ in range(7)] == [6 + item for item in range(7)]
    with pytest.raises(Stuck, match="no item is left, pipeline of test, it has been closed"):
        pipeline.get()
    with pytest.raises(Cancelled, match="no item is taken, pipeline of test, it has been closed"):
        pipeline.push(full(0))
    assert not threads()


def test_closing_without_draining_cancels_what_is_on_its_way() -> None:
    gate = threading.Event()

    def m1(x: np.ndarray) -> np.ndarray:
        gate.wait(20)
        return np.asarray(x + 2)

    pipeline = Pipeline(chain(3, python=[1]), {"stages:m1": m1})
    for item in range(4):
        pipeline.push(full(item))
    threading.Timer(0.2, gate.set).start()
    pipeline.close(drain=False)
    results = [pipeline.get(0) for _ in range(4)]
    assert all(isinstance(result.error, Cancelled) for result in results[1:])
    assert "item 3 was not finished, pipeline, it has been closed" in str(results[3].error)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("nnstretch-m")]


def test_a_pipeline_that_nobody_holds_any_more_ends() -> None:
    pipeline = Pipeline(chain(3))
    pipeline.push(full(0))
    assert len(threads()) == 3
    del pipeline
    gc.collect()
    assert not threads()


def test_who_waits_for_room_hears_that_the_pipeline_closes() -> None:
    pipeline, heard = Pipeline(chain(2), results=1), list[BaseException]()

    def push() -> None:
        try:
            while True:
                pipeline.push(full(0))
        except Cancelled as error:
            heard.append(error)

    pusher = threading.Thread(target=push)
    pusher.start()
    while pipeline.open_items < depth(pipeline.flow) + 1:
        pass
    pipeline.close()
    pusher.join(20)
    assert len(heard) == 1


def test_many_threads_push_and_get_and_every_item_is_answered_once() -> None:
    taken: list[Result] = []
    with Pipeline(chain(3, replicas=2)) as pipeline:
        pushers = [threading.Thread(target=lambda: [pipeline.push(full(1)) for _ in range(200)]) for _ in range(3)]
        getters = [threading.Thread(target=lambda: taken.extend(pipeline.get(30) for _ in range(300))) for _ in range(2)]
        for thread in (*pushers, *getters):
            thread.start()
        for thread in (*pushers, *getters):
            thread.join(60)
    assert sorted(result.item for result in taken) == list(range(600))
    assert {first_of(result.value()) for result in taken} == {7.0}


def test_replicas_take_turns_and_results_keep_their_order() -> None:
    with Pipeline(chain(3, replicas=3)) as pipeline:
        assert [first_of(result.value()) for result in pipeline.stream(full(item) for item in range(50))] == [6 + item for item in range(50)]
    spans = [span for span in pipeline.trace().spans if span.task.startswith("m1#")]
    assert {span.processor: {int(s.task[3:]) % 3 for s in spans if s.processor == span.processor} for span in spans} == {"cpu0": {0}, "cpu1": {1}, "cpu2": {2}}


def test_a_reader_who_goes_away_leaves_the_pipeline_empty() -> None:
    with Pipeline(chain(3)) as pipeline:
        for result in pipeline.stream(full(item) for item in range(50)):
            if result.item == 3:
                break
        gc.collect()
        assert pipeline.open_items == 0
        assert first_of(pipeline.run(full(1))) == 7
        pipeline.push(full(0))
        with pytest.raises(Stuck, match="1 items are on their way or wait to be read, pipeline of test, get them first"):
            pipeline.run(full(0))


def test_items_are_taken_only_as_fast_as_results_are_read() -> None:
    asked = 0

    def items() -> Iterator[np.ndarray]:
        nonlocal asked
        while True:
            asked += 1
            yield full(asked)

    with Pipeline(chain(3), results=2) as pipeline:
        stream = pipeline.stream(items())
        next(stream)
        assert asked <= depth(pipeline.flow) + 2
        stream.close()


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


def test_an_item_holds_only_what_is_still_wanted() -> None:
    """o2 skips a stage: it stays until its reader is through; nothing is left of an item but its output."""
    assert forgotten(reference()[0]) == {"s0": ("data_a",), "s1": ("o3", "data_b"), "s2": ("o2", "n")}
    with Pipeline(reference_bundle()) as pipeline:
        pipeline.push(both(3))
        pipeline._relay.taker.wait(lambda: pipeline._relay.through(0), 20)
        entry = pipeline._belt._places[0]
        assert entry is not None
        assert list(entry.values) == ["out"]


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


def test_a_bundle_without_a_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no pipeline, bundle .*, it has branches only; `nnstretch partition` makes one"):
        Pipeline(branched_bundle())
    with pytest.raises(UnknownName, match="unknown on_error 'sometimes', pipeline, it is one of continue, stop"):
        Pipeline(chain(2), on_error="sometimes")
    with pytest.raises(BadInput, match="results is 0"):
        Pipeline(chain(2), results=0)
    with pytest.raises(UnknownName, match="no such file"):
        Pipeline(tmp_path / "none.nns")


def test_two_thousand_items_leave_the_ring_as_large_as_it_was() -> None:
    config, files = chain_config(4)
    with Pipeline(bundled(config.links, files)) as pipeline:
        places = len(pipeline._belt._places)
        assert sum(first_of(result.value()) == 10 + result.item for result in pipeline.stream(full(item) for item in range(2000))) == 2000
        assert len(pipeline._belt._places) == places
        assert not [entry for entry in pipeline._belt._places if entry is not None]


def test_numbers_whose_sum_is_out_of_range_are_no_infinities() -> None:
    large = np.full((4, 4), 3e38, np.float32)
    assert infinite(large) == 0
    large[0, :3] = np.nan, np.inf, -np.inf
    assert infinite(large) == 3
