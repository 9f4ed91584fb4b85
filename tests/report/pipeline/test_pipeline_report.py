"""The page of a pipeline: every item can be followed, prediction stands above the run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.report_page import (
    Page,
    rewrite,
)

from nnstretch.cli import main as command_line
from nnstretch.report import build_report
from nnstretch.report.charts.gantt_pipeline import stream_gantt
from nnstretch.report.load.pipeline import PIPELINE_FILES
from nnstretch.report.load.pipeline_data import StreamTrace, windows_of
from nnstretch.task import Task
from nnstretch.trace import Span


def drawing(html: str) -> str:
    return html.split('id="stream"')[1].split("</svg>")[0]


def test_a_pipelines_page_has_its_chapters_and_nothing_of_branches(sample: Path) -> None:
    page = Page(build_report(sample))
    ids = page.values("id")
    assert {"stream-headline", "stream", "stages", "split", "provenance"} <= set(ids)
    assert not {"headline", "summary", "terms", "training"} & set(ids)
    assert {link[1:] for link in page.values("href")} <= set(ids)
    assert not page.values("src")
    assert "Not in this folder" not in build_report(sample)
    assert build_report(sample) == build_report(sample)


def test_a_pipelines_page_says_where_its_times_come_from_and_what_was_searched(
    sample: Path,
) -> None:
    html = build_report(sample)
    assert html.count("kernels of a phone") == 1
    assert "No provenance is given" not in html
    assert "no grouping of the plan&#x27;s segments is better" in html.replace("&#39;", "&#x27;")
    rewrite(sample / "partition.json", "split_at", value="layers")
    assert "no split between layers is better" in build_report(sample)


def test_twelve_items_have_a_slice_at_every_stage_predicted_above_played(sample: Path) -> None:
    chart = drawing(build_report(sample))
    above, below = (
        chart.split("Emulated: items 14 to 25")[-2:]
        if chart.count("Emulated: items") > 1
        else ("", "")
    )
    assert "Predicted: items 14 to 25 within" in above
    for item in range(14, 26):
        for row in ("s0 on cpu", "s1 on dsp", "s2 on cpu"):
            assert (
                len(
                    re.findall(rf"<title>{row}, item {item}: starts at [\d.]+\xa0m?s, takes", chart)
                )
                == 2
            ), "once predicted, once played"
            assert len(re.findall(rf"<title>{row}, item {item}: ", below)) == 1
    looks = {
        (item, look)
        for look, item in re.findall(r'<g class="item (i-\d)" data-item="(\d+)"', chart)
    }
    assert len(looks) == 12, "an item has one colour at every stage, on both clocks"
    assert len({look for item, look in looks if item in {"14", "15", "16", "17", "18", "19"}}) == 6


def test_lines_lead_from_stage_to_stage(sample: Path) -> None:
    chart = drawing(build_report(sample))
    assert len(re.findall(r'<g class="link i-\d" data-item="20">', chart)) == 2 * 3, (
        "s0 to s1, s0 to s2, s1 to s2"
    )


def test_a_line_leaves_a_stage_behind_its_copies_and_enters_the_next_before_them() -> None:
    parts = (
        ("a", "a on cpu", 0, 10),
        ("b", "b copy in", 10, 20),
        ("b", "b on gpu", 20, 60),
        ("b", "b copy out", 60, 70),
        ("c", "c on cpu", 70, 100),
    )
    spans = (span(stage, 0, row, start, end) for stage, row, start, end in parts)
    windows = windows_of([StreamTrace("predicted", tuple(spans))])
    chart = stream_gantt(windows, (("a", ()), ("b", ("a",)), ("c", ("b",))))
    points = re.findall(r'<g class="link[^>]*><polyline points="([^"]*)"', chart)
    ends = [[float(point.split(",")[0]) for point in line.split()] for line in points]
    (from_a, to_b), (from_b, to_c) = ends
    assert from_a == to_b < from_b == to_c


def test_the_headline_says_gain_efficiency_and_how_far_off_the_prediction_was(sample: Path) -> None:
    head = build_report(sample).split('id="stream-headline"')[1].split("</section>")[0]
    assert "1.72×" in head
    assert "182 /s (predicted) → 312 /s" in head
    assert "The slowest is s1 on dsp | gpu: 3.10\u00a0ms" in head
    assert "Predicted bottleneck: 3.00\u00a0ms, −3.2\u00a0% against 3.10\u00a0ms emulated" in head
    assert "2 items failed." in head
    assert "never mixed in one column" in head


@pytest.mark.parametrize("why", ["", "40 of 40 items were late"])
def test_the_headline_says_where_the_host_could_not_keep_up(why: str, folder: Path) -> None:
    rewrite(folder / "run_pipeline.json", "noisy", value=why)
    head = build_report(folder).split('id="stream-headline"')[1].split("</section>")[0]
    assert ("Noisy: 40 of 40 items were late." in head) == bool(why)


@pytest.mark.parametrize("name", ["run_pipeline.json", "partition.json"])
def test_the_headline_says_where_the_chip_was_never_measured_or_its_profile_is_noisy(
    name: str, folder: Path
) -> None:
    assert "not calibrated" not in build_report(folder)
    rewrite(folder / name, "calibrated", value=False)
    rewrite(folder / name, "noisy", value="clocks varied")
    both = build_report(folder)
    for absent in {"run_pipeline.json", "partition.json"} - {name}:
        (folder / absent).unlink()
    chip = "The chip mi9" if name == "partition.json" else "The chip"
    for html in (both, build_report(folder)):
        head = html.split('id="stream-headline"')[1].split("</section>")[0]
        assert f"{chip} is not calibrated: no latency of it was ever published" in head
        assert "Noisy: clocks varied." in head


def test_a_run_that_repeats_why_its_chip_is_noisy_says_it_once(folder: Path) -> None:
    rewrite(folder / "partition.json", "noisy", value="clocks varied")
    rewrite(folder / "run_pipeline.json", "noisy", value="clocks varied; 2 items were late")
    assert build_report(folder).count("clocks varied") == 1


def test_a_python_stage_that_nobody_predicted_is_not_held_against_the_prediction(
    folder: Path,
) -> None:
    rewrite(folder / "run_pipeline.json", "stages", 1, "processors", value=["s1"])
    assert "of the stages that have predictions; the slowest, s1, has none." in build_report(folder)


def test_columns_hold_one_kind_of_milliseconds(sample: Path) -> None:
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", build_report(sample))
    assert {
        "an item, emulated (ms)",
        "predicted (ms)",
        "starved (ms)",
        "blocked (ms)",
        "failed",
    } <= set(heads)
    assert "measured (ms)" not in heads


@pytest.mark.parametrize("name", PIPELINE_FILES)
def test_any_one_file_is_enough_and_any_one_may_be_absent(
    name: str, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = tmp_path_factory.mktemp("alone")
    (alone / name).write_bytes((folder / name).read_bytes())
    Page(build_report(alone))
    assert "Not in this folder" in build_report(alone)
    (folder / name).unlink()
    Page(build_report(folder))
    assert f"<code>{name}</code>" in build_report(folder)


def test_a_trace_alone_shows_its_stream(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert (
        command_line(["report", str(sample / "trace_pipeline.json"), "--out", str(out), "--json"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["differences"] == []
    assert "Predicted: items 14 to 25" in out.read_text(encoding="utf-8")


def test_a_virtual_clock_has_no_waits_and_no_second_prediction(folder: Path) -> None:
    for key, value in (("timing", "predicted"), ("untimed", ["before"])):
        rewrite(folder / "run_pipeline.json", key, value=value)
    for stage in range(3):
        for key in ("busy_ms", "starved_ms", "blocked_ms"):
            rewrite(folder / "run_pipeline.json", "stages", stage, key, value=None)
    html = build_report(folder)
    Page(html)
    assert "Where each worker" not in html
    assert "prediction off by" not in html
    assert "Nobody predicted Python stages" in html


def span(stage: str, item: int, worker: str, start_us: float, end_us: float) -> Span:
    return Span(start_us, end_us, Task(f"{stage}#{item}", stage, request=item), worker)


def stream(source: str, items: range, late_us: float = 0.0) -> StreamTrace:
    return StreamTrace(
        source,
        tuple(span("a", n, "a on cpu", 10.0 * n + late_us, 10.0 * n + late_us + 15) for n in items),
    )


def test_windows_show_the_same_items_where_they_can() -> None:
    both = windows_of([stream("predicted", range(40)), stream("measured", range(20, 60), 1000)])
    assert [window.items for window in both] == [tuple(range(24, 36))] * 2
    assert [window.spans[0].start_us for window in both] == [0.0, 0.0]
    assert {one.task.request for one in both[0].others} == {23, 36}, (
        "their neighbours, cut at the border"
    )
    assert max(one.end_us for one in both[0].others) <= both[0].length_us
    apart = windows_of([stream("predicted", range(20)), stream("measured", range(100, 200))])
    assert [window.items[0] for window in apart] == [4, 144]
    assert windows_of([stream("measured", range(3))])[0].items == (0, 1, 2)
    assert windows_of([]) == windows_of([stream("measured", range(0))]) == ()


def test_an_item_takes_its_copies_and_branches_together_and_what_overlaps_once() -> None:
    parts = [("m copy in", 0, 2), ("m on gpu", 3, 7), ("m on cpu", 5, 9), ("m copy out", 9, 10)]
    slices = [
        span("m", item, row, 100.0 * item + start, 100.0 * item + end)
        for item in range(3)
        for row, start, end in parts
    ]
    assert StreamTrace("predicted", tuple(slices)).service_ms == {"m": pytest.approx(0.009)}
