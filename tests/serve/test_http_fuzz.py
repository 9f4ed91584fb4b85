"""Whatever is sent, the answer is a result or the protocol's error object, and the server goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.serving import HttpService, binary_request, http_service, image, json_request

from nnstretch.serve.request_body import HttpLimits

INFER = "/v2/models/net/infer"
LIMITS = HttpLimits(body_bytes=40_000, body_s=0.2, skip_s=0.05)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["", "image", "FP32", "s1.merged", "é\ud800"])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["name", "shape", "data", "datatype", "parameters", "x"]), inner
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpService]:
    with http_service(tmp_path_factory.mktemp("fuzz"), limits=LIMITS, headers_s=0.2) as service:
        yield service
        assert service.ask("POST", INFER, json_request(image(0)))[0] == 200, "it goes on"


def check(status: int, answer: bytes) -> None:
    assert status in (200, 400, 404, 405, 408, 413, 415)
    if status != 200:
        content = json.loads(answer)
        assert content.keys() == {"error"}
        assert "\n" not in content["error"]
        assert "Traceback" not in content["error"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["id", "inputs", "outputs", "parameters", "y"]),
    st.sampled_from(["", "name", "shape", "datatype", "data", "parameters"]),
    values,
)
def test_changed_requests(service: HttpService, key: str, inner: str, value: object) -> None:
    request = json_request(image(0))
    if inner:
        request["inputs"][0][inner] = value
    else:
        request[key] = value
    status, _, answer = service.ask("POST", INFER, json.dumps(request).encode())
    check(status, answer)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2_000),
    st.binary(max_size=8),
    st.integers(0, 1),
    st.none() | st.text("0123456789 -+ex", max_size=20),
)
def test_bent_bytes(
    service: HttpService, at: int, put: bytes, cut: int, length: str | None
) -> None:
    body, headers = binary_request(image(0))
    body = body[:at] + put + body[at + cut * len(put) :]
    if length is not None:
        headers["Inference-Header-Content-Length"] = length
    status, _, answer = service.ask("POST", INFER, body, headers)
    check(status, answer)


@settings(max_examples=20, deadline=None)
@given(st.binary(min_size=1, max_size=200))
def test_no_http_at_all(service: HttpService, data: bytes) -> None:
    head, _, answer = service.send(data, end=True).partition(b"\r\n\r\n")
    if head:
        check(int(head.split()[1]), answer)
