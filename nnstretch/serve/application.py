"""The Open Inference Protocol over HTTP, with what Triton has beside it.

The event loop moves bytes and nothing else: networks compute on the server's threads, and JSON or
tensors that are large are read and written on another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from nnstretch.errors import (
    BadInput,
    Cancelled,
    DeadlineMissed,
    NnstretchError,
    ProcessorFailed,
    UnknownName,
    describe_error,
    one_line,
)
from nnstretch.run.requests.open_requests import Reply
from nnstretch.serve.descriptions import (
    VERSION,
    model_config,
    model_metadata,
    repository_index,
    server_metadata,
    statistics_json,
)
from nnstretch.serve.infer import (
    DEFAULT_LEVEL,
    InferRequest,
    decode_request,
    encode_answer,
)
from nnstretch.serve.metrics import Metrics
from nnstretch.serve.network_server import NetworkServer
from nnstretch.serve.request_body import (
    HEADER_LENGTH,
    BodyBudget,
    BodyShare,
    HttpLimits,
    header_length,
    read_body,
)
from nnstretch.serve.served_application import ServedApplication

LOG = logging.getLogger("nnstretch")
STATUS: tuple[tuple[type[NnstretchError], int], ...] = (
    (UnknownName, 404),
    (BadInput, 400),
    (DeadlineMissed, 504),
    (Cancelled, 503),
    (ProcessorFailed, 503),
)
RETRY_AFTER = {"Retry-After": "1"}
GONE = 499
"""Status of an answer that nobody reads any more."""
QUICK_JSON_BYTES = 8 << 10
QUICK_BYTES = 1 << 20
"""Requests above are decoded on another thread, not on the event loop's."""
QUICK_NUMBERS = 1000
"""Answers with more numbers as JSON are encoded there, too."""
CODERS = 2
"""Threads that decode and encode: a long body blocks one of them only."""


class InferenceApplication:
    """Routes of the protocol around a server; `draining` refuses what is new."""

    def __init__(
        self, server: NetworkServer, metrics: Metrics, version: str, limits: HttpLimits
    ) -> None:
        self.server, self._metrics = server, metrics
        self._version, self._limits = version, limits
        self.draining = False
        self.accepted_count = 0
        """Requests that are there whole and have no answer yet."""
        self._budget = BodyBudget(limits.all_bodies_bytes)
        self._coder = ThreadPoolExecutor(CODERS, "nnstretch-coder")

    def routes(self) -> Starlette:
        """Return the ASGI application."""
        routes = [
            *two_routes("/v2/health/live", self._live),
            *two_routes("/v2/health/ready", self._ready),
            *two_routes("/v2", self._metadata),
            *two_routes("/v2/models/stats", self._all_statistics),
            *two_routes("/metrics", self._prometheus),
            *two_routes("/v2/repository/index", self._index, "POST"),
        ]
        for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            routes += [
                *two_routes(f"{base}/ready", self._model_ready),
                *two_routes(f"{base}/config", self._config),
                *two_routes(f"{base}/stats", self._statistics),
                *two_routes(f"{base}/infer", self._infer, "POST"),
                *two_routes(base, self._model_metadata),
            ]
        handlers: Any = {HTTPException: http_error}
        return Starlette(routes=routes, exception_handlers=handlers)

    def close(self) -> None:
        """End the threads that decode."""
        self._coder.shutdown(wait=False, cancel_futures=True)

    async def _live(self, _request: Request) -> Response:
        return Response()

    async def _ready(self, _request: Request) -> Response:
        return Response(status_code=503 if self.draining else 200)

    async def _metadata(self, _request: Request) -> Response:
        return JSONResponse(server_metadata(self._version))

    async def _index(self, _request: Request) -> Response:
        return JSONResponse(repository_index(list(self.server.applications), not self.draining))

    async def _prometheus(self, _request: Request) -> Response:
        return Response(self._metrics.text(), media_type=self._metrics.content_type)

    async def _all_statistics(self, _request: Request) -> Response:
        return JSONResponse(statistics_json(tuple(self.server.applications.values())))

    async def _model_ready(self, request: Request) -> Response:
        self._model(request)
        return await self._ready(request)

    async def _model_metadata(self, request: Request) -> Response:
        return JSONResponse(model_metadata(self._model(request)))

    async def _config(self, request: Request) -> Response:
        return JSONResponse(model_config(self.server, self._model(request)))

    async def _statistics(self, request: Request) -> Response:
        return JSONResponse(statistics_json((self._model(request),)))

    def _model(self, request: Request) -> ServedApplication:
        """Return the model of a path. Raises UnknownName for one that is not there."""
        version = request.path_params.get("version", VERSION)
        served = self.server.served(request.path_params["model"])
        if version != VERSION:
            name = served.application.name
            raise UnknownName(f"unknown version {version[:40]!r} of {name}, server, it has 1")
        return served

    async def _infer(self, request: Request) -> Response:
        served = self._model(request)
        if self.draining:
            raise HTTPException(503, "no request is taken, server, it is ending", RETRY_AFTER)
        with self._budget.share() as share:
            return await self._computed(request, served, share)

    async def _computed(
        self, request: Request, served: ServedApplication, share: BodyShare
    ) -> Response:
        header_bytes = header_length(request)
        body = await read_body(request, self._limits, share)
        json_bytes = len(body) if header_bytes is None else header_bytes
        quick = json_bytes <= QUICK_JSON_BYTES and len(body) <= QUICK_BYTES
        with self._accepting():
            infer, reply = await self._code(quick, partial(self._begin, served, body, header_bytes))
            del body  # tensors that are views of it keep it, numbers in JSON do not
            if reply is None:
                message = f"{served.limit} requests of {served.application.name} are open, server"
                raise HTTPException(503, message, RETRY_AFTER)
            arrays = await answer_of(reply, request)
            if arrays is None:
                return Response(status_code=GONE)
            return await self._answer(served, infer, arrays)

    @contextmanager
    def _accepting(self) -> Iterator[None]:
        self.accepted_count += 1
        try:
            yield
        finally:
            self.accepted_count -= 1

    async def _code(self, quick: bool, work: Callable[[], Any]) -> Any:
        """Decode or encode: here where that is quick, else on another thread."""
        if quick:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._coder, work)

    def _begin(
        self, served: ServedApplication, body: bytearray, header_bytes: int | None
    ) -> tuple[InferRequest, Reply | None]:
        infer = decode_request(body, header_bytes, served.network.manifest)
        application = served.application
        priority = None
        if infer.level:
            priority = application.priority + DEFAULT_LEVEL - infer.level
        name = application.name
        return infer, self.server.submit(name, infer.inputs, infer.timeout_us, priority)

    async def _answer(
        self, served: ServedApplication, infer: InferRequest, arrays: dict[str, np.ndarray]
    ) -> Response:
        numbers = sum(arrays[wanted.name].size for wanted in infer.outputs if not wanted.binary)
        name, ports = served.application.name, served.network.manifest.outputs
        answer = await self._code(
            numbers <= QUICK_NUMBERS, lambda: encode_answer(name, infer, arrays, ports)
        )
        if answer.header_bytes is None:
            return Response(answer.parts[0], media_type="application/json")
        headers = {HEADER_LENGTH: str(answer.header_bytes)}
        body = b"".join(answer.parts)
        return Response(body, headers=headers, media_type="application/octet-stream")


Endpoint = Callable[[Request], Awaitable[Response]]


def two_routes(path: str, endpoint: Endpoint, method: str = "GET") -> tuple[Route, Route]:
    """Return the routes of a path, without and with a slash at its end."""
    guarded = with_errors(endpoint)
    return Route(path, guarded, methods=[method]), Route(f"{path}/", guarded, methods=[method])


def with_errors(endpoint: Endpoint) -> Endpoint:
    """Return an endpoint whose errors are the protocol's objects, never a traceback."""

    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=GONE)
        except asyncio.CancelledError:  # uvicorn waits for nobody any more
            message = "the request was not there in time, server, it has ended"
            return error_response(503, message)
        except HTTPException:
            raise
        except NnstretchError as error:
            return error_response(status_of(error), str(error))
        except Exception as error:
            LOG.error("a request failed: %s", describe_error(error))
            return error_response(500, f"the server failed, {describe_error(error)}")

    return answered


def status_of(error: NnstretchError) -> int:
    """Return the HTTP status of an error."""
    for kind, status in STATUS:
        if isinstance(error, kind):
            return status
    return 500


async def http_error(_request: Request, error: Exception) -> Response:
    """Return an error of HTTP as the protocol's object."""
    assert isinstance(error, HTTPException)
    return error_response(error.status_code, error.detail, error.headers)


def error_response(status: int, message: str, headers: Any = None) -> Response:
    """Return the protocol's error object; who may come again is told when."""
    if status == 503 and headers is None:
        headers = RETRY_AFTER
    return JSONResponse({"error": one_line(message)}, status, headers)


async def answer_of(reply: Reply, request: Request) -> dict[str, np.ndarray] | None:
    """Return the arrays of an answer; None where its client went away, whose request is cancelled.

    Raises the request's error.
    """
    loop = asyncio.get_running_loop()
    ended, gone = asyncio.Event(), loop.create_task(disconnected(request))
    gone.add_done_callback(lambda _: ended.set())
    reply.notify(loop, ended.set)
    try:
        await ended.wait()
        if reply.done():
            arrays: dict[str, np.ndarray] = reply.result()
            return arrays
        return None
    finally:
        gone.cancel()
        reply.cancel()


async def disconnected(request: Request) -> None:
    """Return when the client of a request has gone away."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
