"""A bundle that serves many clients at once.

Requests come from any thread, each gets one answer or one error.

    with Server("net.nns") as server:
        answers = [server.submit(image, deadline_ms=50) for image in images]
        scores = [answer.result() for answer in answers]

A bundle of several plans is served adaptively: each request by the plan that is fastest at the
speed that processors have left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import count
from math import inf
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.bundle.manifest import Manifest, processors_named
from nnstretch.bundle.variants import select_plan
from nnstretch.errors import BadInput, Cancelled, Stuck
from nnstretch.run.backends.registry import Choice
from nnstretch.run.loaded_network import LoadedNetwork, Values
from nnstretch.run.open_requests import (
    CancelMessage,
    CloseMessage,
    OpenRequest,
    OpenRequests,
    Reply,
    ServerCounters,
    SubmitMessage,
)
from nnstretch.run.tensor_io import from_port
from nnstretch.schedule import Disturbances, RequestOutcome, StaticPlacement, ThreadExecutor
from nnstretch.schedule.multi_plan import (
    MultiPlanScheduler,
    is_probe,
    plan_durations_us,
    plan_enqueue_us,
    plans_to_serve,
)
from nnstretch.schedule.timeout import Timeout
from nnstretch.soc import Processor
from nnstretch.task import Task
from nnstretch.trace import Span

CAPACITY = 16
"""Open requests; who wants one more waits."""


class Server:
    """One thread and one bounded queue per processor, and one thread that schedules.

    `submit` waits while `capacity` requests are open: nothing is dropped, and memory is bounded. A
    processor that fails is used no more and its work runs elsewhere (`RequestScheduler`).
    """

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
        already. `ended` is told of every task, on the scheduling thread. Raises BadInput for no
        capacity, UnknownName for a plan that the bundle lacks.
        """
        if capacity < 1:
            raise BadInput(f"capacity is {capacity}, server, needed is at least 1 open request")
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
        self.counts = ServerCounters()
        self._open = OpenRequests()
        self._room = threading.BoundedSemaphore(capacity)
        self._numbers = count()
        self._closing = False
        durations_us = plan_durations_us(manifests, self.processors) if emulated else None
        handovers_us = plan_enqueue_us(manifests, self.processors) if emulated else None
        self._threads = ThreadExecutor(
            self.processors,
            self._work,
            durations_us,
            dilation,
            disturbances=disturbances,
            handovers_us=handovers_us,
        )
        self._threads.listen()
        policy = StaticPlacement(tuple(processor.name for processor in self.processors))
        self._plans = MultiPlanScheduler(
            manifests,
            self.processors,
            policy,
            self._threads,
            self._on_outcome,
            self.adaptive,
            ended=ended,
        )
        self._loop = threading.Thread(target=self._serve, name="nnstretch-loop", daemon=True)
        self._loop.start()

    def submit(
        self,
        inputs: np.ndarray | Mapping[str, np.ndarray],
        deadline_ms: float | None = None,
        timeout_s: float | None = None,
    ) -> Reply:
        """Begin a request; return the answer to come, an array, or arrays by name.

        Its `cancel()` takes the request back as long as it has not ended. Waits for room as long as
        `timeout_s`, forever by default. Raises BadInput for inputs that the network does not take,
        Stuck where there is no room in time, Cancelled once the server is closed.
        """
        values = self.network.inputs(inputs)
        if not self._room.acquire(timeout=Timeout(timeout_s).left_s):
            raise Stuck(
                f"no room for one more request, server of {self.manifest.model},"
                f" {len(self._open.entries)} are open"
            )
        number, reply = next(self._numbers), Reply()
        deadline_us = inf if deadline_ms is None else self._threads.now_us + deadline_ms * 1000
        with self._open.lock:
            if self._closing:
                self._room.release()
                raise Cancelled(
                    f"no request is taken, server of {self.manifest.model}, it has been closed"
                )
            self._open.entries[number] = OpenRequest(values, reply, deadline_us)
            self.counts.submitted += 1
        reply.add_done_callback(
            lambda future: self._threads.call(CancelMessage(number)) if future.cancelled() else None
        )
        self._threads.call(SubmitMessage(number))
        return reply

    def close(self, drain: bool = True) -> None:
        """Take no more requests.

        Answer the open ones, or with `drain` false end them with Cancelled. Joins every thread.
        """
        with self._open.lock:
            self._closing = True
        if self._loop.is_alive():
            self._threads.call(CloseMessage())
            if not drain:
                for entry in tuple(self._open.entries.values()):
                    entry.reply.cancel()
        self._loop.join()
        self._threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(drain=kind is None)

    def _serve(self) -> None:
        """Serve until the server closes and nothing is open.

        If the loop itself breaks, nobody is left waiting.
        """
        closing = False
        try:
            while not (closing and not self._open.entries):
                closing = self._handle_message(self._plans.step()) or closing
        except BaseException as error:
            with self._open.lock:
                self._closing = True
            for number, entry in tuple(self._open.entries.items()):
                self._reply(
                    number,
                    entry,
                    Cancelled(
                        f"request {number} was open, server of {self.manifest.model}, its loop"
                        f" broke: {error}"
                    ),
                )

    def _handle_message(self, what: object) -> bool:
        """Return whether the server is to close."""
        if isinstance(what, SubmitMessage):
            entry = self._open.entries[what.request]
            self._plans.submit(
                what.request, entry.deadline_us, lambda plan: self._begin(entry, plan)
            )
        elif isinstance(what, CancelMessage):
            self._plans.cancel(what.request)
        return isinstance(what, CloseMessage)

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
        elif (entry := self._open.entries.get(task.request)) is not None:
            self.networks[plan].compute(name, entry.values)

    def _on_outcome(self, answer: RequestOutcome, plan: str) -> None:
        self.counts.replaced += answer.replaced
        entry = self._open.entries[answer.request]
        entry.reply.replaced, entry.reply.latency_ms = answer.replaced, answer.latency_us / 1000
        self._reply(answer.request, entry, answer.error)

    def _reply(self, number: int, entry: OpenRequest, error: Exception | None) -> None:
        """Reply exactly once: whatever takes the entry out replies."""
        with self._open.lock:
            if self._open.entries.pop(number, None) is None:
                return
        if not entry.reply.set_running_or_notify_cancel():
            self.counts.cancelled += 1
        elif error is None:
            self.counts.answered += 1
            entry.reply.set_result(self.networks[entry.reply.plan or ""].outputs(entry.values))
        else:
            self.counts.failed += 1
            entry.reply.set_exception(error)
        self._room.release()


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
