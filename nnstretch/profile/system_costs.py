"""What lies around kernels on this machine.

Handing over, merging, and processors that share a memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from queue import SimpleQueue
from threading import Thread, Timer
from time import perf_counter_ns

import numpy as np

from nnstretch.graph import ELEMENT_BYTES
from nnstretch.kernel import Kernel
from nnstretch.profile.activity.activity_watch import ActivityWatch, others_leave
from nnstretch.profile.activity.steady_rounds import Attempt, steady_rounds
from nnstretch.profile.backends.meter import Meter
from nnstretch.profile.budget import CONTENTION_S, Budget
from nnstretch.profile.machine import PinnedProcessor, pin_process
from nnstretch.profile.sampling.kernel_spec import KernelSpec, kernel_of_spec
from nnstretch.soc import Link, Processor

ROUND_TRIPS = 400
ROUNDS = 12
MET = ((1, 64, 56, 56), (1, 128, 28, 28), (1, 256, 14, 14), (1, 256, 56, 56), (1, 512, 7, 7))
"""What two branches bring to a meeting point, each."""


QUEUED = 4
"""Sub-graphs that may wait on an accelerator's stream."""
NAMED_PAIRS = 3
"""Pairs of processors that a message names; there are too many of a chip with many cores."""
Pair = tuple[PinnedProcessor, PinnedProcessor]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lies around kernels, as a chip's description has it."""

    processors: tuple[Processor, ...]
    merge: Link
    contention: Mapping[frozenset[str], float]
    disturbed: tuple[Pair, ...] = ()
    """Pairs of cores whose contention others kept from being measured."""


def measure_surroundings(
    meters: Mapping[str, Meter],
    chosen: Sequence[PinnedProcessor],
    kernels: Sequence[Kernel],
    budget: Budget,
    watch: ActivityWatch,
    known: Collection[frozenset[str]] = (),
) -> Surroundings:
    """Measure what lies around kernels; the first processor hands over to the others.

    Contention is measured of pairs first that are not known.
    """
    first = chosen[0]
    meter = meters[first.name]
    watch.pausable_s = budget.left_s("surroundings") / 2
    with pin_process(first.core):
        merge = merge_link(meter, ELEMENT_BYTES[meter.dtype], meter.call_us)
    pairs = sorted(core_pairs(chosen), key=lambda pair: names_of(pair) in known)
    contention, disturbed = measure_pairs(meter, pairs, kernels, budget, watch)
    call = Link(round(meter.call_us, 3), 0.0)
    processors = [Processor(first.name, "cpu", 1, call, asynchronous=False)]
    processors += [describe(place, first, meters[place.name], call) for place in chosen[1:]]
    return Surroundings(tuple(processors), merge, contention, tuple(disturbed))


def core_pairs(chosen: Sequence[PinnedProcessor]) -> list[Pair]:
    """Return cores two by two, those of the first processor before others."""
    return list(combinations((place for place in chosen if place.device == "cpu"), 2))


def names_of(pair: Pair) -> frozenset[str]:
    """Return the processors of a pair."""
    return frozenset(place.name for place in pair)


def measure_pairs(
    meter: Meter,
    pairs: Sequence[Pair],
    kernels: Sequence[Kernel],
    budget: Budget,
    watch: ActivityWatch,
) -> tuple[dict[frozenset[str], float], list[Pair]]:
    """Return the contention of pairs of cores, and the pairs that others kept from being measured.

    Those for which the budget has no time are noted there, in one line.
    """
    contention: dict[frozenset[str], float] = {}
    disturbed: list[Pair] = []
    skipped: list[Pair] = []
    for pair in pairs:
        if budget.left_s("surroundings") < CONTENTION_S:
            skipped.append(pair)
            continue
        first, second = pair
        with pin_process(first.core):
            watch.wait_for_quiet(cores=2)
            left_s = budget.left_s("surroundings")
            try:
                factor = measure_contention(meter, kernels, second.core, watch, left_s)
            except Disturbed:
                disturbed.append(pair)
                continue
        if factor is not None:
            contention[names_of(pair)] = factor
    if skipped:
        budget.skipped.append(contention_of(skipped))
    return contention, disturbed


def contention_of(pairs: Sequence[Pair]) -> str:
    """Return the contention of pairs for messages: some by name, the number of the others."""
    named = ", ".join(f"{first.name} and {second.name}" for first, second in pairs[:NAMED_PAIRS])
    count = len(pairs) - NAMED_PAIRS
    counted = f" and {count} more pair{'s' if count > 1 else ''}" if count > 0 else ""
    return f"contention of {named}{counted}"


def describe(place: PinnedProcessor, first: PinnedProcessor, meter: Meter, call: Link) -> Processor:
    """Return a processor that the first hands over to.

    Through a queue and another core, or through copies and a stream.
    """
    if place.device == "cpu":
        sync_us = round(queue_round_trip_us(first.core, place.core), 3)
        return Processor(place.name, "cpu", 1, call, sync_us=sync_us, asynchronous=False)
    copy_in, copy_out = measure_copies(place.device)
    return Processor(place.name, "gpu", QUEUED, copy_in, copy_out, round(meter.call_us, 3))


def queue_round_trip_us(caller: int, worker: int) -> float:
    """Return the time to a worker thread pinned to another core and back through two queues, at the
    median, us.
    """
    to: SimpleQueue[bool] = SimpleQueue()
    back: SimpleQueue[bool] = SimpleQueue()

    def serve() -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {worker})
        while to.get():
            back.put(True)

    thread = Thread(target=serve, daemon=True)
    thread.start()
    times = []
    with pin_process(caller):
        for _ in range(ROUND_TRIPS):
            start = perf_counter_ns()
            to.put(True)
            back.get()
            times.append((perf_counter_ns() - start) / 1000)
    to.put(False)
    thread.join()
    return float(np.median(times[ROUND_TRIPS // 10 :]))


def merge_link(meter: Meter, element_bytes: int, call_us: float) -> Link:
    """Fit a straight line through concatenations of two branches, over the KiB they bring.

    And one call of the runtime.
    """
    kernels: list[Kernel] = []
    for number, shape in enumerate(MET):
        recipe = KernelSpec("concat", "cat", (shape, shape), (shape[0], 2 * shape[1], *shape[2:]))
        kernels.append(kernel_of_spec(recipe, f"merge{number}"))
    points: list[tuple[float, float]] = []
    times = meter.measure([(kernel,) for kernel in kernels], ROUNDS)
    for kernel, times_us in zip(kernels, times, strict=True):
        if times_us:
            kib = kernel.write_elements * element_bytes / 1024
            points.append((kib, float(np.percentile(times_us, 25))))
    if len(points) < 2:
        return Link(call_us, 0.0)
    line = fit_line(points)
    return Link(round(call_us + line.fixed_us, 3), line.us_per_kib)


def measure_copies(device: str) -> tuple[Link, Link]:
    """Measure copies to a CUDA device and back.

    Straight lines through copies of pinned memory, over the KiB copied.
    """
    import torch

    sizes = (1 << 12, 1 << 16, 1 << 20, 1 << 22)
    to_device: list[tuple[float, float]] = []
    to_host: list[tuple[float, float]] = []
    for size in sizes:
        host, far = (
            torch.empty(size, dtype=torch.uint8).pin_memory(),
            torch.empty(size, dtype=torch.uint8, device=device),
        )
        size_kib = size / 1024
        to_device.append((size_kib, fastest_us(partial(far.copy_, host), device)))
        to_host.append((size_kib, fastest_us(partial(host.copy_, far), device)))
    return fit_line(to_device), fit_line(to_host)


def fastest_us(run: Callable[[], object], device: str) -> float:
    """Lower quartile of calls, each until the device has finished it."""
    import torch

    times = []
    for _ in range(30):
        start = perf_counter_ns()
        run()
        torch.cuda.synchronize(device)
        times.append((perf_counter_ns() - start) / 1000)
    return float(np.percentile(times, 25))


def fit_line(points: Sequence[tuple[float, float]]) -> Link:
    """Fit microseconds over KiB, neither end below zero."""
    slope, fixed = np.polyfit([kib for kib, _ in points], [us for _, us in points], 1)
    return Link(round(max(0.0, float(fixed)), 3), round(max(0.0, float(slope)), 6))


def measure_contention(
    meter: Meter,
    kernels: Sequence[Kernel],
    second_core: int,
    watch: ActivityWatch,
    wait_s: float = 60.0,
) -> float | None:
    """Measure how much slower kernels are while a second process runs the same ones; at least 1.

    None where it could not be measured, or the process was not busy after `wait_s`. Raises
    Disturbed where others leave no two cores.
    """
    chains = [(kernel,) for kernel in kernels]
    if not others_leave(2, watch.beside()):
        raise Disturbed
    alone = watch.attempt(lambda: meter.measure(chains, ROUNDS))
    command = [
        sys.executable,
        "-m",
        "nnstretch.profile.contention_worker",
        meter.name,
        meter.dtype,
        str(second_core),
    ]
    neighbour = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert neighbour.stdin is not None
    assert neighbour.stdout is not None
    too_late = Timer(wait_s, neighbour.kill)
    too_late.start()
    try:
        neighbour.stdin.write(json.dumps([asdict(kernel) for kernel in kernels]) + "\n")
        neighbour.stdin.flush()
        if neighbour.stdout.readline().strip() != "busy":
            return None
        too_late.cancel()
        beside = watch.attempt(lambda: meter.measure(chains, ROUNDS))
    except OSError:
        return None
    finally:
        too_late.cancel()
        neighbour.kill()
        neighbour.wait()
    return slowdown(alone, beside)


class Disturbed(Exception):
    """Other processes leave no cores to measure on; the caller reports it."""


def slowdown(alone: Attempt, beside: Attempt) -> float | None:
    """Return how much slower kernels are beside others than alone, at least 1; None for none.

    Raises Disturbed where fewer than half of the kernels had undisturbed rounds.
    """
    measured = 0
    alone_us: list[float] = []
    beside_us: list[float] = []
    for before, after in zip(steady_rounds(alone), steady_rounds(beside), strict=True):
        if before.times_us and after.times_us:
            measured += 1
            if before.steady and after.steady:
                alone_us.append(float(np.median(before.times_us)))
                beside_us.append(float(np.median(after.times_us)))
    if 2 * len(alone_us) < measured:
        raise Disturbed
    return round(max(1.0, sum(beside_us) / sum(alone_us)), 4) if alone_us else None
