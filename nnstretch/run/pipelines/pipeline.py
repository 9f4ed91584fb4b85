"""A pipeline session: items go in at one end, each is at another stage, results come in order.

    with Pipeline("net.nns") as pipeline:
        for result in pipeline.stream(images):
            print(result.item, result.value())

or by hand, from one thread or two: `push` an item, `get` the next result.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np

from nnstretch.bundle.bundle import Bundle, read_bundle
from nnstretch.errors import Cancelled, Stuck
from nnstretch.run.backends.registry import Choice, choose_backends
from nnstretch.run.pipelines.assembly import PipelineOptions, assemble_pipeline
from nnstretch.run.pipelines.item_buffer import InFlightItem, ItemResult, StagePacing
from nnstretch.run.pipelines.item_tensors import TensorForms
from nnstretch.run.pipelines.parameters import PipelineParameters
from nnstretch.run.pipelines.stage_functions import Functions, required_pipeline
from nnstretch.run.pipelines.workers import StageStatistics, shut_down, statistics_of
from nnstretch.schedule.executors.pipeline import queued_items
from nnstretch.schedule.timeout import Timeout
from nnstretch.trace import Trace

RESULTS = 16
"""Results that may wait to be read."""
TRACED = 256


class Pipeline:
    """Threads and bounded queues for each replica of each stage of a bundle's pipeline.

    A stage whose device is copied to and from has two more. `functions` are the bundle's Python
    stages by the names it gives them (`module:function`). `on_error`: an item on which a stage
    raises ends with that error, and the others go on; or it is the last one (`stop`), and those
    behind it are cancelled. `results` may wait to be read; then `push` waits. `pace` makes stages
    last their predicted times; `traced` items are kept for `trace`. `bind=False` leaves the cores
    of stages to the system, whatever the bundle says. Any thread may call any method; results come
    in the order of items.
    """

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
        self.stage_graph, self._limit = parts.stage_graph, parts.limit
        self._parts, self._items, self._executor = parts, parts.items, parts.executor
        self._forms = TensorForms(bundle.manifest)
        self._parameters = PipelineParameters(bundle)
        self.emulated, self.dilation = pace is not None, 1.0 if pace is None else pace.dilation
        self._name = f"pipeline of {self.manifest.model}"
        self._pushed = self._taken = 0
        # reentrant: a thread that Ctrl-C hits behind `acquire` can still close
        self._push, self._get = threading.RLock(), threading.RLock()
        self._closed, self._process = False, os.getpid()
        self._end = weakref.finalize(self, shut_down, self._executor, self._items)
        self._executor.start()
        self._origin_s = perf_counter()

    def push(self, inputs: Any, timeout_s: float | None = None) -> int:
        """Begin an item and return its number; waits for room `timeout_s`, forever by default.

        `inputs`: one input as it is, several by name; arrays have exactly the shape and type that
        the pipeline says. Raises BadInput for other ones, Stuck where there is no room in time,
        Cancelled once the pipeline is closed or has stopped.
        """
        self._check_same_process()
        return self._push_before(inputs, Timeout(timeout_s))

    def _push_before(self, inputs: Any, deadline: Timeout) -> int:
        values = self._forms.from_caller(self.pipeline, inputs, self.manifest.model)
        if not self._push.acquire(timeout=deadline.for_lock_s):
            raise self._full_error()
        try:
            item = self._pushed
            wait = self._executor.producer.wait
            if not self._has_room() and not wait(self._has_room_or_end, deadline.left_s):
                raise self._full_error()
            self._check_open()
            self._items.put(item, values)
            self._pushed += 1
            self._executor.submit()
            return item
        finally:
            self._push.release()

    def get(self, timeout_s: float | None = None) -> ItemResult:
        """Return the next result, in the order of items; waits `timeout_s`, forever by default.

        Raises Stuck where none is there in time, or the pipeline is closed and none is left.
        """
        self._check_same_process()
        return self._take_before(Timeout(timeout_s))

    def _take_before(self, deadline: Timeout) -> ItemResult:
        if not self._get.acquire(timeout=deadline.for_lock_s):
            raise Stuck(f"no result in {deadline}, {self._name}, another thread waits for one")
        try:
            item, wait = self._taken, self._executor.consumer.wait
            if not self._is_ready(item) and not wait(
                lambda: self._is_ready(item) or self._has_ended(item), deadline.left_s
            ):
                what = f"no result of item {item} in {deadline}, {self._name}"
                raise Stuck(f"{what}, {self._pushed - item} are on their way")
            if not self._is_ready(item):
                closed = Stuck(f"no item is left, {self._name}, it has been closed")
                raise self._stuck_error() or closed
            entry = self._items.take(item)
            self._taken += 1
        finally:
            self._get.release()
        self._executor.producer.ring()
        return self._result(item, entry)

    def stream(self, items: Iterable[Any]) -> Iterator[ItemResult]:
        """Yield a result for every item, in order. Raises the error that ended the stream.

        Takes items only as fast as results are read; nothing else may be in flight. Where `items`
        raises, an item does not fit or the pipeline stops, the results of all items before come
        first, then that error.
        """
        self._check_empty()
        source, end = iter(items), None
        try:
            while end is None:
                while self.open_items and not self._has_room():
                    self._wait_for_either()
                    if self._is_ready(self._taken) or not self._has_room():
                        yield self.get()
                try:
                    self.push(next(source))
                except Exception as error:
                    end = error
                while self._is_ready(self._taken):
                    yield self.get()
            while self.open_items:
                yield self.get()
        except GeneratorExit:
            while self.open_items and self._executor.error is None:  # nobody reads these
                self.get()
            raise
        if not isinstance(end, StopIteration):
            raise end

    def run(self, inputs: Any, timeout_s: float | None = None) -> Any:
        """Run an item through an empty pipeline; raises as `push`, `get` and `ItemResult.value`."""
        self._check_empty()
        deadline = Timeout(timeout_s)
        self._push_before(inputs, deadline)
        return self._take_before(deadline).value()

    @property
    def open_items(self) -> int:
        """Return items that were pushed and whose results were not taken."""
        return self._pushed - self._taken

    def statistics(self) -> tuple[StageStatistics, ...]:
        """Return the statistics of every step, in order; copies to and from a device are steps."""
        items, executor, rows = self._items, self._executor, []
        for number, node in enumerate(self.stage_graph):
            names, records = items.names[number], items.records[number]
            waiting = queued_items(executor, self.stage_graph, number)
            workers = executor.workers[number]
            rows.append(statistics_of(node.name, names, records, workers, waiting))
        return tuple(rows)

    def trace(self) -> Trace:
        """Return the last items at every step, in us since the pipeline began, emulated or real."""
        return Trace(tuple(self._items.spans(self._origin_s, self.dilation)))

    def parameters(self, group: str) -> dict[str, np.ndarray]:
        """Return the weights of a group that new items are computed with. Raises UnknownName."""
        return self._parameters.read(self._parameters.group(group))

    def set_parameters(self, group: str, values: Mapping[str, np.ndarray]) -> None:
        """Replace some or all weights of a group, for every item that is pushed from now on.

        Items in flight keep the old ones. Raises UnknownName, and BadInput for what does not fit,
        and for NaN or infinity where there was none; then everything is as it was.
        """
        parameters = self._parameters
        spec = parameters.group(group)
        with parameters.lock:
            data = parameters.patched(spec, values)
            replacements = parameters.replacements(self._parts, spec.subgraph, data)
            with self._push:
                self._check_open()
                for key, backend in replacements.items():
                    self._items.changes[key].append((self._pushed, spec.subgraph, backend))
                parameters.store(spec.subgraph, data)

    def close(self, drain: bool = True) -> None:
        """Take no more items, finish those in flight, and join every thread.

        With `drain` false those in flight end with Cancelled. Results can still be read. A stage
        that closes its own pipeline does not wait for the threads.
        """
        self._closed = True
        if not drain and self._items.cancelled_from is None:
            self._items.cancelled_from = self._taken
        self._executor.producer.ring()
        with self._push:  # nobody is in the middle of a push any more
            self._end()

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
        return ItemResult(item, outputs, entry.error, latency_us, ended_us)

    def _wait_for_either(self) -> None:
        """Wait for room or for a result: first stages run dry while only a result is awaited."""
        with self._push:
            self._executor.producer.wait(
                lambda: self._has_room_or_end() or self._is_ready(self._taken)
            )

    def _is_ready(self, item: int) -> bool:
        return item < self._pushed and self._executor.is_complete(item)

    def _has_ended(self, item: int) -> bool:
        return self._executor.error is not None or (self._closed and item >= self._pushed)

    def _has_room(self) -> bool:
        return self._executor.has_room(self._pushed) and self.open_items < self._limit

    def _has_room_or_end(self) -> bool:
        broken = self._executor.error is not None
        return self._has_room() or self._closed or broken or self._items.stopped_by is not None

    def _stuck_error(self) -> Exception | None:
        error = self._executor.error
        if error is None:
            return None
        reason = f"it broke: {type(error).__name__}: {error}"
        return Stuck(f"no result comes, {self._name}, {reason}")

    def _full_error(self) -> Stuck:
        open_items = f"{self.open_items} are on their way or wait to be read, at most {self._limit}"
        return Stuck(f"no room for one more item, {self._name}, {open_items}")

    def _check_open(self) -> None:
        if (broken := self._stuck_error()) is not None:
            raise broken
        where = f"no item is taken, {self._name}"
        if self._items.stopped_by is not None:
            raise Cancelled(f"{where}, item {self._items.stopped_by} failed and it stops there")
        if self._closed:
            raise Cancelled(f"{where}, it has been closed")

    def _check_same_process(self) -> None:
        if os.getpid() != self._process:
            advice = "a fork has no threads: make one of its own there"
            raise Stuck(f"process {os.getpid()} has no stages, {self._name}, {advice}")

    def _check_empty(self) -> None:
        self._check_same_process()
        self._check_open()
        if self.open_items:
            what = f"{self.open_items} items are on their way or wait to be read"
            raise Stuck(f"{what}, {self._name}, get them first")
