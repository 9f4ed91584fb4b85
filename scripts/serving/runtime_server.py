"""What people do today: ONNX Runtime behind HTTP, first come first served, without the project.

It reads one JSON object: networks with file and input, `threads` within operators, and whether each
network has a thread of its own that is kept to a core (`pinned`), or one thread computes all. It
takes the same requests as `nnstretch serve`, over the same HTTP server.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


class Network:
    def __init__(self, row: dict[str, Any], threads: int, worker: ThreadPoolExecutor) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.shape, self.name, self.worker = row["shape"], row["input"], worker
        load = worker.submit(onnxruntime.InferenceSession, row["file"], options)
        self.session = load.result()

    def compute(self, data: bytes) -> bytes:
        image = np.frombuffer(data, np.float32).reshape(self.shape)
        (output,) = self.session.run(None, {self.name: image})
        text = json.dumps({"outputs": [{"shape": list(output.shape)}]}).encode()
        return text + output.tobytes()


def worker_on(core: int | None) -> ThreadPoolExecutor:
    def keep_to_core() -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})

    return ThreadPoolExecutor(1, initializer=keep_to_core)


def application(orders: dict[str, Any]) -> Starlette:
    cores = sorted(os.sched_getaffinity(0))
    shared = worker_on(None)
    networks: dict[str, Network] = {}
    for number, (name, row) in enumerate(orders["networks"].items()):
        worker = worker_on(cores[number % len(cores)]) if orders["pinned"] else shared
        networks[name] = Network(row, orders["threads"], worker)

    async def infer(request: Request) -> Response:
        network = networks[request.path_params["model"]]
        header_bytes = int(request.headers["inference-header-content-length"])
        data = (await request.body())[header_bytes:]
        loop = asyncio.get_running_loop()
        return Response(await loop.run_in_executor(network.worker, network.compute, data))

    return Starlette(routes=[Route("/v2/models/{model}/infer", infer, methods=["POST"])])


if __name__ == "__main__":
    app = application(json.loads(sys.stdin.readline()))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"serving at http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    quiet: dict[str, Any] = {"ws": "none", "lifespan": "off", "access_log": False}
    config = uvicorn.Config(app, **quiet, log_level="critical", timeout_keep_alive=75)
    uvicorn.Server(config).run([listener])
