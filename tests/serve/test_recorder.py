"""What ended is on the disk soon, all of it at the end, and nothing piles up behind a full disk."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from nnstretch.errors import BadInput
from nnstretch.files.workload.service_record import (
    RecordedApplication,
    RecordedKind,
    RecordedProcessor,
    RecordedRequest,
    RecordedTask,
    RecordHeader,
    RecordWriter,
    read_record,
)
from nnstretch.serve.recorder import LOG, Recorder

HEADER = RecordHeader(
    *("0.1.0", "w.yaml", "eft", True, True, 0, (RecordedProcessor("cpu0", "cpu"),)),
    (RecordedApplication("net", 0, None, 16, (RecordedKind("a", (), None, {"cpu0": 10.0}),)),),
)
RAN = (RecordedTask("a", "cpu0", 12.0, 20.0),)
WAIT_S = 20.0


def request(number: int) -> RecordedRequest:
    return RecordedRequest(number, "net", 10.0, 11.0, 21.0, "answered", None, 0, RAN)


def test_what_ended_is_there_while_the_server_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    recorder = Recorder(RecordWriter(path, HEADER))
    recorder.add(request(0))
    give_up_s = time.monotonic() + WAIT_S
    while not (path.read_text() and read_record(path).requests):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    recorder.add(request(1))
    recorder.close()
    assert read_record(path).requests == (request(0), request(1))
    assert recorder.error is None


class FullDisk(RecordWriter):
    written = 0

    def add(self, request: RecordedRequest) -> None:
        self.written += 1
        raise BadInput("cannot write record.jsonl, No space left on device")


def test_a_disk_that_fills_up_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(LOG, "error", lambda text, why: said.append(text % why))
    recorder = Recorder(RecordWriter(Path("/dev/full"), HEADER))
    recorder.add(request(0))
    give_up_s = time.monotonic() + WAIT_S
    while recorder.error is None:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    while not said:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    assert said == [f"the record ends here: {recorder.error}"]
    recorder.close()
    assert isinstance(recorder.error, BadInput)
    assert "No space left on device" in str(recorder.error)


def test_nothing_is_kept_for_a_disk_that_takes_nothing_more(tmp_path: Path) -> None:
    writer = FullDisk(tmp_path / "record.jsonl", HEADER)
    recorder = Recorder(writer)
    recorder.add(request(0))
    give_up_s = time.monotonic() + WAIT_S
    while recorder.error is None:
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    for number in range(100):
        recorder.add(request(number))
    assert not recorder._waiting
    recorder.close()
    assert writer.written == 1
