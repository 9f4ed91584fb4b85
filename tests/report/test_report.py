"""The page shows what is there, says what is not, refuses what is broken, and lets nothing hostile
through.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.cli import main as command_line
from nnstretch.errors import BrokenFile, NnstretchError, UnknownName
from nnstretch.report import build_report, write_report
from nnstretch.report.chapters.runs import difference_tables
from nnstretch.report.charts.latency_breakdown import terms_of
from nnstretch.report.charts.palette import colour_class
from nnstretch.report.charts.svg import AxisScale
from nnstretch.report.constraint_help import explain_constraint
from nnstretch.report.format_numbers import amount, digits, ms, plain_ms, tick, ticks
from nnstretch.report.html import Markup, escape, join, tag
from nnstretch.report.load.data import Timeline, TimelineSpan
from nnstretch.report.load.folder import FILES, read_report_data
from nnstretch.report.load.trace import meetings_us, read_timelines
from nnstretch.report.load.trace_diff import largest
from nnstretch.report.page import CHAPTERS
from nnstretch.task import Task
from nnstretch.trace import Span

SAMPLE = Path(__file__).parents[1] / "data" / "report"
JSON_FILES = tuple(name for name in FILES if name.endswith(".json"))
HOSTILE = "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&\x00\u202e"


@cache
def sample_page() -> str:
    return build_report(SAMPLE)


@cache
def sample(name: str) -> str:
    return (SAMPLE / name).read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE, tmp_path / "story"))


def rewrite(path: Path, *keys: str | int, value: object) -> None:
    """Set one place of a JSON file."""
    whole = json.loads(path.read_text(encoding="utf-8"))
    at = whole
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = value
    path.write_text(json.dumps(whole), encoding="utf-8")


class Page(HTMLParser):
    """Notes what a browser would see, and that every element that opens also closes."""

    VOID = frozenset({"meta", "br", "hr", "col"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.children: dict[str, list[list[str]]] = {"svg": [], "table": []}
        self.attributes: list[tuple[str, str, str | None]] = []
        self._inside: list[tuple[str, list[str]]] = []
        self.feed(html)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, name: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[name] += 1
        self.attributes += [(name, key, value) for key, value in attrs]
        if self._inside:
            self._inside[-1][1].append(name)
        if name in self.VOID:
            return
        self.open.append(name)
        self._inside.append((name, []))

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name
        closed, children = self._inside.pop()
        if closed in self.children:
            self.children[closed].append(children)

    def values(self, key: str) -> list[str]:
        return [value or "" for _, found, value in self.attributes if found == key]


# The whole page


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


def test_columns_say_what_kind_of_millisecond_they_hold() -> None:
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", sample_page())
    assert {"predicted (ms)", "predictor&#x27;s error (ms)", "emulated (ms)"} <= set(heads)


def test_predicted_and_measured_timelines_stand_in_rows_of_their_own() -> None:
    for row in (
        "Original network, predicted",
        "Original network, measured on emulated processors",
        "Branched network, predicted",
    ):
        assert f">{row}: " in sample_page()


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


# Absent files


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
    with pytest.raises(UnknownName, match="no such folder"):
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


# Broken files


@pytest.mark.parametrize(
    ("name", "keys", "value", "says"),
    [
        (
            "search.json",
            ("plans", 0, "latency_ms"),
            "fast",
            r"search\.json, plans\[0\]\.latency_ms, 'fast' is str, expected float",
        ),
        (
            "search.json",
            ("plans", 0, "latency_ms"),
            -1,
            r"latency_ms, -1\.0 is out of range, needed is at least 0",
        ),
        (
            "search.json",
            ("plans", 0, "latency_ms"),
            None,
            r"plans\[0\], key 'latency_ms' is missing",
        ),
        (
            "search.json",
            ("plans", 0, "segments", 1, "branches"),
            [],
            r"segments\[1\]\.branches, 0 items, needed are 1 to 1000",
        ),
        (
            "search.json",
            ("plans", 0, "segments", 1, "branches", 0, "depth"),
            1.5,
            r"branches\[0\]\.depth, '1\.5' is float, expected int",
        ),
        ("search.json", ("plans",), {"latency_ms": 1}, r"plans, .* is dict, expected list"),
        ("search.json", ("optimal",), "yes", r"optimal, 'yes' is str, expected bool"),
        (
            "search.json",
            ("space", "refused", "memory"),
            True,
            r"space\.refused\.memory, 'True' is bool, expected float",
        ),
        ("search.json", ("original",), [], r"original, '\[\]' is list, expected dict"),
        (
            "run_branched.json",
            ("processors", "cpu"),
            3,
            r"run_branched\.json, processors\.cpu, '3' is int, expected dict",
        ),
        (
            "run_branched.json",
            ("latency_ms", "median"),
            float("nan"),
            r"latency_ms\.median, nan is not finite",
        ),
        (
            "trace_original.json",
            ("traceEvents", 4),
            "event",
            r"trace_original\.json, traceEvents\[4\], 'event' is str, expected dict",
        ),
        (
            "trace_original.json",
            ("traceEvents",),
            None,
            r"traceEvents, 'None' is NoneType, expected list",
        ),
        (
            "trace_original.json",
            ("traceEvents", 0, "pid"),
            [1],
            r"traceEvents\[0\]\.pid, '\[1\]' is list, expected int or float or str",
        ),
        (
            "training_original.json",
            ("history", 2, "val_accuracy"),
            "high",
            r"training_original\.json, history\[2\]\.val_accuracy",
        ),
        (
            "summary.json",
            ("rows", 0, "network"),
            18,
            r"summary\.json, rows\[0\]\.network, '18' is int, expected str",
        ),
        ("trace_original.json", ("traceEvents", 3, "ts"), 1e308, r"\]\.ts, 1e\+308 is out"),
        ("training_original.json", ("history", 0, "epoch"), -1e308, r"epoch, -1e\+308 is out"),
        ("summary.json", ("notes",), 10**400, r"summary\.json, notes, .* is int, expected list"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    folder: Path, name: str, keys: tuple[Any, ...], value: object, says: str
) -> None:
    rewrite(folder / name, *keys, value=value)
    with pytest.raises(BrokenFile, match=says) as refusal:
        build_report(folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("search.json", b"", r"search\.json, line 1 column 1"),
        ("search.json", b'{"plans": [', r"search\.json, line 1 column \d+"),
        ("search.json", b"\xff\xfe", r"search\.json is no text, byte 0"),
        ("search.json", b"[1]", r"search\.json, top level, '\[1\]' is list, expected dict"),
        ("search.json", b"[" * 200_000, r"search\.json"),
        ("search.json", b'{"plans": [], "plans": []}', r"search\.json, a key twice among"),
        ("summary.json", b'{"rows": ' + b"1" * 5000 + b"}", r"summary\.json"),
        ("plan.yaml", b"segments: [", r"plan\.yaml is no YAML, line \d"),
        ("plan.yaml", b"- just\n- a list\n", r"plan\.yaml, top level is no mapping"),
        ("plan.yaml", b"a: \x00", r"plan\.yaml"),
    ],
)
def test_a_file_not_of_its_kind_is_refused_with_the_line(
    folder: Path, name: str, content: bytes, says: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(BrokenFile, match=says) as refusal:
        build_report(folder)
    assert "\n" not in str(refusal.value)


def test_a_folder_in_the_place_of_a_file_is_refused(folder: Path) -> None:
    (folder / "search.json").unlink()
    (folder / "search.json").mkdir()
    with pytest.raises(BrokenFile, match=r"cannot read .*search\.json"):
        build_report(folder)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of every value inside, containers included."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [path, *(found for key, inner in inside for found in leaves(inner, (*path, key)))]


@cache
def places_of(name: str) -> list[tuple[Any, ...]]:
    return [path for path in leaves(json.loads(sample(name))) if path]


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.just(HOSTILE),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def page_or_refusal(folder: Path) -> tuple[str | None, str]:
    try:
        return build_report(folder), ""
    except NnstretchError as refusal:
        return None, str(refusal)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_in_any_place_is_shown_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(JSON_FILES))
    path = data.draw(st.sampled_from(places_of(name)))
    folder = tmp_path_factory.mktemp("story")
    shutil.copy(SAMPLE / name, folder)
    rewrite(folder / name, *path, value=data.draw(json_values))
    page, refusal = page_or_refusal(folder)
    assert page is not None or (name in refusal and "\n" not in refusal)
    Page(page or "")
    (page or "").encode("utf-8")


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(JSON_FILES), share=st.floats(0, 0.999))
def test_a_truncated_file_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, name: str, share: float
) -> None:
    folder = tmp_path_factory.mktemp("story")
    whole = sample(name).rstrip()
    (folder / name).write_text(whole[: int(share * len(whole))], encoding="utf-8")
    with pytest.raises(BrokenFile, match=re.escape(name)):
        build_report(folder)


# Hostile content


def poisoned(value: Any, keep: frozenset[str] = frozenset({"ph"})) -> Any:
    """Every text replaced, keys of free-form objects too."""
    if isinstance(value, dict):
        return {key: inner if key in keep else poisoned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [poisoned(inner) for inner in value]
    return HOSTILE if isinstance(value, str) else value


def test_no_text_of_any_file_becomes_markup(folder: Path) -> None:
    for name in JSON_FILES:
        whole = poisoned(json.loads(sample(name)))
        if name == "search.json":
            whole["space"]["refused"][HOSTILE] = whole["original"]["latency_ms"][HOSTILE] = 5
            whole["provenance"] = {HOSTILE: [HOSTILE, {HOSTILE: 1}]}
        if name.startswith("run"):
            whole["processors"][HOSTILE] = {"busy_ms": 1, "utilisation": 0.5}
        (folder / name).write_text(json.dumps(whole), encoding="utf-8")
    (folder / "plan.yaml").write_text(
        "model: '</pre><script>alert(1)</script>'\n", encoding="utf-8"
    )
    html = build_report(folder)
    page = Page(html)
    assert page.tags["script"] == 1
    assert not page.tags["img"]
    assert not [key for _, key, _ in page.attributes if key.startswith("on")]
    assert not set("\x00\u202e") & set(html)
    assert "&lt;script&gt;alert(1)" in html


def test_texts_that_are_not_unicode_scalars_can_still_be_written(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "summary.json").write_text('{"title": "\\ud800 half", "rows": []}', encoding="utf-8")
    write_report(folder, tmp_path / "page.html")
    assert "\ufffd half" in (tmp_path / "page.html").read_text(encoding="utf-8")


@given(st.text())
def test_escaped_text_reads_back_as_itself(text: str) -> None:
    safe = escape(text)
    assert not set("<>\"'") & set(safe)
    assert escape(safe) == safe, "Markup is not escaped twice"
    assert "<" not in tag("b", text, title=text)[2:-4].split(">", 1)[1]


def test_markup_passes_and_text_does_not() -> None:
    assert join((Markup("<b>"), "<i>", None)) == "<b>&lt;i&gt;"
    assert (
        tag("rect", x=1.50, y=2, fill=None, class_="a", text_anchor="end")
        == '<rect x="1.5" y="2" class="a" text-anchor="end"></rect>'
    )


# Numbers and geometry


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
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


# Predicted and played


def drawn(source: str, *spans: tuple[str, int, float, float], processor: str = "cpu") -> Timeline:
    return Timeline(
        source,
        tuple(
            TimelineSpan(Span(start, end, Task(f"{name}#{request}", name), processor), "s1", False)
            for name, request, start, end in spans
        ),
        0,
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


# Timelines


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


# Command line


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
