"""A bundle that serves many clients at once.

Requests come from any thread, each gets one answer or one error.

    with Server("net.nns") as server:
        answers = [server.submit(image, deadline_ms=50) for image in images]
        scores = [answer.result() for answer in answers]

A bundle of several plans is served adaptively: each request by the plan that is fastest at the
speed that processors have left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from pathlib import Path

import numpy as np

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.bundle.manifest import Manifest, processors_named
from nnstretch.bundle.variants import select_plan
from nnstretch.errors import BadInput
from nnstretch.files.checked import checked
from nnstretch.files.limits import shorten
from nnstretch.run.backends.registry import Choice
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.run.requests.open_requests import (
    CancelMessage,
    CloseMessage,
    OpenRequest,
    OpenRequests,
    Reply,
    ServerCounters,
    SubmitMessage,
)
from nnstretch.run.requests.scheduled_server import ScheduledServer, broken_off
from nnstretch.run.tensor_io import from_port
from nnstretch.schedule import Disturbances, Request, StaticPlacement, ThreadExecutor
from nnstretch.schedule.costs.cost_rows import is_late
from nnstretch.schedule.executors.callback_thread import call_logged
from nnstretch.schedule.multi_plan import (
    MultiPlanScheduler,
    is_probe,
    plan_durations_us,
    plan_enqueue_us,
    plans_to_serve,
    ran_elsewhere,
)
from nnstretch.schedule.timeout import Timeout, real_number, whole_number
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span

CAPACITY = 16
"""Open requests; who wants one more waits."""
MOST = 1_000_000
"""Open requests at most, whatever the capacity asked for."""


class Server(ScheduledServer):
    """One thread and one bounded queue per processor, and one thread that schedules.

    `submit` waits while `capacity` requests are open: nothing is dropped, and memory is bounded. A
    processor that fails is used no more and its work runs elsewhere (`RequestScheduler`).
    """

    @checked
    def __init__(
        self,
        bundle: Path | str | Bundle,
        processors: tuple[Processor, ...] | None = None,
        capacity: int = CAPACITY,
        emulated: bool = False,
        dilation: float = 1.0,
        disturbances: Disturbances = Disturbances(),  # noqa: B008 (frozen)
        networks: Mapping[str, LoadedNetwork] | None = None,
        adaptive: bool | None = None,
        plan: str | None = None,
        backend: Choice = None,
        ended: Callable[[Span], None] | None = None,
    ) -> None:
        """Open a server; `emulated` makes every task last its predicted time, `dilation` times.

        `adaptive` moves between the plans of a bundle; where absent, it does where there are
        several, all of them predicted. `plan` keeps to one. `networks` are plans that are loaded
        already. `ended` is told of every task, on the scheduling thread. Raises BadInput for
        numbers out of range and processors of one name, UnknownName for a plan that the bundle
        lacks.
        """
        needed = f"server, needed is a count of requests from 1 to {MOST}"
        capacity = whole_number("capacity", capacity, 1, MOST, needed)
        check_dilation(dilation)
        if not (ended is None or callable(ended)):
            raise BadInput(f"ended is {shorten(ended)}, server, give a function of a span")
        bundle = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
        manifests = plans_to_serve(bundle, plan, adaptive)
        self.adaptive = len(manifests) > 1
        networks = networks or {}
        self.networks = {
            name: networks.get(name) or LoadedNetwork(select_plan(bundle, name), backend)
            for name in manifests
        }
        """Every plan that may be used, loaded, by name."""
        first = next(iter(manifests))
        self.manifest = manifests[first]
        self.network = self.networks[first]
        self.processors = processors or processors_of_plans(manifests)
        threads = ThreadExecutor(
            self.processors,
            self._work,
            plan_durations_us(manifests, self.processors) if emulated else None,
            dilation,
            disturbances=disturbances,
            handovers_us=plan_enqueue_us(manifests, self.processors) if emulated else None,
        )
        super().__init__(threads, f"server of {self.manifest.model}")
        with self._beginning():
            self._plans = self._schedule(manifests, ended)
            self._open = OpenRequests(self._side, capacity)

    def _schedule(
        self, manifests: Mapping[str, Manifest], ended: Callable[[Span], None] | None
    ) -> MultiPlanScheduler:
        policy = StaticPlacement(tuple(processor.name for processor in self.processors))
        return MultiPlanScheduler(
            manifests,
            self.processors,
            policy,
            self._threads,
            self._on_outcome,
            self.adaptive,
            ended=partial(self._on_end, ended),
        )

    @property
    def counts(self) -> ServerCounters:
        """Return counts of all requests so far."""
        return self._open.counts

    def submit(
        self,
        inputs: np.ndarray | Mapping[str, np.ndarray],
        deadline_ms: float | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Begin a request; return the answer to come, an array, or arrays by name.

        Values are copied: the caller may write on his arrays at once. The answer's `cancel()` takes
        the request back as long as it has not ended. Waits for room as long as `timeout_s`, forever
        by default. Raises BadInput for inputs that the network does not take and for numbers that
        are none, Stuck where there is no room in time, or would never be on this thread or in this
        process, Cancelled once the server is closed.
        """
        self._side.process.check()
        timeout, deadline_us = Timeout(timeout_s), checked_deadline_us(deadline_ms)
        values = self.network.inputs(inputs, copied=True)
        due_us = self._threads.now_us + deadline_us
        while (reply := self._open.add(values, due_us)) is None:
            self._open.wait_for_room(timeout)
        return reply

    @property
    def open_count(self) -> int:
        """Return how many requests are open."""
        return len(self._open.entries)

    def take_no_more(self) -> None:
        """Refuse requests from now on with Cancelled; those that are open are answered."""
        self._open.take_no_more()

    def _step(self) -> object:
        return self._plans.step()

    def _handle(self, message: object) -> None:
        if isinstance(message, SubmitMessage):
            if (request := self._open.heard_of(message.request)) is not None:
                begin = partial(self._begin, request)
                self._plans.submit(message.request, request.deadline_us, begin)
        elif isinstance(message, CancelMessage):
            self._plans.cancel(message.request)
        elif isinstance(message, CloseMessage) and not message.drain:
            for request in tuple(self._open.entries.values()):
                request.reply.cancel()

    def _end_all(self, why: str) -> None:
        for number in tuple(self._open.entries):
            self._open.heard_of(number)
            self._end(number, broken_off(number, why))

    def _begin(self, entry: OpenRequest, plan: str) -> None:
        """Begin a request; a plan whose inputs have scales of its own gets them by way of real
        numbers.
        """
        entry.reply.plan, network = plan, self.networks[plan]
        self.counts.plans[plan] += 1
        if network.manifest.inputs != self.manifest.inputs:
            entry.values = network.inputs(
                {
                    port.name: from_port(port, entry.values[port.name])
                    for port in self.manifest.inputs
                }
            )

    def _work(self, task: Task) -> None:
        """Compute a task on a processor's thread; for a request that is over, do nothing."""
        plan, name = task.plan, task.subgraph
        if is_probe(task):
            self.networks[plan].results(name, zero_inputs(self.networks[plan], name))
            return
        entry = self._open.entries.get(task.request)
        if entry is not None and not is_late(self._threads.now_us, entry.deadline_us):
            self.networks[plan].compute(name, entry.values)

    def _on_end(self, ended: Callable[[Span], None] | None, span: Span) -> None:
        self.counts.replaced += ran_elsewhere(span)
        if ended is not None:
            call_logged(ended, span, what="`ended`")

    def _on_outcome(self, answer: Request, plan: str) -> None:
        if (request := self._open.entries.get(answer.number)) is not None:
            request.reply.replaced = answer.replaced
            request.reply.latency_ms = answer.latency_us / 1000
            self._end(answer.number, answer.error)

    def _end(self, number: int, error: Exception | None) -> None:
        self._open.end(number, self._outputs, error)

    def _outputs(self, request: OpenRequest) -> np.ndarray | Values:
        return self.networks[request.reply.plan or ""].outputs(request.values)


def checked_deadline_us(deadline_ms: float | None) -> float:
    """Return a deadline, us from now on. Raises BadInput for what is no time to come."""
    if deadline_ms is None:
        return inf
    needed = "a request, give milliseconds from now on, at least 0, or None"
    number = real_number("deadline_ms", deadline_ms, needed)
    if number < 0:
        raise BadInput(f"deadline_ms is {shorten(deadline_ms)}, {needed}")
    return 1000 * number


def check_dilation(dilation: float) -> None:
    """Raise BadInput unless an emulated clock can be so many times slower."""
    needed = "an emulated clock, give a number above 0"
    if not 0 < real_number("dilation", dilation, needed) < inf:
        raise BadInput(f"dilation is {shorten(dilation)}, {needed}")


def processors_of_plans(manifests: Mapping[str, Manifest]) -> tuple[Processor, ...]:
    """Return processors that plans use, in order of first use, where no chip says more of them."""
    processors: dict[str, Processor] = {}
    for manifest in manifests.values():
        for processor in processors_named(manifest, [sub.processor for sub in manifest.subgraphs]):
            processors.setdefault(processor.name, processor)
    return tuple(processors.values())


def zero_inputs(network: LoadedNetwork, subgraph: str) -> Values:
    """Return zeros for a sub-graph to work on where only its time is wanted."""
    reads = next(sub.inputs for sub in network.manifest.subgraphs if sub.name == subgraph)
    return {port.name: np.zeros(port.spec.shape, port.spec.dtype) for port in reads}
