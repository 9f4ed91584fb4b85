"""The comparison with published plans.

Fair bounds, honest ratios, rows that survive an interruption.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import search_journal
import yaml
from comparison_page import Results, page
from comparison_rows import (
    ALL_MACS,
    COMBINATIONS,
    Bound,
    Original,
    Published,
    Row,
    Searched,
    Task,
    chosen,
    combination_of,
    gap,
    geometric_mean,
    limits_of,
    nearest,
    sum_of_rates,
    tasks_of,
)
from hypothesis import given
from hypothesis import strategies as st
from published_plans import Phone, broken, outside
from search_journal import (
    Allowance,
    append,
    code_fingerprint,
    fresh,
    key_of,
    read_journal,
    run,
    search_sources,
)
from support.anynet_yaml import configurations, document
from support.scripts import load_command

from nnstretch.errors import BadInput, BrokenFile, UnknownName
from nnstretch.predict import load_soc
from nnstretch.stretch import lower
from nnstretch.stretch.published.anynet import import_plan, read_config
from nnstretch.stretch.published.configs_csv import config_from_rows
from nnstretch.stretch.search.constraints import SegmentLimits

nn_stretch = load_command("nn_stretch")
PUBLISHED = configurations()
DEFAULTS = asdict(SegmentLimits())
FOUND = {
    "latency_us": 50.0,
    "error_us": 2.0,
    "macs": 800,
    "params": 400,
    "iso_mac_us": 90.0,
    "optimal": True,
}
USED = {"processors": ("cpu", "dsp"), "meetings": 1}


@cache
def phone() -> Phone:
    return Phone(load_soc("mi9"))


def original(network: str = "R-34", **us: float) -> Original:
    alone = {"cpu": 100.0, "gpu": 200.0, "dsp": 125.0} | us
    return Original(
        network, "torchvision:resnet34", 1000, 500, alone, dict.fromkeys(alone, 1.0), {"cpu": 101.0}
    )


def plan(
    config: str, macs: int = 700, params: int = 300, us: float = 80.0, **more: Any
) -> Published:
    network, _, _ = config.rpartition("-")
    combination = combination_of(config)
    assert combination is not None
    return Published(
        config,
        network,
        combination,
        macs,
        params,
        us,
        1.0,
        None,
        processors=COMBINATIONS[combination],
        **more,
    )


def searched(task: Task, code: str = "now", **more: Any) -> Searched:
    row = Searched(task.network, task.combination, task.bound.source, DEFAULTS, code)
    return replace(row, **FOUND | USED | more)


def row_of(published: Published | None = None, **more: Any) -> Row:
    task = Task("R-34", "C+D", Bound("R-34-CD", 700, 300, borrowed=published is None))
    return Row(original(), task, published, searched(task, **more))


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_configuration_read_from_its_rows_is_the_one_read_from_its_file(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document(PUBLISHED[name])))
    assert replace(config_from_rows(PUBLISHED[name]), where="") == replace(
        read_config(path), where=""
    )


def test_a_row_that_is_no_configuration_is_refused_by_name() -> None:
    rows = [dict(row) for row in PUBLISHED["R-34-CD"]]
    rows[1]["width"] = "many"
    with pytest.raises(BrokenFile, match=r"R-34-CD.*configs\.csv"):
        config_from_rows(rows)


def test_missing_data_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"configs\.csv"):
        Phone(load_soc("mi9"), tmp_path).networks  # noqa: B018


def test_a_published_plan_is_priced_with_its_own_numbers() -> None:
    found = {p.combination: p for p in phone().published("R-34")}
    assert found.keys() == COMBINATIONS.keys()
    for priced in found.values():
        row = PUBLISHED[priced.config][0]
        assert (priced.macs, priced.params) == (
            int(row["cfg_macs_224_train"]),
            int(row["cfg_params_train"]),
        )
        assert "main_branch" in priced.breaks, (
            "section 5 of the published data: R-34 is below 0.4 and 0.8 of its stages"
        )
        assert priced.outside == ()
    assert found["C+D"].measured_us == 13255
    assert found["C+G+D"].measured_us is None
    assert found["C+D"].meetings == 4
    assert found["G+D"].processors == ("cpu", "dsp", "gpu"), "its stem and head stay on the CPU"


def test_plans_outside_the_search_space_are_named() -> None:
    analysis = phone().analysis("R-34")
    lowered = lower(
        analysis,
        import_plan(config_from_rows(PUBLISHED["R-34-CDG"]), analysis, phone().family("R-34")),
    )
    assert outside(lowered, analysis, SegmentLimits(min_width=0.9)) == ("narrower than min_width",)
    assert (
        broken(
            phone().trial("R-34", lowered),
            phone().soc,
            SegmentLimits(alpha=9, beta=9, main_macs=0, segment_macs=0),
        )
        == ()
    )


@pytest.mark.parametrize(
    ("config", "combination"),
    [("R-34-CD", "C+D"), ("R-34-DG", "G+D"), ("RX-1.6-CDG", "C+G+D"), ("EN-L4-C", None)],
)
def test_the_letters_of_a_configuration_are_its_processors(
    config: str, combination: str | None
) -> None:
    assert combination_of(config) == combination


def test_an_unknown_letter_is_refused() -> None:
    with pytest.raises(BadInput, match="'CN'"):
        combination_of("R-34-CN")


def test_a_combination_without_a_plan_borrows_the_nearest_bound() -> None:
    plans = [
        plan("R-34-CG", 690),
        plan("R-34-DG", 710),
        plan("R-34-CDG", 600),
        plan("R-50-CD", 999),
    ]
    near = nearest(plans, "R-34", "C+D")
    assert near is not None
    assert near.config == "R-34-DG", "as many processors, then most MACs; other networks never"
    near = nearest([plan("R-34-CG", 690), plan("R-34-CD", 710)], "R-34", "C+G+D")
    assert near is not None
    assert near.config == "R-34-CD"
    assert nearest(plans, "EN-B5", "C+D") is None


def test_every_published_plan_sets_the_bound_of_its_own_search() -> None:
    plans = [
        plan("R-34-CD", 700, 300),
        replace(plan("R-34-CD", 900, 400), config="R-34-other"),
        plan("R-34-CG", 650),
    ]
    tasks = tasks_of(plans, [original()], ["C+D", "G+D"])
    assert [(t.combination, t.bound.source, t.bound.borrowed) for t in tasks] == [
        ("C+D", "R-34-CD", False),
        ("C+D", "R-34-other", False),
        ("G+D", "R-34-other", True),
    ]
    with pytest.raises(BadInput, match="EN-B5"):
        tasks_of(plans, [original("EN-B5")], ["C+D"])


def test_the_scale_is_searched_at_all_macs() -> None:
    tasks = tasks_of([plan("R-50-CD")], [original("R-50")], ["C+D"])
    assert [(t.bound.source, t.bound.macs, t.bound.params) for t in tasks] == [
        ("R-50-CD", 700, 300),
        (ALL_MACS, 1000, 0),
    ]


def test_ratios_of_a_row() -> None:
    row = row_of(plan("R-34-CD"))
    assert row.fastest_us / 50 == 2.0
    assert row.rates == pytest.approx(1 + 100 / 125)
    assert row.limit(800) == pytest.approx(1.8 / 0.8)
    assert row.share(50, 800) == pytest.approx(2 / 2.25)
    assert row.met is True


def test_alone_means_on_a_processor_of_the_combination() -> None:
    task = Task("R-34", "G+D", Bound("R-34-DG", 700, 300))
    assert Row(original(), task, None, None).fastest == "dsp"


@pytest.mark.parametrize("change", [{"latency_us": 81.0}, {"macs": 699}, {"params": 299}])
def test_a_plan_that_is_slower_or_smaller_does_not_count(change: Mapping[str, Any]) -> None:
    assert row_of(plan("R-34-CD"), **change).met is False


@given(us=st.lists(st.floats(1, 1e6), min_size=3, max_size=3))
def test_the_sum_of_rates_lies_between_one_and_the_number_of_processors(us: list[float]) -> None:
    alone = original(**dict(zip(("cpu", "gpu", "dsp"), us, strict=True)))
    for combination, processors in COMBINATIONS.items():
        assert 1 <= sum_of_rates(alone, combination) <= len(processors) + 1e-9


@given(us=st.floats(1, 1e4), macs=st.integers(1, 5000))
def test_a_perfect_split_reaches_the_whole_limit(us: float, macs: int) -> None:
    row = row_of()
    assert row.share(row.fastest_us / row.limit(macs), macs) == pytest.approx(1)
    assert row.share(us, macs) == pytest.approx(
        macs / us / sum(1000 / row.original.predicted_us[p] for p in row.processors)
    )


@given(values=st.lists(st.floats(0.1, 10), min_size=1, max_size=6), factor=st.floats(0.1, 10))
def test_a_geometric_mean_scales_and_stays_inside(values: list[float], factor: float) -> None:
    mean = geometric_mean(values)
    assert mean is not None
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geometric_mean(v * factor for v in values) == pytest.approx(mean * factor)


def test_no_values_have_no_mean() -> None:
    assert geometric_mean([]) is None


def test_the_gap_of_a_plan_is_what_a_better_one_could_save() -> None:
    task = row_of().task
    assert gap(searched(task)) == 0
    assert gap(searched(task, optimal=False, lower_bound_us=45.0)) == pytest.approx(0.1)


def test_choices_keep_their_order_and_refuse_what_is_unknown() -> None:
    assert chosen("R-50, R-34", ("R-34", "R-50", "RX-4"), "--networks") == ("R-34", "R-50")
    assert chosen(None, ("a", "b"), "--networks") == ("a", "b")
    for text in ("R-99", ","):
        with pytest.raises(BadInput, match="--networks"):
            chosen(text, ("R-34",), "--networks")


def test_limits_override_the_defaults_by_name() -> None:
    assert limits_of("alpha=0.7, segment_macs=0.6", DEFAULTS) == DEFAULTS | {
        "alpha": 0.7,
        "segment_macs": 0.6,
    }
    for text in ("alhpa=1", "alpha", "alpha=much"):
        with pytest.raises(BadInput, match="--limits"):
            limits_of(text, DEFAULTS)


@pytest.mark.parametrize(
    "argv", [["--limits", "alpha=-1"], ["--timeout-s", "0"], ["--out", "/no/such/folder/x.md"]]
)
def test_wrong_wishes_are_refused_before_any_work(argv: list[str]) -> None:
    with pytest.raises(BadInput):
        nn_stretch.settings_of(nn_stretch.arguments().parse_args(argv))


def test_the_journal_lies_beside_the_page(tmp_path: Path) -> None:
    assert (
        nn_stretch.settings_of(
            nn_stretch.arguments().parse_args(["--out", str(tmp_path / "page.md")])
        ).journal
        == tmp_path / "page.rows.jsonl"
    )


def test_a_journal_gives_back_what_was_written_and_the_last_row_counts(tmp_path: Path) -> None:
    path, task = tmp_path / "rows.jsonl", row_of().task
    refused = Searched("R-34", "C+G", "R-34-CG", DEFAULTS, "now", refusal="no plan")
    for row in (searched(task, latency_us=99.0), refused, searched(task)):
        append(path, row)
    found = read_journal(path)
    assert found[key_of(searched(task))] == searched(task)
    assert math.isnan(found[key_of(refused)].latency_us)
    assert "NaN" not in path.read_text()


def test_a_line_cut_short_costs_only_itself(tmp_path: Path) -> None:
    path, task = tmp_path / "rows.jsonl", row_of().task
    append(path, searched(task))
    with path.open("a") as file:
        file.write('{"network": "R-3')
    assert len(read_journal(path)) == 1
    append(path, searched(task, latency_us=60.0))
    assert read_journal(path)[key_of(searched(task))].latency_us == 60


@pytest.mark.parametrize("line", ["{", "3", '{"network": 1}', '{"network": "x", "limits": 3}'])
def test_a_journal_that_was_changed_is_refused_with_the_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(line + "\n")
    append(path, searched(row_of().task))
    with pytest.raises(BrokenFile, match="line 1"):
        read_journal(path)


def test_rows_of_other_code_other_limits_or_a_stop_are_searched_again() -> None:
    task = row_of().task
    journal = {key_of(row): row for row in [searched(task)]}
    assert fresh(task, DEFAULTS, journal, "now")[1] == ""
    assert fresh(task, DEFAULTS, journal, "later")[1] == "code or data changed"
    assert fresh(task, DEFAULTS | {"alpha": 0.7}, journal, "now") == (None, "not searched yet")
    stopped = searched(task, stopped=True, refusal="longer than 1 s")
    assert fresh(task, DEFAULTS, {key_of(stopped): stopped}, "now")[1] == "stopped the last time"


@pytest.mark.parametrize(
    ("code", "keep_old", "search", "runs", "old"),
    [
        ("now", False, True, 0, False),
        ("before", False, True, 1, False),
        ("before", True, True, 0, True),
        ("before", False, False, 0, True),
    ],
)
def test_a_row_is_searched_only_where_the_journal_cannot_answer(
    code: str,
    keep_old: bool,
    search: bool,
    runs: int,
    old: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    task, ran = row_of().task, []
    monkeypatch.setattr(nn_stretch, "run", lambda *_: ran.append(1) or searched(task))
    known = {key_of(row): row for row in [searched(task, code)]}
    row, is_old = nn_stretch.searched_row(
        task,
        "",
        nn_stretch.ComparisonSettings(
            DEFAULTS, tmp_path / "rows.jsonl", search, keep_old, Allowance(1, 1)
        ),
        known,
        "now",
    )
    assert (len(ran), is_old) == (runs, old)
    assert row is not None


def test_the_fingerprint_follows_the_data(tmp_path: Path) -> None:
    (tmp_path / "configs.csv").write_text("config\n")
    assert code_fingerprint() == code_fingerprint() != code_fingerprint(tmp_path)
    names = {path.name for path in search_sources()}
    assert names >= {"branch_and_bound.py", "cost_to_go.py", "load_soc.py", "lower.py"}


def test_a_search_that_takes_too_long_is_stopped_and_said_so() -> None:
    row = run(row_of().task, DEFAULTS, Allowance(0.05, 1 << 30), lambda *_: None)
    assert row.stopped
    assert not row.found
    assert row.refusal == "longer than 0.05 s"


def test_whatever_a_search_raises_ends_only_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(error: Exception) -> Searched:
        sent: list[Any] = []
        monkeypatch.setattr(search_journal.resource, "setrlimit", lambda *_: None)
        monkeypatch.setattr(search_journal, "searched", lambda *_: (_ for _ in ()).throw(error))
        pipe = type("Pipe", (), {"send": lambda self, message: sent.append(message)})()
        search_journal.child(row_of().task, DEFAULTS, 1 << 30, pipe)
        return Searched(**sent[-1][1])

    assert (
        failing(MemoryError()).refusal == "out of memory, 1.07374 GB of data or less were allowed"
    )
    assert failing(ValueError("broken")).refusal == "ValueError: broken"
    assert failing(ValueError("broken")).stopped
    refused = failing(BadInput("no plan for x"))
    assert (refused.refusal, refused.stopped) == ("no plan for x", False)


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
