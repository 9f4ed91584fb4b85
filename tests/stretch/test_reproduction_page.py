"""The page of published and searched plans."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from comparison_page import Results, page
from comparison_rows import (
    Row,
)
from support.reproduction_rows import DEFAULTS, original, plan, row_of, searched
from support.scripts import load_command

nn_stretch = load_command("nn_stretch")


def page_of(*rows: Row) -> str:
    plans = tuple(row.published for row in rows if row.published is not None)
    return page(Results((original(),), plans, rows, DEFAULTS, False, 0, "somewhere"))


def cells(text: str, start: str) -> list[str]:
    return (
        next(line for line in text.splitlines() if line.startswith(start))
        .removeprefix("| ")
        .removesuffix(" |")
        .split(" | ")
    )


def test_a_line_of_the_page_never_mixes_predicted_and_measured() -> None:
    text = page_of(row_of(replace(plan("R-34-CD"), measured_us=77.0)))
    heads, line = cells(text, "| network | on | published plan"), cells(text, "| R-34 | C+D")
    named = dict(zip(heads, line, strict=True))
    assert named["published ms"] == "0.08 ± 0.00"
    assert named["published, measured ms"] == "0.08"
    assert named["vs fastest alone"] == "2.00x"
    assert named["vs published"] == "1.60x"
    assert (named["limit"], named["share of limit"]) == ("2.25x", "0.89")
    assert named["proof"] == "optimal"


def test_every_line_of_a_table_has_every_column() -> None:
    empty = replace(row_of(), searched=None)
    refused = replace(
        row_of(plan("R-34-CD")),
        searched=searched(row_of().task, refusal="no plan | none", latency_us=math.nan),
    )
    text = page_of(row_of(plan("R-34-CD")), row_of(), empty, refused)
    width = len(cells(text, "| network | on | published plan"))
    lines = [line for line in text.splitlines() if line.startswith("| R-34 | C+D")]
    assert [line.count(" | ") + 1 for line in lines] == [width] * 4
    assert "not searched" in lines[2]
    assert "no plan / none" in lines[3]


def test_a_found_plan_slower_than_the_published_one_says_why() -> None:
    published = plan("R-34-CD", us=40.0, breaks=("main_branch",), outside=("group width",))
    text = page_of(row_of(published))
    assert (
        "slower than published by 25.0%; the published plan has main_branch, group width, see"
        " --limits" in text
    )


def test_a_processor_that_a_found_plan_leaves_idle_is_named() -> None:
    assert "leaves dsp idle" in page_of(row_of(plan("R-34-CD"), processors=("cpu",)))
    assert "idle" not in page_of(row_of(plan("R-34-CD"))).split("## Originals")[1]


def test_missing_rows_and_old_rows_are_counted_on_the_page() -> None:
    results = Results(
        (original(),), (), (replace(row_of(), searched=None),), DEFAULTS, True, 3, "somewhere"
    )
    text = page(results)
    assert "1 of 1 rows are not searched yet" in text
    assert "3 rows were searched by other code" in text
    assert "changed by --limits" in text


def test_a_borrowed_bound_takes_no_part_in_means_of_published_plans() -> None:
    text = page_of(row_of(plan("R-34-CD")), row_of())
    counted = cells(text.split("## Geometric means")[1], "| C+D")
    assert (counted[1], counted[6]) == ("2", "1")


def test_the_page_can_be_read_back_as_json() -> None:
    refused = replace(
        row_of(), searched=searched(row_of().task, refusal="no plan", latency_us=math.nan)
    )
    results = Results(
        (original(),), (), (row_of(plan("R-34-CD")), refused), DEFAULTS, False, 0, "somewhere"
    )
    data = json.loads(json.dumps(nn_stretch.as_json(results), allow_nan=False))
    assert data["rows"][0]["speedup_vs_fastest"] == 2
    assert data["rows"][1]["searched"]["latency_us"] is None
