"""A pipeline session: items go in at one end, each is at another stage, results come in order.

    with Pipeline("net.nns") as pipeline:
        for result in pipeline.stream(images):
            print(result.item, result.value())

or by hand, from one thread or two: `push` an item, `get` the next result.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.errors import BadInput
from nnstretch.files.checked import checked
from nnstretch.files.limits import shorten
from nnstretch.protocols import Backend
from nnstretch.run.backends.registry import Choice, choose_backends
from nnstretch.run.pipelines.assembly import PipelineOptions, assemble_pipeline
from nnstretch.run.pipelines.item_buffer import InFlightItem, ItemResult, StagePacing
from nnstretch.run.pipelines.item_flow import ItemFlow
from nnstretch.run.pipelines.item_tensors import TensorForms, Values
from nnstretch.run.pipelines.parameters import PipelineParameters
from nnstretch.run.pipelines.stage_functions import Functions, required_pipeline
from nnstretch.run.pipelines.streaming import StreamEnds, stream_ahead, stream_in_turn
from nnstretch.run.pipelines.workers import StageStatistics, shut_down, statistics_of
from nnstretch.schedule.executors.owner_process import OwnerProcess
from nnstretch.schedule.executors.pipeline import queued_items
from nnstretch.schedule.timeout import Timeout, whole_number
from nnstretch.trace import Trace

RESULTS = 16
"""Items that may be open beyond those that queues and workers hold."""
TRACED = 256


class Pipeline:
    """Threads and bounded queues for each replica of each stage of a bundle's pipeline.

    A stage whose device is copied to and from has two more. `functions` are the bundle's Python
    stages by the names it gives them (`module:function`). `on_error`: an item on which a stage
    raises ends with that error, and the others go on; or it is the last one (`stop`), and those
    behind it are cancelled. `push` waits where its queue is full, and where as many items are on
    their way or unread as fit into queues and workers and `results` more. `pace` makes stages last
    their predicted times; `traced` items are kept for `trace`. `bind=False` leaves the cores of
    stages to the system, whatever the bundle says. Any thread may call any method; results come in
    the order of items.
    """

    @checked
    def __init__(
        self,
        bundle: Path | str | Bundle,
        functions: Functions | None = None,
        *,
        backend: Choice = None,
        on_error: str = "continue",
        results: int = RESULTS,
        pace: StagePacing | None = None,
        traced: int = TRACED,
        bind: bool = True,
    ) -> None:
        """Open a pipeline.

        Raises BadInput for a bundle without a pipeline, a missing function or core, UnknownName for
        a backend.
        """
        bundle = bundle if isinstance(bundle, Bundle) else read_bundle(bundle)
        self.manifest, self.pipeline = bundle.manifest, required_pipeline(bundle)
        options = PipelineOptions(on_error, results, pace, traced, bind)
        backends = choose_backends(backend, bundle)
        parts = assemble_pipeline(bundle, backends, functions or {}, options)
        self.stage_graph = parts.stage_graph
        self._parts, self._items, self._executor = parts, parts.items, parts.executor
        self._forms = TensorForms(bundle.manifest)
        self._parameters = PipelineParameters(bundle)
        self.emulated, self.dilation = pace is not None, 1.0 if pace is None else pace.dilation
        self._process = OwnerProcess(f"pipeline of {self.manifest.model}")
        self._flow = ItemFlow(self._executor, self._items, parts.limit, self._process)
        self._end = weakref.finalize(self, shut_down, self._executor, self._items)
        self._executor.start()
        self._origin_s = perf_counter()

    def push(self, inputs: Any, timeout_s: float | None = None) -> int:
        """Begin an item and return its number; waits for room `timeout_s`, forever by default.

        `inputs`: one input as it is, several by name; arrays have exactly the shape and type that
        the pipeline says. Raises BadInput for other ones, Stuck where there is no room in time,
        Cancelled once the pipeline is closed or has stopped.
        """
        self._process.check()
        return self._push_before(inputs, Timeout(timeout_s))

    def _push_before(self, inputs: Any, deadline: Timeout) -> int:
        values = self._values(inputs)
        while (item := self._flow.begin(values)) is None:
            self._flow.wait_for_room(deadline)
        return item

    def _values(self, inputs: Any) -> Values:
        return self._forms.from_caller(self.pipeline, inputs, self.manifest.model)

    def get(self, timeout_s: float | None = None) -> ItemResult:
        """Return the next result, in the order of items; waits `timeout_s`, forever by default.

        Raises Stuck where none is there in time, or the pipeline is closed and none is left.
        """
        self._process.check()
        return self._take_before(Timeout(timeout_s))

    def _take_before(self, deadline: Timeout) -> ItemResult:
        while (taken := self._flow.take()) is None:
            self._flow.wait_for_result(deadline)
        return self._result(*taken)

    def stream(self, items: Iterable[Any], in_flight: int | None = None) -> Iterator[ItemResult]:
        """Yield a result for every item, in order, once it is computed.

        A thread of its own reads items, ahead of the results and only as fast as results are taken.
        With `in_flight` the caller's thread reads item n once it has handled the result of item n -
        `in_flight`, so an item may depend on that result. Nothing else may be in flight. Where
        `items` raises, an item does not fit or the pipeline stops, the results of all items before
        come first, then that error is raised.
        """
        self._check_empty()
        try:
            source = iter(items)
        except TypeError as error:
            needed = f"stream of {self.manifest.model}, give something to iterate over"
            raise BadInput(f"items is {shorten(items)}, {needed}") from error
        ends = StreamEnds(self._flow, lambda item: self._flow.begin(self._values(item)), self.get)
        if in_flight is None:
            results = stream_ahead(ends, source)
        else:
            limit = self._parts.limit
            needed = f"stream of {self.manifest.model}, a count of items from 1 to {limit}"
            in_flight = whole_number("in_flight", in_flight, 1, limit, needed)
            results = stream_in_turn(ends, source, in_flight)
        try:
            yield from results
        except GeneratorExit:
            # Nobody reads these; a fork has no threads that would end them.
            while self._process.is_current() and not self._flow.drained():
                self.get()
            raise

    def run(self, inputs: Any, timeout_s: float | None = None) -> Any:
        """Run an item through an empty pipeline; raises as `push`, `get` and `ItemResult.value`."""
        self._check_empty()
        deadline = Timeout(timeout_s)
        self._push_before(inputs, deadline)
        return self._take_before(deadline).value()

    @property
    def open_items(self) -> int:
        """Return items that were pushed and whose results were not taken."""
        return self._flow.open_items

    def statistics(self) -> tuple[StageStatistics, ...]:
        """Return the statistics of every step, in order; copies to and from a device are steps."""
        items, executor, rows = self._items, self._executor, []
        for number, node in enumerate(self.stage_graph):
            names, records = items.names[number], items.records[number]
            waiting = queued_items(executor, self.stage_graph, number)
            workers = executor.workers[number]
            rows.append(statistics_of(node.name, names, records, workers, waiting))
        return tuple(rows)

    def restart_statistics(self) -> None:
        """Let statistics begin anew, as after a warm-up. Raises Stuck where items are in flight."""
        self._process.check()
        with self._flow.front:
            self._flow.check_empty()
            for record in chain.from_iterable(self._items.records):
                record.restart()
            self._executor.restart_waits()

    def trace(self) -> Trace:
        """Return the last items at every step, in us since the pipeline began, emulated or real."""
        return Trace(tuple(self._items.spans(self._origin_s, self.dilation)))

    def parameters(self, group: str) -> dict[str, np.ndarray]:
        """Return the weights of a group that new items are computed with. Raises UnknownName."""
        return self._parameters.read(self._parameters.group(group))

    def set_parameters(self, group: str, values: Mapping[str, np.ndarray]) -> None:
        """Replace some or all weights of a group, for every item that is pushed from now on.

        Items in flight keep the old ones. A stage's own thread may call it, too. Raises
        UnknownName, and BadInput for what does not fit, and for NaN or infinity where there was
        none; then everything is as it was.
        """
        self._process.check()
        parameters = self._parameters
        spec = parameters.group(group)
        with parameters.lock:
            data = parameters.patched(spec, values)
            backends = parameters.replacements(self._parts, spec.subgraph, data)
            with self._flow.front:
                self._flow.check_open()
                try:
                    self._replace(spec.subgraph, data, backends)
                except BaseException:  # Ctrl-C: all replicas and the file, or none of them
                    self._replace(spec.subgraph, data, backends)
                    raise

    def _replace(
        self, subgraph: str, data: bytes, backends: Mapping[tuple[int, int], Backend]
    ) -> None:
        self._items.replace_from(self._flow.pushed, subgraph, backends)
        self._parameters.store(subgraph, data)

    @checked
    def close(self, drain: bool = True) -> None:
        """Take no more items, finish those in flight, and join every thread.

        With `drain` false those in flight end with Cancelled. Results can still be read. A stage
        that closes its own pipeline does not wait for the threads.
        """
        if not self._process.is_current():
            return
        try:
            self._flow.take_no_more(drain)
            shut_down(self._executor, self._items)
        except BaseException:  # Ctrl-C: all of it still ends, and nobody waits
            self._flow.take_no_more(drain)
            raise
        self._end.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self.close(drain=kind is None)

    def _result(self, item: int, entry: InFlightItem) -> ItemResult:
        latency_us = max(0.0, entry.ended_s - entry.pushed_s) * 1e6
        ended_us = max(0.0, entry.ended_s - self._origin_s) * 1e6
        outputs = None
        if entry.error is None:
            outputs = self._forms.to_caller(self.pipeline.outputs, entry.values)
        return ItemResult(item, outputs, entry.error, latency_us, ended_us, entry.late)

    def _check_empty(self) -> None:
        self._process.check()
        self._flow.check_empty()
