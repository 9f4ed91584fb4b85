"""The Open Inference Protocol over HTTP: answers, full queues, clients that go away, the end."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.http_answers import INFER, POST, error_of
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
from nnstretch.serve.request_body import HttpLimits

QUEUE = """
pool: {cpu: 1}
applications: [{name: net, model: net.nns, queue_limit: 1}]
"""


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
    times_ns = {name: row["ns"] for name, row in after["inference_stats"].items()}
    assert times_ns["compute_infer"] > 0
    assert abs(times_ns["queue"] + times_ns["compute_infer"] - times_ns["success"]) <= 2
    status, headers, text = service.ask("GET", "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    answered = float(after["inference_count"])
    assert f'nnstretch_requests_total{{end="answered",model="net"}} {answered}'.encode() in text


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


@pytest.mark.slow
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


def test_the_second_signal_answers_503_at_once(tmp_path: Path) -> None:
    with http_service(tmp_path, QUEUE) as service:
        gate, connection = request_that_waits(service)
        service.signal()
        service.signal()
        assert connection.getresponse().status == 503
        assert service.thread.is_alive()  # what computes is let end
        gate.open()
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
