"""What `nnstretch search` says and keeps where it ends before it has met a plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli.test_cli import NET, called
from cli.test_search_cli import COMMON, shown

from nnstretch.errors import NoPlan
from nnstretch.files.plan_yaml import read_plan
from nnstretch.stretch.search import search as optimum

AT_ONCE = ("--time-limit", "1e-9")
Searched = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("stops")
    (folder / "net.py").write_text(NET)
    return f"{folder}/net.py:make"


@pytest.fixture
def searched(capsys: pytest.CaptureFixture[str], model: str) -> Searched:
    def run(*flags: str) -> tuple[int, dict[str, Any], str]:
        status, out, err = called(capsys, "search", model, *COMMON, "--json", *flags)
        return status, json.loads(out or "{}"), err

    return run


@pytest.fixture
def interrupted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt every search before its first plan."""
    real = optimum.search

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs | {"time_limit_s": 1e-9})
        return replace(result, interrupted=True, out_of_time=False)

    monkeypatch.setattr(optimum, "search", interrupted)


def test_an_older_plan_stays_where_time_is_over_before_the_first(
    searched: Searched, model: str, tmp_path: Path
) -> None:
    out, folder = tmp_path / "plan.yaml", tmp_path / "plans"
    folder.mkdir()
    older = [out, folder / "plan1.yaml", folder / "plan2.yaml"]
    for path in older:
        path.write_text("an older plan")
    places = ("--out", str(out), "--out-dir", str(folder), "--overwrite")
    status, result, err = searched(*AT_ONCE, *places)
    assert [path.read_text() for path in older] == ["an older plan"] * 3
    why = f"search of {model}, out of time before it met a plan"
    said = [f"{place} stays as it was, {why}" for place in (out, folder)]
    assert result["not_written"] == said
    assert err.splitlines()[-2:] == [f"nnstretch: {line}" for line in said]
    assert status == 1


@pytest.mark.usefixtures("interrupted_at_once")
def test_an_older_plan_stays_and_a_new_file_is_written_after_an_early_interrupt(
    searched: Searched, model: str, tmp_path: Path
) -> None:
    out, folder = tmp_path / "plan.yaml", tmp_path / "plans"
    out.write_text("an older plan")
    status, result, err = searched("--out", str(out), "--out-dir", str(folder))
    assert out.read_text() == "an older plan"
    assert read_plan(folder / "plan1.yaml").segments
    (line,) = result["not_written"]
    assert line.startswith(
        f"{out} stays as it was, search of {model}, interrupted before it met a plan"
    )
    assert f"nnstretch: {line}\n" in err
    assert status == 130


def test_a_front_says_where_time_was_over_and_that_it_is_not_drawn(
    searched: Searched, model: str, tmp_path: Path
) -> None:
    picture = tmp_path / "front.svg"
    fronts = ("--pareto", "macs,meetings", "--pareto-steps", "2")
    status, result, _ = searched(*AT_ONCE, *fronts)
    assert status == 0
    macs, meetings = result["pareto"]
    assert (len(macs["points"]), macs["without"], macs["unanswered"]) == (1, [], [1.2])
    assert (meetings["points"], meetings["without"], meetings["unanswered"]) == ([], [], [1, 2])
    text = " ".join(shown(result).split())
    assert "time was over before any plan was met with meeting points from 1, 2 on" in text
    assert "no plan was found" not in text
    flags = ("--pareto", "meetings", "--picture", str(picture))
    status, result, err = searched(*AT_ONCE, *flags)
    (line,) = result["not_written"]
    assert line == f"cannot draw {picture}, fronts of {model}, there is no point on any"
    assert err == f"nnstretch: {line}\n"
    assert status == 1
    assert not picture.exists()


def test_a_sensitivity_says_where_time_was_over(searched: Searched) -> None:
    _, result, _ = searched(*AT_ONCE, "--sensitivity", "--min-macs", "0.9x")
    rows = result["sensitivity"]
    assert all(row["out_of_time"] for row in rows)
    unanswered = {"latency_ms": None, "out_of_time": True}
    text = shown(result | {"sensitivity": [rows[0] | unanswered]})
    assert "out of time" in text
    assert "no plan" not in text


@pytest.mark.usefixtures("interrupted_at_once")
def test_a_picture_that_an_interrupt_leaves_undrawn_is_named(
    searched: Searched, tmp_path: Path
) -> None:
    picture = tmp_path / "front.svg"
    status, result, _ = searched("--pareto", "macs", "--picture", str(picture))
    assert result["not_written"]
    assert status == 130


def test_an_interrupt_before_any_plan_within_the_limits_is_an_interrupt(
    searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **_settings: Any) -> None:
        raise NoPlan("interrupted before any plan for make was met", interrupted=True)

    monkeypatch.setattr(optimum, "search", interrupted)
    status, _, err = searched("--max-macs", "0.7x")
    assert err == "nnstretch: interrupted before any plan for make was met\n"
    assert status == 130
