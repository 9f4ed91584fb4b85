"""One network in one form.

The original on one core and on all, its branches one after another and at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Self

from nnstretch.bench.interleaved import Turn, run_interleaved
from nnstretch.bench.statistics import Interval, quartiles, speedup
from nnstretch.bundle.bundle import Bundle
from nnstretch.run.isolated_latency import Times, isolated_critical_path_us, isolated_us
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.run.metrics import dispatch_overhead_us
from nnstretch.run.overlap_check import Overlap
from nnstretch.run.session import Session
from nnstretch.schedule.cpu_affinity import affinity, core_per_thread, pin
from nnstretch.trace import Trace

ONE_CORE, ALL_CORES = "original, one core", "original, all cores"
SEQUENTIAL, CONCURRENT = "branches in turn, one core", "branches at once"
CRITICAL_PATH = "sub-graphs alone"
"""No contender: the critical path is made of it."""


@dataclass(frozen=True, slots=True)
class BenchVariant:
    """A network and its branched form, exported alike."""

    backend: str
    precision: str
    """float32 or int8."""
    original: Bundle
    """The whole network as one sub-graph."""
    branched: Bundle
    int8_snr_db: float | None = None
    """Signal-to-noise ratio of the worse of the two; None where it is not known."""

    @property
    def name(self) -> str:
        """Return backend and precision as one name."""
        return f"{self.backend} {self.precision}"


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One contender."""

    name: str
    latency_us: Interval
    speedup: Interval
    """Over the original on one core, round by round."""


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What the rounds said of one variant."""

    backend: str
    precision: str
    rows: tuple[BenchRow, ...]
    critical_path_us: float
    """Slowest branches and merges, each sub-graph alone on its core in the same rounds."""
    efficiency: float
    """Critical path over the latency of branches at once."""
    dispatch_us: float
    """Per meeting point, before the merge and behind it; the median."""
    overlap: Overlap | None
    """What the self-test said; None where nothing can overlap."""
    rounds: int
    """Behind each number."""

    def row(self, name: str) -> BenchRow:
        """Return the row of a contender."""
        return next(row for row in self.rows if row.name == name)


class Contenders:
    """Loads a variant once for all of its turns.

    Only computing is timed, not the way in and out.
    """

    def __init__(self, variant: BenchVariant) -> None:
        self.variant = variant
        self._cores = len(affinity() or ()) or 1
        self._one = LoadedNetwork(variant.original, variant.backend, 1)
        self._all = (
            LoadedNetwork(variant.original, variant.backend, self._cores)
            if self._cores > 1
            else None
        )
        self._session = Session(
            without_predictions(variant.branched), clock="real", backend=variant.backend
        )
        inputs = self._one.random_inputs(0)
        self._inputs = self._one.inputs(inputs)
        branched = self._session.network
        self._branched = branched.inputs(
            dict(zip(branched.manifest.input_names, inputs.values(), strict=True))
        )
        self._filled = branched.bound_and_filled(self._branched)
        self.overlap = self._session.overlap(branched.random_inputs(0))
        self._traces: list[Trace] = []
        self._alone: list[Times] = []

    def turns(self) -> dict[str, Turn]:
        """Return the callable of each contender, by name."""
        turns_by_name = {
            ONE_CORE: lambda: pin_caller(lambda: sequential_us(self._one, self._inputs)),
            SEQUENTIAL: lambda: pin_caller(
                lambda: sequential_us(self._session.network, self._branched)
            ),
            CONCURRENT: self._run_concurrent,
            CRITICAL_PATH: self._isolated_us,
        }
        if (every := self._all) is not None:
            turns_by_name[ALL_CORES] = lambda: sequential_us(every, self._inputs)
        return turns_by_name

    def outcome(self, times_us: dict[str, list[float]]) -> BenchResult:
        """Return `times_us` by the names of `turns`."""
        names = [name for name in (ONE_CORE, ALL_CORES, SEQUENTIAL, CONCURRENT) if name in times_us]
        rows = tuple(
            BenchRow(name, quartiles(times_us[name]), speedup(times_us[ONE_CORE], times_us[name]))
            for name in names
        )
        session, path_us = (
            self._session,
            isolated_critical_path_us(self._session.manifest, self._alone),
        )
        dispatch_us = median(
            dispatch_overhead_us(session.manifest, session.tasks, trace) for trace in self._traces
        )
        efficiency = path_us / median(times_us[CONCURRENT])
        return BenchResult(
            self.variant.backend,
            self.variant.precision,
            rows,
            path_us,
            efficiency,
            dispatch_us,
            self.overlap,
            len(times_us[ONE_CORE]),
        )

    def close(self) -> None:
        """Close the session and its threads."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _run_concurrent(self) -> float:
        values = dict(self._branched)
        taken_us = timed_us(lambda: self._session.compute(values))
        self._traces.append(self._session.trace)
        return taken_us

    def _isolated_us(self) -> float:
        self._alone.append(
            isolated_us(
                self._session.manifest,
                self._filled,
                [processor.name for processor in self._session.processors],
            )
        )
        return sum(self._alone[-1].values())


def run_competition(
    variants: Sequence[BenchVariant],
    rounds: int,
    seconds: float | None = None,
    tell: Callable[[str, float, float], None] = lambda what, done, total: None,
) -> list[BenchResult]:
    """Time all contenders of all variants in the same rounds; `seconds` replaces `rounds`."""
    with ExitStack() as stack:
        tell("loading", 0, 1)
        loaded = [stack.enter_context(Contenders(variant)) for variant in variants]
        turns: dict[tuple[int, str], Turn] = {}
        for number, contenders in enumerate(loaded):
            turns |= {(number, name): turn for name, turn in contenders.turns().items()}
        times_us = run_interleaved(
            turns, rounds, seconds, lambda done, total: tell("measuring", done, total)
        )
        results: list[BenchResult] = []
        for number, contenders in enumerate(loaded):
            measured = {name: times for (n, name), times in times_us.items() if n == number}
            results.append(contenders.outcome(measured))
        return results


def without_predictions(bundle: Bundle) -> Bundle:
    """Return the bundle without a chip's times, which a session would keep to."""
    subs = tuple(replace(sub, predicted_us={}, error_us={}) for sub in bundle.manifest.subgraphs)
    return replace(bundle, manifest=replace(bundle.manifest, soc=None, subgraphs=subs, sync_us={}))


def sequential_us(network: LoadedNetwork, inputs: Values) -> float:
    """Return microseconds of all sub-graphs one after another on the calling thread."""
    values = dict(inputs)

    def run() -> None:
        for sub in network.manifest.subgraphs:
            network.compute(sub.name, values)

    return timed_us(run)


def pin_caller(run: Callable[[], float]) -> float:
    """Run with the calling thread on the core that a session's caller has."""
    before = affinity()
    pin(core_per_thread(1)[0])
    try:
        return run()
    finally:
        pin(before)


def timed_us(run: Callable[[], object]) -> float:
    """Run once and return the microseconds it took."""
    begin_s = perf_counter()
    run()
    return (perf_counter() - begin_s) * 1e6
