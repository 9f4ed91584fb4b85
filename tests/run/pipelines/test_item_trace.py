"""A pipeline's trace: every item can be found by name and followed by arrows from stage to
stage.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.pipeline_bundles import chain, framed, reference
from support.tasks import named_task

from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest
from nnstretch.run import write_perfetto
from nnstretch.run.perfetto import events, manifest_labels
from nnstretch.run.pipelines.prediction import predict_stream
from nnstretch.trace import Failure, Span, Trace

Event = dict[str, Any]


def timed(bundle: Bundle, time_us: float = 1000.0) -> Manifest:
    """Every sub-graph takes so long, wherever a copy of it is."""
    assert bundle.manifest.pipeline is not None
    places = {
        name: stage.replicas
        for stage in bundle.manifest.pipeline.stages
        for name in stage.subgraphs
    }
    subs = tuple(
        replace(sub, predicted_us=dict.fromkeys(places[sub.name] or (sub.processor,), time_us))
        for sub in bundle.manifest.subgraphs
    )
    return replace(bundle.manifest, subgraphs=subs)


def events_of(manifest: Manifest, items: int) -> list[Event]:
    return list(
        events({"predicted": predict_stream(manifest, items, {})}, manifest_labels(manifest))
    )


def arrows(found: list[Event]) -> list[tuple[str, str, str]]:
    """(name of the flow, slice it leaves, slice it reaches)."""
    slices = [event for event in found if event["ph"] == "X"]

    def at(end: Event) -> str:
        (name,) = [
            one["name"]
            for one in slices
            if (one["pid"], one["tid"]) == (end["pid"], end["tid"])
            and one["ts"] <= end["ts"] < one["ts"] + max(one["dur"], 0.001)
        ]
        return str(name)

    begins = {event["id"]: event for event in found if event["ph"] == "s"}
    return [
        (event["name"], at(begins[event["id"]]), at(event)) for event in found if event["ph"] == "f"
    ]


def rows(found: list[Event]) -> dict[int, str]:
    return {
        event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"
    }


def test_arrows_lead_every_item_along_the_tensors_it_is_handed() -> None:
    """S0 feeds S1 and S2, S1 feeds S2."""
    found = arrows(events_of(timed(Bundle(*reference())), 3))
    assert sorted(found) == sorted(
        (f"item {n}", f"{a}#{n}", f"{b}#{n}")
        for n in range(3)
        for a, b in (("s0", "s1"), ("s0", "s2"), ("s1", "s2"))
    )


def test_slices_are_named_by_stage_and_item_and_every_worker_has_a_row() -> None:
    found = events_of(timed(Bundle(*reference())), 2)
    assert list(rows(found).values()) == ["s0 on cpu", "s1 on dsp", "s2 on cpu"]
    slices = [event for event in found if event["ph"] == "X"]
    assert {
        event["name"]: rows(found)[event["tid"]] for event in slices if event["name"].endswith("#1")
    } == {
        "s0#1": "s0 on cpu",
        "s1#1": "s1 on dsp",
        "s2#1": "s2 on cpu",
    }
    assert all(
        (event["args"]["stage"], event["args"]["item"])
        == (event["name"][:2], int(event["name"][3:]))
        for event in slices
    )


def test_replicas_have_rows_of_their_own() -> None:
    found = events_of(timed(chain(3, replicas=2)), 4)
    assert list(rows(found).values()) == ["m0 on cpu", "m1 on cpu0", "m1 on cpu1", "m2 on cpu"]
    assert ("item 3", "m0#3", "m1#3") in arrows(found)


def test_python_stages_are_rows_and_ends_of_arrows_too() -> None:
    found = events_of(timed(Bundle(*framed())), 2)
    assert list(rows(found).values()) == ["before", "s0 on cpu", "s1 on dsp", "s2 on cpu", "after"]
    flows = [(event["name"], rows(found)[event["tid"]]) for event in found if event["ph"] == "s"]
    assert flows.count(("item 1", "before")) == 2, "it feeds s0 and s1"


def test_the_file_says_which_stages_there_are(tmp_path: Path) -> None:
    manifest = timed(Bundle(*reference()))
    write_perfetto(tmp_path / "t.json", {"predicted": predict_stream(manifest, 2, {})}, manifest)
    said = json.loads((tmp_path / "t.json").read_text())["otherData"]
    assert said["pipeline"] == [
        {"stage": "s0", "after": []},
        {"stage": "s1", "after": ["s0"]},
        {"stage": "s2", "after": ["s1", "s0"]},
    ]


def test_what_a_trace_does_not_hold_gets_no_arrow_and_failures_stay_in_their_row() -> None:
    manifest = timed(Bundle(*reference()))
    late = Trace(
        (Span(5, 9, named_task("s1#7"), "dsp"), Span(9, 12, named_task("s2#7"), "cpu")),
        (Failure(3.0, named_task("s0#8"), "cpu", ValueError("lens cap")),),
    )
    found = list(events({"measured": late}, manifest_labels(manifest)))
    assert arrows(found) == [("item 7", "s1#7", "s2#7")]
    (failed,) = [event for event in found if event["ph"] == "i"]
    assert (rows(found)[failed["tid"]], failed["name"]) == ("s0 on cpu", "s0#8 failed")


@given(count=st.integers(1, 5), items=st.integers(1, 6), data=st.data())
def test_every_item_of_any_chain_passes_every_border_once(
    count: int, items: int, data: st.DataObject
) -> None:
    python = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=count - 1))
    found = events_of(timed(chain(count, python=python)), items)
    flows = [event for event in found if event["ph"] == "f"]
    assert len(flows) == items * (count - 1)
    assert len({event["id"] for event in flows}) == len(flows)
    assert {event["name"] for event in flows} == (
        {f"item {n}" for n in range(items)} if count > 1 else set()
    )
