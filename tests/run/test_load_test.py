"""Load tests, called from Python."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from support.bundles import branched_latency_us, several_plans

from nnstretch.errors import BadInput, Mismatch, UnknownName
from nnstretch.run import load_test as load_test_module
from nnstretch.run import loaded_network
from nnstretch.run.load_test import LoadTestResult, Workload, load_test
from nnstretch.schedule import Disturbances, Interference, Outage


@pytest.mark.parametrize("clock", ["virtual", "real"])
def test_every_sub_graph_of_every_plan_is_loaded_once(
    monkeypatch: pytest.MonkeyPatch, clock: str
) -> None:
    bundle = several_plans()
    loaded: list[str] = []
    load_backend = loaded_network.load_backend

    def counting(backend, sub, data, *about):  # type: ignore[no-untyped-def]
        loaded.append(sub.name)
        return load_backend(backend, sub, data, *about)

    monkeypatch.setattr(loaded_network, "load_backend", counting)
    result = load_test(bundle, Workload(4, clients=2), clock=clock)
    plans = result.served.networks.values()
    assert sorted(loaded) == sorted(sub.name for net in plans for sub in net.manifest.subgraphs)
    assert len(result.answered_us) == 4


def test_an_answer_that_differs_ends_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(_output: object, _expected: object) -> float:
        raise Mismatch("NaN or infinity in one of two outputs")

    monkeypatch.setattr(load_test_module, "max_abs_error", differs)
    with pytest.raises(Mismatch, match="NaN or infinity in one of two outputs"):
        load_test(several_plans(), Workload(4, clients=2), clock="real")


def test_on_a_quiet_chip_the_result_is_the_prediction() -> None:
    told: list[int] = []
    result = load_test(several_plans(), Workload(5), progress=told.append)
    latency_us = branched_latency_us(1, (1000.0, 1000.0))
    assert result.latency_us == dict.fromkeys(
        ("min", "median", "p90", "p99", "p95"), pytest.approx(latency_us)
    )
    assert result.throughput_per_s == pytest.approx(1e6 / latency_us)
    assert result.utilization("cpu") == pytest.approx(1.0)
    assert (result.served.adaptive, result.served.timing, told) == (
        True,
        "predicted",
        [1, 2, 3, 4, 5],
    )


def test_where_nothing_is_answered_there_is_no_latency() -> None:
    nobody: LoadTestResult = load_test(several_plans(), Workload(3, deadline_us=1.0))
    assert (nobody.latency_us, nobody.throughput_per_s) == ({}, 0.0)
    assert nobody.errors == {"deadline missed": 3}
    # What was begun goes on behind the deadline: no processor works for longer than there was time.
    assert 0.5 < nobody.utilization("cpu") <= 1.0


def test_a_lost_processors_requests_say_that_no_other_has_a_predicted_time() -> None:
    bundle = several_plans()
    subgraphs = []
    for sub in bundle.manifest.subgraphs:
        here_us = {sub.processor: sub.predicted_us[sub.processor]}
        subgraphs.append(replace(sub, predicted_us=here_us))
    bundle = replace(bundle, manifest=replace(bundle.manifest, subgraphs=tuple(subgraphs)))
    workload = Workload(3, disturbances=Disturbances(fails=(Outage("dsp", 0.0),)))
    assert load_test(bundle, workload, plan="main").errors == {"no predicted time elsewhere": 3}


def test_deadlines_that_nobody_misses_leave_the_utilization_as_it_is() -> None:
    """Waiting for the timer of a request that was answered is no idle time."""
    free, bound = (
        load_test(several_plans(), Workload(20, clients=4, deadline_us=us))
        for us in (math.inf, 1e6)
    )
    assert bound.latency_us == free.latency_us
    assert bound.utilization("cpu") == free.utilization("cpu") == pytest.approx(1.0)


def test_disturbances_of_what_is_not_there_are_refused() -> None:
    outage = Disturbances(fails=(Outage("npu", 0.0),))
    with pytest.raises(UnknownName, match="unknown processor 'npu', load test"):
        load_test(several_plans(), Workload(1, disturbances=outage))
    with pytest.raises(BadInput, match="a start before an end"):
        Workload(1, disturbances=Disturbances((Interference("cpu", 5.0, 5.0),)))


def test_disturbances_are_of_known_kinds() -> None:
    for odd in (None, True, "cpu@1:2", ["x"], (None,), ("cpu",), {}, 1.0):
        for field in ("busy", "fails"):
            with pytest.raises(BadInput, match=rf"^{field}(\[0\])? is "):
                Disturbances(**{field: odd})
    for odd in (None, "1", True, math.nan, 10**400, -1.0):
        with pytest.raises(BadInput, match=r"at_us is|lost from -1"):
            Outage("cpu", odd)
        with pytest.raises(BadInput, match=r"start_us is|busy from -1"):
            Interference("cpu", odd, 5.0)
    with pytest.raises(BadInput, match="lost from 2 to 1 us, processor cpu"):
        Outage("cpu", 2.0, 1.0)
