"""Clients that read nothing, and those that go away, keep neither connections nor requests."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.http_answers import POST
from support.serving import (
    Gate,
    HttpService,
    http_service,
    image,
    json_request,
    wait_until_cancelled,
)

from nnstretch.serve import application, http_server
from nnstretch.serve.connections import TimedConnection

ASKED = b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n"
MANY = 4_000
"""Answers that no socket takes unread."""


def whole_request(seed: int) -> bytes:
    body = json.dumps(json_request(image(seed))).encode()
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def connect(connection: socket.socket, service: HttpService) -> None:
    """Connect so that the system keeps little of what nobody reads."""
    service.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 << 10)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
    connection.connect(("127.0.0.1", service.port))


def send_all(connection: socket.socket) -> None:
    with suppress(OSError):  # ended before all was sent
        connection.sendall(ASKED * MANY)


@pytest.mark.slow
def test_a_client_that_reads_nothing_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedConnection, "unread_s", 0.3)
    with http_service(tmp_path) as service, socket.socket() as connection:
        connect(connection, service)
        sender = threading.Thread(target=send_all, args=(connection,), daemon=True)
        sender.start()
        connections = service.http.server_state.connections
        until_s = time.monotonic() + 30
        while not connections:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        while connections:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        sender.join(30)


@pytest.mark.slow
@pytest.mark.parametrize("count", [250, 300, 350])
def test_a_client_that_leaves_the_last_answers_unread_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Few enough that the server need not wait before it writes them."""
    monkeypatch.setattr(TimedConnection, "unread_s", 0.3)
    last = ASKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    with http_service(tmp_path) as service, socket.socket() as connection:
        connect(connection, service)
        connection.sendall(ASKED * (count - 1) + last)
        connections = service.http.server_state.connections
        until_s = time.monotonic() + 30
        while not service.http.server_state.total_requests:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        while connections:
            assert time.monotonic() < until_s
            time.sleep(0.01)


@pytest.mark.slow
def test_a_client_that_reads_slowly_gets_every_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedConnection, "unread_s", 1.0)
    with http_service(tmp_path) as service, socket.socket() as connection:
        connect(connection, service)
        connection.settimeout(30)
        sender = threading.Thread(target=send_all, args=(connection,), daemon=True)
        sender.start()
        begins = 0
        kept = b""
        while begins < MANY and (part := connection.recv(1 << 18)):
            text = kept + part
            begins += text.count(b"HTTP/1.1 200")
            kept = text[-11:]
            time.sleep(0.02)
        sender.join(30)
        assert begins == MANY


def test_requests_behind_each_other_are_cancelled_together(tmp_path: Path) -> None:
    with http_service(tmp_path) as service:
        gate = Gate(service.server.applications["net"].network)
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(whole_request(0) + whole_request(1))
            assert gate.entered.wait(30)
        wait_until_cancelled(service, "net")
        gate.open()


@pytest.mark.slow
def test_a_request_that_is_being_decoded_at_the_end_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, go_on = threading.Event(), threading.Event()
    decode = application.decode_request

    def slow(*args: Any) -> Any:
        decoding.set()
        assert go_on.wait(30)
        return decode(*args)

    monkeypatch.setattr(application, "decode_request", slow)
    monkeypatch.setattr(application, "QUICK_JSON_BYTES", 0)
    monkeypatch.setattr(http_server, "SEND_S", 0.2)
    with http_service(tmp_path) as service:
        statuses: list[int] = []

        def ask() -> None:
            body = json_request(image(0))
            statuses.append(service.ask("POST", "/v2/models/net/infer", body)[0])

        client = threading.Thread(target=ask)
        client.start()
        assert decoding.wait(30)
        service.signal()
        time.sleep(0.6)  # longer than uvicorn would wait
        go_on.set()
        client.join(30)
        assert statuses == [200]
