"""What is broken is refused by its place, and nothing hostile gets through."""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.report_page import (
    HOSTILE,
    JSON_FILES,
    SAMPLE,
    Page,
    json_values,
    leaves,
    page_or_refusal,
    poisoned,
    rewrite,
    sample,
)

from nnstretch.cli import run_verb
from nnstretch.errors import BrokenFile
from nnstretch.report import build_report, write_report
from nnstretch.report.html import Markup, escape, join, tag


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


@cache
def places_of(name: str) -> list[tuple[Any, ...]]:
    return [path for path in leaves(json.loads(sample(name))) if path]


@pytest.mark.slow
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


def trace_of(predicted_us: float, played_us: float, start_us: float) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    for pid, (source, time_us) in enumerate((("predicted", predicted_us), ("run", played_us))):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": source}})
        events.append({"ph": "X", "name": "s0.cpu", "pid": pid, "ts": start_us, "dur": time_us})
    return {"traceEvents": events}


@pytest.mark.parametrize(
    ("predicted_us", "refused"),
    [(1e-300, "traceEvents[1].dur, 1e-300, needed is 0 or at least 1e-30"), (1e-30, ""), (0, "")],
)
@pytest.mark.parametrize("start_us", [0, 5e-324, -1e18])
def test_times_that_are_far_apart_make_a_page_and_json_or_are_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    predicted_us: float,
    refused: str,
    start_us: float,
) -> None:
    trace, page = tmp_path / "t.json", tmp_path / "t.html"
    trace.write_text(json.dumps(trace_of(predicted_us, 1e18, start_us)))
    assert run_verb("report", [str(trace), "--out", str(page), "--json"]) == bool(refused)
    out, err = capsys.readouterr()
    assert (refused in err, err.count("\n")) == (True, int(bool(refused)))
    assert page.exists() == bool(out) == (not refused)


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
