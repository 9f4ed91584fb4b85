"""Pages and pictures of simulations: what they show is what the journal says."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, cast

import pytest

from nnstretch.cli import main
from nnstretch.report.charts.bar_chart import Bar, BarGroup, bar_chart
from nnstretch.report.charts.line_chart import ChartAxis, ChartLine, line_chart
from nnstretch.report.simulations.sweep_data import SweepData
from nnstretch.report.simulations.sweep_pictures import decision_times
from nnstretch.report.simulations.views import RoundView

WORKLOAD = """\
pool: {cpu: 1, fft: 1}
applications:
- {name: fft, costs_ms: {cpu: 4, fft: 1}, arrivals: {period_ms: 2}, instances: 30}
- {name: scan, costs_ms: {cpu: 3}, arrivals: {period_ms: 5}, instances: 9}
"""
SWEEP = """\
workload: workload.yaml
pools: [{cpu: 1}, {cpu: 2, fft: 1}]
policies: [rr, eft]
rates: [1, 2]
trials: 2
"""


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return tmp_path / "workload.yaml"


def test_heights_of_bars_are_in_the_ratio_of_their_values() -> None:
    groups = [BarGroup("a", (Bar(10.0, 2.0), None)), BarGroup("b", (Bar(5.0), Bar(0.0)))]
    drawing = bar_chart("t", "ms", ("x", "y"), groups)
    heights = re.findall(r'height="([\d.]+)" rx="2" class="bar"><title>', drawing)
    values = [float(height) for height in heights]
    assert values[0] == pytest.approx(2 * values[1], rel=0.01)
    assert values[2] == 0
    assert drawing.count("whisker") == 1


def test_rounds_of_several_configurations_are_weighted_by_how_many_there_were() -> None:
    rounds = [RoundView(2.0, 3, 10.0), RoundView(3.0, 1, 30.0), RoundView(9.0, 1, 50.0)]
    drawing = decision_times({"eft": rounds})
    assert "eft, 2.25: 15" in drawing
    assert "eft, 9: 50" in drawing


def test_times_to_decide_are_on_a_logarithmic_axis_only_where_they_are_a_decade_apart() -> None:
    """Then the axis says so; else it begins at 0, so that heights compare as the times do."""
    near = decision_times({"eft": [RoundView(2.0, 3, 43.6), RoundView(9.0, 1, 53.2)]})
    assert "logarithmic" not in near
    heights = [float(height) for height in re.findall(r'cy="([\d.]+)"', near)]
    assert heights[0] - heights[1] < 50, "of more than 200 px"
    far = decision_times({"eft": [RoundView(2.0, 3, 43.6), RoundView(64.0, 1, 532.0)]})
    assert far.count(", logarithmic</text>") == 2


def test_a_journal_makes_the_page_of_its_sweep_once_more(workload: Path) -> None:
    out, again = workload.parent / "out", workload.parent / "again.html"
    sweep = ["simulate", "sweep", str(workload.parent / "sweep.yaml"), "--out", str(out)]
    assert main([*sweep, "--workers", "1"]) == 0
    assert main(["report", str(out), "--out", str(again)]) == 0
    page = again.read_text()
    assert page == (out / "report.html").read_text()
    assert "Open instances on 2 cpu + 1 fft, rate 2" in page
    assert page.count("Latency under") >= 2
    assert "decision" not in "".join(path.name for path in out.iterdir())


def test_decision_times_are_kept_apart_from_what_is_equal_in_every_run(workload: Path) -> None:
    out, without = workload.parent / "out", workload.parent / "without"
    sweep = ["simulate", "sweep", str(workload.parent / "sweep.yaml"), "--workers", "1"]
    assert main([*sweep, "--out", str(without)]) == 0
    assert main([*sweep, "--out", str(out), "--decision-times"]) == 0
    journals = [(folder / "journal.jsonl").read_bytes() for folder in (out, without)]
    assert journals[0] == journals[1]
    assert len((out / "decision_times.jsonl").read_text().splitlines()) == 16
    assert (out / "decision_time.svg").is_file()


def test_decision_times_that_a_kill_cut_off_go_on_with_a_line_of_their_own(workload: Path) -> None:
    out = workload.parent / "out"
    sweep = ["simulate", "sweep", str(workload.parent / "sweep.yaml"), "--workers", "1"]
    command = [*sweep, "--out", str(out), "--decision-times"]
    assert main(command) == 0
    journal, times = out / "journal.jsonl", out / "decision_times.jsonl"
    for path, torn in ((journal, b""), (times, b'{"poli')):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]) + torn)
    assert main(command) == 0
    assert len([json.loads(line) for line in times.read_text().splitlines()]) == 16


def test_a_sweep_whose_configurations_all_fail_decides_nothing(workload: Path) -> None:
    text = workload.read_text()
    workload.write_text(re.sub(r"costs_ms: {[^}]*}", "costs_ms: {dsp: 1}", text))
    sweep = ["simulate", "sweep", str(workload.parent / "sweep.yaml"), "--workers", "1"]
    out = workload.parent / "out"
    assert main([*sweep, "--out", str(out), "--decision-times"]) == 0
    assert not (out / "decision_time.svg").exists()


@pytest.mark.parametrize(
    "row", [(0, 3, 1.5), (2, 0, 1.5), (2, 3, 0)], ids=["none waits", "no round", "no time"]
)
def test_decisions_that_no_axis_shows_have_no_picture(
    workload: Path, capsys: pytest.CaptureFixture[str], row: tuple[float, int, float]
) -> None:
    assert main(["simulate", str(workload), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    path, page = workload.parent / "result.json", workload.parent / "p.html"
    for rounds, shown in (([(2, 3, 1.5), row], True), ([row], False)):
        keys = ("waiting", "rounds", "round_us")
        result["rounds"] = [dict(zip(keys, values, strict=True)) for values in rounds]
        path.write_text(json.dumps(result))
        assert main(["report", str(path), "--out", str(page)]) == 0
        assert ("Time to decide" in page.read_text()) == shown


@pytest.mark.parametrize("waiting", [5e-324, 1e-30, 1e18])
def test_tasks_that_wait_are_drawn_on_a_logarithmic_axis_or_refused_in_one_line(
    workload: Path, capsys: pytest.CaptureFixture[str], waiting: float
) -> None:
    assert main(["simulate", str(workload), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    result["rounds"] = [{"waiting": waiting, "rounds": 1, "round_us": 1}]
    path, page = workload.parent / "result.json", workload.parent / "p.html"
    path.write_text(json.dumps(result))
    drawn = waiting >= 1e-30
    assert main(["report", str(path), "--out", str(page)]) == (0 if drawn else 1)
    said = "" if drawn else f"{path}, rounds[0].waiting, 5e-324, needed is 0 or at least 1e-30"
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert page.exists() == drawn


@pytest.mark.parametrize("rates", [(5e-324, 1.1e-322), (1e-18, 1e18), (1e-18, 3e-18)])
def test_rates_of_a_sweep_have_a_place_on_the_axis_or_are_refused_in_one_line(
    workload: Path, capsys: pytest.CaptureFixture[str], rates: tuple[float, float]
) -> None:
    out, page = workload.parent / "out", workload.parent / "p.html"
    sweep = ["simulate", "sweep", str(workload.parent / "sweep.yaml"), "--workers", "1"]
    assert main([*sweep, "--out", str(out)]) == 0
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    for row in lines[1:]:
        row["rate"] = rates[int(row["rate"]) - 1]
    (out / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawn = rates[0] >= 1e-18
    capsys.readouterr()
    assert main(["report", str(out), "--out", str(page)]) == (0 if drawn else 1)
    assert ("line 2, row.rate, 5e-324 is out of range" in capsys.readouterr().err) != drawn
    assert page.exists() == drawn


def test_a_window_draws_what_runs_in_it(workload: Path) -> None:
    svg, page = workload.parent / "g.svg", workload.parent / "p.html"
    command = ["simulate", str(workload), "--svg", str(svg), "--report", str(page)]
    assert main([*command, "--window", "20:30"]) == 0
    drawing = svg.read_text()
    ticks = [
        float(tick) for tick in re.findall(r'class="small" text-anchor="middle">([\d.]+)<', drawing)
    ]
    assert (min(ticks), max(ticks)) == (20, 30)
    starts = [float(start) for start in re.findall(r"on \w+: ([\d.]+) to", drawing)]
    assert starts
    assert all(16 <= start <= 30 for start in starts)
    assert "Open instances over time" in page.read_text()


ONE_CPU = """\
pool: {cpu: 1}
applications:
- {name: a, costs_ms: {cpu: 1}, arrivals: {times_ms: [0, 100]}}
"""


@pytest.mark.parametrize("more", [[], ["--check"]])
@pytest.mark.parametrize(
    ("window", "axis", "busy"),
    [("0:50", (0, 50), "2"), ("10:50", (10, 50), "0"), ("0:200", (0, 100), "2")],
)
def test_a_window_is_drawn_to_its_end_or_that_of_the_run(
    window: str, axis: tuple[int, int], busy: str, more: list[str], tmp_path: Path
) -> None:
    workload, svg = tmp_path / "workload.yaml", tmp_path / "g.svg"
    workload.write_text(ONE_CPU)
    assert main(["simulate", str(workload), "--svg", str(svg), "--window", window, *more]) == 0
    drawing = svg.read_text()
    ticks = re.findall(r'class="small" text-anchor="middle">([\d.]+)<', drawing)
    assert (float(ticks[0]), float(ticks[-1])) == axis
    assert set(re.findall(r"cpu busy (\d+)\s%", drawing)) == {busy}


def test_a_page_of_several_replications_says_which_of_them_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = tmp_path / "workload.yaml"
    workload.write_text(ONE_CPU.replace("times_ms: [0, 100]}", "exponential_ms: 2}, instances: 10"))
    titles: list[str] = []
    for count in (1, 5):
        svg, page = tmp_path / f"{count}.svg", tmp_path / f"{count}.html"
        command = ["simulate", str(workload), "--svg", str(svg), "--report", str(page)]
        assert main([*command, "--replications", str(count), "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        titles += re.findall(r"makespan ([\d.]+) ms", svg.read_text())[:1]
        assert (f"first of {count} replications" in svg.read_text()) == (count > 1)
        text = page.read_text()
        assert f"{10 * count} of {10 * count}" in text
        assert text.count(f"Means of {count} replications.") == 2 * (count > 1)
        assert text.count("Instances are counted over all of them.") == (count > 1)
        assert text.count(f"Drawn is the first of {count} replications.") == 3 * (count > 1)
    assert titles[0] == titles[1] != f"{result['makespan_ms']:.3g}"


def test_what_simulate_prints_is_a_page_too(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(workload), "--json"]) == 0
    result = workload.parent / "result.json"
    result.write_text(capsys.readouterr().out)
    assert main(["report", str(result), "--out", str(workload.parent / "p.html")]) == 0
    assert "39 of 39" not in (text := (workload.parent / "p.html").read_text())
    assert "30 of 30" in text


@pytest.mark.parametrize("window", ["30:20", "a:b", "-1:5", "nan:3", "5"])
def test_windows_that_are_none_are_refused(
    window: str, workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(workload), f"--window={window}"]) == 1
    assert f"--window is {window}" in capsys.readouterr().err


def test_a_page_leaves_the_journal_of_a_running_sweep_as_it_is(workload: Path) -> None:
    out, page = workload.parent / "out", workload.parent / "p.html"
    sweep = ["simulate", "sweep", str(workload.parent / "sweep.yaml"), "--workers", "1"]
    assert main([*sweep, "--out", str(out), "--decision-times"]) == 0
    assert main(["report", str(out), "--out", str(page)]) == 0
    before = page.read_text()
    written: dict[Path, bytes] = {}
    for name in ("journal.jsonl", "decision_times.jsonl"):
        with (out / name).open("ab") as file:
            file.write(b'{"policy": "e')
        written[out / name] = (out / name).read_bytes()
    assert main(["report", str(out), "--out", str(page)]) == 0
    assert {path: path.read_bytes() for path in written} == written
    assert page.read_text() == before


def test_no_page_takes_the_place_of_a_file_beside_its_journal(
    workload: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = workload.parent / "out"
    sweep = ["simulate", "sweep", str(workload.parent / "sweep.yaml"), "--workers", "1"]
    assert main([*sweep, "--out", str(out), "--decision-times"]) == 0
    times = out / "decision_times.jsonl"
    before = times.read_bytes()
    assert main(["report", str(out / "journal.jsonl"), "--out", str(times)]) == 1
    assert "it is the command's own input" in capsys.readouterr().err
    assert times.read_bytes() == before


def test_a_file_of_one_line_that_nothing_ends_is_refused_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.jsonl"
    notes.write_text('{"a":1}')
    assert main(["report", str(notes)]) == 1
    assert "no rows" in capsys.readouterr().err
    assert notes.read_text() == '{"a":1}'
    assert list(tmp_path.iterdir()) == [notes]


def test_a_journal_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "j.jsonl"
    for lines, words in (({"trial": 1},), "no sweep"), (({"sweep": "x"}, {"rate": 1}), "line 2"):
        journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert main(["report", str(journal), "--out", str(tmp_path / "p.html")]) == 1
        assert words in capsys.readouterr().err


def test_charts_of_nothing_and_of_what_has_no_logarithm_are_drawn() -> None:
    assert "t" in str(bar_chart("t", "ms", ("x",), ()))
    axes = ChartAxis("x", logarithmic=True), ChartAxis("y")
    lines = [ChartLine("a", ((0.0, 1.0), (1.0, 2.0), (5e-324, 3.0))), ChartLine("b", ((0.0, 1.0),))]
    drawn = str(line_chart("t", *axes, lines))
    assert ">a<" in drawn
    assert ">b<" not in drawn
    assert str(line_chart("t", *axes, []))


def test_trials_in_which_nothing_ended_have_no_part_in_a_mean() -> None:
    key = ("as described", "eft", 1.0)
    trials: Any = {key: (3.0, math.nan, 5.0)}
    data = SweepData(cast("Any", None), (), trials)
    mean = data.mean(key, cast("Any", float))
    assert mean is not None
    assert mean.mean == 4.0
    assert data.mean(key, lambda _: math.nan) is None


LATE = """\
pool: {cpu: 1}
policy: least_slack_drop
applications:
- {name: late, costs_ms: {cpu: 5}, arrivals: {period_ms: 10}, instances: 10, deadline_ms: 4}
"""


def test_where_nothing_ended_no_latency_is_shown(tmp_path: Path) -> None:
    workload, out, page = (tmp_path / name for name in ("workload.yaml", "out", "p.html"))
    workload.write_text(LATE)
    (tmp_path / "sweep.yaml").write_text(
        "workload: workload.yaml\npolicies: [eft, least_slack_drop]\nrates: [1, 2]\ntrials: 2\n"
    )
    sweep = ["simulate", "sweep", str(tmp_path / "sweep.yaml"), "--workers", "1"]
    assert main([*sweep, "--out", str(out)]) == 0
    table = (out / "sweep.md").read_text()
    assert table.count("| least_slack_drop | 1 | 2 | – |  | – | 0 | 0 |") == 1
    assert "| eft | 1 | 2 | 5 | 0 | 5 |" in table
    for picture in ("policies.svg", "latency_0.svg"):
        drawing = (out / picture).read_text()
        assert ("eft" in drawing, ", least_slack_drop: 0" in drawing) == (True, False)
        assert "least_slack_drop, 1: 0" not in drawing
    assert main(["simulate", str(workload), "--report", str(page)]) == 0
    assert re.search(
        r">least_slack_drop</td>.*?<td>0</td><td>10</td></tr>", (out / "report.html").read_text()
    )
    assert "0 of 10" in (text := page.read_text())
    assert "<td>10</td><td>0</td><td>10</td></tr>" in text, "missed, refused, dropped"
    assert ">0.000<" not in text


def test_pages_say_how_many_instances_were_refused(tmp_path: Path) -> None:
    workload, out, page = (tmp_path / name for name in ("workload.yaml", "out", "p.html"))
    limited = LATE.replace("deadline_ms: 4", "queue_limit: 1").replace(
        "costs_ms: {cpu: 5}", "costs_ms: {cpu: 15}"
    )
    workload.write_text(limited.replace("least_slack_drop", "eft"))
    (tmp_path / "sweep.yaml").write_text("workload: workload.yaml\npolicies: [eft]\nrates: [1]\n")
    sweep = ["simulate", "sweep", str(tmp_path / "sweep.yaml"), "--workers", "1"]
    assert main([*sweep, "--out", str(out)]) == 0
    assert main(["simulate", str(workload), "--report", str(page)]) == 0
    assert ">5 of 10<" in page.read_text()
    assert "<td>0</td><td>5</td><td>0</td></tr>" in page.read_text(), "missed, refused, dropped"
    means = (out / "report.html").read_text().split('id="means"')[1]
    assert "<td>5</td><td>0</td></tr>" in means
