"""Wrong and hostile values in what a page of a pipeline is made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.pipeline_results import RUN, SPLIT
from support.report_page import (
    HOSTILE,
    Page,
    json_values,
    leaves,
    page_or_refusal,
    poisoned,
    rewrite,
)

from nnstretch.errors import BrokenFile
from nnstretch.report import build_report
from nnstretch.report.load.pipeline import PIPELINE_FILES


@pytest.mark.parametrize(
    ("name", "keys", "value", "says"),
    [
        (
            "run_pipeline.json",
            ("stages", 0, "share_ms"),
            "slow",
            r"stages\[0\]\.share_ms, 'slow' is str, expected float",
        ),
        (
            "run_pipeline.json",
            ("stages", 1, "name"),
            None,
            r"stages\[1\], key 'name' is missing",
        ),
        (
            "run_pipeline.json",
            ("period_ms",),
            -1,
            r"period_ms, -1\.0 is out of range, needed is at least 0",
        ),
        ("partition.json", ("stages",), {}, r"stages, '\{\}' is dict, expected list"),
        (
            "trace_pipeline.json",
            ("otherData", "pipeline", 0),
            3,
            r"otherData\.pipeline\[0\], '3' is int, expected dict",
        ),
        (
            "trace_pipeline.json",
            ("traceEvents",),
            None,
            r"traceEvents, 'None' is NoneType, expected list",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(
    folder: Path, name: str, keys: tuple[Any, ...], value: object, says: str
) -> None:
    rewrite(folder / name, *keys, value=value)
    with pytest.raises(BrokenFile, match=says):
        build_report(folder)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_in_any_place_is_shown_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(("run_pipeline.json", "partition.json")))
    whole = RUN if name.startswith("run") else SPLIT
    where = tmp_path_factory.mktemp("story")
    (where / name).write_text(json.dumps(whole), encoding="utf-8")
    rewrite(
        where / name,
        *data.draw(st.sampled_from([path for path in leaves(whole) if path])),
        value=data.draw(json_values),
    )
    page, refusal = page_or_refusal(where)
    assert page is not None or (name in refusal and "\n" not in refusal)
    Page(page or "")


def test_no_text_of_any_file_becomes_markup(folder: Path) -> None:
    for name in PIPELINE_FILES:
        whole = poisoned(
            json.loads((folder / name).read_text(encoding="utf-8")), frozenset({"ph", "task"})
        )
        (folder / name).write_text(json.dumps(whole), encoding="utf-8")
    html = build_report(folder)
    assert Page(html).tags["script"] == 1
    assert not Page(html).tags["img"]
    assert HOSTILE not in html
