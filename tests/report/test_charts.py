"""Numbers, scales and timelines of the drawings."""

from __future__ import annotations

import json
import re
import shutil
from math import log10
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.report_page import (
    HOSTILE,
    SAMPLE,
    Page,
    rewrite,
    sample_page,
)

from nnstretch.report import build_report
from nnstretch.report.chapters.runs import difference_tables
from nnstretch.report.charts.gantt_networks import network_gantt, timelines_of
from nnstretch.report.charts.latency_breakdown import terms_of
from nnstretch.report.charts.line_chart import ChartScale
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.charts.svg import AxisScale
from nnstretch.report.constraint_help import explain_constraint
from nnstretch.report.format_numbers import (
    amount,
    digits,
    graph_time,
    ms,
    percent,
    plain_ms,
    tick,
    ticks,
)
from nnstretch.report.load.folder import read_report_data
from nnstretch.report.load.timeline import Timeline, TimelineSpan
from nnstretch.report.load.trace import meetings_us, read_timelines
from nnstretch.report.load.trace_diff import largest
from nnstretch.task import Task
from nnstretch.trace import Span


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (graph_time(7.25), "7.25"),
        (graph_time(1 / 3), "0.333333"),
        (graph_time(8_888_888.0), "8888888"),
        (graph_time(123_456_789.6), "123456790"),
        (graph_time(1e18), "1e+18"),
        (digits(0), "0"),
        (digits(7.2144), "7.21"),
        (digits(112.34), "112"),
        (digits(9.999), "10.0"),
        (digits(0.04321), "0.0432"),
        (digits(1234.5), "1,234"),
        (digits(-3.14159), "-3.14"),
        (digits(1e-9), "1.00e-09"),
        (amount(1814083944), "1.81\u00a0G"),
        (amount(999_900), "1.00\u00a0M"),
        (amount(11689512), "11.7\u00a0M"),
        (amount(None), "–"),
        (ms(7.2144), "7.21\u00a0ms"),
        (plain_ms(7.2144), "7.214"),
        (tick(0.5), "0.5"),
    ],
)
def test_numbers_read_well(shown: str, wanted: str) -> None:
    assert shown == wanted


@given(st.floats(1e-300, 1e300))
def test_three_digits_are_within_half_a_percent(value: float) -> None:
    assert float(digits(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_are_few_evenly_spaced_and_inside(low: float, span: float, wanted: int) -> None:
    found = ticks(low, low + span, wanted)
    slack = 1e-6 * (low + span)
    assert len(found) <= wanted + 1
    assert all(low - slack <= value <= low + span + slack for value in found)


@given(st.floats(-1e6, 1e6), st.floats(0.001, 1e6), st.floats(0, 1))
def test_a_scale_keeps_proportions(low: float, span: float, share: float) -> None:
    assert AxisScale(low, low + span, 100, 500)(low + share * span) == pytest.approx(
        100 + 400 * share, abs=0.1
    )


def test_the_terms_of_every_branch_add_up_to_its_segment() -> None:
    plan = read_report_data(SAMPLE).plan
    assert plan is not None
    assert sum(segment.latency_ms for segment in plan.segments) == pytest.approx(
        plan.latency_ms, abs=1e-3
    )
    for segment in plan.segments:
        for branch in segment.branches:
            assert sum(length for _, _, length in terms_of(segment, branch)) == pytest.approx(
                segment.latency_ms, abs=1e-3
            )


def test_colours_depend_on_the_processor_alone() -> None:
    assert [colour_class(name) for name in ("cpu", "CPU", "gpu0", "dsp", "npu.big")] == [
        "p-cpu",
        "p-cpu",
        "p-gpu",
        "p-dsp",
        "p-npu",
    ]
    assert colour_class("fpga") == colour_class("fpga")
    assert re.fullmatch(r"p-x\d", colour_class(HOSTILE))


@pytest.mark.parametrize(
    "name",
    ["cost_amortised", "no_stragglers", "capacity", "memory", "min-depth", "Main branch MACs"],
)
def test_every_constraint_of_the_design_has_a_meaning(name: str) -> None:
    assert explain_constraint(name) != explain_constraint("somebody_elses_rule")


def drawn(source: str, *spans: tuple[str, int, float, float], processor: str = "cpu") -> Timeline:
    return Timeline(
        source,
        tuple(
            TimelineSpan(Span(start, end, Task(f"{name}#{request}", name), processor), "s1", False)
            for name, request, start, end in spans
        ),
        0,
        1,
        1,
    )


def test_the_largest_differences_are_named_first_whichever_request_and_processor() -> None:
    predicted = drawn("predicted", ("a", 0, 0, 1000), ("b", 0, 1000, 3000), ("gone", 0, 0, 9000))
    played = drawn(
        "measured", ("a", 7, 0, 1500), ("b", 7, 1500, 2500), ("new", 7, 0, 9000), processor="dsp"
    )
    found = largest({"branched": (predicted, played), "original": (predicted,)}, {})
    assert [
        (one.subgraph, one.processor, one.predicted_ms, one.measured_ms, one.ratio) for one in found
    ] == [
        ("b", "dsp", 2.0, 1.0, 0.5),
        ("a", "dsp", 1.0, 1.5, 1.5),
    ]
    assert {one.timing for one in found} == {"measured"}
    assert largest({"branched": (predicted, played)}, {}, most=1) == found[:1]


def test_what_was_predicted_to_take_no_time_has_no_ratio() -> None:
    (one,) = largest(
        {"branched": (drawn("predicted", ("a", 0, 0, 0)), drawn("measured", ("a", 0, 0, 40)))}, {}
    )
    assert one.ratio is None
    assert "–" in difference_tables((one,))


def test_what_was_predicted_to_take_next_to_no_time_has_no_ratio() -> None:
    (one,) = largest(
        {"b": (drawn("predicted", ("a", 0, 0, 1e-300)), drawn("measured", ("a", 0, 0, 1e18)))}, {}
    )
    assert one.ratio is None
    assert one.off_ms == 1e15


def test_both_timelines_lie_on_one_axis_and_say_what_kind_they_are() -> None:
    page = sample_page().split('id="differences"')[1].split("</section>")[0]
    assert "Original network: predicted 11.1\u00a0ms, emulated 11.3\u00a0ms, +1.8\u00a0%" in page
    assert "emulated (ms)" in page
    assert "measured (ms)" not in page
    assert page.count('class="bar ghost"') == len(
        [
            1
            for one in read_report_data(SAMPLE).timelines.values()
            for part in one[0].parts
            if not part.is_merge
        ]
    )


def test_one_trace_file_is_enough(tmp_path: Path) -> None:
    page = build_report(Path(shutil.copy(SAMPLE / "trace_branched.json", tmp_path / "t.json")))
    assert "Branched network: predicted 7.12\u00a0ms, measured" in page
    Page(page)


@pytest.mark.parametrize(
    ("said", "shown"),
    [("emulated", "emulated"), ("measured", "measured"), ([1], "measured"), (None, "measured")],
)
def test_a_trace_says_itself_what_its_milliseconds_are(
    tmp_path: Path, said: object, shown: str
) -> None:
    path = Path(shutil.copy(SAMPLE / "trace_branched.json", tmp_path / "t.json"))
    rewrite(path, "otherData", value={"timing": said})
    report_data = read_report_data(path)
    assert {one.timing for one in largest(report_data.timelines, report_data.runs)} == {shown}
    assert f"{shown} 7.32" in build_report(path)


def test_a_folder_without_a_pair_says_how_to_get_one(folder: Path) -> None:
    for kind in ("original", "branched"):
        (folder / f"trace_{kind}.json").unlink()
    assert "No trace in this folder holds both a prediction and a run" in build_report(folder)
    assert largest(read_report_data(folder).timelines, {}) == ()


def events(*spans: tuple[str, int, float, float]) -> tuple[Timeline, ...]:
    names = [{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "predicted"}}]
    names += [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": i, "args": {"name": name}}
        for i, name in enumerate(("cpu", "dsp"))
    ]
    drawn = [
        {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": ts, "dur": dur}
        for name, tid, ts, dur in spans
    ]
    return read_timelines([*names, *drawn, {"ph": "s", "name": "flow"}], "trace.json")


def test_the_request_of_median_length_stands_for_all_and_starts_at_zero() -> None:
    (timeline,) = events(("r0.s0.cpu", 0, 0, 9), ("r1.s0.cpu", 0, 10, 5), ("r2.s0.cpu", 0, 20, 7))
    assert (timeline.source, timeline.request, timeline.requests) == ("predicted", 2, 3)
    assert [(span.start_us, span.end_us, span.processor) for span in timeline.trace.spans] == [
        (0, 7, "cpu")
    ]


WHOLE = ("a#1", 0, 0, 6), ("b#1", 1, 0, 6), ("a#7", 0, 6, 9), ("b#7", 1, 6, 9)
PARTIAL = ("a#2", 0, 20, 7), ("a#3", 0, 30, 7), ("a#4", 0, 40, 7), ("b#5", 1, 50, 7)


@pytest.mark.parametrize(
    ("spans", "request_shown", "says"),
    [
        (WHOLE, 1, "Branched, measured: request 1, one of 2."),
        (
            (*WHOLE, *PARTIAL),
            1,
            "Branched, measured: request 1, one of 2 that ran all their tasks (4 ran only some).",
        ),
        (
            PARTIAL,
            3,
            "Branched, measured: none of 4 requests ran all tasks of its plan; shown is what ran of"
            " request 3, counted from 0.",
        ),
    ],
)
def test_a_request_that_ran_whole_is_shown_and_where_none_did_the_page_says_so(
    spans: tuple[tuple[str, int, float, float], ...],
    request_shown: int,
    says: str,
    tmp_path: Path,
) -> None:
    slices = [
        {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": ts, "dur": dur}
        for name, tid, ts, dur in spans
    ]
    about = {"plans": {"main": ["a", "b"], "other": ["a", "c"]}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": slices, "otherData": about}), encoding="utf-8")
    (timeline,) = read_report_data(path).timelines["branched"]
    assert timeline.request == request_shown
    html = build_report(path)
    assert says in html
    assert ("Branched network, measured, in part: " in html) == (spans is PARTIAL)


@pytest.mark.parametrize(
    ("low", "high"), [(5224, 16384), (1100, 1900), (2.1e-7, 4.9e-7), (1, 2), (5e17, 9e17)]
)
def test_a_short_logarithmic_axis_has_marks_too(low: float, high: float) -> None:
    scale = ChartScale(AxisScale(log10(low), log10(high), 0, 100), logarithmic=True)
    marks = scale.marks(8)
    assert 3 <= len(marks) <= 12
    assert all(0.999 * low <= mark <= 1.001 * high for mark in marks)
    assert len(set(map(tick, marks))) == len(marks)


def test_what_other_requests_do_meanwhile_is_no_idle_time() -> None:
    spans = (("r0.s0.cpu", 0, 0, 6), ("r0.s1.dsp", 1, 6, 4), ("r1.s0.cpu", 0, 6, 6))
    timelines = events(*spans, ("r1.s1.dsp", 1, 12, 4), ("r2.s0.cpu", 0, 30, 9))
    (timeline,) = timelines
    assert (timeline.request, timeline.trace.makespan_us) == (0, 10)
    (other,) = timeline.others
    assert (other.span.start_us, other.span.end_us, other.span.task.request) == (6, 10, 1)
    drawing = network_gantt(timelines_of({"branched": timelines}, {}), ("cpu", "dsp"))
    shares = [f"{percent(share, 0)} busy" in drawing for share in (1.0, 0.6, 0.4)]
    assert shares == [True, False, True]
    assert drawing.count('class="other"') == 1


def test_branches_meet_when_their_merge_ends() -> None:
    (timeline,) = events(
        ("r0.s0.cpu", 0, 0, 5),
        ("r0.s1.cpu", 0, 5, 4),
        ("r0.s1.dsp", 1, 5, 6),
        ("r0.s1.merge", 0, 12, 1),
    )
    assert meetings_us(timeline.parts) == {"s1": 13}


def test_what_an_event_says_of_itself_goes_before_its_name() -> None:
    event = {
        "ph": "X",
        "name": "tail",
        "cat": "merge",
        "tid": "cpu",
        "ts": 1,
        "dur": 2,
        "args": {"task": "tail#4", "segment": 7},
    }
    (timeline,) = read_timelines({"traceEvents": [event]}, "trace.json")
    (part,) = timeline.parts
    assert (part.segment, part.is_merge, timeline.request) == ("s7", True, 4)
    task = part.span.task
    assert (task.name, task.request, part.span.processor) == ("tail", 4, "cpu")


def test_branches_without_a_merge_meet_when_the_last_one_ends() -> None:
    (timeline,) = events(("r0.s1.cpu", 0, 5, 4), ("r0.s1.dsp", 1, 5, 6))
    assert meetings_us(timeline.parts) == {"s1": 6}
