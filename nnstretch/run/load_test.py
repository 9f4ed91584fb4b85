"""Many requests of one input, by clients that ask again when they are answered.

On the virtual clock, or of a server.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from math import inf
from time import perf_counter

from nnstretch.errors import Cancelled, DeadlineMissed, ProcessorFailed
from nnstretch.run.loaded_network import Given, LoadedNetwork, Values
from nnstretch.run.metrics import max_abs_error
from nnstretch.run.server import Reply, Server
from nnstretch.schedule import Disturbances, RequestOutcome, StaticPlacement, VirtualExecutor
from nnstretch.schedule.multi_plan import (
    MultiPlanScheduler,
    is_probe,
    plan_durations_us,
    plan_enqueue_us,
)
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span

Tell = Callable[[int], None]
"""Hears how many requests have ended."""
ASK = "ask"
KINDS: dict[type[BaseException], str] = {
    DeadlineMissed: "deadline missed",
    ProcessorFailed: "no processor left",
    Cancelled: "cancelled",
    CancelledError: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Who asks how often, and what goes wrong meanwhile."""

    requests: int
    clients: int = 1
    """Each asks again when it is answered."""
    deadline_us: float = inf
    """From a request's arrival; on the chip's clock, as the mishaps."""
    disturbances: Disturbances = Disturbances()  # noqa: RUF009 (frozen)
    traced: bool = False
    """Keep every span."""


@dataclass(frozen=True, slots=True)
class RequestEnd:
    """How one request ended."""

    plan: str | None
    latency_us: float | None
    error: str = ""
    """Its kind; empty where it was answered."""
    replaced: int = 0


@dataclass(slots=True)
class LoadTestResult:
    """How all of them ended, in the order in which they did."""

    traced: bool = False
    ends: list[RequestEnd] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Where they are `traced`; tasks are named `PLAN/SUBGRAPH#REQUEST`."""
    busy_us: Counter[str] = field(default_factory=Counter)
    """By processor, tries of idle ones included."""
    elapsed_us: float = 0.0
    """On the chip's clock, to the last end."""
    max_abs_error: float = 0.0
    """Of any answer against its plan's sub-graphs run one after another."""

    def record(self, span: Span) -> None:
        """Note a span and what it took."""
        self.busy_us[span.processor] += span.duration_us  # type: ignore[assignment]
        if self.traced:
            self.spans.append(span)

    @property
    def plans(self) -> dict[str, int]:
        """Return requests begun by each plan."""
        return dict(Counter(end.plan for end in self.ends if end.plan is not None))

    @property
    def errors(self) -> dict[str, int]:
        """Count requests that ended with an error, by kind."""
        return dict(Counter(end.error for end in self.ends if end.error))


def reply_kind(error: BaseException) -> str:
    """Return the kind of an error, in words."""
    return KINDS.get(type(error), type(error).__name__)


def simulate_load(
    networks: Mapping[str, LoadedNetwork],
    processors: tuple[Processor, ...],
    load: Workload,
    inputs: Given,
    adaptive: bool,
    tell: Tell,
) -> LoadTestResult:
    """Run clients on the virtual clock.

    Every request has the same input, so each plan's numbers are computed once, in the order of the
    schedule.
    """
    outcome, manifests = (
        LoadTestResult(load.traced),
        {name: network.manifest for name, network in networks.items()},
    )
    values = {name: network.inputs(inputs) for name, network in networks.items()}

    def work(task: Task) -> None:
        if not is_probe(task):
            compute_once(networks, values, task.plan, task.subgraph)

    def answered(answer: RequestOutcome, plan: str) -> None:
        outcome.ends.append(
            RequestEnd(
                plan,
                answer.latency_us,
                reply_kind(answer.error) if answer.error else "",
                answer.replaced,
            )
        )
        outcome.elapsed_us = clock.now_us
        tell(len(outcome.ends))
        clock.set_timer(clock.now_us, ASK)

    handovers_us = plan_enqueue_us(manifests, processors)
    clock = VirtualExecutor(
        processors, plan_durations_us(manifests, processors), work, load.disturbances, handovers_us
    )
    plans = MultiPlanScheduler(
        manifests,
        processors,
        StaticPlacement(tuple(p.name for p in processors)),
        clock,
        answered,
        adaptive,
        ended=outcome.record,
    )
    asked = 0
    for _ in range(load.clients):
        clock.set_timer(0.0, ASK)
    while (what := plans.step()) is not None:
        if what == ASK and asked < load.requests:
            asked += 1
            plans.submit(asked - 1, clock.now_us + load.deadline_us)
    done = {
        name
        for name, value in values.items()
        if all(port.name in value for port in networks[name].manifest.outputs)
    }
    errors = [
        max_abs_error(networks[name].outputs(values[name]), networks[name].run_sequential(inputs))
        for name in sorted(done)
    ]
    outcome.max_abs_error = max(errors, default=0.0)
    return outcome


def compute_once(
    networks: Mapping[str, LoadedNetwork], values: Mapping[str, Values], plan: str, subgraph: str
) -> None:
    """Compute a sub-graph unless its outputs are there already."""
    writes = next(sub.outputs for sub in networks[plan].manifest.subgraphs if sub.name == subgraph)
    if any(port.name not in values[plan] for port in writes):
        networks[plan].compute(subgraph, values[plan])


def drive_server(
    server: Server,
    outcome: LoadTestResult,
    load: Workload,
    inputs: Given,
    dilation: float,
    tell: Tell,
) -> None:
    """Drive a server by clients on threads of their own, each answer compared with what it should
    be.

    The server has `outcome.hear` as its `ended`.
    """
    lock, numbers = threading.Lock(), iter(range(load.requests))
    expected = {name: network.run_sequential(inputs) for name, network in server.networks.items()}
    stopped = threading.Event()

    def client() -> None:
        while not stopped.is_set():
            with lock:
                if next(numbers, None) is None:
                    return
            reply = server.submit(
                inputs, deadline_ms=None if load.deadline_us == inf else load.deadline_us / 1000
            )
            end, apart = request_end(reply, expected)
            with lock:
                outcome.ends.append(end)
                outcome.max_abs_error = max(outcome.max_abs_error, apart)
                tell(len(outcome.ends))

    began_s = perf_counter()
    clients = [
        threading.Thread(target=client, name=f"nnstretch-client-{number}", daemon=True)
        for number in range(load.clients)
    ]
    try:
        for one in clients:
            one.start()
        for one in clients:
            one.join()
    finally:
        stopped.set()
    outcome.elapsed_us = (perf_counter() - began_s) * 1e6 / dilation


def request_end(reply: Reply, expected: Mapping[str, object]) -> tuple[RequestEnd, float]:
    """Return how a request ended, and how far its answer is from what it should be."""
    try:
        output, error = reply.result(), ""
    except (CancelledError, Exception) as why:
        output, error = None, reply_kind(why)
    latency_us = None if reply.latency_ms is None else reply.latency_ms * 1000
    apart = 0.0 if error else max_abs_error(output, expected[reply.plan or ""])
    return RequestEnd(reply.plan, latency_us, error, reply.replaced), apart
