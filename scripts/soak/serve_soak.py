"""Requests over HTTP from 8 processes with tritonclient.http while everything goes wrong.

Emulated processors fail, return and are slowed down; clients are killed, give up, have too little
time, and come in bursts that the queue does not hold. At the end SIGTERM comes under load. Each
accepted request must end exactly once, memory must not grow, and the exit status must be 0.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from request_soak import KEPT_REQUESTS
from soak_bundle import toy

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_table
from nnstretch.cli.output_path import check_writable
from nnstretch.errors import BadInput
from nnstretch.files.atomic import write_text
from nnstretch.run.loaded_network import LoadedNetwork

HERE = Path(__file__).parent
KILL_EVERY_S = 3.0
STUCK_S = 120.0
MOST_GROWTH = 0.02
PIPE = subprocess.PIPE


class Clients:
    """Processes that ask, and how their requests ended."""

    def __init__(self, address: str, folder: Path, seed: int) -> None:
        self._address, self._folder = address, folder
        self._draw = random.Random(seed)
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self.ends: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.killed = 0

    @property
    def count(self) -> int:
        return self.ends.total()

    def start(self) -> None:
        seed = str(self._draw.randrange(1 << 30))
        files = [str(self._folder / "image.npy"), str(self._folder / "expected.npy")]
        words = [sys.executable, "-I", str(HERE / "serve_client.py"), self._address, seed, *files]
        process = subprocess.Popen(words, stdout=PIPE, stderr=subprocess.DEVNULL, text=True)
        self._processes.append(process)
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        self._readers.append(reader)
        reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            with self._lock:
                self.ends[line.strip()] += 1

    def kill_any(self) -> None:
        """Kill one in the midst of whatever it does, and start another in its place."""
        process = self._processes.pop(self._draw.randrange(len(self._processes)))
        process.kill()
        process.wait()
        self.killed += 1
        self.start()

    def join(self) -> None:
        """Wait until all have seen that the server is gone, and all they said is counted."""
        for process in self._processes:
            process.wait(STUCK_S)
        for reader in self._readers:
            reader.join(STUCK_S)


def wait_for(clients: Clients, requests: int, server: subprocess.Popen[str]) -> None:
    """Until so many requests have ended; kill a client now and then. Raises BadInput if stuck."""
    killed_s = changed_s = time.monotonic()
    before = -1
    while clients.count < requests:
        time.sleep(0.05)
        now_s = time.monotonic()
        if clients.count != before:
            before, changed_s = clients.count, now_s
        if now_s - changed_s > STUCK_S or server.poll() is not None:
            raise BadInput(f"stuck after {before} requests, serve soak, see the server")
        if now_s - killed_s > KILL_EVERY_S:
            clients.kill_any()
            killed_s = now_s


def soaked(requests: int, processes: int, seed: int, folder: Path) -> dict[str, Any]:
    """Serve until so many requests have ended; return what server and clients say of them."""
    network = LoadedNetwork(toy())
    image = np.random.default_rng(seed).standard_normal((1, 4, 4, 4)).astype(np.float32)
    np.save(folder / "image.npy", image)
    np.save(folder / "expected.npy", network.run_sequential(image))
    words = [sys.executable, str(HERE / "disturbed_server.py"), str(requests), str(seed)]
    with subprocess.Popen(words, stdout=PIPE, stderr=PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = server.stderr.readline()
            if not said.startswith("serving at "):
                raise BadInput(f"no server, serve soak, it says {said.strip()}")
            clients = Clients(said.split()[-1], folder, seed)
            began_s = time.monotonic()
            for _ in range(processes):
                clients.start()
            wait_for(clients, requests, server)
            server.send_signal(signal.SIGTERM)
            out, err = server.communicate(timeout=STUCK_S)
        finally:
            server.kill()
    clients.join()
    return json.loads(out) | {
        "exit": server.returncode,
        "said": err,
        "killed": clients.killed,
        "client_ends": dict(clients.ends.most_common()),
        "seconds": time.monotonic() - began_s,
    }


def faults(result: dict[str, Any]) -> list[str]:
    """Return what is not as it must be."""
    ends = result["client_ends"]
    counted = result["answered"] + result["failed"] + result["cancelled"]
    unknown = [end for end in ends if end == "wrong" or end.startswith("error")]
    checks = {
        f"{result['lost']} lost": not result["lost"],
        f"{result['twice']} ended twice": not result["twice"],
        f"{result['unended']} without an end": not result["unended"],
        f"{counted} ends of {result['accepted']} accepted": counted == result["accepted"],
        f"exit status {result['exit']}, {result['said'].strip()}": result["exit"] == 0,
        f"clients were told {', '.join(unknown)}": not unknown,
        f"memory grew by {result['growth']:.1%}": result["growth"] <= MOST_GROWTH,
        "clients had more answers than there were": ends["answered"] <= result["answered"],
        "no new request was refused with 503 at the end": "server is ending" in ends,
    }
    return [fault for fault, is_kept in checks.items() if not is_kept]


def page(seed: int, processes: int, result: dict[str, Any]) -> str:
    server = ", ".join(f"{count} {end}" for end, count in result["ends"].items())
    clients = ", ".join(f"{count} {end}" for end, count in result["client_ends"].items())
    memory = list(result["rss_mb"][KEPT_REQUESTS // 1000 - 1 :]) or [0.0]
    rows = [
        ("requests that ended at clients", sum(result["client_ends"].values())),
        ("of these", clients),
        (
            f"clients at a time; killed and replaced, one every {KILL_EVERY_S:g} s",
            f"{processes}; {result['killed']}",
        ),
        ("ends at the server", server),
        ("accepted", result["accepted"]),
        (
            "lost, ended twice, without an end",
            f"{result['lost']}, {result['twice']}, {result['unended']}",
        ),
        (
            f"resident memory, after {KEPT_REQUESTS} requests and at the end",
            f"{memory[0]:.1f} -> {memory[-1]:.1f} MB ({result['growth']:+.1%})",
        ),
        ("likewise, every 2,000 requests", ", ".join(f"{mb:.1f}" for mb in memory[::2])),
        ("exit status after SIGTERM under load", result["exit"]),
        ("seconds", f"{result['seconds']:.0f}"),
    ]
    judged = "; ".join(faults(result)) or "everything is as it must be"
    head = f"""# Soak: serving over HTTP under trouble

Made by `{command_line()}` (seed {seed}). A stem, three branches and a meeting point on three emulated processors behind
`nnstretch serve`'s HTTP server; clients are processes with tritonclient.http that do not import nnstretch. Processors fail and return,
and are slowed down, 50 times each; clients are killed, hang up after 3 ms (a twentieth), give their requests up to 4 ms (a tenth), or come
in bursts of 6; the queue holds 8. Every answer is compared. A client that is killed or hangs up does not see how its request ended.
At the end SIGTERM comes while all clients ask.

Judged: {judged}.
"""
    return "\n".join([head, *markdown_table(("what", "measured"), rows), ""])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.md")


def run(args: argparse.Namespace) -> int:
    check_writable(args.out)
    with tempfile.TemporaryDirectory() as folder:
        result = soaked(args.requests, args.processes, args.seed, Path(folder))
    text = page(args.seed, args.processes, result)
    if args.out is not None:
        write_text(args.out, text)
    print(text)
    return int(bool(faults(result)))
