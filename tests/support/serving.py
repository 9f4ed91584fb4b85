"""Served bundles for tests: loaded as the command line does, over HTTP in a thread."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from support.bundles import branched_bundle

from nnstretch.bundle.bundle import write_bundle
from nnstretch.cli.loaded_model import load_soc_of
from nnstretch.cli.serve.applications import LoadedApplications, load_applications
from nnstretch.cli.serve.host_pool import factors_of, host_pool
from nnstretch.files.workload.service_record import RecordedRequest
from nnstretch.files.workload.workload_yaml import read_workload
from nnstretch.schedule import Disturbances
from nnstretch.serve.application import InferenceApplication
from nnstretch.serve.http_server import DrainingServer, serve_http, tcp_listener
from nnstretch.serve.metrics import Metrics
from nnstretch.serve.network_server import HostOptions, NetworkServer
from nnstretch.serve.request_body import HttpLimits
from nnstretch.serve.served_network import ServedNetwork

SHAPE = (1, 3, 8, 8)
ONE = "applications: [{name: net, model: net.nns}]"
TWO = "applications: [{name: net, model: net.nns}, {name: other, model: net.nns, priority: 1}]"


def image(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def loaded(folder: Path, workload: str = ONE) -> tuple[LoadedApplications, Mapping[str, float]]:
    bundle = branched_bundle()
    write_bundle(folder / "net.nns", bundle.manifest, bundle.files)
    (folder / "w.yaml").write_text(workload, encoding="utf-8")
    settings = read_workload(folder / "w.yaml")
    soc = load_soc_of(settings.soc) if settings.soc else None
    pool = host_pool(settings, soc)
    factors = factors_of(settings, pool)
    return load_applications(settings, pool, factors, soc, folder, None, lambda *_: None), factors


class Gate:
    """Lets tasks compute only while it is open."""

    def __init__(self, network: ServedNetwork) -> None:
        self._event, self._compute = threading.Event(), network.compute
        self.entered = threading.Event()
        network.compute = self._gated  # type: ignore[method-assign]

    def _gated(self, *args: Any) -> None:
        self.entered.set()
        assert self._event.wait(30)
        self._compute(*args)

    def open(self) -> None:
        self._event.set()


@contextmanager
def serving(
    folder: Path,
    workload: str = ONE,
    disturbances: Disturbances = Disturbances(),  # noqa: B008 (frozen)
    on_end: Callable[[RecordedRequest], None] | None = None,
) -> Iterator[NetworkServer]:
    applications, factors = loaded(folder, workload)
    options = HostOptions(
        applications.emulated, applications.dilation, factors, disturbances=disturbances
    )
    with NetworkServer(applications.settings, applications.networks, options, on_end) as server:
        yield server


class HttpService:
    """A server over HTTP on a thread of this process."""

    def __init__(
        self, server: NetworkServer, limits: HttpLimits, headers_s: float, most: int | None = None
    ) -> None:
        application = InferenceApplication(server, Metrics(server), "test", limits)
        self.server = server
        self.http = DrainingServer(application, headers_s, most)
        self.listener = tcp_listener("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self._loop: asyncio.AbstractEventLoop | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        startup = self.http.startup

        async def noted(**how: Any) -> None:
            self._loop = asyncio.get_running_loop()
            await startup(**how)

        self.http.startup = noted  # type: ignore[method-assign]
        serve_http(self.http, self.listener)

    def signal(self) -> None:
        """Do what a signal does, if the server has not ended."""
        if not self.thread.is_alive():
            return
        while self._loop is None or not self.http.started:
            threading.Event().wait(0.01)
        with suppress(RuntimeError):  # the loop has just been closed
            self._loop.call_soon_threadsafe(self.http.end)

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] = {}
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer; a mapping is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = json.dumps(body) if isinstance(body, dict) else body
            connection.request(method, path, data, dict(headers))
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, names, answer.read()
        finally:
            connection.close()

    def json(self, method: str, path: str, body: Any = None) -> Any:
        status, _, answer = self.ask(method, path, body)
        assert status == 200, answer
        return json.loads(answer)

    def send(self, data: bytes, end: bool = False) -> bytes:
        """Send bytes as they are; return all that comes until the other side closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
            parts = []
            while part := connection.recv(65536):
                parts.append(part)
            return b"".join(parts)


def wait_until_cancelled(service: HttpService, application: str) -> None:
    """Wait until one request of an application was cancelled, half a minute at most."""
    statistics = service.server.applications[application].statistics
    until_s = time.monotonic() + 30
    while not statistics.ends["cancelled"] and time.monotonic() < until_s:
        time.sleep(0.01)
    assert statistics.ends["cancelled"] == 1


@contextmanager
def http_service(
    folder: Path,
    workload: str = ONE,
    limits: HttpLimits = HttpLimits(),  # noqa: B008 (frozen)
    headers_s: float = 10.0,
    most: int | None = None,
) -> Iterator[HttpService]:
    applications, factors = loaded(folder, workload)
    options = HostOptions(factors=factors)
    server = NetworkServer(applications.settings, applications.networks, options)
    service = HttpService(server, limits, headers_s, most)
    try:
        yield service
    finally:
        service.signal()
        service.thread.join(30)
        assert not service.thread.is_alive()


def json_request(array: np.ndarray, **more: Any) -> dict[str, Any]:
    row = {"name": "image", "shape": list(array.shape), "datatype": "FP32"}
    return {"inputs": [row | {"data": array.ravel().tolist()}]} | more


def binary_request(array: np.ndarray, **more: Any) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request with binary tensors."""
    row = {"name": "image", "shape": list(array.shape), "datatype": "FP32"}
    size = {"parameters": {"binary_data_size": array.nbytes}}
    text = json.dumps({"inputs": [row | size]} | more).encode()
    return text + array.tobytes(), {"Inference-Header-Content-Length": str(len(text))}
