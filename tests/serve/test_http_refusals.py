"""Wrong requests over HTTP are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.http_answers import INFER, error_of
from support.serving import (
    HttpService,
    binary_request,
    http_service,
    image,
    json_request,
)


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
        ({}, "input image is missing, the model has image"),
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


@pytest.mark.parametrize("name", ["my  net", "net\u00a0v2"])
def test_names_are_taken_as_they_are(tmp_path: Path, name: str) -> None:
    with http_service(tmp_path, f'applications: [{{name: "{name}", model: net.nns}}]') as service:
        assert service.json("GET", f"/v2/models/{quote(name)}")["name"] == name
        status, _, answer = service.ask("GET", f"/v2/models/{quote(' '.join(name.split()))}")
        assert (status, error_of(answer)[:13]) == (404, "unknown model")


def test_a_compressed_body_is_refused(service: HttpService) -> None:
    status, _, answer = service.ask("POST", INFER, b"x", {"Content-Encoding": "gzip"})
    assert status == 415
    assert error_of(answer)
