"""Bodies of requests: read in time, and no more of them than the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
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
    """What clients may take."""

    body_bytes: int = 64 << 20
    all_bodies_bytes: int = 256 << 20
    """Of all requests that are open, together."""
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


class BodyBudget:
    """Memory that the bodies of all open requests take together; used on the event loop only."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0

    @contextmanager
    def share(self) -> Iterator[BodyShare]:
        """Yield the share of one request, which is given back at the end."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.taken_bytes -= share.size_bytes


class BodyShare:
    """What the body of one request takes of a budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.size_bytes = 0

    def may_grow(self, more_bytes: int) -> bool:
        """Return whether so much more is left."""
        return self._budget.taken_bytes + more_bytes <= self._budget.limit_bytes

    def grow(self, more_bytes: int) -> None:
        """Take more."""
        self.size_bytes += more_bytes
        self._budget.taken_bytes += more_bytes

    def refusal(self) -> HTTPException:
        """Return the error where there is not enough."""
        limit = self._budget.limit_bytes
        message = f"bodies of open requests may have {limit} bytes together, server, they do"
        return HTTPException(503, message, {"Retry-After": "1", "Connection": "close"})


async def read_body(request: Request, limits: HttpLimits, share: BodyShare) -> bytearray:
    """Read a body in time, and no more of it than the limits. Raises HTTPException."""
    declared = int(request.headers.get("content-length", 0))
    body = bytearray()
    chunks = request.stream()
    too_long = HTTPException(
        413,
        f"the body is longer than {limits.body_bytes} bytes, the limit",
        {"Connection": "close"},
    )
    refusal = too_long if declared > limits.body_bytes else None
    if refusal is None and not share.may_grow(declared):
        refusal = share.refusal()
    try:
        async with asyncio.timeout(limits.body_s):
            while refusal is None:
                chunk = await anext(chunks, None)
                if chunk is None:
                    return body
                if len(body) + len(chunk) > limits.body_bytes:
                    refusal = too_long
                elif not share.may_grow(len(chunk)):
                    refusal = share.refusal()
                else:
                    share.grow(len(chunk))
                    body += chunk
    except TimeoutError:
        message = f"the body was not there after {limits.body_s:g} s, {len(body)} bytes came"
        raise HTTPException(408, message, {"Connection": "close"}) from None
    await skip(chunks, limits.skip_s)
    raise refusal


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
