"""Traces for Perfetto."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.bundles import (
    branched_bundle,
)

from nnstretch.bundle.bundle import Bundle
from nnstretch.run import Session, perfetto, write_perfetto
from nnstretch.schedule import (
    Disturbances,
    Outage,
    Request,
    RequestScheduler,
    StaticPlacement,
    VirtualExecutor,
    task_durations_us,
    task_graph,
)
from nnstretch.soc import Processor
from nnstretch.trace import Failure, Span, TimerEvent, Trace


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return branched_bundle(segments=2)


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
            "C 1/0 0.0 handed to cpu 1",
            "C 1/0 300.0 handed to cpu 1",
            "C 1/0 1200.0 handed to cpu 0",
            "C 1/0 1300.0 handed to cpu 1",
        ),
        *(
            "C 1/0 1400.0 handed to cpu 0",
            "C 1/0 300.0 handed to dsp 1",
            "C 1/0 1300.0 handed to dsp 0",
        ),
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
    depths = [event["args"]["tasks"] for event in found if event["name"] == "handed to cpu"]
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
