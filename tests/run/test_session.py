"""A session computes ONNX Runtime's numbers and keeps the predicted time, whichever clock it goes
by.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.bundles import (
    branched_bundle,
    branched_latency_us,
    concat,
    conv,
    feature_map,
    image,
    subgraph,
)
from support.tasks import named_task

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.errors import BadInput, BrokenFile, Mismatch, UnknownName
from nnstretch.run import Session, measure, perfetto, write_perfetto
from nnstretch.run.metrics import dispatch_overhead_us, max_abs_error, median_trace
from nnstretch.run.time_dilation import (
    MARGIN,
    SLIP,
    Rehearsal,
    correct_dilation,
    required_dilation,
    summarize_rehearsal,
)
from nnstretch.schedule import (
    Disturbances,
    Outage,
    Request,
    RequestScheduler,
    StaticPlacement,
    VirtualExecutor,
    serialize,
    task_durations_us,
    task_graph,
)
from nnstretch.soc import Processor, Soc
from nnstretch.task import Task
from nnstretch.trace import Failure, Span, TimerEvent, Trace

PHONE = Soc(
    "mi9",
    (Processor("cpu", "cpu", 3), Processor("gpu", "gpu", 2), Processor("dsp", "dsp", 1)),
    "int8",
    {},
)


@pytest.fixture(autouse=True)
def _no_thread_stays_behind() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() == before


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2)


def by_hand(bundle: Bundle, x: np.ndarray) -> np.ndarray:
    """ONNX Runtime alone, sub-graph after sub-graph."""
    values = {bundle.manifest.inputs[0].name: x}
    for sub in bundle.manifest.subgraphs:
        session = onnxruntime.InferenceSession(
            bundle.files[sub.file], providers=["CPUExecutionProvider"]
        )
        values |= zip(
            [port.name for port in sub.outputs],
            session.run(None, {port.name: values[port.name] for port in sub.inputs}),
            strict=True,
        )
    return values[bundle.manifest.outputs[0].name]


@pytest.mark.parametrize("mode", ["spatial", "sequential"])
@pytest.mark.parametrize("clock", ["virtual", "real"])
@pytest.mark.parametrize("predicted", [True, False])
def test_numbers_are_those_of_onnx_runtime(mode: str, clock: str, predicted: bool) -> None:
    bundle = branched_bundle(segments=2, predicted=predicted)
    if clock == "virtual" and not predicted:
        return
    with Session(bundle, mode=mode, clock=clock) as session:
        for seed in range(2):
            x = image(bundle, seed)
            np.testing.assert_allclose(session.run(x), by_hand(bundle, x), rtol=0, atol=1e-6)
            assert np.array_equal(session.run({"image": x}), session.network.run_sequential(x))
        assert {span.task.name for span in session.trace.spans} == {
            task.name for task in session.tasks
        }


def test_the_virtual_clock_tells_the_predicted_time_every_time(bundle: Bundle) -> None:
    session = Session(bundle)
    assert session.predicted().makespan_us == branched_latency_us(2)
    for _ in range(3):
        session.run(image(bundle))
        assert session.trace == session.predicted()
        assert (session.latency_us, session.dilation, session.late) == (
            branched_latency_us(2),
            1.0,
            0,
        )
    assert session.predicted() == Session(bundle, PHONE).predicted()


def test_one_after_another_takes_the_sum(bundle: Bundle) -> None:
    session = Session(bundle, mode="sequential")
    session.run(image(bundle))
    assert session.latency_us == 300 + 2 * (900 + 1000 + 100)
    assert session.trace.makespan_us == sum(span.duration_us for span in session.trace.spans)


def test_the_real_clock_keeps_order_and_is_never_ahead_of_the_virtual_one(bundle: Bundle) -> None:
    session = Session(bundle, clock="real")
    session.run(image(bundle))
    spans, ends_us = (
        {span.task.name: span for span in session.trace.spans},
        {span.task.name: span.end_us for span in session.predicted().spans},
    )
    assert session.dilation >= 1
    for task in session.tasks:
        assert spans[task.name].end_us >= ends_us[task.name] * (1 - 1e-9)
        assert all(spans[need].end_us <= spans[task.name].start_us for need in task.needs)
    assert session.latency_us >= branched_latency_us(2) * (1 - 1e-9)


def test_a_session_reads_a_file_and_takes_queues_from_the_chip(
    tmp_path: Path, bundle: Bundle
) -> None:
    write_bundle(tmp_path / "a.nns", bundle.manifest, bundle.files)
    session = Session(tmp_path / "a.nns", PHONE)
    assert [(p.name, p.queue_depth) for p in session.processors] == [("cpu", 3), ("dsp", 1)]
    assert [(p.name, p.kind, p.queue_depth) for p in Session(bundle, "mi9").processors] == [
        ("cpu", "cpu", 2),
        ("dsp", "dsp", 2),
    ]
    assert np.array_equal(session.run(image(bundle)), Session(bundle).run(image(bundle)))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"mode": "pipeline"},
            UnknownName,
            "unknown mode 'pipeline', session, it is one of spatial, sequential",
        ),
        ({"clock": "sun"}, UnknownName, "unknown clock 'sun'"),
        (
            {"soc": replace(PHONE, processors=PHONE.processors[:2])},
            UnknownName,
            "unknown processor 'dsp', SoC mi9, it has cpu, gpu",
        ),
        ({"soc": "pixel6"}, UnknownName, "unknown SoC 'pixel6', bundle, it was made for mi9"),
        (
            {"soc": replace(PHONE, name="pixel6")},
            BadInput,
            "SoC pixel6, bundle, its times were predicted for mi9",
        ),
    ],
)
def test_a_session_that_makes_no_sense_is_refused(
    bundle: Bundle, options: dict, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        Session(bundle, **options)


def test_without_predictions_there_is_no_virtual_time(bundle: Bundle) -> None:
    with pytest.raises(
        BadInput,
        match=(
            "no predicted time of stem and 6 more of 7 sub-graphs, bundle, a virtual clock needs"
            " them"
        ),
    ):
        Session(branched_bundle(segments=2, predicted=False))
    subs = (replace(bundle.manifest.subgraphs[0], predicted_us={}), *bundle.manifest.subgraphs[1:])
    with pytest.raises(
        BadInput,
        match=(
            "no predicted time of stem and 0 more of 7 sub-graphs, bundle, a timetable needs all or"
            " none"
        ),
    ):
        Session(replace(bundle, manifest=replace(bundle.manifest, subgraphs=subs)), clock="real")


def holding(value: float) -> np.ndarray:
    array = np.zeros((1, 3, 8, 8), np.float32)
    array[0, 0, 0, 0] = value
    return array


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            np.zeros((1, 3, 8, 9), np.float32),
            "input image, expected 1x3x8x8 float32, got 1x3x8x9 float32",
        ),
        (np.zeros((1, 3, 8, 8)), "got 1x3x8x8 float64"),
        (np.float32(3), "got float32, not a numpy array"),
        ([[1.0]], "got list, not a numpy array"),
        (np.array("x"), "got scalar <U1"),
        (holding(float("nan")), "got 1 of 192 numbers that are NaN or infinite"),
        (holding(float("inf")), "got 1 of 192 numbers"),
        ({"picture": np.zeros(3)}, "inputs picture, test:branched expects image"),
        ({}, "inputs none, test:branched expects image"),
    ],
)
def test_a_wrong_input_is_told_what_was_expected(
    bundle: Bundle, given: object, message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        Session(bundle).run(given)  # type: ignore[arg-type]


def two_in_two_out() -> Bundle:
    a, b, y, z = (Port(name, feature_map()) for name in "abyz")
    files = {"f.onnx": conv(a, y, 1), "g.onnx": conv(b, z, 2)}
    subs = (
        subgraph("f", "cpu", files["f.onnx"], [a], [y]),
        subgraph("g", "dsp", files["g.onnx"], [b], [z], segment=1),
    )
    return Bundle(Manifest("two", None, (a, b), (y, z), subs, 0.0), files)


def test_several_inputs_and_outputs_go_by_name() -> None:
    session = Session(two_in_two_out(), clock="real")
    found, expected = (
        session.run(session.network.random_inputs(1)),
        session.network.run_sequential(session.network.random_inputs(1)),
    )
    assert max_abs_error(found, expected) == 0.0
    assert list(found) == ["y", "z"]
    with pytest.raises(BadInput, match="one array, two has 2 inputs, give a, b by name"):
        session.run(np.zeros((1, 8, 8, 8), np.float32))


def test_a_subgraph_that_is_not_what_its_manifest_says_is_named() -> None:
    x, y, wide = Port("x", feature_map()), Port("y", feature_map()), Port("y", feature_map(16))

    def one(data: bytes, output: Port = y) -> Bundle:
        return Bundle(
            Manifest("m", None, (x,), (output,), (subgraph("f", "cpu", data, [x], [output]),), 0.0),
            {"f.onnx": data},
        )

    good = conv(x, y, 0)
    for bad in (
        one(b"garbage"),
        one(b""),
        one(good[:-40]),
        one(concat([x, Port("w", feature_map())], wide)),
        one(good, wide),
    ):
        with pytest.raises(BrokenFile, match=r"broken bundle bundle, member f\.onnx, "):
            Session(bad, clock="real")


def test_a_failure_inside_a_branch_reaches_the_caller(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(bundle, clock="real")
    monkeypatch.setattr(
        session.network,
        "compute",
        lambda name, values: (_ for _ in ()).throw(OSError(f"{name} burnt")),
    )
    with pytest.raises(OSError, match="stem burnt"):
        session.run(image(bundle))


# How far the clock is slowed down


def test_a_fast_host_plays_in_real_time() -> None:
    assert required_dilation(Rehearsal({"a": 10.0}, 1.0), {"a": 1000.0}, 1000.0) == 1.0


def test_a_slow_host_is_given_room() -> None:
    found = required_dilation(
        Rehearsal({"a": 2500.0, "b": 0.0}, 0.0), {"a": 1000.0, "b": 1000.0}, 2000.0
    )
    assert MARGIN * 2500 - SLIP * 2000 * found <= found * 1000 <= MARGIN * 2500


def test_without_slip_every_task_fits_with_its_margin() -> None:
    rehearsal = Rehearsal({"a": 2500.0, "b": 900.0})
    factor = required_dilation(rehearsal, {"a": 1000.0, "b": 100.0}, 2000.0, slip=0.0)
    assert factor == pytest.approx(MARGIN * 9.0, rel=1e-3)
    assert factor >= MARGIN * 9.0


host_and_chip_us = st.tuples(st.floats(0, 1e5), st.floats(1, 1e5))


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=3), host_and_chip_us, min_size=1),
    st.floats(0, 1e4),
    st.floats(1.01, 10),
)
def test_a_slower_host_never_gets_a_faster_clock(
    tasks: dict[str, tuple[float, float]], gaps_us: float, slower: float
) -> None:
    host = {name: pair[0] for name, pair in tasks.items()}
    predicted = {name: pair[1] for name, pair in tasks.items()}
    factor = required_dilation(Rehearsal(host, gaps_us), predicted, sum(predicted.values()))
    more = required_dilation(
        Rehearsal({name: slower * us for name, us in host.items()}, slower * gaps_us),
        predicted,
        sum(predicted.values()),
    )
    assert 1.0 <= factor <= more * 1.002


@pytest.mark.parametrize(
    ("slip", "factor"), [(0.0, 4.0), (0.015, 4.0), (0.018, 7.2), (0.5, 8.0), (-0.1, 4.0)]
)
def test_a_trial_that_slips_gets_a_slower_clock(slip: float, factor: float) -> None:
    assert correct_dilation(4.0, slip) == pytest.approx(factor)


def test_a_rehearsal_is_the_least_of_its_runs() -> None:
    tasks = (Task("a", "a"), Task("b", "b", frozenset("a")))
    runs = [
        Trace(
            (
                Span(0, us, named_task("a"), "cpu"),
                Span(us + gap, us + gap + 5, named_task("b"), "dsp"),
            )
        )
        for us, gap in ((10, 1), (20, 3), (90, 2))
    ]
    assert summarize_rehearsal(tasks, runs) == Rehearsal({"a": 10, "b": 5}, 1)


# Measures


def test_measures_of_a_virtual_run(bundle: Bundle) -> None:
    session = Session(bundle)
    found = measure(session.manifest, session.tasks, [session.predicted()] * 3, 1.0)
    assert found.latency_us == dict.fromkeys(("min", "median", "p90", "p99"), 2500.0)
    assert (found.critical_path_us, found.overlap_efficiency, found.dispatch_overhead_us) == (
        2500.0,
        1.0,
        0.0,
    )
    assert found.throughput_per_s == pytest.approx(400)
    assert found.busy_us == {"cpu": 2300.0, "dsp": 2000.0}
    assert found.utilisation == {"cpu": 0.92, "dsp": 0.8}


def test_handing_over_is_the_chips_time_and_no_overhead(bundle: Bundle) -> None:
    slow = tuple(
        replace(p, sync_us=60.0, enqueue_us=50.0) if p.name == "dsp" else p
        for p in PHONE.processors
    )
    session = Session(bundle, replace(PHONE, processors=slow))
    found = measure(
        session.manifest, session.tasks, [session.predicted()], 1.0, session.handovers_us
    )
    assert (found.latency_us["median"], found.critical_path_us, found.dispatch_overhead_us) == (
        2500.0,
        2500.0,
        0.0,
    )
    assert (
        Session(bundle, replace(PHONE, processors=slow), clock="real").handovers_us
        == session.handovers_us
        != {}
    )


def test_dispatch_overhead_is_what_passes_around_a_meeting_point() -> None:
    manifest = branched_bundle().manifest
    fork = (
        Span(0, 10, named_task("stem#0"), "cpu"),
        Span(12, 20, named_task("s1_cpu#0"), "cpu"),
        Span(11, 30, named_task("s1_dsp#0"), "dsp"),
    )
    spans = (*fork, Span(37, 40, named_task("s1_merge#0"), "cpu"))
    assert dispatch_overhead_us(manifest, task_graph(manifest), Trace(spans)) == 7
    plain = replace(
        manifest, subgraphs=manifest.subgraphs[:2], outputs=manifest.subgraphs[1].outputs
    )
    assert dispatch_overhead_us(plain, serialize(task_graph(plain)), Trace(spans[:2])) == 2


def test_the_largest_difference_counts_nan_only_when_alone() -> None:
    nan = np.array([1.0, np.nan])
    assert max_abs_error(nan, nan) == 0.0
    assert max_abs_error({"a": np.array([1.0, 3.0])}, {"a": np.array([1.5, 3.0])}) == 0.5
    with pytest.raises(Mismatch, match="1 of 2 outputs"):
        max_abs_error(nan, np.array([1.0, 2.0]))


def test_the_typical_run_is_the_median_one() -> None:
    runs = [Trace((Span(0, us, named_task("a"), "cpu"),)) for us in (9, 1, 5)]
    assert median_trace(runs) == runs[2]


# The trace on paper


def test_golden_perfetto(tmp_path: Path) -> None:
    bundle = branched_bundle()
    predicted = Session(bundle).predicted()
    later = [
        replace(span, start_us=span.start_us + 1.5, end_us=span.end_us + 2.25, handed_us=None)
        for span in predicted.spans
    ]
    shifted = Trace(tuple(later))
    write_perfetto(
        tmp_path / "t.json", {"predicted": predicted, "measured": shifted}, bundle.manifest
    )
    document = json.loads((tmp_path / "t.json").read_text())
    assert (document["displayTimeUnit"], document["otherData"]) == (
        "ms",
        {"model": "test:branched"},
    )
    assert [line(event) for event in document["traceEvents"]] == [
        *(
            "M 1/0 process_name predicted",
            "M 1/0 process_sort_index 1",
            "M 1/1 thread_name cpu",
            "M 1/2 thread_name dsp",
        ),
        *(
            "X 1/1 0.0+300.0 stem",
            "X 1/1 300.0+900.0 s1_cpu",
            "X 1/2 300.0+1000.0 s1_dsp",
            "X 1/1 1300.0+100.0 s1_merge",
        ),
        *(
            "s 1/1 1199.999 #1000001",
            "f 1/1 1300.0 #1000001",
            "s 1/2 1299.999 #1000002",
            "f 1/1 1300.0 #1000002",
        ),
        *(
            "C 1/0 0.0 queue cpu 1",
            "C 1/0 300.0 queue cpu 1",
            "C 1/0 1200.0 queue cpu 0",
            "C 1/0 1300.0 queue cpu 1",
        ),
        *("C 1/0 1400.0 queue cpu 0", "C 1/0 300.0 queue dsp 1", "C 1/0 1300.0 queue dsp 0"),
        *(
            "M 2/0 process_name measured",
            "M 2/0 process_sort_index 2",
            "M 2/1 thread_name cpu",
            "M 2/2 thread_name dsp",
        ),
        *(
            "X 2/1 1.5+300.75 stem",
            "X 2/1 301.5+900.75 s1_cpu",
            "X 2/2 301.5+1000.75 s1_dsp",
            "X 2/1 1301.5+100.75 s1_merge",
        ),
        *(
            "s 2/1 1202.249 #2000001",
            "f 2/1 1301.5 #2000001",
            "s 2/2 1302.249 #2000002",
            "f 2/1 1301.5 #2000002",
        ),
    ]


def test_a_trace_shows_queues_that_fill_and_what_went_wrong() -> None:
    manifest = branched_bundle().manifest
    phone, times_us = (
        tuple(Processor(name, name, 2) for name in ("cpu", "dsp")),
        task_durations_us(manifest),
    )
    times_us |= {(sub, "cpu"): time_us for (sub, _), time_us in times_us.items()}
    clock = VirtualExecutor(
        phone, times_us, disturbances=Disturbances(fails=(Outage("dsp", 700.0),))
    )
    events: list[Span | Failure | TimerEvent] = []
    service = RequestScheduler(
        phone, StaticPlacement(("cpu", "dsp")), clock, lambda answer: None, times_us
    )
    service.heard = events.append
    for number in range(2):
        service.submit(Request(number, task_graph(manifest, number), 1500.0 + 5000 * number))
    while service.step() is not None:
        pass
    trace = Trace(
        tuple(e for e in events if isinstance(e, Span)),
        tuple(e for e in events if not isinstance(e, Span)),
    )
    found = list(perfetto.events({"measured": trace}, perfetto.manifest_labels(manifest)))
    depths = [event["args"]["tasks"] for event in found if event["name"] == "queue cpu"]
    assert (max(depths), min(depths), depths[-1]) == (2, 0, 0)
    instants = [(event["cat"], event["name"], event["ts"]) for event in found if event["ph"] == "i"]
    assert instants == [
        *(("failure", "s1_dsp#0 failed", 700.0), ("failure", "s1_dsp#1 failed", 700.0)),
        *(("alarm", "DeadlineTimer()", 1500.0), ("alarm", "DeadlineTimer()", 6500.0)),
    ]
    assert next(event for event in found if event["ph"] == "i")["args"]["error"].startswith(
        "processor dsp failed at 0.700 ms"
    )


def line(event: dict) -> str:
    where = f"{event['ph']} {event['pid']}/{event['tid']}"
    if event["ph"] == "M":
        return f"{where} {event['name']} {next(iter(event['args'].values()))}"
    if event["ph"] == "C":
        return f"{where} {event['ts']} {event['name']} {event['args']['tasks']}"
    if event["ph"] == "X":
        return f"{where} {event['ts']}+{event['dur']} {event['name']}"
    assert (event["name"], event["cat"], event.get("bp")) == (
        "meet",
        "meet",
        "e" if event["ph"] == "f" else None,
    )
    return f"{where} {event['ts']} #{event['id']}"


def test_running_needs_neither_torch_nor_onnx(tmp_path: Path, bundle: Bundle) -> None:
    write_bundle(tmp_path / "a.nns", bundle.manifest, bundle.files)
    code = (
        "import sys\n"
        "for name in ('torch', 'lightning', 'pytorch_lightning', 'onnx', 'optuna', 'scipy',"
        " 'matplotlib'): sys.modules[name] = None\n"
        "from nnstretch import Session\n"
        f"session = Session({str(tmp_path / 'a.nns')!r})\n"
        "print(session.run(session.network.random_inputs(0)).shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("(1, 8, 8, 8)\n", "")
