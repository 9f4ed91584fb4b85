"""A session computes ONNX Runtime's numbers and keeps the predicted time, whichever clock it goes
by.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.bundles import (
    branched_bundle,
    branched_latency_us,
    concat,
    conv,
    feature_map,
    image,
    subgraph,
)

from nnstretch.bundle.bundle import Bundle, write_bundle
from nnstretch.bundle.manifest import Manifest, Port
from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.run import Session
from nnstretch.run.metrics import max_abs_error
from nnstretch.soc import Processor, Soc

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
            "no predicted time of stem, 1 of 7 sub-graphs, bundle, a timetable needs all or none"
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
