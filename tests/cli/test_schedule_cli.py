"""`nnstretch schedule` as scripts and people meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nnstretch.cli import main

DATA = Path(__file__).parents[1] / "data" / "task_graphs"
TOPCUOGLU = str(DATA / "topcuoglu2002.json")


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, object]:
    assert main(["schedule", *argv, "--json"]) == 0
    result: dict[str, object] = json.loads(capsys.readouterr().out)
    return result


def test_the_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, TOPCUOGLU)
    assert result["makespan"] == 80
    assert result["lower_bound"] == 41
    assert result["optimal"] is False
    assert result["tasks"][0] == {"task": "T1", "processor": "P3", "start": 0, "end": 9}  # type: ignore[index]


def test_a_standard_task_graph_on_a_number_of_processors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "t.json"
    path = str(DATA / "robot.stg")
    result = run_json(capsys, path, "--processors", "6", "--trace", str(trace))
    assert result["makespan"] == 569
    assert result["optimal"] is True
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 90


def test_every_policy_is_listed_with_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    rows = run_json(capsys, "--policies")["policies"]
    assert all(row["source"] and row["ties"] and row["cost"] for row in rows)  # type: ignore[attr-defined]
    assert main(["schedule", "--policies"]) == 0
    assert "Topcuoglu" in capsys.readouterr().out


REFUSED = {
    "unknown policy heff": [TOPCUOGLU, "--policy", "heff"],
    "close to it: heft": [TOPCUOGLU, "--policy", "heff"],
    "FILE is missing": [],
    "No such file": ["absent.json"],
    "the file names its own processors": [TOPCUOGLU, "--processors", "4"],
    "is the command's own input": [TOPCUOGLU, "--trace", TOPCUOGLU],
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals_are_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", *REFUSED[words]]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("nnstretch: ")
    assert words in captured.err
    assert captured.err.count("\n") == 1
