"""Answers of a service to what a client sends it."""

from __future__ import annotations

import json

from support.serving import (
    HttpService,
)

INFER = "/v2/models/net/infer"


def error_of(answer: bytes) -> str:
    content = json.loads(answer)
    assert content.keys() == {"error"}
    assert "Traceback" not in content["error"]
    assert "\n" not in content["error"]
    message: str = content["error"]
    return message


def answer_to(service: HttpService, data: bytes) -> tuple[int, str]:
    """Status and error of what a connection answers before it closes."""
    head, _, body = service.send(data).partition(b"\r\n\r\n")
    return int(head.split()[1]), error_of(body)


POST = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n".encode()
