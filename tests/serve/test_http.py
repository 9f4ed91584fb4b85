"""The Open Inference Protocol over HTTP: answers, refusals, limits, clients that go away, the end."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.serving import (
    Gate,
    HttpService,
    binary_request,
    http_service,
    image,
    json_request,
    wait_until_cancelled,
)

from nnstretch.serve import application, http_server, infer, number_lists
from nnstretch.serve.connections import most_connections
from nnstretch.serve.http_server import log_in_one_line
from nnstretch.serve.request_body import HttpLimits

INFER = "/v2/models/net/infer"
LIMITS = HttpLimits(body_bytes=200_000, body_s=0.3, skip_s=0.1)
QUEUE = """
pool: {cpu: 1}
applications: [{name: net, model: net.nns, queue_limit: 1}]
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with http_service(tmp_path_factory.mktemp("serve"), limits=LIMITS, headers_s=0.3) as service:
        yield service


def error_of(answer: bytes) -> str:
    content = json.loads(answer)
    assert content.keys() == {"error"}
    assert "Traceback" not in content["error"]
    assert "\n" not in content["error"]
    message: str = content["error"]
    return message


def expected(service: HttpService, inputs: np.ndarray) -> np.ndarray:
    network = service.server.applications["net"].network.network
    return network.run_sequential(inputs)  # type: ignore[return-value]


def test_health_and_metadata(service: HttpService) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/net/ready"):
        assert service.ask("GET", path)[0] == 200
    server = service.json("GET", "/v2")
    assert server["name"] == "nnstretch"
    assert "binary_tensor_data" in server["extensions"]
    for path in ("/v2/models/net", "/v2/models/net/versions/1", "/v2/models/net/"):
        assert service.json("GET", path) == {
            "name": "net",
            "versions": ["1"],
            "platform": "nnstretch_onnxruntime",
            "inputs": [{"name": "image", "datatype": "FP32", "shape": [1, 3, 8, 8]}],
            "outputs": [{"name": "s1.merged", "datatype": "FP32", "shape": [1, 8, 8, 8]}],
        }
    config = service.json("GET", "/v2/models/net/config")
    assert config["input"] == [{"name": "image", "data_type": "TYPE_FP32", "dims": [1, 3, 8, 8]}]
    assert (config["max_batch_size"], config["dynamic_batching"]["priority_levels"]) == (0, 100)
    index = [{"name": "net", "version": "1", "state": "READY", "reason": ""}]
    assert service.json("POST", "/v2/repository/index") == index


def test_json_and_binary_tensors_give_the_same_answer(service: HttpService) -> None:
    array = image(3)
    wanted = expected(service, array)
    answer = service.json("POST", INFER, json_request(array, id="seven"))
    assert (answer["id"], answer["model_name"], answer["model_version"]) == ("seven", "net", "1")
    (output,) = answer["outputs"]
    assert (output["name"], output["datatype"]) == ("s1.merged", "FP32")
    numbers = np.asarray(output["data"], np.float32).reshape(output["shape"])
    assert np.array_equal(numbers, wanted)
    body, headers = binary_request(array, parameters={"binary_data_output": True})
    status, answered, data = service.ask("POST", INFER, body, headers)
    assert status == 200
    size = int(answered["inference-header-content-length"])
    (output,) = json.loads(data[:size])["outputs"]
    assert output["parameters"] == {"binary_data_size": wanted.nbytes}
    assert np.array_equal(np.frombuffer(data[size:], np.float32).reshape(wanted.shape), wanted)


def test_nested_data_and_named_outputs(service: HttpService) -> None:
    request = json_request(image(1), outputs=[{"name": "s1.merged"}])
    flat = service.json("POST", INFER, request)
    request["inputs"][0]["data"] = image(1).tolist()
    assert service.json("POST", INFER, request) == flat


def test_statistics_and_metrics_count(service: HttpService) -> None:
    before = service.json("GET", "/v2/models/net/stats")["model_stats"][0]
    service.json("POST", INFER, json_request(image(1)))
    service.json("POST", INFER, json_request(image(1), parameters={"timeout": 10**7}))
    after = service.json("GET", "/v2/models/stats")["model_stats"][0]
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["inference_stats"]["compute_infer"]["ns"] > 0
    status, headers, text = service.ask("GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    answered = float(after["inference_count"])
    assert f'nnstretch_requests_total{{end="answered",model="net"}} {answered}'.encode() in text


def changed(**change: Any) -> dict[str, Any]:
    request = json_request(image(0))
    row = request["inputs"][0]
    for key, value in change.items():
        if value is None:
            del row[key]
        else:
            row[key] = value
    return request


DATA = [0.5] * 192


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "request is [1], needed is an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"inputs": [{"name": NaN}]}', "NaN"),
        ({}, "input image is missing"),
        ({"inputs": 3}, "inputs is 3, needed is a list"),
        ({"inputs": [3]}, "input is 3"),
        ({"input": []}, "close to it: inputs"),
        (changed(name="imag"), "unknown input 'imag'"),
        (changed(name=3), "name of an input is 3"),
        (changed(shape=[1, 3, 8, 9]), "needed is [1, 3, 8, 8]"),
        (changed(shape=[2**62, 2**62, 8, 8]), "needed is [1, 3, 8, 8]"),
        (changed(shape=[1, 3, 8.0, 8]), "needed is [1, 3, 8, 8]"),
        (changed(shape=[True, 3, 8, 8]), "needed is [1, 3, 8, 8]"),
        (changed(datatype="FP64"), "datatype of input image is 'FP64', needed is FP32"),
        (changed(data=DATA[:-1]), "has shape [191]"),
        (changed(data=[*DATA[:-1], "1"]), "no numbers of FP32"),
        (changed(data=[*DATA[:-1], True]), "no numbers of FP32"),
        (changed(data=[*DATA[:-1], [1]]), "ragged"),
        (changed(data=[*DATA[:-1], 1e300]), "NaN or infinite"),
        (changed(data=[*DATA[:-1], 10**400]), "no numbers"),
        (changed(data=None), "data of input image is None"),
        (changed(parameters={"binary_data_size": 8}), "data and binary_data_size"),
        (changed(data=None, parameters={"binary_data_size": 768}), "the body has 0 more"),
        (changed(data=None, parameters={"binary_data_size": -1}), "binary_data_size"),
        (changed(color=1), "'color'"),
        ({"inputs": changed()["inputs"] * 2}, "there twice"),
        (changed() | {"id": 3}, "id is 3"),
        (changed() | {"parameters": {"timeout": -1}}, "timeout is -1"),
        (changed() | {"parameters": {"timeout": "1"}}, "timeout is '1'"),
        (changed() | {"parameters": {"priority": 101}}, "priority is 101"),
        (changed() | {"parameters": {"time_out": 1}}, "close to it: timeout"),
        (changed() | {"outputs": [{"name": "scores"}]}, "unknown output 'scores'"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(service: HttpService, body: Any, says: str) -> None:
    status, _, answer = service.ask("POST", INFER, body)
    assert status == 400
    assert says in error_of(answer)


@pytest.mark.parametrize(
    ("length", "cut", "says"),
    [
        ("99999", 0, "Inference-Header-Content-Length is 99999"),
        ("-1", 0, "'-1'"),
        ("1e3", 0, "'1e3'"),
        (None, 1, "has 767 bytes"),
        (None, -1, "behind the JSON"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(
    service: HttpService, length: str | None, cut: int, says: str
) -> None:
    array = image(0)
    body, headers = binary_request(array)
    if cut > 0:
        text = body[: -array.nbytes].replace(b"768", b"767")
        body = text + array.tobytes()[:-cut]
    elif cut < 0:
        body += b"x" * -cut
    if length is not None:
        headers["Inference-Header-Content-Length"] = length
    status, _, answer = service.ask("POST", INFER, body, headers)
    assert status == 400
    assert says in error_of(answer)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models/nett", 404),
        ("GET", "/v2/models/net/versions/2", 404),
        ("POST", "/v2/models/nett/infer", 404),
        ("GET", INFER, 405),
        ("POST", "/v2", 405),
        ("POST", "/v2/repository/models/net/load", 404),
    ],
)
def test_what_is_not_there_is_refused(
    service: HttpService, method: str, path: str, status: int
) -> None:
    found, _, answer = service.ask(method, path)
    assert found == status
    assert error_of(answer)


def test_a_compressed_body_is_refused(service: HttpService) -> None:
    status, _, answer = service.ask("POST", INFER, b"x", {"Content-Encoding": "gzip"})
    assert status == 415
    assert error_of(answer)


def answer_to(service: HttpService, data: bytes) -> tuple[int, str]:
    """Status and error of what a connection answers before it closes."""
    head, _, body = service.send(data).partition(b"\r\n\r\n")
    return int(head.split()[1]), error_of(body)


POST = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n".encode()


def test_a_body_beyond_the_limit_is_not_read_to_its_end(service: HttpService) -> None:
    status, message = answer_to(service, POST + b"Content-Length: 9000000000\r\n\r\n" + b"x" * 999)
    assert (status, "longer than 200000 bytes" in message) == (413, True)
    chunk = b"20000\r\n" + b"x" * 0x20000 + b"\r\n"
    status, message = answer_to(service, POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunk * 3)
    assert (status, "longer than 200000 bytes" in message) == (413, True)


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
    (accepted,) = service.http.server_state.connections
    transport = accepted.transport  # type: ignore[union-attr]
    assert transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    connection.close()


def test_what_is_no_http_is_refused(service: HttpService) -> None:
    assert answer_to(service, b"HELLO\r\n\r\n")[0] == 400
    assert answer_to(service, POST + b"Content-Length: -1\r\n\r\n")[0] == 400


def test_a_full_queue_answers_503_at_once_and_a_late_request_504(tmp_path: Path) -> None:
    with http_service(tmp_path, QUEUE) as service:
        gate = Gate(service.server.applications["net"].network)
        late: list[int] = []
        request = json_request(image(0), parameters={"timeout": 300_000})
        thread = threading.Thread(
            target=lambda: late.append(service.ask("POST", INFER, request)[0])
        )
        thread.start()
        assert gate.entered.wait(30)
        status, headers, answer = service.ask("POST", INFER, json_request(image(0)))
        assert (status, headers["retry-after"]) == (503, "1")
        assert "1 requests of net are open" in error_of(answer)
        thread.join(30)
        assert late == [504]
        gate.open()


def test_a_client_that_goes_away_cancels_its_request(tmp_path: Path) -> None:
    with http_service(tmp_path, QUEUE) as service:
        gate = Gate(service.server.applications["net"].network)
        body = json.dumps(json_request(image(0))).encode()
        with socket.create_connection(("127.0.0.1", service.port)) as connection:
            connection.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert gate.entered.wait(30)
        wait_until_cancelled(service, "net")
        gate.open()
        assert service.ask("POST", INFER, json_request(image(0)))[0] == 200


def request_that_waits(service: HttpService) -> tuple[Gate, http.client.HTTPConnection]:
    """Send a request that is computed once the gate opens."""
    gate = Gate(service.server.applications["net"].network)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
    connection.request("POST", INFER, json.dumps(json_request(image(0))))
    assert gate.entered.wait(30)
    return gate, connection


def test_the_first_signal_answers_what_is_open_and_refuses_what_is_new(tmp_path: Path) -> None:
    with http_service(tmp_path, QUEUE) as service:
        gate, connection = request_that_waits(service)
        service.signal()
        while service.ask("GET", "/v2/health/ready")[0] != 503:
            time.sleep(0.01)
        assert service.ask("GET", "/v2/health/live")[0] == 200
        status, headers, answer = service.ask("POST", INFER, json_request(image(0)))
        assert (status, headers["retry-after"]) == (503, "1")
        assert "it is ending" in error_of(answer)
        gate.open()
        assert connection.getresponse().status == 200
        connection.close()
        service.thread.join(30)
        assert not service.thread.is_alive()
        assert not service.http.interrupted


def test_a_request_that_is_not_there_when_the_server_has_ended_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "SEND_S", 0.2)
    with (
        http_service(tmp_path) as service,
        socket.create_connection(("127.0.0.1", service.port), timeout=30) as half,
    ):
        half.sendall(POST + b"Content-Length: 100\r\n\r\n{")
        assert service.ask("GET", "/v2/health/ready")[0] == 200
        service.signal()
        head, _, body = b"".join(iter(lambda: half.recv(65536), b"")).partition(b"\r\n\r\n")
    assert (head.split()[1], b"retry-after: 1" in head) == (b"503", True)
    assert error_of(body) == "the request was not there in time, server, it has ended"


def test_the_second_signal_ends_at_once(tmp_path: Path) -> None:
    with http_service(tmp_path, QUEUE) as service:
        gate, connection = request_that_waits(service)
        service.signal()
        service.signal()
        threading.Timer(0.2, gate.open).start()
        service.thread.join(30)
        assert service.http.interrupted
        connection.close()
    assert service.server.applications["net"].statistics.lost == 0


def test_long_numbers_are_read_and_written_on_another_thread(
    service: HttpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(kind: Any) -> Any:
        def call(*args: Any) -> Any:
            threads.append(threading.current_thread().name)
            return kind(*args)

        return call

    request = json_request(image(1))
    request["inputs"][0]["data"] = image(1).tolist()
    whole = service.json("POST", INFER, request)
    for name in ("decode_request", "encode_answer"):
        monkeypatch.setattr(application, name, noted(getattr(application, name)))
    monkeypatch.setattr(application, "QUICK_JSON_BYTES", 1000)
    monkeypatch.setattr(application, "QUICK_NUMBERS", 100)
    monkeypatch.setattr(number_lists, "LONG_BYTES", 1000)
    assert service.json("POST", INFER, request) == whole
    assert [name.rpartition("_")[0] for name in threads] == ["nnstretch-coder"] * 2
    request["inputs"][0]["data"][0][0][0][0] = "x"
    status, _, answer = service.ask("POST", INFER, request)
    assert (status, "numbers in a list" in error_of(answer)) == (400, True)
    monkeypatch.setattr(infer, "LONGEST_JSON_BYTES", 5000)
    status, _, answer = service.ask("POST", INFER, request | {"id": "x" * 6000})
    assert (status, "beside long lists" in error_of(answer)) == (400, True)


def test_bodies_of_open_requests_are_bounded_together(tmp_path: Path) -> None:
    body = json.dumps(json_request(image(0))).encode()
    limits = HttpLimits(all_bodies_bytes=int(1.5 * len(body)), skip_s=0.1)
    with http_service(tmp_path, limits=limits) as service:
        with socket.create_connection(("127.0.0.1", service.port), timeout=30) as connection:
            head = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
            connection.sendall(head + body[:-1])
            while service.http._application._budget.taken_bytes < len(body) - 1:
                time.sleep(0.01)
            status, headers, answer = service.ask("POST", INFER, body)
            assert (status, headers["retry-after"]) == (503, "1")
            assert "together" in error_of(answer)
            connection.sendall(body[-1:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert service.ask("POST", INFER, body)[0] == 200
