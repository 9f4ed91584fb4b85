"""Clients that end only their side of a connection are answered; those that have gone are not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.serving import (
    Gate,
    HttpService,
    http_service,
    image,
    json_request,
    wait_until_cancelled,
)

from nnstretch.serve.connections import TimedConnection, is_hung_up
from nnstretch.serve.http_server import event_loop_factory

BODY = json.dumps(json_request(image(0))).encode()
HEAD = b"POST /v2/models/net/infer HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
INFER = HEAD % (b"1.1", len(BODY)) + BODY
QUEUE = """
pool: {cpu: 1}
applications: [{name: net, model: net.nns, queue_limit: 4}]
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with http_service(tmp_path_factory.mktemp("half"), QUEUE) as service:
        yield service


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_who_sends_a_request_and_ends_his_side_is_answered(
    service: HttpService, version: bytes
) -> None:
    answer = service.send(HEAD % (version, len(BODY)) + BODY, end=True)
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.split()[1] == b"200"
    assert b"connection: close" in head.lower()
    assert json.loads(content)["model_name"] == "net"
    assert b" 200 " in service.send(b"GET /v2/health/ready HTTP/%b\r\n\r\n" % version, end=True)


def test_requests_behind_each_other_are_all_answered(service: HttpService) -> None:
    answers = service.send(INFER + INFER + b"GET /v2 HTTP/1.1\r\nHost: x\r\n\r\n", end=True)
    assert answers.count(b"HTTP/1.1 200 OK") == 3


def test_half_a_request_is_no_request(service: HttpService) -> None:
    assert service.send(INFER[:-1], end=True) == b""
    assert service.send(b"GET /v2 HTTP/1.1\r\n", end=True) == b""


def test_who_may_be_gone_is_waited_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedConnection, "half_closed_s", 0.2)
    with http_service(tmp_path, QUEUE) as service:
        gate = Gate(service.server.applications["net"].network)
        assert service.send(INFER, end=True) == b""
        wait_until_cancelled(service, "net")
        gate.open()


class Ear(asyncio.Protocol):
    """The server's end of a connection, which keeps what it was told."""

    def __init__(self, ended: asyncio.Future[bool]) -> None:
        self.ended = ended

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def eof_received(self) -> bool:
        self.ended.set_result(is_hung_up(self.transport))
        return False


@pytest.mark.parametrize("gone", [False, True])
def test_a_unix_socket_tells_whether_its_client_has_gone(tmp_path: Path, gone: bool) -> None:
    path = str(tmp_path / "s")

    async def hung_up() -> bool:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[bool] = loop.create_future()
        server = await loop.create_unix_server(lambda: Ear(ended), path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            if gone:
                client.close()
            else:
                client.shutdown(socket.SHUT_WR)
            told = await asyncio.wait_for(ended, 30)
        server.close()
        return told

    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        assert runner.run(hung_up()) is gone
