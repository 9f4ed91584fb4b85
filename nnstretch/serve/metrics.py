"""Counts and times of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from nnstretch.files.workload.service_record import RecordedRequest
from nnstretch.serve.network_server import NetworkServer

BUCKETS_S = (*(0.001, 0.002, 0.005, 0.01, 0.02, 0.05), *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0))


class Metrics:
    """Reads what the server counts when it is asked; only latencies are put into buckets before."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, server: NetworkServer) -> None:
        self._server = server
        self._registry = CollectorRegistry()
        self._latency = Histogram(
            "nnstretch_request_latency_seconds",
            "Answered requests, from arrival to end",
            ("model",),
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._registry.register(self)

    def observe(self, request: RecordedRequest) -> None:
        """Hear of a request that has ended."""
        if request.end == "answered":
            latency_us = request.ended_us - request.arrived_us
            self._latency.labels(request.application).observe(latency_us / 1e6)

    def text(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield what the server counts; the registry asks."""
        requests = CounterMetricFamily(
            "nnstretch_requests", "Requests that ended, by how", labels=("model", "end")
        )
        open_now = GaugeMetricFamily("nnstretch_open_requests", "Open now", labels=("model",))
        for name, served in self._server.applications.items():
            open_now.add_metric((name,), len(served.open.entries))
            for end, number in served.statistics.ends.items():
                requests.add_metric((name, end), number)
        busy = CounterMetricFamily(
            "nnstretch_processor_busy_seconds", "Time with a task", labels=("processor",)
        )
        for processor, busy_us in self._server.busy_us.items():
            busy.add_metric((processor,), busy_us / 1e6)
        decisions = CounterMetricFamily("nnstretch_decision_seconds", "Time of the policy")
        decisions.add_metric((), self._server.decisions_s)
        tasks = CounterMetricFamily("nnstretch_decided_tasks", "Tasks given to processors")
        tasks.add_metric((), self._server.decided_tasks)
        yield from (requests, open_now, busy, decisions, tasks)
