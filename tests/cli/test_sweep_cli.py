"""`nnstretch simulate sweep`: every configuration once, and the same bytes after any interruption."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from support.small_plan import write_plan_of_small_net

from nnstretch.cli import main
from nnstretch.files import journal
from nnstretch.files.journal import only_writer

pytest.importorskip("joblib")
WORKLOAD = """\
pool: {cpu: 1, fft: 1}
policy: eft
applications:
- {name: fft, costs_ms: {cpu: 4, fft: 1}, arrivals: {exponential_ms: 2}, instances: 60}
- {name: scan, costs_ms: {cpu: 3}, arrivals: {period_ms: 5}, instances: 20}
"""
SWEEP = """\
workload: workload.yaml
pools: [{cpu: 1}, {cpu: 2, fft: 1}]
policies: [rr, met, heft_rt]
rates: [0.5, 2]
trials: 2
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return tmp_path / "sweep.yaml"


def run(capsys: pytest.CaptureFixture[str], sweep: Path, out: Path, *argv: str) -> dict[str, Any]:
    command = ["simulate", "sweep", str(sweep), "--out", str(out), "--workers", "1", *argv]
    assert main([*command, "--json"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def worker_processes() -> list[int]:
    """Processes of joblib's that this one has."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [n for n, c in commands.items() if b"loky" in c and b"resource_tracker" not in c]


@pytest.mark.slow
def test_processes_of_a_sweep_end_with_it(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads = threading.active_count()
    result = run(capsys, sweep, sweep.parent / "out", "--workers", "2")
    assert result["finished"] == 24
    assert (worker_processes(), threading.active_count()) == ([], threads)


def test_the_fields_of_the_contract_and_a_row_for_every_configuration(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = sweep.parent / "out"
    result = run(capsys, sweep, out)
    assert (result["configurations"], result["finished"], result["failed"]) == (24, 24, 0)
    rows = [json.loads(line) for line in Path(result["journal"]).read_text().splitlines()]
    assert len({(str(r["pool"]), r["policy"], r["rate"], r["trial"]) for r in rows[1:]}) == 24
    assert all(Path(file).is_file() for file in result["tables"])
    assert "| 2 cpu + 1 fft | heft_rt | 2 | 2 |" in (out / "sweep.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kept", [0, 1, 7, 24])
def test_a_sweep_that_was_cut_off_ends_in_the_same_bytes(
    kept: int, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = sweep.parent / "whole", sweep.parent / "cut"
    run(capsys, sweep, whole)
    cut.mkdir()
    lines = (whole / "journal.jsonl").read_bytes().splitlines(keepends=True)
    torn = lines[kept + 1][:20] if kept < 24 else b""
    (cut / "journal.jsonl").write_bytes(b"".join(lines[: kept + 1]) + torn)
    run(capsys, sweep, cut)
    assert contents(cut) == contents(whole)


@pytest.mark.slow
def test_several_workers_write_what_one_writes(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = sweep.parent / "one", sweep.parent / "two"
    run(capsys, sweep, one)
    run(capsys, sweep, two, "--workers", "2")
    assert contents(one) == contents(two)


@pytest.mark.slow
def test_a_killed_process_is_one_line_and_the_same_command_goes_on(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slower = WORKLOAD.replace("instances: 60", "instances: 3000")
    (sweep.parent / "workload.yaml").write_text(slower)
    out, append = sweep.parent / "out", journal.append_rows

    def append_and_kill(path: Path, rows: list[Any]) -> None:
        append(path, rows)
        if "result" in rows[0]:
            os.kill(worker_processes()[0], signal.SIGKILL)

    command = ["simulate", "sweep", str(sweep), "--out", str(out), "--workers", "2"]
    with monkeypatch.context() as patch:
        patch.setattr(journal, "append_rows", append_and_kill)
        assert main(command) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("nnstretch: a process of the sweep was killed, --workers, often for")
    assert worker_processes() == []
    kept = len((out / "journal.jsonl").read_text().splitlines())
    assert 2 <= kept < 25
    assert run(capsys, sweep, out)["finished"] == 24


def test_a_configuration_that_cannot_run_fails_alone(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep.write_text(SWEEP.replace("[{cpu: 1}, {cpu: 2, fft: 1}]", "[{fft: 1}, {cpu: 2, fft: 1}]"))
    result = run(capsys, sweep, sweep.parent / "out")
    assert (result["finished"], result["failed"]) == (12, 12)
    assert "Failed: 1 fft, rr, rate 0.5, trial 0" in (sweep.parent / "out" / "sweep.md").read_text()


REFUSED = {
    "unknown key 'polices'": SWEEP.replace("policies", "polices"),
    "close to it: heft": SWEEP.replace("heft_rt", "heft_tr"),
    "rates[0], -1.0 is out of range": SWEEP.replace("0.5", "-1"),
    "trials, 0 is out of range": SWEEP.replace("trials: 2", "trials: 0"),
    "rates has 2.0 twice": SWEEP.replace("0.5", "2"),
    "policies has met twice": SWEEP.replace("rr", "met"),
    "pools has {'cpu': 1} twice": SWEEP.replace("{cpu: 2, fft: 1}", "{cpu: 1}"),
    "1800000 configurations, needed are at most 1000000": SWEEP.replace(
        "[0.5, 2]", str([n / 10 for n in range(1, 301)])
    ).replace("trials: 2", "trials: 1000"),
    "absent.yaml": SWEEP.replace("workload.yaml", "absent.yaml"),
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(words: str, sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep.write_text(REFUSED[words])
    assert main(["simulate", "sweep", str(sweep), "--out", str(sweep.parent / "out")]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_sweep_without_its_cluster_leaves_no_journal(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = sweep.parent / "out"
    call = ["simulate", "sweep", str(sweep), "--out", str(out), "--dask", "nowhere://1"]
    assert main(call) == 1
    assert "--dask" in capsys.readouterr().err
    assert list(out.iterdir()) == []
    (out / "journal.jsonl").touch()
    assert main(["report", str(out / "journal.jsonl"), "--out", str(out / "p.html")]) == 1
    assert f"no rows, {out / 'journal.jsonl'}" in capsys.readouterr().err


def test_a_service_that_is_no_scheduler_is_refused(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first bytes of its answer are no size of what is to come: it asked for 3 EiB."""
    pytest.importorskip("distributed")

    class Chatter(BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"HTTP/1.1 400 Bad Request" * 9)

    with ThreadingTCPServer(("127.0.0.1", 0), Chatter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_address[1]}"
        call = ["simulate", "sweep", str(sweep), "--out", str(tmp_path / "out"), "--dask", address]
        assert main(call) == 1
        server.shutdown()
    assert f"no scheduler at {address}, --dask" in capsys.readouterr().err


def test_a_client_that_asserts_is_refused(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask asserts that its thread has started after ten seconds."""
    distributed = pytest.importorskip("distributed")

    def client(*args: object, **settings: object) -> None:
        raise AssertionError

    monkeypatch.setattr(distributed, "Client", client)
    call = ["simulate", "sweep", str(sweep), "--out", str(tmp_path / "out"), "--dask", "here:1"]
    assert main(call) == 1
    assert "no scheduler at here:1, --dask, AssertionError\n" in capsys.readouterr().err


def test_the_journal_of_another_sweep_is_not_continued(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, sweep, sweep.parent / "out")
    sweep.write_text(SWEEP.replace("trials: 2", "trials: 3"))
    assert main(["simulate", "sweep", str(sweep), "--out", str(sweep.parent / "out")]) == 1
    assert "another sweep is in" in capsys.readouterr().err


def test_a_journal_whose_rows_are_not_those_of_its_configurations_is_not_continued(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = sweep.parent / "out"
    run(capsys, sweep, out)
    journal = out / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    changed = {
        2: [lines[0], lines[2], lines[1], *lines[3:]],
        5: [*lines[:4], lines[3]],
        26: [*lines, lines[-1]],
    }
    for number, rows in changed.items():
        journal.write_bytes(b"".join(rows))
        assert main(["simulate", "sweep", str(sweep), "--out", str(out), "--workers", "1"]) == 1
        assert f"{journal} line {number}, " in capsys.readouterr().err
        assert journal.read_bytes() == b"".join(rows)


@pytest.mark.parametrize("name", ["sweep.md", "report.html", "journal.jsonl"])
def test_files_of_something_else_are_no_results_to_write_over(
    name: str, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = sweep.parent / name
    notes.write_text("notes of the user, without an end of line")
    command = ["simulate", "sweep", str(sweep), "--out", str(sweep.parent), "--workers", "1"]
    assert main(command) == 1
    assert name in capsys.readouterr().err
    assert notes.read_text() == "notes of the user, without an end of line"
    assert not (sweep.parent / "latency_0.svg").exists()


FILES = {
    "graph.json": '{"tasks": ["a"], "processors": ["cpu"], "cost": {"a": {"cpu": 1}}}',
    "times.csv": "0\n5\n",
    "sweep.yaml": "workload: workload.yaml\ntrials: 2\n",
    "workload.yaml": """\
pool: {cpu: 1}
applications:
- {name: listed, model: graph.json, arrivals: {csv: times.csv}}
- {name: again, model: graph.json, arrivals: {period_ms: 1}, instances: 3}
""",
}


@pytest.mark.parametrize("name", ["graph.json", "times.csv"])
def test_a_sweep_whose_files_have_changed_is_not_continued(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    out = tmp_path / "out"
    run(capsys, tmp_path / "sweep.yaml", out)
    before = contents(out)
    (tmp_path / name).write_text(FILES[name].replace("1}}", "2}}").replace("5", "6"))
    assert main(["simulate", "sweep", str(tmp_path / "sweep.yaml"), "--out", str(out)]) == 1
    refusal = capsys.readouterr().err
    assert f"{name} has changed since {out} was begun" in refusal
    assert refusal.count("\n") == 1
    assert contents(out) == before
    (tmp_path / name).write_text(FILES[name])
    run(capsys, tmp_path / "sweep.yaml", out)


@pytest.mark.parametrize("workers", ["0", "-2", "3000000000"])
def test_workers_that_nobody_has_are_refused(
    workers: str, sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["simulate", "sweep", str(sweep), "--out", str(sweep.parent / "out")]
    assert main([*command, "--workers", workers]) == 1
    assert f"--workers is {workers}" in capsys.readouterr().err


def test_a_rate_that_makes_too_many_arrivals_fails_alone(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = "arrivals: {period_ms: 1}, duration_ms: 1e9, queue_limit: 1, instances: 1"
    (sweep.parent / "workload.yaml").write_text(
        f"pool: {{cpu: 1}}\napplications:\n- {{name: a, costs_ms: {{cpu: 1}}, {many}}}\n"
        "- {name: b, costs_ms: {cpu: 1}, arrivals: {exponential_ms: 1e-9}, instances: 1}\n"
    )
    sweep.write_text("workload: workload.yaml\nrates: [0.5, 1000]\n")
    result = run(capsys, sweep, sweep.parent / "out")
    assert (result["finished"], result["failed"]) == (1, 1)
    journal = (sweep.parent / "out" / "journal.jsonl").read_text()
    assert "rate 1000, sweep, arrivals every 1e-12 ms" in journal


def test_a_sweep_whose_plan_stretches_another_network_is_not_continued(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sweep.parent)
    write_plan_of_small_net(sweep.parent)
    app = "{name: net, model: plan.yaml, arrivals: {period_ms: 5}, instances: 2}"
    (sweep.parent / "workload.yaml").write_text(f"soc: mi9\napplications:\n- {app}\n")
    sweep.write_text("workload: workload.yaml\ntrials: 2\n")
    out = sweep.parent / "out"
    run(capsys, sweep, out)
    with (sweep.parent / "net.py").open("a") as file:
        file.write("# another\n")
    assert main(["simulate", "sweep", str(sweep), "--out", str(out)]) == 1
    assert "net.py:make has changed since" in capsys.readouterr().err


def test_a_file_of_a_terabyte_is_refused_before_it_is_read(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (sweep.parent / "tasks.json").open("wb") as file:
        file.truncate(1 << 40)
    (sweep.parent / "workload.yaml").write_text(
        "pool: {cpu: 1}\npolicy: eft\napplications:\n"
        "- {name: net, model: tasks.json, arrivals: {period_ms: 5}, instances: 2}\n"
    )
    assert main(["simulate", "sweep", str(sweep), "--out", str(sweep.parent / "out")]) == 1
    assert f"{sweep.parent / 'tasks.json'} is too large" in capsys.readouterr().err.replace(
        "\n", ""
    )
    assert not (sweep.parent / "out").exists()


def test_two_sweeps_do_not_write_one_journal(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "PATIENCE_S", 0.2)
    out = sweep.parent / "out"
    out.mkdir()
    with only_writer(out):
        assert main(["simulate", "sweep", str(sweep), "--out", str(out)]) == 1
    assert f"{out} is written by another process, --out" in capsys.readouterr().err
    assert list(out.iterdir()) == []
    run(capsys, sweep, out)


@pytest.mark.slow
def test_a_dask_scheduler_with_two_workers_writes_the_same_bytes(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dask, distributed = map(pytest.importorskip, ("dask", "distributed"))
    here, there = sweep.parent / "here", sweep.parent / "there"
    run(capsys, sweep, here)
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    scratch = {"temporary-directory": str(sweep.parent / "dask")}
    with dask.config.set(scratch), distributed.LocalCluster(**how) as cluster:
        run(capsys, sweep, there, "--dask", cluster.scheduler_address)
    assert contents(here) == contents(there)
