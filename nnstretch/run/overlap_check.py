"""Start-up self-test: whether two workers truly overlap on this machine with these backends.

Two threads on two cores overlap only if the system lends both cores, the backends let go of
Python's interpreter lock while they compute, and neither brings threads of its own along. Each of
these fails silently, so it is measured.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from time import perf_counter, sleep

from nnstretch.bundle.manifest import Manifest
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.schedule.cpu_affinity import affinity, core_per_thread, pin

BUDGET_S = 0.3
"""For all races together; there is one in any case, however long a branch takes."""
PILOTS = 3
"""Runs of which the fastest tells how long one takes on a pinned thread.

The first may find cold caches.
"""
ROUNDS = 3
GOOD = 0.9
"""Of what is possible; below it a reason is looked for."""
WINDOWS, WINDOW_S, STEP_S = 5, 0.01, 1e-4
"""How often and how long a Python thread is watched beside a backend, and how long it sleeps
between two steps.
"""

Work = Callable[[], object]
Race = Callable[[Sequence[tuple[Work, int]]], float]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Gain of two workers at once on this machine."""

    speedup: float
    """Median throughput of both at once over one after another: 2 is perfect, 1 none."""
    cores: int
    """Cores that this process may use."""
    holds_gil: bool
    """Whether a backend keeps Python's interpreter lock while it computes."""
    why: str
    """Why the speed-up is low, where that can be told; empty where it is not low."""
    possible: float = 2.0
    """The speed-up of a perfect machine, below 2 where one worker takes longer."""


def overlap(network: LoadedNetwork, values: Values) -> Overlap | None:
    """Measure the two longest branches of the heaviest segment at once and alone.

    Returns None where no segment has branches on two processors. Takes about half a second, longer
    only where a branch takes more than 0.1 s.
    """
    reached = dict(values)
    times_s = _times_s(network, reached)
    names = heaviest_pair(network.manifest, times_s)
    if names is None:
        return None
    works = tuple(lambda name=name: network.results(name, reached) for name in names)
    by_backend = {network.backends[name]: work for name, work in zip(names, works, strict=True)}
    holders = tuple(backend for backend, work in by_backend.items() if holds_gil(work))
    return compare_overlap(works, holders, network.threads)


def heaviest_pair(manifest: Manifest, times_s: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the two branches of one segment, on two processors, that take longest together."""
    branches = [sub for sub in manifest.subgraphs if sub.role == "branch"]
    pairs = [
        (a.name, b.name)
        for a, b in combinations(branches, 2)
        if a.segment == b.segment and a.processor != b.processor
    ]
    return max(pairs, key=lambda pair: times_s[pair[0]] + times_s[pair[1]], default=None)


def compare_overlap(
    works: Sequence[Work], holders: Sequence[str], threads: int, race: Race | None = None
) -> Overlap:
    """Time two works alone and at once, in turns; `holders` are backends that keep the GIL."""
    race, begin_s = race or run_concurrently, perf_counter()
    pilots_s = [min(race([(work, 1)]) for _ in range(PILOTS)) for work in works]
    loads = list(zip(works, repeats_per_round(pilots_s), strict=True))
    rounds = [_round(loads, race)]
    while len(rounds) < ROUNDS and perf_counter() - begin_s < BUDGET_S:
        rounds.append(_round(loads, race))
    speedup = median(sum(alone) / together for alone, together in rounds)
    possible = median(sum(alone) / max(alone) for alone, _ in rounds)
    cores = len(affinity() or ()) or os.cpu_count() or 1
    return Overlap(
        speedup,
        cores,
        bool(holders),
        explain_overlap(speedup / possible, cores, holders, threads, _load()),
        possible,
    )


def repeats_per_round(times_s: Sequence[float]) -> list[int]:
    """Return how often each has to run to be busy for a round's share of the budget, and as long as
    the other.
    """
    times_s = [max(time_s, 1e-6) for time_s in times_s]
    round_s = max(times_s) * max(1, round(BUDGET_S / (4 * ROUNDS) / max(times_s)))
    return [max(1, round(round_s / time_s)) for time_s in times_s]


def explain_overlap(
    share: float, cores: int, holders: Sequence[str], threads: int, load: float
) -> str:
    """Return the likeliest cause of a speed-up that is only `share` of what is possible."""
    if share >= GOOD:
        return ""
    if cores < 2:
        return "one core allowed, two workers take turns on it"
    if holders:
        return f"{' and '.join(holders)} keeps Python's interpreter lock while it computes"
    if threads > 1:
        return f"{threads} threads inside each sub-graph, {cores} cores for all"
    if load > cores:
        return f"other programs compute too, {load:.1f} wait for {cores} cores"
    return "not told apart: the two share memory, a clock or a lock"


def run_concurrently(works: Sequence[tuple[Work, int]]) -> float:
    """Run every work its count on a pinned thread of its own, all started together; return seconds.

    Raises the first error of a thread.
    """
    start, times_s, errors = threading.Barrier(len(works)), [], []

    def serve(work: Work, count: int, core: set[int] | None) -> None:
        pin(core)
        start.wait()
        begin_s = perf_counter()
        try:
            for _ in range(count):
                work()
        except BaseException as error:
            errors.append(error)
        times_s.append((begin_s, perf_counter()))

    workers: list[threading.Thread] = []
    for work, core in zip(works, core_per_thread(len(works)), strict=True):
        args = (*work, core)
        workers.append(
            threading.Thread(target=serve, args=args, name="nnstretch-overlap", daemon=True)
        )
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]
    return max(end_s for _, end_s in times_s) - min(begin_s for begin_s, _ in times_s)


def holds_gil(work: Work) -> bool:
    """Return whether a Python thread stands still while `work` runs: in most of a few windows."""
    steps, stop = [0], threading.Event()

    def step() -> None:
        while not stop.is_set():
            sleep(
                STEP_S
            )  # a thread that only let go and took again would keep the lock from who waits for it
            steps[0] += 1

    counter = threading.Thread(target=step, name="nnstretch-counter", daemon=True)
    counter.start()
    try:
        return sum(_blocks_interpreter(steps, work) for _ in range(WINDOWS)) > WINDOWS / 2
    finally:
        stop.set()
        counter.join()


def _blocks_interpreter(steps: list[int], work: Work) -> bool:
    """Return whether calls hold Python's lock: they hand it over at their end at the earliest, and
    to a thread that has asked for an interval.
    """
    before, calls, begin_s = steps[0], 0, perf_counter()
    while (passed_s := perf_counter() - begin_s) < WINDOW_S:
        work()
        calls += 1
    return steps[0] - before <= 1 + min(calls, passed_s / sys.getswitchinterval())


def _round(works: Sequence[tuple[Work, int]], race: Race) -> tuple[tuple[float, ...], float]:
    return tuple(race([work]) for work in works), race(works)


def _times_s(network: LoadedNetwork, values: Values) -> dict[str, float]:
    """Time every sub-graph once; leaves every tensor in `values`."""
    times_s = {}
    for sub in network.manifest.subgraphs:
        begin_s = perf_counter()
        network.compute(sub.name, values)
        times_s[sub.name] = perf_counter() - begin_s
    return times_s


def _load() -> float:
    """Return programs that computed or waited to, over the last minute.

    0 where the system does not say.
    """
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
