"""`nnstretch schedule` as scripts and people meet it."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nnstretch.cli import main
from nnstretch.cli.schedule.policies import PLANNED, READY
from nnstretch.schedule.policies.table import POLICIES

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
    out = " ".join(capsys.readouterr().out.split())
    assert "Topcuoglu" in out
    assert "by their names without _rt (but heft_rt), and heft, cpop, peft, which plan" in out
    ready = [str(row["name"]) for row in rows if row["decides"] == READY]  # type: ignore[index]
    there = {name if name in POLICIES else name.removesuffix("_rt") for name in ready}
    assert there | set(PLANNED) == set(POLICIES), "what the sentence says of simulate and serve"


REFUSED = {
    "unknown policy heff": [TOPCUOGLU, "--policy", "heff"],
    "close to it: heft": [TOPCUOGLU, "--policy", "heff"],
    "FILE is missing": [],
    "FILE with --policies": [TOPCUOGLU, "--policies"],
    "--optimum with --policies": ["--optimum", "--policies"],
    "--processors with --policies": ["--policies", "--time-limit", "5", "--processors", "3"],
    "--time-limit with --policies": ["--policies", "--time-limit", "5"],
    "--seed with --policies": ["--policies", "--seed", "1"],
    "--policy with --policies": ["--policies", "--policy", "peft"],
    "no file absent.json": ["absent.json"],
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


def test_the_optimum_is_proven_and_the_gap_to_it_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("ortools")
    result = run_json(capsys, TOPCUOGLU, "--policy", "optimal")
    assert (result["makespan"], result["lower_bound"], result["optimal"]) == (73, 73, True)
    result = run_json(capsys, TOPCUOGLU, "--policy", "cpop", "--optimum")
    assert (result["makespan"], result["lower_bound"], result["optimal"]) == (86, 73, False)
    assert result["gap"] == pytest.approx(86 / 73 - 1)
    assert result["optimum"] == {"makespan": 73, "lower_bound": 73, "proven": True}


GANTT = """\
P1 |·························T2━━━━━━━━━━━···············T8━━━·················|
P2 |·················T4━━━━━T6━━━━━━━━━━━━━·············T9━━━━━━━━━━····T10━━━━|
P3 |T1━━━━━━T3━━━━━━━━━━━━━━━━T5━━━━━━━━T7━━━━━━━━·····························|
   0                                                                         80
"""


def test_people_see_a_gantt_chart_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", TOPCUOGLU]) == 0
    text = capsys.readouterr().out
    assert GANTT in text
    assert "heft: makespan 80, at most 95.1% above the optimum" in text


def test_above_a_lower_bound_of_zero_nothing_is_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    graph = {"tasks": ["a", "b"], "processors": ["p0", "p1"], "edges": []}
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(graph | {"cost": {key: {"p0": 0, "p1": 5} for key in "ab"}}))
    words = ("--policy", "rr")
    result = run_json(capsys, str(path), *words)
    assert (result["makespan"], result["optimal"], result["gap"]) == (5, False, None)
    assert main(["schedule", str(path), *words]) == 0
    assert "rr: makespan 5, any share above the optimum (lower bound 0" in capsys.readouterr().out


def test_a_picture_has_a_bar_for_every_task_and_stands_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "heft.svg"
    run_json(capsys, TOPCUOGLU, "--svg", str(path))
    picture = ElementTree.parse(path).getroot()
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    titles = [node.text or "" for node in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "T3 on P3: 9 to 28" in titles
    assert sum(" on P" in title for title in titles) == 10


def test_a_time_limit_without_a_solver_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", TOPCUOGLU, "--time-limit", "3"]) == 1
    told = "nnstretch: --time-limit 3 with --policy heft, command line, only `optimal` and "
    assert capsys.readouterr().err.startswith(told)
    assert main(["schedule", TOPCUOGLU, "--time-limit", "3", "--optimum"]) == 0


def test_a_time_limit_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("0", "-1", "nan", "inf", "soon"):
        with pytest.raises(SystemExit) as wrong:
            main(["schedule", TOPCUOGLU, "--time-limit", text])
        assert wrong.value.code == 2
    assert "write seconds such as 60" in capsys.readouterr().err


RUN_TIME = {"rr": 131, "met_rt": 89, "eft": 80, "etf": 80, "heft_rt": 76, "min_min_rt": 80}
STATIC = {"min_min": 76, "max_min": 97, "etf_start": 93, "mct": 88, "met_static": 82, "olb": 114}


@pytest.mark.parametrize(("name", "makespan"), [*RUN_TIME.items(), *STATIC.items()])
def test_run_time_policies_stand_beside_static_ones(
    name: str, makespan: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_json(capsys, TOPCUOGLU, "--policy", name)["makespan"] == makespan


def test_met_is_the_classic_one_of_a_graph_and_that_of_cedr_of_a_queue(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run_json(capsys, TOPCUOGLU, "--policy", "met")["makespan"] == 82
    queue = {
        "processors": {"cpu1": "cpu", "cpu2": "cpu", "fft1": "fft"},
        "queue": ["ZIP1", "ZIP2", "ZIP3", "ZIP4"],
        "cost": {"ZIP": {"cpu": 5}},
    }
    path = tmp_path / "queue.json"
    path.write_text(json.dumps(queue))
    assert run_json(capsys, str(path), "--policy", "met")["makespan"] == 10
    assert run_json(capsys, str(path), "--policy", "met_static")["makespan"] == 20


def test_simulate_plans_the_second_job_into_the_gaps_of_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    workload = tmp_path / "two.yaml"
    applications = f"- {{name: job, model: {TOPCUOGLU}, arrivals: {{times_ms: [0, 0.01]}}}}"
    workload.write_text(f"policy: heft\napplications:\n{applications}\n")
    assert main(["simulate", str(workload), "--check", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["makespan_ms"] == pytest.approx(0.109)
    assert result["checked_tasks"] == 20
