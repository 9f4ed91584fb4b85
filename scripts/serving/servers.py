"""Networks, requests, and the servers that are compared, each in a process of its own."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.bench.commands import run_verb
from nnstretch.bundle.bundle import read_bundle
from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text

HERE = Path(__file__).parent
NETWORKS = {"resnet18": 400, "mobilenet_v2": 200}
"""By name, the deadline in ms."""
QUEUE_LIMIT = 1000
PORT = re.compile(r"http://127\.0\.0\.1:(\d+)")
WAIT_S = 600.0


@dataclass(frozen=True)
class Served:
    """What a client measured of one request; times in seconds of its run."""

    network: str
    due_s: float
    sent_s: float
    ended_s: float
    status: int

    @property
    def latency_ms(self) -> float:
        return (self.ended_s - self.due_s) * 1000


class Bench:
    """A folder with the networks as bundles, as ONNX files, and as requests with random images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.bodies: dict[str, dict[str, Any]] = {}
        self.models: dict[str, dict[str, Any]] = {}
        for name in NETWORKS:
            bundle_path = folder / f"{name}.nns"
            if not bundle_path.exists():
                run_verb("export", f"torchvision:{name}", "--out", bundle_path)
            bundle = read_bundle(bundle_path)
            ((file, data),) = bundle.files.items()
            (port,) = bundle.manifest.inputs
            (folder / f"{name}.onnx").write_bytes(data)
            image = np.random.default_rng(0).standard_normal(port.spec.shape).astype(np.float32)
            row = {"name": port.name, "shape": list(image.shape), "datatype": "FP32"}
            row["parameters"] = {"binary_data_size": image.nbytes}
            text = {"inputs": [row], "parameters": {"binary_data_output": True}}
            head = json.dumps(text).encode()
            (folder / f"{name}.body").write_bytes(head + image.tobytes())
            path = f"/v2/models/{name}/infer"
            file = str(folder / f"{name}.body")
            self.bodies[name] = {"path": path, "file": file, "header_bytes": len(head)}
            self.models[name] = {
                "file": str(folder / f"{name}.onnx"),
                "input": port.name,
                "shape": list(image.shape),
            }

    def workload(self, cores: int = 2, gap_ms: float | None = None, instances: int = 0) -> Path:
        """Write the workload that is served, or with arrivals that are drawn; return its file."""
        rows = []
        for name, deadline_ms in NETWORKS.items():
            row = f"name: {name}, model: {name}.nns, deadline_ms: {deadline_ms}"
            row += f", queue_limit: {QUEUE_LIMIT}"
            if gap_ms is not None:
                row += f", arrivals: {{exponential_ms: {gap_ms}}}, instances: {instances}"
            rows.append(f"- {{{row}}}\n")
        path = self.folder / ("blind.yaml" if gap_ms else f"serve{cores}.yaml")
        drawn = "" if gap_ms is None else "durations: {kind: measured}\ncosts: costs.json\n"
        write_text(path, f"pool: {{cpu: {cores}}}\n{drawn}applications:\n{''.join(rows)}")
        return path

    @contextmanager
    def served(self, policy: str, cores: int = 2) -> Iterator[tuple[int, dict[str, Any]]]:
        """Serve over HTTP; yield the port, and what the server said of itself once it has ended."""
        words = [sys.executable, "-m", "nnstretch", "serve", self.workload(cores), "--port", 0]
        words += ["--policy", policy, "--record", self.record, "--json"]
        self.record.unlink(missing_ok=True)  # of what was served before
        with process([str(word) for word in words], None) as (port, ending):
            result: dict[str, Any] = {}
            yield port, result
            result |= json.loads(ending())
        if result["lost"]:
            raise BadInput(f"{result['lost']} requests were lost, {policy}, none may be")

    @contextmanager
    def today(self, threads: int, pinned: bool) -> Iterator[int]:
        """Serve by ONNX Runtime alone; yield the port."""
        orders = {"networks": self.models, "threads": threads, "pinned": pinned}
        words = [sys.executable, "-I", str(HERE / "runtime_server.py")]
        with process(words, orders) as (port, ending):
            yield port
            ending()

    @property
    def record(self) -> Path:
        return self.folder / "record.jsonl"

    def costs(self) -> Path:
        """Measure what the networks take on each core, once, before anything is served."""
        path = self.folder / "costs.json"
        if not path.exists():
            run_verb("simulate", "measure", self.workload(), "--out", path, "--rounds", 50)
        return path


@contextmanager
def kept_to(cores: int) -> Iterator[None]:
    """Keep this process, and what it starts, to so many of its cores."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(allowed)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


@contextmanager
def process(words: Sequence[str], orders: object) -> Iterator[tuple[int, Any]]:
    """Start a server; yield its port, and what ends it by SIGTERM and returns what it printed."""
    pipe = subprocess.PIPE
    server = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert server.stdin is not None
    assert server.stderr is not None

    def ending() -> str:
        server.send_signal(signal.SIGTERM)
        out, _ = server.communicate(timeout=WAIT_S)
        return out

    with server:
        try:
            if orders is not None:
                server.stdin.write(f"{json.dumps(orders)}\n")
                server.stdin.flush()
            said = server.stderr.readline()
            port = PORT.search(said)
            if port is None:
                raise BadInput(f"{words[2]} does not serve, it says {said.strip()}")
            yield int(port.group(1)), ending
        finally:
            server.kill()


def asked(port: int, orders: Sequence[dict[str, Any]]) -> list[Served]:
    """Let clients ask, each in a process of its own; return all requests as they were due."""
    start_s = time.monotonic() + 1.0
    clients = []
    for order in orders:
        full = order | {"host": "127.0.0.1", "port": port, "start_s": start_s}
        words = [sys.executable, "-I", str(HERE / "load_client.py")]
        pipe = subprocess.PIPE
        clients.append((order, full, subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)))
    for _, full, client in clients:
        assert client.stdin is not None
        client.stdin.write(json.dumps(full))
        client.stdin.close()
    served: list[Served] = []
    for order, _, client in clients:
        assert client.stdout is not None
        rows = json.loads(client.stdout.read())
        client.wait(WAIT_S)
        for body, due_s, sent_s, ended_s, status in rows:
            network = order["bodies"][body]["path"].split("/")[3]
            served.append(Served(network, due_s, sent_s, ended_s, status))
    return sorted(served, key=lambda request: request.due_s)


def arrivals_s(seed: str, rate_per_s: float, count: int) -> list[float]:
    """Draw arrivals with exponential gaps."""
    draw = random.Random(seed)
    times_s, now_s = [], 0.0
    for _ in range(count):
        now_s += draw.expovariate(rate_per_s)
        times_s.append(now_s)
    return times_s
