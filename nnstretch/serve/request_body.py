"""Bodies of requests: read in time, and no more of them than the limits."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from nnstretch.errors import BadInput, one_line

HEADER_LENGTH = "Inference-Header-Content-Length"
MOST_SKIPPED_BYTES = 8 << 20
"""Of a body that is refused."""
MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What one client may take."""

    body_bytes: int = 64 << 20
    body_s: float = 30.0
    """Until all of a body must be there."""
    skip_s: float = 1.0
    """How long a body that is refused is read on, so that its sender comes to read why."""


def header_length(request: Request) -> int | None:
    """Return how long the JSON in front of tensors is; None where all is JSON. Raises BadInput."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "Content-Encoding, server, bodies are taken as they are")
    text = request.headers.get(HEADER_LENGTH)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS):
        raise BadInput(f"{HEADER_LENGTH} is {one_line(text)[:40]!r}, needed is a count of bytes")
    return int(text)


async def read_body(request: Request, limits: HttpLimits) -> list[bytes]:
    """Read a body in time, and no more of it than the limit. Raises HTTPException."""
    declared = int(request.headers.get("content-length", 0))
    parts: list[bytes] = []
    size = 0
    chunks = request.stream()
    try:
        async with asyncio.timeout(limits.body_s):
            if declared <= limits.body_bytes:
                async for chunk in chunks:
                    parts.append(chunk)
                    size += len(chunk)
                    if size > limits.body_bytes:
                        break
                else:
                    return parts
    except TimeoutError:
        message = f"the body was not there after {limits.body_s:g} s, {size} bytes came"
        raise HTTPException(408, message, {"Connection": "close"}) from None
    await skip(chunks, limits.skip_s)
    message = f"the body is longer than {limits.body_bytes} bytes, the limit"
    raise HTTPException(413, message, {"Connection": "close"})


async def skip(chunks: Any, seconds: float) -> None:
    """Read on for a moment: whoever sends all before he reads would else never read why not."""
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in chunks:
                size += len(chunk)
                if size > MOST_SKIPPED_BYTES:
                    return
    except TimeoutError:
        return


def bytes_of(parts: list[bytes]) -> bytearray:
    """Return a body in one piece, aligned as tensors need it."""
    return bytearray(b"").join(parts)
