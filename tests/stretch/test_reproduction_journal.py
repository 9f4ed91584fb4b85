"""The journal of searches behind the page, and what stops one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import search_journal
from comparison_rows import (
    Searched,
    chosen,
    limits_of,
)
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
from support.reproduction_rows import DEFAULTS, row_of, searched
from support.scripts import load_command

from nnstretch.errors import BadInput, BrokenFile

nn_stretch = load_command("nn_stretch")


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
