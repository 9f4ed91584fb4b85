"""Load test: many requests of one input, by clients that ask again when they are answered.

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

from nnstretch.bundle.bundle import Bundle
from nnstretch.errors import BadInput, Cancelled, DeadlineMissed, ProcessorFailed, UnknownName
from nnstretch.run.backends.registry import Choice
from nnstretch.run.loaded_network import Given, LoadedNetwork, Values
from nnstretch.run.metrics import max_abs_error, percentiles
from nnstretch.run.requests.client_threads import run_clients
from nnstretch.run.requests.open_requests import Reply
from nnstretch.run.served_plans import ServedPlans, open_plans
from nnstretch.run.server import Server
from nnstretch.schedule import Disturbances, Request, StaticPlacement, VirtualExecutor
from nnstretch.schedule.multi_plan import (
    MultiPlanScheduler,
    is_probe,
    plan_durations_us,
    plan_enqueue_us,
    ran_elsewhere,
)
from nnstretch.soc import Soc
from nnstretch.task import Task
from nnstretch.trace import Span

Progress = Callable[[int], None]
"""Told how many requests have ended."""
ASK = "ask"
KINDS: dict[type[BaseException], str] = {
    DeadlineMissed: "deadline missed",
    ProcessorFailed: "no processor left",
    UnknownName: "no predicted time elsewhere",
    Cancelled: "cancelled",
    CancelledError: "cancelled",
}


@dataclass(frozen=True, slots=True)
class Workload:
    """How many requests come, and what goes wrong meanwhile."""

    requests: int
    clients: int = 1
    """Each asks again when it is answered."""
    deadline_us: float = inf
    """From a request's arrival; on the chip's clock, as the disturbances."""
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


@dataclass(slots=True)
class LoadTestResult:
    """How all requests ended, in the order in which they did."""

    served: ServedPlans
    expected: Mapping[str, object]
    """Output by plan, its sub-graphs run one after another."""
    traced: bool = False
    ends: list[RequestEnd] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    """Where they are `traced`."""
    busy_us: Counter[str] = field(default_factory=Counter)
    """By processor, probes of idle ones included."""
    elapsed_us: float = 0.0
    """On the chip's clock, to the last end."""
    worked_us: float = 0.0
    """To the end of the last task: one that runs outlives a request whose deadline has passed."""
    replaced: int = 0
    """Tasks that ran elsewhere than planned, of whichever request, open or over."""
    max_abs_error: float | None = None
    """Of any answer against what is expected; None where nothing was answered."""

    def record(self, span: Span) -> None:
        """Note a span and what it took."""
        self.busy_us[span.processor] += span.duration_us  # type: ignore[assignment]
        self.worked_us = max(self.worked_us, span.end_us)
        self.replaced += ran_elsewhere(span)
        if self.traced:
            self.spans.append(span)

    def compare(self, error: float) -> None:
        """Note how far an answer is from what is expected."""
        self.max_abs_error = max(self.max_abs_error or 0.0, error)

    @property
    def plans(self) -> dict[str, int]:
        """Return requests begun by each plan."""
        return dict(Counter(end.plan for end in self.ends if end.plan is not None))

    @property
    def errors(self) -> dict[str, int]:
        """Count requests that ended with an error, by kind."""
        return dict(Counter(end.error for end in self.ends if end.error))

    @property
    def answered_us(self) -> list[float]:
        """Return the latencies of answered requests, us."""
        return [end.latency_us for end in self.ends if not end.error and end.latency_us is not None]

    @property
    def latency_us(self) -> dict[str, float]:
        """Return percentiles of answered requests, us; nothing where there is none."""
        return percentiles(self.answered_us, 95) if self.answered_us else {}

    @property
    def throughput_per_s(self) -> float:
        """Return answered requests per second."""
        return len(self.answered_us) * 1e6 / self.elapsed_us if self.elapsed_us else 0.0

    def utilization(self, processor: str) -> float:
        """Return the share of the time in which a processor works."""
        time_us = max(self.elapsed_us, self.worked_us)
        return self.busy_us[processor] / time_us if time_us else 0.0


def no_progress(_requests: int) -> None:
    """Ignore progress."""


def load_test(
    bundle: Bundle,
    workload: Workload,
    soc: Soc | None = None,
    clock: str = "virtual",
    *,
    inputs: Given | None = None,
    seed: int = 0,
    backend: Choice = None,
    plan: str | None = None,
    progress: Progress = no_progress,
    where: str = "load test",
) -> LoadTestResult:
    """Serve a workload of one input, random where absent.

    A bundle of several predicted plans is served adaptively unless `plan` names one. `where` is
    named in refusals. Raises BadInput where a processor without predicted times is to be slowed
    down, UnknownName for a plan or a processor that the bundle lacks.
    """
    busy = [spell.processor for spell in workload.disturbances.busy]
    lost = [outage.processor for outage in workload.disturbances.fails]
    served = open_plans(bundle, soc, clock, backend, plan, [*busy, *lost], where)
    if busy and not served.emulated:
        raise BadInput(
            f"busy {', '.join(busy)}, {bundle.name}, only a processor whose times are predicted can"
            " be slowed down: export --soc"
        )
    inputs = served.main.random_inputs(seed) if inputs is None else inputs
    expected = {name: net.run_sequential(inputs) for name, net in served.networks.items()}
    result = LoadTestResult(served, expected, workload.traced)
    if clock == "virtual":
        simulate_load(result, workload, inputs, progress)
        return result
    with Server(
        bundle,
        served.processors,
        workload.clients,
        served.emulated,
        served.dilation,
        workload.disturbances,
        served.networks,
        plan=None if served.adaptive else next(iter(served.networks)),
        ended=result.record,
    ) as server:
        drive_server(server, result, workload, inputs, progress)
    return result


def simulate_load(
    result: LoadTestResult, workload: Workload, inputs: Given, progress: Progress
) -> None:
    """Serve clients on the virtual clock.

    All ask for one input, so each plan's numbers are computed once, in the order of the schedule.
    """
    networks, processors = result.served.networks, result.served.processors
    manifests = {name: network.manifest for name, network in networks.items()}
    values = {name: network.inputs(inputs) for name, network in networks.items()}

    def work(task: Task) -> None:
        if not is_probe(task):
            compute_once(networks[task.plan], task.subgraph, values[task.plan])

    def answered(outcome: Request, plan: str) -> None:
        error = reply_kind(outcome.error) if outcome.error else ""
        result.ends.append(RequestEnd(plan, outcome.latency_us, error))
        result.elapsed_us = executor.now_us
        progress(len(result.ends))
        executor.set_timer(executor.now_us, ASK)

    durations_us = plan_durations_us(manifests, processors)
    handovers_us = plan_enqueue_us(manifests, processors)
    disturbances = workload.disturbances
    executor = VirtualExecutor(processors, durations_us, work, disturbances, handovers_us)
    policy = StaticPlacement(tuple(processor.name for processor in processors))
    adaptive = result.served.adaptive
    scheduler = MultiPlanScheduler(
        manifests, processors, policy, executor, answered, adaptive, ended=result.record
    )
    asked = 0
    for _ in range(workload.clients):
        executor.set_timer(0.0, ASK)
    while (tag := scheduler.step()) is not None:
        if tag == ASK and asked < workload.requests:
            scheduler.submit(asked, executor.now_us + workload.deadline_us)
            asked += 1
    # What ends after its deadline was computed, too, and is no answer.
    for name in {end.plan for end in result.ends if end.plan is not None and not end.error}:
        result.compare(max_abs_error(networks[name].outputs(values[name]), result.expected[name]))


def compute_once(network: LoadedNetwork, subgraph: str, values: Values) -> None:
    """Compute a sub-graph unless its outputs are among the values."""
    writes = next(sub.outputs for sub in network.manifest.subgraphs if sub.name == subgraph)
    if any(port.name not in values for port in writes):
        network.compute(subgraph, values)


def drive_server(
    server: Server, result: LoadTestResult, workload: Workload, inputs: Given, progress: Progress
) -> None:
    """Drive a server, which has `result.record` as its `ended`, by clients on threads."""
    lock = threading.Lock()
    numbers = iter(range(workload.requests))
    stopped = threading.Event()
    deadline_ms = None if workload.deadline_us == inf else workload.deadline_us / 1000

    def client() -> None:
        while not stopped.is_set():
            with lock:
                if next(numbers, None) is None:
                    return
            end, error = request_end(server.submit(inputs, deadline_ms), result.expected)
            with lock:
                result.ends.append(end)
                if error is not None:
                    result.compare(error)
                progress(len(result.ends))

    began_s = perf_counter()
    run_clients(client, min(workload.clients, workload.requests), stopped)
    result.elapsed_us = (perf_counter() - began_s) * 1e6 / result.served.dilation


def request_end(reply: Reply, expected: Mapping[str, object]) -> tuple[RequestEnd, float | None]:
    """Return how a request ended, and how far its answer, if any, is from what it should be."""
    kind = ""
    error = None
    try:
        output = reply.result()
    except (CancelledError, Exception) as why:
        kind = reply_kind(why)
    else:
        error = max_abs_error(output, expected[reply.plan or ""])
    latency_us = None if reply.latency_ms is None else reply.latency_ms * 1000
    return RequestEnd(reply.plan, latency_us, kind), error


def reply_kind(error: BaseException) -> str:
    """Return the kind of an error, in words."""
    return KINDS.get(type(error), type(error).__name__)
