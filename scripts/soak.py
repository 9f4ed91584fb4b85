"""20,000 requests from 8 clients while processors fail, return and slow down, and clients change
their minds.

Both clocks: on the virtual one clients are alarms and the service is driven alone; on the real one
they are threads that call a served bundle. Every request must end once: 0 lost, 0 twice, 0 stuck,
and memory must not grow.

  python scripts/soak.py --out docs/results/soak.md
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
import onnx
from onnx import TensorProto, helper, numpy_helper

from nnstretch.bundle.archive import digest
from nnstretch.bundle.bundle import Bundle
from nnstretch.bundle.manifest import Manifest, Port, Subgraph
from nnstretch.errors import DeadlineMissed, ProcessorFailed
from nnstretch.files.atomic import write_text
from nnstretch.graph import TensorSpec
from nnstretch.run.server import Server
from nnstretch.schedule import (
    Disturbances,
    Interference,
    Outage,
    Request,
    RequestOutcome,
    RequestScheduler,
    StaticPlacement,
    VirtualExecutor,
    task_graph,
)
from nnstretch.schedule.finish_times import TaskCosts
from nnstretch.schedule.rebalancing import Rebalancer
from nnstretch.schedule.slowdown import AdaptationSettings, slowdown_estimator
from nnstretch.soc import Processor

PROCESSORS = (Processor("cpu", "cpu", 2), Processor("gpu", "gpu", 2), Processor("dsp", "dsp", 2))
BRANCH_US, STEM_US, MERGE_US = 400.0, 100.0, 50.0
LATENCY_US = STEM_US + BRANCH_US + MERGE_US
CANCELLED, WITH_DEADLINE = 0.05, 0.10
DEADLINE_US = 4_000.0
STUCK_S = 120.0
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


def toy() -> Bundle:
    """A stem, three branches, and where they meet.

    1x1 convolutions, so that the runtime is what is tried.
    """
    image, stem = (
        Port("image", TensorSpec((1, 4, 4, 4), "float32")),
        Port("stem", TensorSpec((1, 4, 4, 4), "float32")),
    )
    ends = tuple(Port(f"end.{p.name}", TensorSpec((1, 4, 4, 4), "float32")) for p in PROCESSORS)
    merged = Port("merged", TensorSpec((1, 12, 4, 4), "float32"))
    files = {"stem.onnx": convolution(image, stem, 0)} | {
        f"{p.name}.onnx": convolution(stem, e, 1) for p, e in zip(PROCESSORS, ends, strict=True)
    }
    files["merge.onnx"] = model(
        [helper.make_node("Concat", [e.name for e in ends], [merged.name], axis=1)],
        ends,
        merged,
        {},
    )
    times = {p.name: 1.0 + k / 4 for k, p in enumerate(PROCESSORS)}

    def sub(
        name: str,
        processor: str,
        reads: tuple[Port, ...],
        writes: Port,
        time_us: float,
        role: str = "branch",
        segment: int = 0,
    ) -> Subgraph:
        data = files[f"{name}.onnx"]
        predicted = {p: time_us * factor for p, factor in times.items()}
        return Subgraph(
            name,
            processor,
            f"{name}.onnx",
            digest(data),
            len(data),
            reads,
            (writes,),
            role=role,
            segment=segment,
            predicted_us=predicted,
        )

    branches = [
        sub(p.name, p.name, (stem,), e, BRANCH_US, segment=1)
        for p, e in zip(PROCESSORS, ends, strict=True)
    ]
    subs = (
        sub("stem", "cpu", (image,), stem, STEM_US),
        *branches,
        sub("merge", "cpu", ends, merged, MERGE_US, "merge", 1),
    )
    return Bundle(Manifest("soak", None, (image,), (merged,), subs, 0.0), files)


def convolution(source: Port, target: Port, seed: int) -> bytes:
    weight = np.random.default_rng(seed).standard_normal((4, 4, 1, 1)).astype(np.float32)
    return model(
        [helper.make_node("Conv", [source.name, "w"], [target.name])],
        (source,),
        target,
        {"w": weight},
    )


def model(
    nodes: list[onnx.NodeProto],
    sources: tuple[Port, ...],
    target: Port,
    weights: dict[str, np.ndarray],
) -> bytes:
    infos = [
        helper.make_tensor_value_info(p.name, TensorProto.FLOAT, list(p.spec.shape))
        for p in (*sources, target)
    ]
    initial = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "toy", infos[:-1], infos[-1:], initial)
    return bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        ).SerializeToString()
    )


def trouble(rng: random.Random, span_us: float, count: int) -> Disturbances:
    """Each processor fails and is kept busy `count` times at random, for about a hundredth of the
    time each.
    """
    fails, busy = [], []
    for processor in PROCESSORS:
        for _ in range(count):
            at_us, lasts_us = (
                rng.uniform(0, span_us),
                rng.expovariate(100 / span_us) * 10 / count + 1,
            )
            fails.append(Outage(processor.name, at_us, at_us + lasts_us))
            at_us = rng.uniform(0, span_us)
            busy.append(
                Interference(processor.name, at_us, at_us + lasts_us, rng.uniform(0.2, 0.9))
            )
    return Disturbances(tuple(busy), tuple(fails))


def moving(requests: int, clients: int, rng: random.Random) -> Tally:
    """On the virtual clock, and what is ready leaves processors that are slow."""
    return virtual(requests, clients, rng, moves=True)


def rebalancer(times: Mapping[tuple[str, str], float]) -> Rebalancer:
    """As `MultiPlanScheduler` makes one."""
    settings = AdaptationSettings()
    return Rebalancer(TaskCosts(times), slowdown_estimator(settings, LATENCY_US), settings)


def virtual(requests: int, clients: int, rng: random.Random, moves: bool = False) -> Tally:
    """Closed loop: a client asks again a moment after its last request has ended."""
    manifest, tally = toy().manifest, Tally(bytearray(requests))
    times = {(sub.name, p): us for sub in manifest.subgraphs for p, us in sub.predicted_us.items()}
    clock = VirtualExecutor(PROCESSORS, times, disturbances=trouble(rng, requests * 550.0, 50))

    def answered(answer: RequestOutcome) -> None:
        tally.end(answer.request, kind(answer.error))
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


def kind(error: BaseException | None) -> str:
    known = {
        type(None): "answered",
        DeadlineMissed: "deadline missed",
        ProcessorFailed: "no processor left",
        CancelledError: "cancelled",
    }
    return known.get(type(error), type(error).__name__.lower())


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


def row(clock: str, clients: int, tally: Tally) -> str:
    ends = ", ".join(
        f"{count} {how}" for how, count in sorted(tally.ends.items(), key=lambda end: -end[1])
    )
    kept = tally.rss_mb[KEPT_REQUESTS // 1000 - 1 :]
    memory = (
        f"{kept[0]:.0f} -> {kept[-1]:.0f} MB ({100 * tally.growth:+.1f} %)"
        if len(kept) > 1
        else "-"
    )
    return (
        f"| {clock} | {tally.asked} from {clients} | {ends} | {tally.replaced} | {tally.lost} |"
        f" {tally.twice} | {memory} | {tally.seconds:.0f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--clocks", default="virtual,moving,real")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=None, metavar="FILE.md")
    args = parser.parse_args()
    lines, bad = [], 0
    for clock in args.clocks.split(","):
        gc.collect()
        tally = {"virtual": virtual, "moving": moving, "real": real}[clock](
            args.requests, args.clients, random.Random(args.seed)
        )
        lines.append(
            row(
                "virtual, with moves within requests" if clock == "moving" else clock,
                args.clients,
                tally,
            )
        )
        bad += tally.lost + tally.twice + tally.ends["wrong"]
        print(lines[-1], flush=True)
    head = [
        "# Soak: requests under trouble",
        "",
        (
            f"Made by `python scripts/soak.py --out docs/results/soak.md` (seed {args.seed}). A stem, three"
            " branches and a meeting point on three processors;"
        ),
        (
            "each processor fails and returns 50 times and is slowed down 50 times at random; a"
            " twentieth of the requests is cancelled, a tenth has a deadline of"
        ),
        (
            f"up to {DEADLINE_US / 1000:g} ms. Memory: resident, after {KEPT_REQUESTS} requests and"
            " at the end. On the real clock every answer is compared."
        ),
        "",
        "| clock | requests, clients | ends | tasks re-placed | lost | twice | memory | s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    if args.out is not None:
        write_text(args.out, "\n".join([*head, *lines, ""]))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
