"""Workload files: what they say, and every way in which they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nnstretch.errors import BadInput, BrokenFile, NnstretchError, UnknownName
from nnstretch.files.workload.arrival_csv import read_arrivals
from nnstretch.files.workload.workload_yaml import read_workload

APP = "{name: a, costs_ms: {cpu: 1.0}, arrivals: {period_ms: 2}, instances: 3}"
GOOD = f"pool: {{cpu: 1}}\napplications:\n- {APP}\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_workload_is_read_with_its_defaults(tmp_path: Path) -> None:
    workload = read_workload(write(tmp_path / "w.yaml", GOOD))
    assert (workload.policy, workload.queueing, workload.seed) == ("eft", True, 0)
    assert workload.pool == {"cpu": 1}
    application = workload.applications[0]
    assert (application.cut, application.instances) == ("whole", 3)
    assert application.arrivals.period_ms == 2


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("pool", "pol", r"unknown key 'pol'.*close to it: pool"),
        ("period_ms", "perod_ms", r"unknown key 'perod_ms'.*close to it: period_ms"),
        ("period_ms: 2", "period_ms: -2", "-2.0 is out of range, needed is more than 0"),
        ("period_ms: 2", "period_ms: 0", "0.0 is out of range"),
        ("period_ms: 2", "period_ms: .nan", "nan"),
        ("period_ms: 2", "period_ms: .inf", "inf"),
        ("period_ms: 2", "period_ms: 2, exponential_ms: 3", "period_ms and exponential_ms"),
        ("period_ms: 2", "", "nothing, arrivals are one of"),
        ("cpu: 1.0", "cpu: -1.0", "-1.0 is out of range, needed is at least 0"),
        ("cpu: 1}", "cpu: 0}", "0 is out of range, needed is at least 1"),
        ("{cpu: 1}", "{}", "0 items, needed are 1 to 64"),
        (", instances: 3", "", "neither instances nor duration_ms, application a would never end"),
        (", instances: 3", ", duration_ms: 3000000000", "every 2 ms for 3e[+]09 ms, application a"),
        (
            "2}, instances: 3",
            "1e-9}, duration_ms: 5",
            "would have more than 1000000000 instances",
        ),
        ("period_ms: 2", "exponential_ms: 1e-320", "every 1e-320 ms, needed are at least"),
        ("costs_ms: {cpu: 1.0}, ", "", "neither model nor costs_ms"),
        (f"- {APP}", f"- {APP}\n- {APP}", "two applications a, each needs its own name"),
        ("{period_ms: 2}", "{times_ms: [0, 5, 4]}", "time 3 is 4 ms, the one before 5"),
        ("{period_ms: 2}", "{times_ms: [0, 5], first: gap}", "first is gap beside times_ms"),
        ("{period_ms: 2}", "{csv: t.csv, first: now}", "first is now beside csv, these say"),
        ("pool:", "durations: {spread: 0.2}\npool:", "spread is 0.2 beside kind: exact"),
        (
            "pool:",
            "durations: {kind: exponential, spread: 1}\npool:",
            "spread is 1 beside kind: exponential, write kind: spread",
        ),
        (f"\n- {APP}", " []", "0 items, needed are 1 to 1000"),
    ],
)
def test_a_wrong_workload_is_refused_in_one_line_that_names_the_culprit(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    with pytest.raises(NnstretchError, match=message) as caught:
        read_workload(write(tmp_path / "w.yaml", GOOD.replace(old, new, 1)))
    assert "\n" not in str(caught.value)


def test_no_file_and_no_yaml_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName):
        read_workload(tmp_path / "absent.yaml")
    with pytest.raises(BrokenFile):
        read_workload(write(tmp_path / "w.yaml", "a: [1"))
    with pytest.raises(BadInput):
        read_workload(write(tmp_path / "w.yaml", "- 3\n"))


def test_arrivals_of_a_csv_and_those_that_go_back(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    assert read_arrivals(write(path, "time_ms,what\n# none\n0,a\n\n2.5,b\n2.5\n")) == (0, 2.5, 2.5)
    for heading in (
        "time_ms",
        "# recorded at noon\n\n time_ms,what",
        '"time"',
        "t0,1",
        "\ufefftime",
    ):
        assert read_arrivals(write(path, f"{heading}\n0\n10\n")) == (0, 10)
    assert read_arrivals(write(path, "\ufeff0\n10\n")) == (0, 10)
    for text, message in (
        ("0.5 ms\n10\n20\n", "'0.5 ms', .* line 1, no time"),
        ("1_0,\n20\n", "'1_0', .* line 1, no time"),
        ("# none\n\n-.5s\n20\n", "'-.5s', .* line 3, no time"),
        ('"0"\n10\n', "'\"0\"', .* line 1, no time"),
        ("0;a\n10\n", "'0;a', .* line 1, no time"),
        ("time_ms\nat\n10\n", "'at', .* line 2, no time"),
        ("1\n3\n2\n", "2 ms, .* line 3, 3 is before it"),
        ("1\nx\n", "'x', .* line 2, no time"),
        ("nan\n", "nan, .* line 1"),
        ("-1\n", "-1, .* line 1"),
        ("1\n1e308\n", "1e308, .* line 2, a time is from 0 to 1e\\+12 ms"),
        ("1\ninf\n", "inf, .* line 2, a time is from 0"),
        ("1\n1" + "0" * 400 + "\n", "line 2, a time is from 0"),
        ("1\n1_0\n", "'1_0', .* line 2, no time"),
        ("1\n\u0662\n", "line 2, no time"),
        ("1\n1:30\n", "'1:30', .* line 2, no time"),
        ("1\n0x10\n", "'0x10', .* line 2, no time"),
        ("# nothing\n", "no times"),
    ):
        with pytest.raises(BrokenFile, match=message):
            read_arrivals(write(path, text))
