"""What a trace says of a run: latency, overlap, what handing over costs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.bundles import (
    branched_bundle,
)
from support.tasks import named_task

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import Mismatch
from nnstretch.run import Session, measure
from nnstretch.run.load_test import Workload, load_test
from nnstretch.run.metrics import dispatch_overhead_us, max_abs_error, median_trace
from nnstretch.run.results.session_json import repeat_runs, session_json
from nnstretch.schedule import (
    serialize,
    task_graph,
)
from nnstretch.soc import Processor, Soc
from nnstretch.trace import Span, Trace

PHONE = Soc(
    "mi9",
    (Processor("cpu", "cpu", 3), Processor("gpu", "gpu", 2), Processor("dsp", "dsp", 1)),
    "int8",
    {},
)


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2)


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


def test_a_plan_that_begins_on_an_asynchronous_processor_has_only_the_latency_from_its_arrival(
    bundle: Bundle,
) -> None:
    """Handing over its first task is part of every latency, and of every throughput."""
    slow = tuple(
        replace(p, sync_us=60.0, enqueue_us=50.0) if p.name == "dsp" else p
        for p in PHONE.processors
    )
    stem = bundle.manifest.subgraphs[0]
    stem = replace(stem, processor="dsp", predicted_us={"dsp": 300.0})
    manifest = replace(bundle.manifest, subgraphs=(stem,), outputs=stem.outputs, sync_us={0: 60.0})
    alone, soc = replace(bundle, manifest=manifest), replace(PHONE, processors=slow)
    session = Session(alone, soc)
    inputs = session.network.random_inputs(0)
    times = session_json(session, inputs, repeat_runs(session, inputs, 3))
    assert times["virtual_ms"] == times["latency_ms"]["median"] == 0.36
    assert times["throughput_per_s"] == times["sequential_throughput_per_s"]
    served = load_test(alone, Workload(3), soc).served
    assert (served.critical_path_us, served.work_us) == (360.0, 360.0)


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


@pytest.mark.parametrize("clock", ["real", "virtual"])
def test_a_cold_run_counts_nowhere(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    traces: list[Trace] = []
    compute = Session.compute

    def noted(session: Session, values: dict[str, np.ndarray]) -> None:
        compute(session, values)
        traces.append(session.trace)

    monkeypatch.setattr(Session, "compute", noted)
    with Session(branched_bundle(predicted=clock == "virtual"), clock=clock) as session:
        runs = repeat_runs(session, session.network.random_inputs(0), 3)
    assert runs.traces == traces[-3:]
    assert len(traces) == (4 if clock == "real" else 3)
