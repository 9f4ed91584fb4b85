"""The page shows what is there, and says what is not."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.report_page import (
    SAMPLE,
    Page,
    rewrite,
    sample,
    sample_page,
)

from nnstretch.cli import main as command_line
from nnstretch.errors import UnknownName
from nnstretch.report import build_report
from nnstretch.report.format_numbers import ms
from nnstretch.report.load.folder import FILES
from nnstretch.report.page import CHAPTERS


def test_the_page_is_one_well_formed_document_with_every_chapter() -> None:
    page = Page(sample_page())
    assert page.tags["html"] == page.tags["main"] == page.tags["h1"] == 1
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert {name for name, _, _ in CHAPTERS} <= set(ids)
    assert "Not in this folder" not in sample_page()


def test_the_same_folder_always_gives_the_same_page() -> None:
    assert build_report(SAMPLE) == sample_page()


def test_nothing_is_fetched() -> None:
    page = Page(sample_page())
    assert not page.values("src")
    assert all(link.startswith("#") for link in page.values("href"))
    assert not re.search(r"https?:|//[a-z]|@import|@font-face", sample_page())
    assert set(re.findall(r"url\(([^)]*)\)", sample_page())) <= {"#idle", "#copy-in", "#copy-out"}


def test_every_reference_inside_the_page_has_its_target() -> None:
    page = Page(sample_page())
    wanted = {link[1:] for link in page.values("href")} | set(
        re.findall(r"url\(#([^)]*)\)", sample_page())
    )
    assert wanted <= set(page.values("id"))


def test_the_policy_lets_only_the_pages_own_script_run() -> None:
    scripts = re.findall(r"<script>(.*?)</script>", sample_page(), re.S)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src &#x27;sha256-{digest}&#x27;" in sample_page()
    assert "default-src &#x27;none&#x27;" in sample_page()


def test_drawings_are_named_and_tables_have_captions() -> None:
    page = Page(sample_page())
    drawn = [children for children in page.children["svg"] if "title" in children]
    assert len(drawn) >= 9 + 5, "one per segment, and headline, Gantt, terms, two curves"
    assert all(children[:2] == ["title", "desc"] for children in drawn)
    assert page.children["table"]
    assert all(children[0] == "caption" for children in page.children["table"])


def test_the_headline_shows_speedups_beside_their_error() -> None:
    head = sample_page().split('id="summary"')[0]
    search = json.loads(sample("search.json"))
    plan = search["plans"][0]
    assert f"{plan['speedup_vs_fastest']:.2f}×" in head
    assert f"{plan['speedup_vs_iso_mac']:.2f}×" in head
    assert f"{ms(plan['latency_ms'])} ± {ms(plan['error_ms'])}" in head
    assert "never mixed in one column" in head


@pytest.mark.parametrize("why", ["", "another job took 40% of the time"])
def test_the_headline_says_where_the_chips_profile_is_noisy(why: str, folder: Path) -> None:
    rewrite(folder / "search.json", "noisy", value=why)
    head = build_report(folder).split('id="headline"')[1].split("</section>")[0]
    assert ("Noisy: another job took 40% of the time." in head) == bool(why)


@pytest.mark.parametrize("name", ["search.json", "run_original.json", "run_branched.json"])
def test_the_headline_says_of_any_file_that_its_chip_was_never_measured(
    name: str, folder: Path
) -> None:
    rewrite(folder / name, "calibrated", value=False)
    rewrite(folder / name, "provenance", value="derived by specifications")
    html = build_report(folder)
    head = html.split('id="headline"')[1].split("</section>")[0]
    chip = "The chip mi9" if name == "search.json" else "The chip"
    assert f"{chip} is not calibrated: no latency of it was ever published" in head
    assert "derived by specifications" in html.split('id="provenance"')[1]
    if name != "search.json":
        (folder / "search.json").unlink()
        assert "The chip is not calibrated" in build_report(folder)


def test_the_originals_own_error_stands_beside_its_time(folder: Path) -> None:
    rewrite(folder / "search.json", "original", "error_ms", value={"cpu": 0.777})
    head = build_report(folder).split('id="headline"')[1].split("</section>")[0]
    assert "11.1\u00a0ms ± 0.777\u00a0ms → " in head
    assert "original on cpu 11.1\u00a0ms ± 0.777\u00a0ms" in head


def test_columns_say_what_kind_of_millisecond_they_hold() -> None:
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", sample_page())
    assert {"predicted (ms)", "predictor&#x27;s error (ms)", "emulated (ms)"} <= set(heads)


def test_predicted_and_emulated_timelines_stand_in_rows_of_their_own() -> None:
    for row in (
        "Original network, predicted",
        "Original network, emulated",
        "Branched network, predicted",
    ):
        assert f">{row}: " in sample_page()


def test_an_emulated_run_is_nowhere_called_measured() -> None:
    timeline, differences = (
        sample_page().split(f'id="{chapter}"')[1].split("</section>")[0]
        for chapter in ("timeline", "differences")
    )
    assert ">original, emulated<" in timeline
    assert ", emulated: " in differences
    for chapter in (timeline, differences):
        assert "measured" not in chapter


def test_a_processor_that_never_works_is_shown_idle() -> None:
    assert sample_page().count("0\u00a0% busy") >= 2, (
        "the dsp of the original, predicted and measured"
    )


def test_runs_of_two_kinds_share_neither_a_table_nor_a_ratio(folder: Path) -> None:
    assert "The exported networks, emulated: " in sample_page()
    rewrite(folder / "run_original.json", "timing", value="predicted")
    page = build_report(folder)
    assert "Runs of the exported networks, predicted milliseconds" in page
    assert "Runs of the exported networks, emulated milliseconds" in page
    assert "The exported networks, " not in page


def test_two_files_that_disagree_about_a_speedup_are_both_quoted(folder: Path) -> None:
    rewrite(folder / "summary.json", "speedup_vs_fastest", value=9.0)
    assert "summary.json says 9.00× over the fastest single processor" in build_report(folder)


@pytest.mark.parametrize("name", FILES)
def test_any_one_file_may_be_absent(name: str, folder: Path) -> None:
    (folder / name).unlink()
    page = build_report(folder)
    Page(page)
    assert page != sample_page()


@pytest.mark.parametrize("name", FILES)
def test_any_one_file_is_enough(name: str, tmp_path: Path) -> None:
    shutil.copy(SAMPLE / name, tmp_path)
    page = build_report(tmp_path)
    Page(page)
    assert "Not in this folder" in page


def test_an_absent_file_is_named_where_it_would_be_shown(folder: Path) -> None:
    (folder / "trace_branched.json").unlink()
    (folder / "summary.json").unlink()
    page = build_report(folder)
    assert re.search(r"Not in this folder: <code>trace_branched.json</code>", page)
    assert re.search(r"Not in this folder: <code>summary.json</code>", page)


def test_folders_that_train_filled_are_shown_as_what_it_printed(folder: Path) -> None:
    page = build_report(folder)
    for network in ("original", "branched"):
        (folder / network).mkdir()
        (folder / f"training_{network}.json").rename(folder / network / "training.json")
    again = build_report(folder)
    start, end = '<section id="training"', "</section>"
    chapters = [text[text.index(start) :].partition(end)[0] for text in (page, again)]
    assert "best accuracy" in chapters[0]
    assert chapters[0] == chapters[1]
    assert "branched/training.json" in again


def test_a_folder_without_any_of_the_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"nothing to report in .*search\.json"):
        build_report(tmp_path)
    with pytest.raises(UnknownName, match="no such file or folder"):
        build_report(tmp_path / "missing")


def test_a_minimal_search_is_shown_with_dashes_for_what_it_does_not_say(tmp_path: Path) -> None:
    segment = {
        "start": "input",
        "end": "output",
        "latency_ms": 0,
        "branches": [{"processor": "cpu", "compute_ms": 0}],
    }
    (tmp_path / "search.json").write_text(
        json.dumps({"plans": [{"latency_ms": 0, "segments": [segment]}]}), encoding="utf-8"
    )
    (tmp_path / "trace_original.json").write_text("[]", encoding="utf-8")
    (tmp_path / "training_original.json").write_text('{"history": []}', encoding="utf-8")
    Page(build_report(tmp_path))


def test_the_command_line_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert command_line(["report", str(SAMPLE), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["report"] == str(out)
    assert out.read_text(encoding="utf-8") == sample_page()
    assert len(told["differences"]) == 5
    assert told["differences"][0] == {
        **{"network": "original", "subgraph": "s1.cpu", "processor": "cpu", "timing": "emulated"},
        **{
            "predicted_ms": pytest.approx(2.604),
            "measured_ms": pytest.approx(2.6531, abs=1e-3),
            "ratio": pytest.approx(1.0188, abs=1e-3),
        },
    }


def test_without_out_the_page_is_in_the_folder_or_beside_the_trace(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, page in (
        (folder, folder / "report.html"),
        (folder / "trace_branched.json", folder / "trace_branched.html"),
    ):
        assert command_line(["report", str(source), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["report"] == str(page)
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_refusal_is_one_line_and_leaves_the_old_page(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    out.write_text("old", encoding="utf-8")
    (folder / "search.json").write_text("{", encoding="utf-8")
    assert command_line(["report", str(folder), "--out", str(out)]) == 1
    told = capsys.readouterr()
    assert re.fullmatch(r"nnstretch: cannot read \S*search\.json, .*\n", told.err)
    assert not told.out
    assert out.read_text(encoding="utf-8") == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "story"]


def test_a_page_that_cannot_be_written_is_a_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(["report", str(SAMPLE), "--out", str(tmp_path / "no" / "page.html")]) == 1
    assert "no folder" in capsys.readouterr().err


def test_a_report_needs_nothing_heavy() -> None:
    code = (
        "import sys, nnstretch.report; print(sorted({'torch', 'onnx', 'numpy', 'scipy',"
        " 'matplotlib'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_a_branch_of_any_depth_is_drawn_with_a_hundred_boxes_at_most(folder: Path) -> None:
    place = ("plans", 0, "segments", 1, "branches", 1, "depth")
    rewrite(folder / "search.json", *place, value=1 << 20)
    page = build_report(folder)
    assert len(page) < 2 * len(build_report(SAMPLE))
    assert f"depth {1 << 20}" in page
