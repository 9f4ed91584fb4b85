"""Requests from 8 clients while processors fail, return and slow down, on both clocks.

On the virtual clock clients are timers and the service is driven alone; on the real one they are
threads that call a served bundle. Every request must end once: 0 lost, 0 twice, 0 stuck, and memory
must not grow.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from soak_bundle import LATENCY_US, PROCESSORS, toy, trouble

from nnstretch.bench.commands import command_line
from nnstretch.bench.markdown import markdown_row, markdown_table
from nnstretch.errors import DeadlineMissed, ProcessorFailed
from nnstretch.files.atomic import write_text
from nnstretch.run.server import Server
from nnstretch.schedule import (
    Request,
    RequestScheduler,
    StaticPlacement,
    VirtualExecutor,
    task_graph,
)
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.rebalancing import Rebalancer
from nnstretch.schedule.slowdown import AdaptationSettings, slowdown_estimator

CANCELLED = 0.05
WITH_DEADLINE = 0.10
"""Shares of the requests."""
DEADLINE_US = 4_000.0
STUCK_S = 120.0
GROWTH = 0.02
"""Share by which memory may grow."""
KEPT_REQUESTS = 2_000
"""Warm-up, after which memory must not grow."""


@dataclass
class Tally:
    """How requests ended."""

    times_ended: bytearray
    """By request; made beforehand, so that counting takes no memory."""
    asked: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    replaced: int = 0
    rss_mb: list[float] = field(default_factory=list)
    """Every 1000 requests."""
    seconds: float = 0.0

    def end(self, number: int, how: str) -> None:
        self.ends[how] += 1
        self.times_ended[number] += 1
        if sum(self.ends.values()) % 1000 == 0:
            self.rss_mb.append(rss_mb())

    @property
    def lost(self) -> int:
        return sum(times == 0 for times in self.times_ended)

    @property
    def twice(self) -> int:
        return sum(times > 1 for times in self.times_ended)

    @property
    def growth(self) -> float:
        """Of memory, from the end of warm-up to the end, as a share."""
        kept = self.rss_mb[KEPT_REQUESTS // 1000 - 1 :]
        return kept[-1] / kept[0] - 1 if len(kept) > 1 else 0.0


def rss_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def moving(requests: int, clients: int, rng: random.Random) -> Tally:
    """On the virtual clock, and what is ready leaves processors that are slow."""
    return virtual(requests, clients, rng, moves=True)


def rebalancer(times: Mapping[tuple[str, str], float]) -> Rebalancer:
    settings = AdaptationSettings()
    return Rebalancer(TaskCosts(times), slowdown_estimator(settings, LATENCY_US), settings)


def virtual(requests: int, clients: int, rng: random.Random, moves: bool = False) -> Tally:
    """Closed loop: a client asks again a moment after its last request has ended."""
    manifest, tally = toy().manifest, Tally(bytearray(requests))
    times = {(sub.name, p): us for sub in manifest.subgraphs for p, us in sub.predicted_us.items()}
    clock = VirtualExecutor(PROCESSORS, times, disturbances=trouble(rng, requests * 550.0, 50))

    def answered(answer: Request) -> None:
        tally.end(answer.number, kind(answer.error))
        tally.replaced += answer.replaced
        clock.set_timer(clock.now_us + rng.uniform(0, 500), "ask")

    service = RequestScheduler(
        PROCESSORS,
        StaticPlacement(tuple(p.name for p in PROCESSORS)),
        clock,
        answered,
        times,
        rebalancer=rebalancer(times) if moves else None,
    )
    for _ in range(clients):
        clock.set_timer(0.0, "ask")
    began = time.perf_counter()
    while (what := service.step()) is not None:
        if isinstance(what, tuple):
            service.cancel(what[1])
        elif what == "ask" and tally.asked < requests:
            number, tally.asked = tally.asked, tally.asked + 1
            deadline_us = (
                clock.now_us + rng.uniform(0, DEADLINE_US)
                if rng.random() < WITH_DEADLINE
                else float("inf")
            )
            if rng.random() < CANCELLED:
                clock.set_timer(clock.now_us + rng.uniform(0, 2_000), ("cancel", number))
            service.submit(Request(number, task_graph(manifest, number), deadline_us))
    tally.seconds = time.perf_counter() - began
    return tally


KNOWN: Mapping[type, str] = {
    type(None): "answered",
    DeadlineMissed: "deadline missed",
    ProcessorFailed: "no processor left",
    CancelledError: "cancelled",
}
"""How requests may end; by any other end the run fails."""


def kind(error: BaseException | None) -> str:
    return KNOWN.get(type(error), type(error).__name__.lower())


def real(requests: int, clients: int, rng: random.Random) -> Tally:
    """Threads that call a server, each answer compared with what it should be."""
    bundle, tally, lock = toy(), Tally(bytearray(requests)), threading.Lock()
    image = np.random.default_rng(0).standard_normal((1, 4, 4, 4)).astype(np.float32)
    with Server(
        bundle,
        PROCESSORS,
        capacity=clients,
        emulated=True,
        disturbances=trouble(rng, requests * 1500.0, 50),
    ) as server:
        expected = server.network.run_sequential(image)

        def client(seed: int) -> None:
            own = random.Random(seed)
            while True:
                with lock:
                    if tally.asked == requests:
                        return
                    number, tally.asked = tally.asked, tally.asked + 1
                deadline_ms = (
                    own.uniform(0, DEADLINE_US) / 1000 if own.random() < WITH_DEADLINE else None
                )
                reply = server.submit(image, deadline_ms=deadline_ms)
                if own.random() < CANCELLED:
                    time.sleep(own.uniform(0, 0.002))
                    reply.cancel()
                how = ended(reply, expected)
                with lock:
                    tally.end(number, how)

        began = time.perf_counter()
        threads = [
            threading.Thread(target=client, args=(seed,), daemon=True) for seed in range(clients)
        ]
        for thread in threads:
            thread.start()
        wait_for(threads, tally)
        tally.seconds = time.perf_counter() - began
    tally.replaced = server.counts.replaced
    assert server.counts.lost == 0, server.counts
    return tally


def ended(reply: object, expected: object) -> str:
    try:
        found = reply.result(STUCK_S)  # type: ignore[attr-defined]
    except BaseException as error:
        return kind(error)
    return "answered" if np.array_equal(found, expected) else "wrong"  # type: ignore[arg-type]


def wait_for(threads: list[threading.Thread], tally: Tally) -> None:
    """Until all clients are done; raises where none gets an answer for two minutes."""
    before, since = -1, time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        if (now := sum(tally.ends.values())) != before:
            before, since = now, time.monotonic()
            if sys.stderr.isatty():
                print(f"\r{now} requests have ended", end="", file=sys.stderr)
        elif time.monotonic() - since > STUCK_S:
            raise RuntimeError(f"stuck after {now} requests")


def cells(clock: str, clients: int, tally: Tally) -> list[object]:
    ends = ", ".join(f"{count} {how}" for how, count in tally.ends.most_common())
    kept = tally.rss_mb[KEPT_REQUESTS // 1000 - 1 :]
    memory = "-"
    if len(kept) > 1:
        memory = f"{kept[0]:.0f} -> {kept[-1]:.0f} MB ({100 * tally.growth:+.1f} %)"
    counts = (tally.replaced, tally.lost, tally.twice)
    return [clock, f"{tally.asked} from {clients}", ends, *counts, memory, f"{tally.seconds:.0f}"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--clocks", default=",".join(CLOCKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.md")


def run(args: argparse.Namespace) -> int:
    rows, bad = [], 0
    for clock in args.clocks.split(","):
        gc.collect()
        tally = CLOCKS[clock](args.requests, args.clients, random.Random(args.seed))
        name = "virtual, with moves within requests" if clock == "moving" else clock
        rows.append(cells(name, args.clients, tally))
        unforeseen = sum(count for how, count in tally.ends.items() if how not in KNOWN.values())
        bad += tally.lost + tally.twice + unforeseen + (tally.growth > GROWTH)
        print(markdown_row(rows[-1]), flush=True)
    if args.out is not None:
        write_text(args.out, page(args.seed, rows))
    return 1 if bad else 0


CLOCKS = {"virtual": virtual, "moving": moving, "real": real}
HEADS = ("clock", "requests, clients", "ends", "tasks re-placed", "lost", "twice", "memory", "s")


def page(seed: int, rows: list[list[object]]) -> str:
    head = f"""# Soak: requests under trouble

Made by `{command_line()}` (seed {seed}). A stem, three branches and a meeting point on three processors;
each processor fails and returns 50 times and is slowed down 50 times at random; a twentieth of the requests is cancelled, a tenth has a deadline of
up to {DEADLINE_US / 1000:g} ms. Memory: resident, after {KEPT_REQUESTS} requests and at the end. On the real clock every answer is compared.
"""
    return "\n".join([head, *markdown_table(HEADS, rows), ""])
