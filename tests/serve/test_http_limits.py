"""Bodies, headers and connections beyond the limits end, and keep nothing open."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import re
import resource
import socket
import time
from pathlib import Path

import pytest
from support.http_answers import POST, answer_to, error_of
from support.serving import HttpService, http_service, image, json_request

from nnstretch.serve import http_server
from nnstretch.serve.http_server import log_in_one_line, most_connections


def test_a_body_beyond_the_limit_is_not_read_to_its_end(service: HttpService) -> None:
    status, message = answer_to(service, POST + b"Content-Length: 9000000000\r\n\r\n" + b"x" * 999)
    assert (status, "longer than 200000 bytes" in message) == (413, True)
    chunk = b"20000\r\n" + b"x" * 0x20000 + b"\r\n"
    status, message = answer_to(service, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)
    assert (status, "longer than 200000 bytes" in message) == (413, True)


@pytest.mark.slow
def test_a_half_sent_request_is_timed_out(service: HttpService) -> None:
    status, message = answer_to(service, POST + b"Content-Length: 100\r\n\r\n{")
    assert (status, "1 bytes came" in message) == (408, True)
    status, message = answer_to(service, POST)
    assert (status, "headers" in message) == (408, True)
    assert service.send(b"") == b""


@pytest.mark.parametrize(
    "head",
    [b"A: " + b"a" * (1 << 20), b"A: b\r\n" * (1 << 18)],
    ids=["one long", "many short"],
)
def test_headers_beyond_the_limit_are_not_read_to_their_end(
    service: HttpService, head: bytes
) -> None:
    status, message = answer_to(service, POST + head)
    assert (status, "headers are longer than" in message) == (431, True)
    assert service.ask("GET", "/v2/health/ready")[0] == 200


@pytest.mark.parametrize(
    "header", [b"A: " + b"a" * 70_000, b"A: b\r\n" * 20_000], ids=["long", "many"]
)
def test_whole_headers_beyond_the_limit_are_refused(service: HttpService, header: bytes) -> None:
    head = b"GET /v2 HTTP/1.1\r\nHost: x\r\n" + header.strip() + b"\r\n\r\n"
    status, message = answer_to(service, head)
    assert (status, "headers are longer than" in message) == (431, True)


GET = b"GET /v2 HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("end", [False, True], ids=["waits", "has sent all"])
@pytest.mark.parametrize(
    ("last", "status"),
    [
        (b"BAD\r\n\r\n", b"400"),
        (GET + b"A: " + b"a" * 90_000 + b"\r\n\r\n", b"431"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
    ids=["no request", "long headers", "no chunk"],
)
def test_what_is_no_request_is_refused_behind_the_answers_before_it(
    service: HttpService, last: bytes, status: bytes, end: bool
) -> None:
    text = json.dumps(json_request(image(0))).encode()
    infer = POST + b"Content-Length: %d\r\n\r\n" % len(text) + text
    answers = service.send((GET + b"\r\n") * 2 + infer + last, end=end)
    told = re.findall(rb"HTTP/1.1 (\d+)", answers)
    assert told == [b"200", b"200", b"200", status]
    assert service.ask("GET", "/v2/health/ready")[0] == 200
    ends_s = time.monotonic() + 10
    while service.http.server_state.connections:
        assert time.monotonic() < ends_s, "a connection stays open"
        time.sleep(0.01)


@pytest.mark.parametrize("rest", [b"\r\n", b"x"], ids=["no request", "the rest of a body"])
def test_what_comes_behind_an_answer_keeps_no_connection_open(
    service: HttpService, rest: bytes
) -> None:
    head = b"GET /v2 HTTP/1.1\r\nHost: x\r\n"
    head += b"\r\n" if rest == b"\r\n" else b"Content-Length: 1000\r\n\r\n123"
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        connection.sendall(head)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        time.sleep(0.05)  # else it would be read at once with what was asked
        connection.sendall(rest)
        while connection.recv(65536):
            pass  # the connection ends, or the time does


@pytest.mark.parametrize(
    "body",
    [b"1\r\n{\r\n0\r\nA: " + b"a" * (1 << 20), b"5;" + b"a" * (1 << 20)],
    ids=["headers behind it", "an extension of a chunk"],
)
def test_what_stands_between_the_parts_of_a_body_has_an_end(
    service: HttpService, body: bytes
) -> None:
    status, message = answer_to(service, POST + b"Transfer-Encoding: chunked\r\n\r\n" + body)
    assert (status, "65536 bytes between the parts of the body" in message) == (400, True)
    assert service.ask("GET", "/v2/health/ready")[0] == 200


def test_more_connections_than_may_be_open_get_503_until_there_is_room(tmp_path: Path) -> None:
    with http_service(tmp_path, most=3) as service:
        address = ("127.0.0.1", service.port)
        idle = [socket.create_connection(address, timeout=30) for _ in range(3)]
        status, headers, answer = service.ask("GET", "/v2/health/ready")
        assert (status, headers["retry-after"]) == (503, "1")
        assert error_of(answer) == "3 connections are open, the limit"
        for connection in idle:
            connection.close()
        ends_s = time.monotonic() + 10
        while service.ask("GET", "/v2/health/ready")[0] != 200:
            assert time.monotonic() < ends_s


def test_connections_are_fewer_than_the_files_that_may_be_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for soft, least, most in ((1024, 500, 768), (64, 1, 48), (1, 1, 1), (-1, 4096, 4096)):
        limits = (soft, soft)
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, limits=limits: limits)
        assert least <= most_connections() <= most


def test_what_goes_wrong_outside_of_requests_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    # Other libraries that this process has loaded may have changed where logs go.
    monkeypatch.setattr(http_server.LOG, "handlers", [logging.StreamHandler(said)])
    monkeypatch.setattr(http_server.LOG, "disabled", False)
    loop = asyncio.new_event_loop()
    error = OSError(24, "Too many open files")
    log_in_one_line(loop, {"message": "socket.accept() out of system resource", "exception": error})
    log_in_one_line(loop, {"message": "two\nlines"})
    loop.close()
    told = said.getvalue()
    assert "Too many open files" in told.splitlines()[0]
    assert told.count("\n") == 2
    assert "Traceback" not in told


def test_the_second_part_of_an_answer_does_not_wait_for_the_first(service: HttpService) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    connection.request("GET", "/v2")
    assert connection.getresponse().read()
    here = connection.sock.getsockname()
    transports = [each.transport for each in service.http.server_state.connections]  # type: ignore[union-attr]
    # Those of tests before may be closing still.
    (transport,) = [each for each in transports if each.get_extra_info("peername") == here]
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.close()


def test_what_is_no_http_is_refused(service: HttpService) -> None:
    assert answer_to(service, b"HELLO\r\n\r\n")[0] == 400
    assert answer_to(service, POST + b"Content-Length: -1\r\n\r\n")[0] == 400
