"""docs/serving.md is run as it stands, by processes that do not import nnstretch."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import write_bundle
from nnstretch.files.workload.service_record import ServiceRecord, read_record
from nnstretch.files.workload.workload_yaml import read_workload

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
BLOCKS = re.findall(r"```(sh|python|yaml)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
LISTEN = "nnstretch serve net.nns --port 8000"


def block(kind: str, word: str) -> str:
    (text,) = [text for language, text in BLOCKS if language == kind and word in text]
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def server(folder: Path, command: str) -> Iterator[subprocess.Popen[str]]:
    """The page's own command in a process; its result is checked when SIGTERM has ended it."""
    words = [sys.executable, "-m", *command.split(), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("serving net at ")
            yield process
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
        assert (process.returncode, err) == (0, "")
        result = json.loads(out)
        assert result["lost"] == result["failed"] == result["cancelled"] == 0
        (folder / "result.json").write_text(out)


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_python(folder: Path, code: str, port: int) -> str:
    # -I: neither this folder nor PYTHONPATH, so the package of this tree is not there by chance
    guard = "import sys\n{}\nassert not any(name.startswith('nnstretch') for name in sys.modules)"
    script = guard.format(code.replace("8000", str(port)))
    return run(folder, sys.executable, "-I", "-c", script)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundle = branched_bundle()
    write_bundle(tmp_path / "net.nns", bundle.manifest, bundle.files)
    return tmp_path


@pytest.mark.slow
def test_curl_on_the_socket(folder: Path) -> None:
    command = block("sh", "nnstretch serve net.nns").strip()
    with server(folder, command):
        out = run(folder, "sh", "-ec", block("sh", "curl --fail"))
        assert '"extensions"' in out
        assert "nnstretch_requests_total" in out
        assert not any(
            path.name == "net.sock" and not path.is_socket() for path in folder.iterdir()
        )
    assert not (folder / "net.sock").exists()
    record = read_record(folder / "record.jsonl")
    assert (record.header.policy, record.requests) == ("eft", ())


@pytest.mark.slow
def test_tritonclient_and_hey_on_a_port(folder: Path) -> None:
    pytest.importorskip("tritonclient.http")
    port = free_port()
    command = f"{LISTEN.replace('8000', str(port))} --record record.jsonl --log logs"
    with server(folder, command):
        out = run_python(folder, block("python", "tritonclient"), port)
        assert out.splitlines()[0] == "2 answers"
        assert out.splitlines()[1].startswith("refused: unknown model 'absent'")
        run_python(folder, block("python", "urlopen"), port)
        answered = 2
        if shutil.which("hey"):
            load = block("sh", "hey -n").replace("8000", str(port))
            assert "[200]\t200 responses" in run(folder, "sh", "-ec", load)
            answered += 200
    result = json.loads((folder / "result.json").read_text())
    assert (result["accepted"], result["answered"]) == (answered, answered)
    record = read_record(folder / "record.jsonl")
    assert [request.end for request in record.requests] == ["answered"] * answered
    assert sorted(request.priority for request in record.requests)[-1] == 49
    check_cedr_logs(folder / "logs" / "experiment0", record)


def check_cedr_logs(folder: Path, record: ServiceRecord) -> None:
    """What CEDR's scripts read says what the record says."""
    rows: dict[str, list[dict[str, str]]] = {}
    for name in ("timing", "appruntime", "schedule"):
        lines = (folder / f"{name}_trace.log").read_text(encoding="utf-8").splitlines()
        rows[name] = [dict(pair.split(": ") for pair in line.split(", ")) for line in lines]
    tasks = [task for request in record.requests for task in request.tasks]
    starts = sorted(round(task.start_us * 1000) for task in tasks)
    assert [int(row["ref_start_time"]) for row in rows["timing"]] == starts
    ids = [str(request.request) for request in record.requests]
    assert [row["app_id"] for row in rows["appruntime"]] == ids
    for row, request in zip(rows["appruntime"], record.requests, strict=True):
        lifetime_us = request.ended_us - request.arrived_us
        assert abs(int(row["app_lifetime"]) - 1000 * lifetime_us) < 2
    assert sum(int(row["ready_queue_size"]) for row in rows["schedule"][:-1]) >= len(tasks)
    assert "total_scheduling_overhead" in rows["schedule"][-1]


def test_the_workload_of_the_page_can_be_read(folder: Path) -> None:
    (folder / "w.yaml").write_text(block("yaml", "factors"), encoding="utf-8")
    assert [app.name for app in read_workload(folder / "w.yaml").applications] == [
        "detect",
        "classify",
    ]


@pytest.mark.slow
def test_clients_that_are_killed_under_load_lose_nothing(folder: Path) -> None:
    """Short form of `scripts/soak serve`: SIGTERM comes while clients ask."""
    port = free_port()
    with server_under_load(folder, port) as result:
        pass
    assert result["lost"] == 0
    assert result["accepted"] == result["answered"] + result["failed"] + result["cancelled"]


CLIENT = """
import http.client, json, sys
row = {"name": "image", "shape": [1, 3, 8, 8], "datatype": "FP32", "data": [0.5] * 192}
body = json.dumps({"inputs": [row]})
while True:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=30)
    try:
        connection.request("POST", "/v2/models/net/infer", body)
        status = connection.getresponse().status
    except OSError:
        break
    print(status, flush=True)
"""


@pytest.mark.slow
def test_signals_that_go_on_coming_change_nothing_of_how_it_ends(folder: Path) -> None:
    words = [sys.executable, "-m", *LISTEN.replace("8000", "0").split(), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        give_up_s = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < give_up_s:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, err, json.loads(out)["lost"]) == (0, "", 0)


@contextmanager
def server_under_load(folder: Path, port: int) -> Iterator[dict[str, int]]:
    words = [sys.executable, "-m", *LISTEN.replace("8000", str(port)).split(), "--json"]
    pipe = subprocess.PIPE
    result: dict[str, int] = {}
    with subprocess.Popen(words, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        process.stderr.readline()
        client = [sys.executable, "-I", "-c", CLIENT, str(port)]
        clients = [subprocess.Popen(client, stdout=pipe, text=True) for _ in range(3)]
        for one in clients:
            assert one.stdout is not None
            assert one.stdout.readline() == "200\n"
        clients[0].kill()
        time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "")
        result |= json.loads(out)
        answered = 1
        for one in clients:
            answers, _ = one.communicate(timeout=30)
            statuses = answers.split()
            assert set(statuses) <= {"200", "503"}
            answered += statuses.count("200")
        assert answered <= result["answered"]
        yield result
